"""One connection through an emulated link: two directions, each read, held back for as long as the link is, written.

    reader -> way up of the source -> delay and losses -> way down of the target -> writer

A cut stops both ends: what is on its way stays there, as packets do that are sent again until they arrive. Closing and
half-closing travel like data. No direction holds more than its window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from peer import clock
from peer.links.shape import SEGMENT, Path, most_under_loss, stall_by_loss
from peer.links.table import LinkTable, Node
from peer.rate import TokenBucket

PIECE: Final = 64 * 1024
"""Most bytes that are moved at once."""
LARGEST_WINDOW: Final = 8 << 20
"""Most bytes on their way in one direction; what TCP's own buffers on a long path hold."""
_SMALLEST_WINDOW: Final = 16 * 1024
_PIECE_SECONDS: Final = 0.01
_QUEUE_SECONDS: Final = 0.05
"""What the slower link's own queue holds, as a time."""


class Relay:
    """Carries one accepted connection of `source` to `target`. Use `run` once."""

    def __init__(self, table: LinkTable, source: Node, target: Node, random: Callable[[], float]) -> None:
        self._table, self._source, self._target, self._random = table, source, target, random

    async def run(
        self,
        inner: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        outer: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Until both directions are closed, or either end breaks. `inner` is the source's end. Closes both."""
        directions = (
            Direction(self._table, self._source, self._target, inner[0], outer[1], self._random),
            Direction(self._table, self._target, self._source, outer[0], inner[1], self._random),
        )
        whole = False
        try:
            async with asyncio.TaskGroup() as group:
                for direction in directions:
                    group.create_task(direction.carry())
            whole = True
        except* (OSError, RuntimeError):  # uvloop: RuntimeError where a transport was closed under a write
            pass
        finally:
            for _, writer in (inner, outer):
                writer.close() if whole else writer.transport.abort()


class Direction:
    """One direction of a connection."""

    def __init__(
        self,
        table: LinkTable,
        source: Node,
        target: Node,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        random: Callable[[], float],
    ) -> None:
        self._table, self._source, self._target = table, source, target
        self._reader, self._writer, self._random = reader, writer, random
        self._path = table.path(source, target)
        self._congestion = TokenBucket(most_under_loss(self._path))
        self._piece = piece_bytes(self._path)

    async def carry(self) -> None:
        """Until the source has closed its side and the target was told. OSError if either end breaks."""
        if self._path == Path():
            await self._carry_at_once()
            return
        line = DelayLine(window_bytes(self._path))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._put_in(line))
            group.create_task(self._take_out(line))

    async def _carry_at_once(self) -> None:
        while data := await self._read():
            await self._write(data)
        await self._close()

    async def _put_in(self, line: DelayLine) -> None:
        data = b"-"
        while data:
            data = await self._read()
            await self._congestion.take(len(data))
            stall = stall_by_loss(len(data), self._path, self._random)
            await line.put(data, self._path.delay, stall)

    async def _take_out(self, line: DelayLine) -> None:
        while data := await line.take():
            await self._write(data)
        await self._close()

    async def _read(self) -> bytes:
        await self._table.passable(self._source, self._target)
        data = await self._reader.read(self._piece)
        await self._table.leave(self._source, len(data))
        return data

    async def _write(self, data: bytes) -> None:
        await self._table.passable(self._source, self._target)
        await self._table.arrive(self._target, len(data))
        self._writer.write(data)
        await self._writer.drain()

    async def _close(self) -> None:
        await self._table.passable(self._source, self._target)
        self._writer.write_eof()


class DelayLine:
    """Bytes on their way, in order. One task puts them in and one takes them out."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._held = 0
        self._pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self._room = asyncio.Event()
        self._last = 0.0

    async def put(self, data: bytes, delay: float, stall: float = 0.0) -> None:
        """Send `data` on its way: it and all after it come out `delay` later, or when what is before it does.

        `stall` holds back this piece, and so all after it. Waits while the window is full.
        """
        now = clock.monotonic()
        self._last = max(self._last, now + delay + stall)
        while self._held >= self._window:
            self._room.clear()
            await self._room.wait()
        self._held += len(data)
        self._pieces.put_nowait((self._last, data))

    async def take(self) -> bytes:
        """The next piece, when its time has come."""
        due, data = await self._pieces.get()
        if (wait := due - clock.monotonic()) > 0:
            await asyncio.sleep(wait)
        self._held -= len(data)
        self._room.set()
        return data


def piece_bytes(path: Path) -> int:
    """A piece small enough that connections share a slow link evenly."""
    if path.rate is None:
        return PIECE
    return int(min(PIECE, max(SEGMENT, path.rate * _PIECE_SECONDS)))


def window_bytes(path: Path) -> int:
    """What a path may hold: its delay's worth and a queue at the slower link, as a router's."""
    if path.rate is None:
        return LARGEST_WINDOW
    return int(min(LARGEST_WINDOW, max(_SMALLEST_WINDOW, path.rate * (path.delay + _QUEUE_SECONDS))))
