"""The other direction: streams that peers open to us. Each is read by its own task, and each frame acknowledged.

Anyone may open a stream, so all that a stream can cost is limited here: their number, for each peer and in all; the
bytes of a frame, before they are read; the rate of frames; the time that it may be silent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo

from bootstrap.identity import key_of, peer_id
from peer import clock
from peer.frames import Ack, Frame, FrameReader, encode_ack
from peer.outgoing import Shared
from peer.transport import Handler
from protocol.errors import ProtocolError

log = logging.getLogger(__name__)

_READ_BYTES = 1 << 20
_ACK_DELAY_SHARE = 6


class IncomingStreams:
    """All incoming streams of a transport."""

    def __init__(self, shared: Shared, handler: Handler, on_heard: Callable[[bytes], None]) -> None:
        self._shared, self._handler, self._on_heard = shared, handler, on_heard
        self._open: dict[bytes, list[IncomingStream]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def accept(self, info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """p2pd's handler: serve one stream to its end. Never raises."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            key = key_of(info.peer_id.to_bytes())
            await self._serve(key, IncomingStream(key, reader, writer, self._shared, self._handler))
        except ProtocolError as error:
            self._shared.complaints.about(str(info.peer_id), error.reason)
        except Exception:
            log.exception("stopped reading a stream of %s", info.peer_id)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def close(self, timeout: float) -> None:
        """Close all streams and refuse new ones."""
        self._closed = True
        for stream in [stream for streams in self._open.values() for stream in streams]:
            stream.abort()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)

    async def _serve(self, key: bytes, stream: IncomingStream) -> None:
        if self._closed or sum(map(len, self._open.values())) >= self._shared.options.streams:
            return
        ours = self._open.setdefault(key, [])
        if len(ours) >= self._shared.options.streams_per_peer:
            # The peer knows best which of its streams still works: the newest.
            ours[0].abort()
        ours.append(stream)
        self._on_heard(key)
        try:
            await stream.serve()
        finally:
            ours.remove(stream)
            if not ours:
                self._open.pop(key, None)


class IncomingStream:
    """One stream: bytes in, frames to the handler, acknowledgements out."""

    def __init__(
        self,
        key: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        shared: Shared,
        handler: Handler,
    ) -> None:
        self._key, self._reader, self._writer = key, reader, writer
        self._shared, self._handler, self._options = shared, handler, shared.options
        self._frames = FrameReader(shared.options.limits)
        self._sequence = 0
        self._ack_timer: asyncio.TimerHandle | None = None
        self._second = 0.0
        self._num_in_second = 0

    def abort(self) -> None:
        """Close at once; `serve` then ends."""
        self._writer.transport.abort()

    async def serve(self) -> None:
        """Say hello, then take frames until the stream ends, is silent too long, or carries what is no frame."""
        self._acknowledge("ack")
        try:
            while data := await self._read():
                await self._take(self._frames.feed(data))
        except ProtocolError as error:
            self._refuse(error)
        except (OSError, TimeoutError) as error:
            log.debug("stream of %s ended: %r", peer_id(self._key), error)
        finally:
            if self._ack_timer is not None:
                self._ack_timer.cancel()

    async def _read(self) -> bytes:
        async with asyncio.timeout(self._options.idle_timeout):
            # Also the place where a peer that does not read its acknowledgements has to wait.
            await self._writer.drain()
            return await self._reader.read(_READ_BYTES)

    async def _take(self, frames: list[Frame]) -> None:
        kind = "ack"
        for frame in frames:
            kind = self._hand_over(frame)
            self._shared.traffic.received(self._key, kind, frame.size)
            self._sequence = frame.sequence
        if frames:
            self._acknowledge(kind)
            await self._throttle(len(frames))
        elif self._ack_timer is None:
            # Part of a large frame: tell of the progress, but not for every piece.
            delay = self._options.ack_timeout / _ACK_DELAY_SHARE
            self._ack_timer = asyncio.get_running_loop().call_later(delay, self._acknowledge, "ack")

    def _hand_over(self, frame: Frame) -> str:
        if not frame.header and not frame.bulk:
            return "keepalive"
        try:
            return self._handler.on_frame(self._key, frame.header, frame.bulk)
        except ProtocolError as error:
            self._refuse(error)
            return "bad"

    def _refuse(self, error: ProtocolError) -> None:
        self._shared.traffic.bad[self._key] += 1
        self._shared.complaints.about(peer_id(self._key), error.reason)

    def _acknowledge(self, kind: str) -> None:
        """Write an acknowledgement of all that has come; its bytes count as `kind`, that of the last frame."""
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        if self._writer.is_closing():
            return  # `serve` is about to end
        ack = encode_ack(Ack(self._sequence, self._frames.received))
        self._writer.write(ack)
        self._shared.traffic.wrote(self._key, kind, len(ack))

    async def _throttle(self, num_frames: int) -> None:
        now = clock.monotonic()
        if now - self._second >= 1.0:
            self._second, self._num_in_second = now, 0
        self._num_in_second += num_frames
        if self._num_in_second > self._options.frames_per_second:
            await asyncio.sleep(self._second + 1.0 - now)
