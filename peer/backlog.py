"""The frames that wait for one peer: three classes, the more urgent first, with a limit on their bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from peer.frames import frame_bytes
from peer.transport import Priority

_SMALL_BYTES = 64 * 1024


@dataclass(frozen=True)
class Outgoing:
    """A frame to be sent, and the kind under which its bytes are counted."""

    header: bytes
    bulk: bytes | memoryview
    kind: str
    wanted: Callable[[], bool] | None = None
    """Asked when its turn comes: whether it should still be sent. None: always."""

    @property
    def size(self) -> int:
        """Bytes on the stream."""
        return frame_bytes(self.header, self.bulk)

    @property
    def usual_priority(self) -> Priority:
        """SMALL for what carries no bulk, else BULK."""
        return Priority.SMALL if not len(self.bulk) and self.size <= _SMALL_BYTES else Priority.BULK


class Backlog:
    """A queue with one reader."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[Priority, deque[Outgoing]] = {priority: deque() for priority in Priority}
        self._filled = asyncio.Event()
        self.num_bytes = 0

    def put(self, frame: Outgoing, priority: Priority) -> bool:
        """False if that would be over the limit. A single frame of any size always fits."""
        if self.num_bytes and self.num_bytes + frame.size > self._limit:
            return False
        self._waiting[priority].append(frame)
        self.num_bytes += frame.size
        self._filled.set()
        return True

    async def get(self) -> Outgoing:
        """The next frame that is still wanted, as soon as there is one."""
        while True:
            while not self.num_bytes:
                self._filled.clear()
                await self._filled.wait()
            queue = next(queue for _, queue in sorted(self._waiting.items()) if queue)
            frame = queue.popleft()
            self.num_bytes -= frame.size
            if frame.wanted is None or frame.wanted():
                return frame

    def clear(self) -> None:
        """Drop everything."""
        for queue in self._waiting.values():
            queue.clear()
        self.num_bytes = 0
