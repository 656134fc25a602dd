"""Trying a chunk again that nobody closed (docs/protocol.md, section 4; design: urgent).

Only a chunk without a link for its due step, in the next window, at most one fragment, the oldest, after the window's
own contributions, and only if the network is quick: after an outage all fragments would be urgent together, and miss
again. The retry keeps the name (fragment, original due step), so that a chunk gets at most one link a round; what was
closed after all is answered with its link, like any late contribution, and never averaged twice.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Final

from protocol.commands import Retry
from protocol.ledger import Ledger
from protocol.schedule import Schedule, Window
from protocol.window import Rules, Windows

QUICK: Final = 0.5
"""Share of the patience within which the last window's links must have come."""


class Retries:
    """Which window of ours should be tried again, decided at each opening."""

    def __init__(
        self,
        *,
        ledger: Ledger[Any],
        windows: Windows,
        rules: Rules,
        schedule: Schedule,
        emit: Callable[[object], None],
    ) -> None:
        self._ledger = ledger
        self._windows = windows
        self._rules = rules
        self._schedule = schedule
        self._emit = emit
        self._opened: dict[int, int] = {}
        self._retried: dict[int, int] = {}
        self._last = (Window(0, 0), 0.0)
        self._took = inf

    def opened(self, window: Window, now: float) -> None:
        """Our trainer has opened a window: command a retry if one is due."""
        quick = self._took < QUICK * self._windows.patience
        candidates = [Window(f, due) for f, due in self._opened.items() if f != window.fragment]
        urgent = [one for one in candidates if self._is_urgent(one, window.due)]
        if quick and urgent:
            oldest = min(urgent)
            self._retried[oldest.fragment] = oldest.due
            self._emit(Retry(oldest))
        self._opened[window.fragment] = window.due
        self._last, self._took = (window, now), inf

    def _is_urgent(self, window: Window, due: int) -> bool:
        """Whether some chunk has no link, nothing of it is in flight, and a link could merge before the next round."""
        in_time = due + self._schedule.overlap < window.due + self._schedule.sync_every
        return in_time and self._retried.get(window.fragment) != window.due and bool(self.missing(window))

    def missing(self, window: Window) -> list[int]:
        """The chunks of a window that have no link for its due step or a later one, and nothing of ours in flight."""
        chunks = self._rules.chunks_of(window.fragment)
        open_ = [chunk for chunk in chunks if self._ledger.chains[chunk].due < window.due]
        return [chunk for chunk in open_ if (chunk, window.due) not in self._windows.outbound]

    def settled(self, chunk: int, due: int, now: float) -> None:
        """A link was adopted: of the window that we opened last it says how quick the network is."""
        window, opened = self._last
        if Window(self._rules.fragment_of[chunk], due) == window:
            took = now - opened
            self._took = took if self._took == inf else max(self._took, took)
