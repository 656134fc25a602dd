"""One process for each identity: two p2pd with one peer id make every other peer's connections fail at random."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from protocol.errors import UserError


class ClaimedFile:
    """An advisory lock on a file, held until `release` or the process's end, however it ends."""

    def __init__(self, path: Path) -> None:
        """UserError if another process, or this one, already holds it."""
        self._descriptor: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            raise UserError(f"identity file {path}: another running peer uses it; give this one its own") from error

    def release(self) -> None:
        """Let go. May be called twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
