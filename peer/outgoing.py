"""One direction of the traffic with one peer: our stream to it, kept open, written by one task, watched for silence.

    connecting --hello--> connected --closed, or acknowledgement overdue--> down
        |                     ^                                              |
        +--cannot be dialled--|---------------------> down --a later dial----+

A stream counts as open only when the other end's Python has answered (the hello, an acknowledgement of nothing): p2pd
accepts streams for a process that is frozen. On the way down everything that waits is dropped: by then others have
taken over, and the ledger repairs what was missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bootstrap.daemon import Daemon, DaemonError, Unreachable
from bootstrap.identity import peer_id
from peer import clock
from peer.backlog import Backlog, Outgoing
from peer.complaints import Complaints
from peer.frames import ACK_BYTES, Ack, AckReader, frame_prefix
from peer.rate import TokenBucket
from peer.stream_options import StreamOptions
from peer.transport import Priority, Traffic
from protocol.errors import ProtocolError

log = logging.getLogger(__name__)

_SLICE = 256 * 1024
_CHECKS_PER_TIMEOUT = 6
_REFUSALS = ("connection refused", "dial backoff")
"""How p2pd ends its line for an address that nobody listens at, and for one that it will not dial again so soon."""


@dataclass(frozen=True)
class Shared:
    """What all streams of a transport have in common."""

    daemon: Daemon
    protocol: str
    options: StreamOptions
    bucket: TokenBucket
    traffic: Traffic
    complaints: Complaints


class OutgoingLink:
    """Our stream to one peer over all its dials. Lives until `close`."""

    def __init__(
        self,
        key: bytes,
        addresses: Sequence[str],
        shared: Shared,
        on_connected: Callable[[bytes], None],
        on_lost: Callable[[bytes, str], None],
    ) -> None:
        self.addresses = tuple(addresses)
        self.backlog = Backlog(shared.options.queue_bytes)
        self.stream: OutgoingStream | None = None
        self._key, self._shared = key, shared
        self._on_connected, self._on_lost = on_connected, on_lost
        self.refused_since: float | None = None
        """Since when its machine has refused to be dialled; None if it has not lately, or did anything else since."""
        self._down = False
        self._redial = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"stream to {peer_id(key)}")

    def send(self, frame: Outgoing, priority: Priority | None) -> bool:
        """Queue a frame; False while the peer is lost or has too much waiting."""
        if self._down:
            return False
        return self.backlog.put(frame, frame.usual_priority if priority is None else priority)

    def wake(self) -> None:
        """The peer was just heard of: if it is lost, dial again without waiting."""
        self._redial.set()

    @property
    def idle(self) -> bool:
        """Whether nothing waits and everything was acknowledged."""
        return not self.backlog.num_bytes and (self.stream is None or self.stream.idle)

    async def close(self) -> None:
        """Close the stream and stop dialling."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        options = self._shared.options
        pause = options.first_retry
        while True:
            try:
                why = await self._carry()
                pause = options.first_retry
            except Unreachable as error:
                why = str(error)
                self._note_refusal(why)
            except Exception:  # dialled again, like any other break: one bug must not cost us the peer
                log.exception("the stream to %s broke by an error of ours", peer_id(self._key))
                why = "an error of ours"
            self._lose(why)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._redial.wait(), pause)
            self._redial.clear()
            pause = min(2 * pause, options.last_retry)

    async def _carry(self) -> str:
        """Dial, and carry frames until the stream ends. Returns why it ended; Unreachable if it never opened."""
        daemon, timeout = self._shared.daemon, self._shared.options.dial_timeout
        if self.addresses:
            await daemon.connect(self._key, self.addresses, timeout)
        elif not await self._came_to_us():
            raise Unreachable(f"{peer_id(self._key)} cannot be dialled, and has no connection to us now")
        reader, writer = await daemon.open_stream(self._key, self._shared.protocol, timeout)
        try:
            stream = OutgoingStream(self._key, reader, writer, self.backlog, self._shared)
            await stream.greet()
            self.stream, self._down, self.refused_since = stream, False, None
            self._on_connected(self._key)
            return await stream.carry()
        finally:
            self.stream = None
            writer.transport.abort()

    async def _came_to_us(self) -> bool:
        """Whether there is a connection that a peer behind NAT opened. Without one, p2pd would dial whatever private
        address the peer once told it."""
        try:
            return self._key in await self._shared.daemon.connected()
        except DaemonError as error:
            raise Unreachable(str(error)) from error

    def _note_refusal(self, why: str) -> None:
        """A dial that was refused everywhere: nobody listens there. Where packets vanish, the peer may be asleep."""
        dials = [line for line in why.splitlines() if line.lstrip().startswith("*")]
        if not dials or not all(line.endswith(_REFUSALS) for line in dials):
            self.refused_since = None
        elif self.refused_since is None and any(line.endswith(_REFUSALS[0]) for line in dials):
            self.refused_since = clock.monotonic()

    def _lose(self, why: str) -> None:
        self.backlog.clear()
        if not self._down:
            self._down = True
            self._on_lost(self._key, why)


