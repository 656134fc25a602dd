"""Which fragment is due at which swarm step (Streaming DiLoCo, Algorithm 2, lines 5 to 12).

Fragment p is due at the swarm steps t_p + r·H with r ≥ 1: the offsets t_p spread the traffic of one round of
H steps over the round. At its due step a window opens (the peer snapshots and sends); `overlap` (τ) steps later
it merges. Windows of several fragments are in flight at once when τ is larger than the gap between two offsets.
A window that could not merge by the end of the run never opens.

Swarm steps count from 1 to `steps`; everything here is a pure function of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import total_ordering


@total_ordering
@dataclass(frozen=True, slots=True)
class Window:
    """One synchronisation of one fragment. Windows are ordered by due step, then by fragment."""

    fragment: int
    due: int

    def __lt__(self, other: Window) -> bool:
        return (self.due, self.fragment) < (other.due, other.fragment)


def spread(fragments: int, sync_every: int) -> tuple[int, ...]:
    """Offsets in swarm steps, one a fragment, evenly over a round: p·H // P."""
    return tuple(index * sync_every // fragments for index in range(fragments))


@dataclass(frozen=True, slots=True)
class Schedule:
    """The windows of a run. All fields are in swarm steps."""

    sync_every: int
    """H: from one window of a fragment to its next."""
    overlap: int
    """τ: from opening to merging, 0 ≤ τ < H, so that a fragment has at most one window in flight."""
    offsets: tuple[int, ...]
    """t_p for every fragment p, each in [0, H)."""
    steps: int
    """S: the run's last swarm step."""

    def __post_init__(self) -> None:
        assert 0 <= self.overlap < self.sync_every, (self.overlap, self.sync_every)
        assert self.offsets and all(0 <= offset < self.sync_every for offset in self.offsets), self.offsets

    def is_due(self, window: Window) -> bool:
        """Whether the run has this window. Safe with any integers, such as a remote's."""
        if not 0 <= window.fragment < len(self.offsets):
            return False
        rounds, rest = divmod(window.due - self.offsets[window.fragment], self.sync_every)
        return rest == 0 and rounds >= 1 and window.due + self.overlap <= self.steps

    def opening(self, step: int) -> tuple[Window, ...]:
        """The windows that open at a swarm step, in order."""
        windows = (Window(fragment, step) for fragment in range(len(self.offsets)))
        return tuple(window for window in windows if self.is_due(window))

    def merging(self, step: int) -> tuple[Window, ...]:
        """The windows that merge at a swarm step, in order. With τ = 0 these are the ones that open at it."""
        return self.opening(step - self.overlap)

    def in_flight(self, step: int) -> tuple[Window, ...]:
        """The windows that have opened at `step` or before it and merge after it, in order. Empty with τ = 0."""
        return tuple(sorted(window for window in self._latest(step) if step < window.due + self.overlap))

    def previous(self, window: Window) -> Window | None:
        """The same fragment's window of the round before; None for its first."""
        earlier = Window(window.fragment, window.due - self.sync_every)
        return earlier if self.is_due(earlier) else None

    def next_due(self, fragment: int, step: int) -> int | None:
        """The first due step of a fragment after `step`; None when the run has no more windows of it."""
        offset = self.offsets[fragment]
        rounds = max(1, (step - offset) // self.sync_every + 1)
        window = Window(fragment, offset + rounds * self.sync_every)
        return window.due if self.is_due(window) else None

    def latest_due(self, step: int) -> int:
        """The latest due step of any fragment at `step` or before it; 0 when no window has opened by then."""
        return max((window.due for window in self._latest(step)), default=0)

    def windows(self) -> Iterator[Window]:
        """All windows of the run, in order."""
        by_offset = sorted((offset, fragment) for fragment, offset in enumerate(self.offsets))
        for start in range(self.sync_every, self.steps + 1, self.sync_every):
            for offset, fragment in by_offset:
                window = Window(fragment, start + offset)
                if self.is_due(window):
                    yield window

    def _latest(self, step: int) -> Iterator[Window]:
        """Each fragment's latest window that is due at `step` or before it, for the fragments that have one."""
        latest = min(step, self.steps - self.overlap)  # the run's last window stays the latest one after its due step
        for fragment, offset in enumerate(self.offsets):
            rounds = (latest - offset) // self.sync_every
            if rounds >= 1:
                yield Window(fragment, offset + rounds * self.sync_every)
