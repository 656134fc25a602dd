"""The libp2p daemon (p2pd) as a child process: started, watched, spoken to and stopped, every wait with a deadline.

hivemind's `P2P` starts the daemon and speaks its control protocol. What `P2P` leaves open is closed here: its waits
have no deadline, a start with an unreachable bootstrap peer fails for good (so we always start without one and connect
afterwards), a used port is not noticed, and nobody is told when the child dies. TCP only, no relays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hivemind.p2p import P2P, P2PDaemonError, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import DEFAULT_MAX_MSG_SIZE
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo
from hivemind.p2p.p2p_daemon_bindings.utils import raise_if_failed, read_pbmsg_safe, write_pbmsg
from hivemind.proto import p2pd_pb2
from hivemind.utils.multiaddr import Multiaddr

from bootstrap.addresses import dialable, is_dialable, most_useful_first, with_peer
from bootstrap.daemon_process import STOP_TIMEOUT, DaemonProcess
from bootstrap.daemon_words import silence_hivemind
from bootstrap.identity import Identity, key_of, load_or_create, peer_id
from bootstrap.locks import ClaimedFile
from bootstrap.ports import require_free
from protocol.errors import ProtocolError, UserError

log = logging.getLogger(__name__)
T = TypeVar("T")

StreamHandler = Callable[[StreamInfo, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

CONTROL_TIMEOUT = 5.0
"""Seconds that p2pd may take to answer a request that needs no network."""
STREAM_BUFFER = 1 << 20
"""Bytes that a stream's reader holds before it stops reading: large, for throughput."""
_SETTLE = 0.02


class DaemonError(Exception):
    """p2pd did not start, or is no longer there."""


class Unreachable(ConnectionError):
    """A peer could not be dialled, refused the stream, or did not answer in time."""


@dataclass(frozen=True)
class DaemonOptions:
    """How this peer listens. Addresses are multiaddresses without a peer id."""

    listen: tuple[str, ...] = ("/ip4/127.0.0.1/tcp/0",)
    announce: tuple[str, ...] = ()
    """What others are told to dial, if not what p2pd finds by itself: a forwarded port, a public name."""
    dialable: bool = True
    """False behind NAT: then we serve no part of either DHT."""
    attempts: int = 3
    start_timeout: float = 15.0
    """Seconds for one attempt to start."""

    def __post_init__(self) -> None:
        for name in ("listen", "announce"):
            for address in getattr(self, name):
                if not is_dialable(address):
                    raise UserError.field(name, address, "must be a TCP address like /ip4/0.0.0.0/tcp/4001")
        for address in self.announce:
            if address.endswith("/tcp/0"):
                raise UserError.field("announce", address, "needs the port that others can dial, not 0")
        for address in self.listen:
            if address.startswith("/dns"):
                raise UserError.field("listen", address, "needs a number, like /ip4/0.0.0.0/tcp/4001, not a name")
        if not self.listen:
            raise UserError.field("listen", "", "needs at least one address, like /ip4/0.0.0.0/tcp/0")


