"""metrics.jsonl: one JSON object a line, written as training goes and safe to read at any moment.

A line is {"step": 120, "time": 1712.5, "train/loss": 2.31, ...}; time is seconds since 1970. Names in use:
train/loss, train/grad_norm, train/tokens_per_second, val/loss.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from peer import clock
from peer.disk import LineFile, log_trouble


class MetricsLog:
    """Appends measurements to a file, a line each, at once; use as a context manager or call `close`."""

    def __init__(
        self, path: Path, *, trouble: Callable[[OSError], None] = log_trouble, now: Callable[[], float] = clock.wall
    ) -> None:
        """`trouble` hears of lines that the disk refuses; they are left out."""
        self._file = LineFile(path, trouble)
        self._now = now

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append one line. A value that is not finite becomes null, since JSON has no word for it."""
        line: dict[str, float | None] = {"step": step, "time": round(self._now(), 3)}
        line.update((name, value if math.isfinite(value) else None) for name, value in values.items())
        self._file.write(json.dumps(line, allow_nan=False))

    def close(self) -> None:
        """Close the file; nothing is written afterwards."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
