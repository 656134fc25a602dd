"""The transport over libp2p: long-lived raw streams through p2pd, one each way between two peers, TCP only.

The stream protocol's name holds the run id, so p2pd itself refuses the streams of another run. Who is at the other end
is proved by libp2p's handshake, since a peer id is the peer's public key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from bootstrap.daemon import Daemon, DaemonError
from peer import clock
from peer.backlog import Outgoing
from peer.complaints import Complaints
from peer.incoming import IncomingStreams
from peer.outgoing import OutgoingLink, Shared
from peer.rate import TokenBucket
from peer.stream_options import StreamOptions
from peer.transport import Handler, Priority, Traffic, Transport

log = logging.getLogger(__name__)

_FLUSH_CHECK = 0.02
_CLOSE_TIMEOUT = 2.0


def stream_protocol(run: bytes) -> str:
    """The libp2p protocol name of a run's streams. `run` is the run id, 32 bytes."""
    return f"/potluck/1/{run.hex()}"


class P2pdTransport(Transport):
    """`Transport` over one p2pd. Lives in the event loop that `daemon` was started in; does not own `daemon`."""

    def __init__(self, daemon: Daemon, run: bytes, options: StreamOptions | None = None) -> None:
        options = options or StreamOptions()
        self.traffic = Traffic()
        self._shared = Shared(
            daemon, stream_protocol(run), options, TokenBucket(options.upload), self.traffic, Complaints()
        )
        self._links: dict[bytes, OutgoingLink] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._handler: Handler | None = None
        self._incoming: IncomingStreams | None = None

    async def start(self, handler: Handler) -> None:
        """See Transport. DaemonError if p2pd does not take the registration."""
        self._handler = handler
        self._incoming = IncomingStreams(self._shared, handler, self._heard_of)
        await self._shared.daemon.serve_stream(self._shared.protocol, self._incoming.accept)

    def connect(self, key: bytes, addresses: Sequence[str]) -> None:
        """See Transport."""
        assert self._handler is not None, "start comes first"
        assert key != self._shared.daemon.key, "no stream to ourselves"
        link = self._links.get(key)
        if link is None:
            handler = self._handler
            self._links[key] = OutgoingLink(key, addresses, self._shared, handler.on_connected, handler.on_lost)
        elif link.addresses != tuple(addresses):
            link.addresses = tuple(addresses)
            link.wake()

    def forget(self, key: bytes) -> None:
        """See Transport."""
        link = self._links.pop(key, None)
        if link is not None:
            task = asyncio.create_task(link.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def send(
        self,
        key: bytes,
        header: bytes,
        bulk: bytes | memoryview = b"",
        *,
        kind: str,
        priority: Priority | None = None,
        wanted: Callable[[], bool] | None = None,
    ) -> bool:
        """See Transport."""
        limits = self._shared.options.limits
        assert 0 < len(header) <= limits.header and len(bulk) <= limits.bulk, "a frame that every reader refuses"
        link = self._links.get(key)
        return link is not None and link.send(Outgoing(header, bulk, kind, wanted), priority)

    def queued(self, key: bytes) -> int:
        """See Transport."""
        link = self._links.get(key)
        return link.backlog.num_bytes if link else 0

    def refused_since(self, key: bytes) -> float | None:
        """See Transport."""
        link = self._links.get(key)
        return link.refused_since if link else None

    async def close(self, flush: float = 0.0) -> None:
        """See Transport."""
        await self._flush(flush)
        for key in list(self._links):
            self.forget(key)
        if self._closing:
            await asyncio.wait(self._closing, timeout=_CLOSE_TIMEOUT)
        if self._incoming is not None:
            await self._incoming.close(_CLOSE_TIMEOUT)
            await self._stop_serving()

    async def _stop_serving(self) -> None:
        daemon = self._shared.daemon
        if not daemon.died.done():
            try:
                await daemon.stop_serving(self._shared.protocol)
            except DaemonError as error:
                log.debug("%s", error)

    async def _flush(self, seconds: float) -> None:
        end = clock.monotonic() + seconds
        while clock.monotonic() < end and not all(link.idle for link in self._links.values()):
            await asyncio.sleep(_FLUSH_CHECK)

    def _heard_of(self, key: bytes) -> None:
        link = self._links.get(key)
        if link is not None:
            link.wake()
