"""One process for each identity: two p2pd with one peer id make every other peer's connections fail at random.

p2pd inherits the lock. It outlives a killed parent by a second or two, and until it is gone a peer that was restarted
in the same directory must wait: for its peer id, and for its port if that is a fixed one.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path
from typing import Final

from protocol.errors import UserError

PATIENCE: Final = 5.0
"""Seconds that the p2pd of a killed process has to end."""
_LOOK_EVERY: Final = 0.1


class ClaimedFile:
    """An advisory lock on a file, held until `release` and the end of every child that inherited `descriptor`."""

    def __init__(self, path: Path) -> None:
        """UserError if another process, or this one, already holds it."""
        self._descriptor: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            right = "another running peer uses it; give this one its own, with another --out (or --identity)"
            raise UserError(f"identity file {path}: {right}") from error

    @classmethod
    async def when_free(cls, path: Path, patience: float = PATIENCE) -> ClaimedFile:
        """The lock, as soon as it is free; UserError if that takes longer than `patience` seconds."""
        loop = asyncio.get_running_loop()
        end = loop.time() + patience
        while True:
            try:
                return cls(path)
            except UserError:
                if loop.time() >= end:
                    raise
            await asyncio.sleep(_LOOK_EVERY)

    @property
    def descriptor(self) -> int:
        """To be inherited by a child."""
        assert self._descriptor is not None
        return self._descriptor

    def release(self) -> None:
        """Let go. May be called twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
