"""How far a peer may be pulled along (docs/protocol.md, section 9; design: notice).

A peer that learns of a window that it has not reached jumps to it, so that a swarm runs at the pace of its fast half.
One bad clock must not drag everyone: nothing further than one gap between two windows beyond the pace is followed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from protocol.commands import Notice
from protocol.errors import ProtocolError
from protocol.roster import Roster
from protocol.schedule import Schedule, Window

PASSED: Final = 16
"""Moves of the pace over which its speed is taken."""


class Advance:
    """A swarm step that only goes forward, and the seconds that a step has lately taken."""

    def __init__(self, moves: int, step: int = 0) -> None:
        """The seconds are taken over so many `moves`; nothing up to `step` is one."""
        self.step = step
        self._seen: deque[tuple[float, int]] = deque(maxlen=moves)

    def follow(self, step: int, now: float) -> bool:
        """Take a step that was seen. Whether it moved."""
        if step <= self.step:
            return False
        self.step = step
        self._seen.append((now, step))
        return True

    @property
    def step_seconds(self) -> float | None:
        """None while fewer than two moves were seen."""
        if len(self._seen) < 2:
            return None
        (first, low), (last, high) = self._seen[0], self._seen[-1]
        return (last - first) / (high - low)


class Pace:
    """Which windows this peer has reached, which others have, and which no peer of this pace can have."""

    def __init__(self, *, roster: Roster, schedule: Schedule, emit: Callable[[object], None]) -> None:
        self._roster = roster
        self._schedule = schedule
        self._emit = emit
        self.opened: dict[int, int] = {}
        """The newest due step, by fragment, that the trainer has opened."""
        self.noticed: set[Window] = set()
        """Windows that others have reached and we may not follow to yet."""
        self._told: dict[int, int] = {}
        self._swarm = Advance(PASSED, -1)

    def near(self, window: Window) -> Window:
        """The window, unless no peer of this pace can have reached it: one bad clock must not drag, or end, a chunk."""
        if not self._schedule.is_due(window):
            raise ProtocolError("a due step that the schedule does not have")
        if self.is_far(window.due):
            raise ProtocolError("a window far ahead of the swarm")
        return window

    def is_far(self, due: int) -> bool:
        """Whether a due step is more than two rounds ahead of the pace. Our own step may be the wrong one."""
        return due > self._roster.pace() + 2 * self._schedule.sync_every

    def open(self, window: Window) -> None:
        """Our trainer has come to a window."""
        self.opened[window.fragment] = max(window.due, self.opened.get(window.fragment, 0))

    def notice(self, window: Window) -> None:
        """Remember a window that others have reached. They are at most two rounds ahead, so these are few."""
        if window.due > self._reached(window.fragment):
            self.noticed.add(window)
            self.release()

    def _reached(self, fragment: int) -> int:
        return max(self.opened.get(fragment, 0), self._told.get(fragment, 0))

    def watch(self, now: float) -> None:
        """Look where the pace is."""
        self._swarm.follow(self._roster.pace(), now)

    def seconds_a_step(self) -> float | None:
        """What the swarm takes for a swarm step; None while it was not seen to move."""
        return self._swarm.step_seconds

    def release(self) -> None:
        """Tell the trainer of the windows that the pace has come near to."""
        limit = furthest(self._roster.pace(), self._schedule)
        for window in sorted(self.noticed):
            if window.due <= limit:
                self.noticed.discard(window)
                if window.due > self._reached(window.fragment):
                    self._told[window.fragment] = window.due
                    self._emit(Notice(window))


def furthest(pace: int, schedule: Schedule) -> int:
    """The latest due step that may be noticed: the pace plus ⌈H/P⌉."""
    return pace + _gap(schedule)


def owns_from(reached: int, schedule: Schedule) -> int:
    """The first due step for which a peer counts that begins to own when `reached` is the swarm's step: two windows
    ahead, so that everyone ranks the owners alike by then."""
    return reached + 2 * _gap(schedule)


def _gap(schedule: Schedule) -> int:
    """⌈H/P⌉: the swarm steps between two windows, at most, where offsets are spread evenly."""
    return -(-schedule.sync_every // len(schedule.offsets))


def boundary(step: int, noticed: Iterable[Window], schedule: Schedule) -> tuple[int, list[Window]]:
    """One step boundary: from swarm step `step` to the next one, or further if a window was noticed.

    Returns the new swarm step and the windows that open now, in order: for each fragment the newest one passed.
    """
    reached = max([step + 1, *(window.due for window in noticed)])
    newest: dict[int, Window] = {}
    for passed in range(step + 1, reached + 1):
        newest.update({window.fragment: window for window in schedule.opening(passed)})
    return reached, sorted(newest.values())