class OutgoingStream:
    """One opened stream: what was written, what was acknowledged, and since when an acknowledgement is due."""

    def __init__(
        self,
        key: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        backlog: Backlog,
        shared: Shared,
    ) -> None:
        self._key, self._reader, self._writer = key, reader, writer
        self._backlog, self._shared, self._options = backlog, shared, shared.options
        self._acks = AckReader()
        self._sent = Ack(0, 0)
        self._acked = Ack(0, 0)
        self._progress = clock.monotonic()
        """When the other end last showed that it takes what we send, or when something became due."""

    @property
    def idle(self) -> bool:
        """Whether all frames begun are acknowledged."""
        return self._acked == self._sent

    @property
    def _due(self) -> bool:
        """Whether bytes are unacknowledged. Between two pieces of a frame under an upload cap there may be none."""
        return self._acked.received < self._sent.received

    async def greet(self) -> None:
        """Wait for the hello."""
        try:
            async with asyncio.timeout(self._options.ack_timeout):
                hello = await self._reader.readexactly(ACK_BYTES)
            self._acks.feed(hello, sent=self._sent)
        except (EOFError, OSError, TimeoutError, ProtocolError) as error:
            raise Unreachable(f"{peer_id(self._key)} accepted a stream but did not answer: {error!r}") from error
        self._shared.traffic.received(self._key, "ack", ACK_BYTES)

    async def carry(self) -> str:
        """Write and listen until the stream ends, and say why it did."""
        tasks = [asyncio.create_task(work) for work in (self._write_frames(), self._read_acks(), self._watch())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next(task for task in tasks if task.done()).result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write_frames(self) -> str:
        try:
            while True:
                await self._write_frame(await self._backlog.get())
        except OSError as error:
            return f"stream broke: {error}"

    async def _write_frame(self, frame: Outgoing) -> None:
        sequence = self._sent.sequence + 1
        prefix = frame_prefix(sequence, frame.header, frame.bulk)
        # In slices, so that the loop stays free for others while a large frame is copied.
        step = min(_SLICE, self._shared.bucket.slice or _SLICE)
        if frame.size <= step:
            await self._write(b"".join((prefix, frame.header, frame.bulk)), sequence, frame.kind)
            return
        await self._write(prefix + frame.header, sequence, frame.kind)
        bulk = memoryview(frame.bulk).cast("B")
        for start in range(0, len(bulk), step):
            await self._write(bulk[start : start + step], sequence, frame.kind)

    async def _write(self, piece: bytes | memoryview, sequence: int, kind: str) -> None:
        await self._shared.bucket.take(len(piece))
        if not self._due:
            self._progress = clock.monotonic()
        if self._writer.is_closing():
            raise ConnectionResetError("closed by p2pd")  # uvloop's own word for it is a RuntimeError
        self._sent = Ack(sequence, self._sent.received + len(piece))
        self._writer.write(piece)
        self._shared.traffic.wrote(self._key, kind, len(piece))
        await self._writer.drain()

    async def _read_acks(self) -> str:
        try:
            while data := await self._reader.read(4096):
                self._shared.traffic.received(self._key, "ack", len(data))
                ack = self._acks.feed(data, sent=self._sent)
                if ack is not None and ack != self._acked:
                    self._acked, self._progress = ack, clock.monotonic()
        except OSError as error:
            return f"stream broke: {error}"
        except ProtocolError as error:
            self._shared.traffic.bad[self._key] += 1
            self._shared.complaints.about(peer_id(self._key), error.reason)
            return error.reason
        return "stream closed"

    async def _watch(self) -> str:
        """Return when an acknowledgement is overdue; keep an idle stream from looking dead meanwhile."""
        every = self._options.ack_timeout / _CHECKS_PER_TIMEOUT
        looked = clock.monotonic()
        while True:
            await asyncio.sleep(every)
            now = clock.monotonic()
            if now - looked > self._options.ack_timeout / 2:
                # It was us who stood still. The acknowledgements may be waiting to be read.
                self._progress = now
            looked = now
            silent = now - self._progress
            if self._due and silent > self._options.ack_timeout:
                return f"acknowledged nothing for {silent:.1f} s"
            if self.idle and silent > self._options.keepalive and not self._backlog.num_bytes:
                self._backlog.put(Outgoing(b"", b"", "keepalive"), Priority.SMALL)
