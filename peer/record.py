"""What happened to every window at this peer: the one record that the report, the live table and the tests read.

One JSON object a line in `record.jsonl`, written at once, so that what was known at a kill is still there. Both
threads write. The kinds and their fields are in docs/report.md. A disk that refuses a line costs that line: it is
counted, and training goes on.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer.disk import LineFile, log_trouble
from protocol.schedule import Window


@dataclass(frozen=True, slots=True)
class WindowCounts:
    """Windows that this peer opened, and what became of them.

    `opened` is the sum of the others, but for those in flight.
    """

    opened: int = 0
    merged: int = 0
    """Every chunk mixed, none late."""
    late: int = 0
    """Every chunk mixed, some after their time."""
    skipped: int = 0
    """Some chunk not mixed (α = 1)."""


@dataclass(slots=True)
class _Fate:
    own_step: int
    mixed: set[int] = field(default_factory=set)
    late: bool = False


class Record:
    """Appends to one file; counts windows. Only `write` may be called from any thread."""

    def __init__(
        self,
        path: Path,
        *,
        fragment_of: tuple[int, ...],
        overlap: int,
        late_steps: int,
        trouble: Callable[[OSError], None] = log_trouble,
    ) -> None:
        """`trouble` hears of lines that the disk refuses, in the thread that wrote them."""
        self._path = path
        self._file = LineFile(path, trouble)
        self._lock = threading.Lock()
        self._fragment_of = fragment_of
        self._patience = overlap + late_steps
        self._fates: dict[Window, _Fate] = {}
        """Of windows that may still change; the others are only counted."""
        self._early: dict[Window, set[int]] = {}
        """Chunks mixed before this peer opened their window: it learnt of the link first."""
        self._over: Counter[str] = Counter()
        self._sizes = Counter(fragment_of)

    def write(self, kind: str, **values: Any) -> None:
        """One line."""
        line = json.dumps({"kind": kind, **values}, separators=(",", ":"))
        with self._lock:
            self._file.write(line)

    @property
    def lost(self) -> int:
        """Lines that are not in the file; 0 if it is whole."""
        return self._file.lost

    def begin_life(self, step: int, own_step: int) -> int:
        """A process goes on with this file, after so many steps. Returns how many have, itself included."""
        number = 1
        with suppress(OSError), self._path.open("rb") as file:
            number += sum(line.startswith(b'{"kind":"life"') for line in file)
        self.write("life", number=number, step=step, own_step=own_step)
        return number

    def opened(self, window: Window, own_step: int) -> None:
        """A window was opened by the trainer after `own_step` inner steps."""
        for past in [past for past, fate in self._fates.items() if self._is_over(fate, own_step)]:
            self._over[self._outcome(past, self._fates.pop(past))] += 1
        self._fates[window] = _Fate(own_step, self._early.get(window, set()))
        self._early = {one: mixed for one, mixed in self._early.items() if one > window}
        self.write("opened", fragment=window.fragment, due=window.due, own_step=own_step)

    def mixed(self, chunk: int, due: int, late: int, power: int) -> None:
        """A chunk's new anchor was mixed into the parameters."""
        window = Window(self._fragment_of[chunk], due)
        if fate := self._fates.get(window):
            fate.mixed.add(chunk)
            fate.late |= late > 0
        else:
            self._early.setdefault(window, set()).add(chunk)
        self.write("mixed", chunk=chunk, due=due, late=late, power=power)

    def counts(self, own_step: int | None = None) -> WindowCounts:
        """So far. Windows that may still merge count as opened only; with `own_step` None, the run is over."""
        found = Counter(self._over)
        for window, fate in self._fates.items():
            outcome = self._outcome(window, fate)
            if outcome != "skipped" or own_step is None or self._is_over(fate, own_step):
                found[outcome] += 1
        opened = self._over.total() + len(self._fates)
        return WindowCounts(opened, found["merged"], found["late"], found["skipped"])

    def _is_over(self, fate: _Fate, own_step: int) -> bool:
        """Whether nothing can be mixed for this window any more."""
        return own_step - fate.own_step > self._patience

    def _outcome(self, window: Window, fate: _Fate) -> str:
        if len(fate.mixed) < self._sizes[window.fragment]:
            return "skipped"
        return "late" if fate.late else "merged"

    def close(self) -> None:
        """No more lines."""
        with self._lock:
            self._file.close()
