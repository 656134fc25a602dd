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


class MetricsLog:
    """Appends measurements to a file, a line each, flushed at once; use as a context manager or call `close`."""

    def __init__(self, path: Path, *, now: Callable[[], float] = clock.wall) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        torn = _is_torn(path)
        self._file = path.open("a", encoding="utf-8")
        self._now = now
        if torn:  # an earlier process died in the middle of a line: keep it from spoiling the next one
            self._file.write("\n")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append one line. A value that is not finite becomes null, since JSON has no word for it."""
        line: dict[str, float | None] = {"step": step, "time": round(self._now(), 3)}
        line.update((name, value if math.isfinite(value) else None) for name, value in values.items())
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; writing afterwards is an error."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _is_torn(path: Path) -> bool:
    return path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