class Daemon:
    """A running p2pd. Made by `start`; use `close` when done."""

    def __init__(self, process: DaemonProcess, identity: Identity, claim: ClaimedFile, options: DaemonOptions) -> None:
        assert process.p2p is not None and process.child is not None
        self.p2p: P2P = process.p2p
        self.pid: int = process.child.pid
        """p2pd's process id, which is also its process group's."""
        self._process = process
        self.identity = identity
        self.options = options
        self.died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Gets a sentence when the child exits without having been asked to."""
        self._claim = claim
        self._closing = False
        self._watch = asyncio.create_task(self._watch_child())

    @classmethod
    async def start(cls, identity_path: Path, options: DaemonOptions | None = None) -> Daemon:
        """Start p2pd with the identity in `identity_path` (made if missing).

        UserError if the identity is unusable or in use, or a listening port is taken. DaemonError, with p2pd's own last
        words, if it does not start in `options.attempts` attempts.
        """
        options = options or DaemonOptions()
        identity = load_or_create(identity_path)
        claim = await ClaimedFile.when_free(identity_path)  # the p2pd of a killed life may still be ending
        try:
            require_free(options.listen)
            process = await _start_with_retries(identity_path, options, claim)
        except BaseException:
            claim.release()
            raise
        daemon = cls(process, identity, claim, options)
        if daemon.p2p.peer_id.to_base58() != identity.peer_id:
            await daemon.close()
            raise DaemonError(f"p2pd runs as {daemon.p2p.peer_id}, not with the identity in {identity_path}")
        return daemon

    @property
    def key(self) -> bytes:
        """Our own peer key."""
        return self.identity.key

    async def addresses(self) -> list[str]:
        """Our own TCP addresses, each ending in /p2p/ and our peer id, most useful first."""
        try:
            async with asyncio.timeout(CONTROL_TIMEOUT):
                found = await self.p2p.get_visible_maddrs(latest=True)
        except (OSError, EOFError, ValueError, TimeoutError, P2PDaemonError) as error:
            raise DaemonError(f"p2pd does not tell its addresses: {error!r}") from error
        return [with_peer(part, self.key) for part in most_useful_first(dialable(map(str, found)))]

    async def connect(self, key: bytes, addresses: Sequence[str], timeout: float = 10.0) -> None:
        """Make sure of a connection to peer `key`, dialling its TCP `addresses`. Unreachable if that fails.

        With no address, p2pd asks the peers that it knows for one.
        """
        request = p2pd_pb2.ConnectRequest(
            peer=PeerID.from_base58(peer_id(key)).to_bytes(),
            addrs=_binary(dialable(addresses)),
        )
        message = p2pd_pb2.Request(type=p2pd_pb2.Request.CONNECT, connect=request)
        _, _, writer = await self._ask(message, timeout, f"cannot connect to {peer_id(key)}")
        writer.close()

    async def open_stream(
        self, key: bytes, protocol: str, timeout: float = 10.0
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A raw two-way stream to `protocol` at peer `key`. Unreachable if it is refused or takes too long."""
        request = p2pd_pb2.StreamOpenRequest(peer=PeerID.from_base58(peer_id(key)).to_bytes(), proto=[protocol])
        message = p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_OPEN, streamOpen=request)
        _, reader, writer = await self._ask(message, timeout, f"cannot open a stream to {peer_id(key)}")
        return reader, writer

    async def serve_stream(self, protocol: str, handler: StreamHandler) -> None:
        """Give incoming streams of `protocol` to `handler`, which must close them and must not raise."""
        await self._control(self.p2p.add_binary_stream_handler(protocol, handler), f"register {protocol}")

    async def stop_serving(self, protocol: str) -> None:
        """Refuse new streams of `protocol` from now on."""
        await self._control(self.p2p.remove_binary_stream_handler(protocol), f"remove {protocol}")

    async def connected(self) -> set[bytes]:
        """The keys of the peers that we have a connection to, potluck's or not."""
        found: set[bytes] = set()
        for peer in await self._control(self.p2p.list_peers(), "list its peers"):
            with contextlib.suppress(ProtocolError):
                found.add(key_of(peer.peer_id.to_bytes()))
        return found

    async def close(self) -> None:
        """Stop p2pd, at the latest by SIGKILL after three seconds, and remove its sockets. May be called twice."""
        self._closing = True
        if not await self._process.stop():
            log.warning("p2pd did not stop within %s s and was killed", STOP_TIMEOUT)
        await asyncio.wait([self._watch], timeout=STOP_TIMEOUT)
        # Our ends of the sockets to p2pd close in later rounds of the loop, which may be about to end.
        await asyncio.sleep(_SETTLE)
        self._claim.release()

    async def _ask(
        self, message: object, timeout: float, failure: str
    ) -> tuple[p2pd_pb2.Response, asyncio.StreamReader, asyncio.StreamWriter]:
        """One request on a control connection of its own, which becomes the stream if one was asked for.

        hivemind's own calls leave the connection open when the answer is an error or never comes.
        """
        writer = None
        try:
            async with asyncio.timeout(timeout):
                path = self.p2p.daemon_listen_maddr["unix"]
                reader, writer = await asyncio.open_unix_connection(path, limit=STREAM_BUFFER)
                await write_pbmsg(writer, message)
                response = p2pd_pb2.Response()
                await read_pbmsg_safe(reader, response)
                raise_if_failed(response)
                return response, reader, writer
        except BaseException as error:
            if writer is not None:
                writer.transport.abort()
            if isinstance(error, TimeoutError):
                raise Unreachable(f"{failure}: no answer within {timeout:g} s") from error
            if isinstance(error, OSError | EOFError | P2PDaemonError):
                raise Unreachable(f"{failure}: {error}") from error
            raise

    async def _control(self, request: Awaitable[T], what: str) -> T:
        try:
            async with asyncio.timeout(CONTROL_TIMEOUT):
                return await request
        except (OSError, EOFError, TimeoutError, P2PDaemonError) as error:
            raise DaemonError(f"p2pd did not {what}: {error!r}") from error

    async def _watch_child(self) -> None:
        assert self._process.child is not None
        code = await self._process.child.wait()
        if not self._closing and not self.died.done():
            self.died.set_result(f"p2pd exited with code {code}: {self._process.words.text}")


def _binary(addresses: Sequence[str]) -> list[bytes]:
    """Addresses as p2pd wants them, without those that hivemind cannot parse: they may come from anyone."""
    found = []
    for address in addresses:
        with contextlib.suppress(ValueError):
            found.append(Multiaddr(address).to_bytes())
    return found


async def _start_with_retries(identity_path: Path, options: DaemonOptions, claim: ClaimedFile) -> DaemonProcess:
    silence_hivemind()
    for attempt in range(1, options.attempts + 1):
        process = DaemonProcess()
        try:
            async with asyncio.timeout(options.start_timeout):
                await process.start(_arguments(identity_path, options), claim.descriptor)
            return process
        except (P2PDaemonError, OSError, EOFError, TimeoutError) as error:
            await process.stop()
            why = f"no answer within {options.start_timeout:g} s" if isinstance(error, TimeoutError) else error
            failure = f"p2pd did not start (attempt {attempt} of {options.attempts}): {why}; {process.words.text}"
        except BaseException:
            await process.stop()
            raise
        if attempt < options.attempts:
            log.warning("%s", failure)
            await asyncio.sleep(0.25 * 2**attempt)
    raise DaemonError(failure)


def _arguments(identity_path: Path, options: DaemonOptions) -> list[str]:
    """p2pd's flags: TCP only (by the addresses), no relays, no port mapping, no bootstrap peers (we dial later)."""
    only_loopback = all(address.startswith(("/ip4/127.", "/ip6/::1/")) for address in options.listen)
    announce = [f"-announceAddrs={','.join(options.announce)}"] if options.announce else []
    return [
        f"-id={identity_path}",
        f"-hostAddrs={','.join(options.listen)}",
        *announce,
        "-dhtServer=1" if options.dialable else "-dhtClient=1",
        f"-autonat={int(not only_loopback)}",
        "-b=0",
        "-connManager=1",
        "-natPortMap=0",
        "-relay=0",
        "-autoRelay=0",
        "-relayHopLimit=0",
        "-tls=1",
        "-idleTimeout=30s",
        f"-persistentConnMaxMsgSize={DEFAULT_MAX_MSG_SIZE}",
    ]
