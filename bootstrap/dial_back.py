"""The node that is asked whether a peer can be dialled: it tries (docs/protocol.md, section 6).

    asker                                       any node of the swarm
    Question(ports) ------- stream ---------->  dials those ports at the address that the asker's connection comes from
    Answer(host, open) <---------------------   `host`: that address; `open`: where the asker itself answered

Nobody can make a node dial somebody else: the asker names ports, never a host, and what is dialled must show the
asker's key. A node bounds what this costs it: ports a question, questions a minute and host, dials at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Final, Literal

import msgspec
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo

from bootstrap.addresses import host_of
from bootstrap.daemon import Daemon
from bootstrap.identity import key_of
from bootstrap.probe import answers
from protocol.errors import ProtocolError

log = logging.getLogger(__name__)

PROTOCOL: Final = "/potluck/reachable/1"
DIAL_TIMEOUT: Final = 2.0
"""Seconds that a port has to answer."""
ASK_TIMEOUT: Final = 4.0
"""Seconds that a question takes at most: more would delay a start."""
MAX_PORTS: Final = 4
QUESTIONS_A_MINUTE: Final = 30
"""Of one host, behind which many peers may live."""
MAX_HOSTS: Final = 1024
MAX_AT_ONCE: Final = 16
_MAX_BYTES = 128
_HANG_UP = 1.0

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class Question(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """At which of these TCP ports can I be dialled?"""

    version: Literal[1]
    ports: Annotated[tuple[Port, ...], msgspec.Meta(min_length=1, max_length=MAX_PORTS)]


class Answer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The address that the question came from (empty: too busy to look) and the ports at which the asker answered."""

    version: Literal[1]
    host: Annotated[str, msgspec.Meta(max_length=45)]
    open: Annotated[tuple[Port, ...], msgspec.Meta(max_length=MAX_PORTS)] = ()


class DialBack:
    """The side that answers. One for each daemon."""

    def __init__(self, daemon: Daemon, *, now: Callable[[], float] = time.monotonic) -> None:
        self._daemon, self._now = daemon, now
        self._asked: dict[str, deque[float]] = {}
        self._busy = 0

    async def start(self) -> None:
        """Answer from now on. DaemonError if p2pd does not take the registration."""
        await self._daemon.serve_stream(PROTOCOL, self.accept)

    async def accept(self, info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """p2pd's handler: one question, one answer. Never raises."""
        try:
            async with asyncio.timeout(ASK_TIMEOUT):
                await self._serve(info, reader, writer)
        except (ProtocolError, msgspec.MsgspecError, OSError, EOFError) as error:
            log.debug("no answer to %s: %r", info.peer_id, error)
        except Exception:
            log.exception("could not answer %s whether it can be dialled", info.peer_id)
        finally:
            writer.transport.abort()

    async def _serve(self, info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        key = key_of(info.peer_id.to_bytes())
        question = msgspec.msgpack.decode(await read(reader), type=Question)
        writer.write(framed(await self.answer(key, str(info.addr), question)))
        await writer.drain()
        # Whoever closes first may lose the tail; the asker does when it has read.
        with suppress(TimeoutError):
            async with asyncio.timeout(_HANG_UP):
                await reader.read(1)

    async def answer(self, key: bytes, observed: str, question: Question) -> Answer:
        """Dial peer `key` back at the address `observed` (a multiaddress), if this host has not asked too often."""
        host = host_of(observed)
        if not host or self._busy >= MAX_AT_ONCE or not self._may_ask(host):
            return Answer(1, "")
        self._busy += 1
        try:
            ports = tuple(dict.fromkeys(question.ports))
            found = await asyncio.gather(*(answers(host, port, key, DIAL_TIMEOUT) for port in ports))
        finally:
            self._busy -= 1
        return Answer(1, host, tuple(port for port, is_open in zip(ports, found, strict=True) if is_open))

    def _may_ask(self, host: str) -> bool:
        now = self._now()
        recent = self._asked.pop(host, None) or deque()
        while recent and recent[0] <= now - 60:
            recent.popleft()
        allowed = len(recent) < QUESTIONS_A_MINUTE
        if allowed:
            recent.append(now)
        self._asked[host] = recent  # the newest host last: the oldest go first
        while len(self._asked) > MAX_HOSTS:
            del self._asked[next(iter(self._asked))]
        return allowed


def framed(message: Question | Answer) -> bytes:
    """The message after a byte that says its length."""
    data = msgspec.msgpack.encode(message)
    return bytes([len(data)]) + data


async def read(reader: asyncio.StreamReader) -> bytes:
    """What `framed` wrote, before it is decoded. ProtocolError if it is too large for any message here."""
    (size,) = await reader.readexactly(1)
    if size > _MAX_BYTES:
        raise ProtocolError("reachability: too large")
    return await reader.readexactly(size)
