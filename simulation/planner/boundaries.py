"""potluck's own timing: whole fragments, sent at a step boundary and merged at the boundary τ steps later.

At the boundary after step t a peer first merges the windows that opened at t − τ, then opens those that are due at t
(peer/member.py). Two questions are answered: what training costs if every merge is awaited for as long as it takes,
and what potluck does, which waits for at most `merge_wait`, trains on, mixes a result that comes late at the first
boundary after it, and skips one that is more than `late_steps` late.

Fragments are due as in `protocol.schedule`: at p·H // P + r·H. Links carry windows one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from protocol.schedule import Schedule, spread
from simulation.planner.exchange import Transfer
from simulation.planner.graph import Floats, Spent

AWAITED_ROUNDS: Final = (3, 4)
"""Rounds to let the queue settle, and rounds that count, if every merge is awaited: then no queue outlives a round."""
SKIPPING_ROUNDS: Final = (24, 16)
"""The same where nothing waits: a queue then grows until windows are given up."""
PATIENCE_FLOOR: Final = 1.0
"""Owners close at most max(1 s, τ steps) after a window's first contribution, and a contribution that still waits on a
stream then is dropped (docs/protocol.md, sections 4 and 5): here, a window that could not begin to leave by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swarm:
    """What decides a peer's timing. `transfers` has one entry a fragment."""

    step_seconds: float
    sync_every: int
    overlap: int
    transfers: Sequence[Transfer]
    merge_wait: float | None = None
    """Longest wait for a merge in seconds; None awaits every merge."""
    late_steps: int = 10


@dataclass(frozen=True, slots=True)
class Rounds(Spent):
    """Averages over rounds in which the queue has settled: what is spent is a round's. Float64 (B,)."""

    exchange: Floats
    """Seconds from opening to the last result, summed over the windows of a round that were not given up."""
    in_time: Floats
    """Share of the windows that are merged τ steps after they opened, or after a wait of at most `merge_wait`."""
    late: Floats
    """Share of those that are merged later."""

    @property
    def hidden(self) -> Floats:
        """Seconds of the exchange that training does not wait for."""
        return np.maximum(0.0, self.exchange - self.exposed)

    @property
    def skipped(self) -> Floats:
        """Share of the windows that are not merged at all."""
        return np.maximum(0.0, 1.0 - self.in_time - self.late)


def simulate(swarm: Swarm) -> Rounds:
    """Run the rounds."""
    return _Run(swarm).run()


class _Run:
    """State while it runs. Arrays are (B,), one entry a bandwidth."""

    def __init__(self, swarm: Swarm) -> None:
        self.swarm = swarm
        self.zero = np.zeros_like(swarm.transfers[0].occupied)
        self.now, self.free = self.zero, self.zero
        self.waiting: deque[tuple[int, Floats]] = deque()
        """(step at which it merges, arrival) of the windows that have not come to their merge."""
        self.after: deque[tuple[int, Floats]] = deque()
        """(step after which it is too late, arrival) of those that have, and whose results were not there."""
        self.windows = 0
        self.exchange, self.in_time, self.late = self.zero, self.zero, self.zero
        self.patience = max(PATIENCE_FLOOR, swarm.overlap * swarm.step_seconds)

    def run(self) -> Rounds:
        swarm = self.swarm
        settling, counted = AWAITED_ROUNDS if swarm.merge_wait is None else SKIPPING_ROUNDS
        begin, end = (settling + 1) * swarm.sync_every, (settling + counted + 1) * swarm.sync_every
        opening = self._openings(end)
        merges = {step + swarm.overlap for step in opening}
        began, last = self.zero, 0
        for step in sorted(step for step in {*opening, *merges, begin, end} if step <= end):
            self.now = self.now + (step - last) * swarm.step_seconds
            last = step
            if step in merges and swarm.overlap:
                self._merge(step)
            for fragment in opening.get(step, ()):
                self._open(step, swarm.transfers[fragment])
            if not swarm.overlap:
                self._merge(step)
            if step == begin:
                began = self.now
                self._forget()
        wall = (self.now - began) / counted
        self.now = self.now + swarm.late_steps * swarm.step_seconds
        self._settle_late(end + swarm.late_steps)
        return self._result(wall, counted)

    def _openings(self, end: int) -> dict[int, list[int]]:
        """The fragments whose windows open at a step, up to `end`."""
        swarm = self.swarm
        offsets = spread(len(swarm.transfers), swarm.sync_every)
        opening: dict[int, list[int]] = {}
        for window in Schedule(swarm.sync_every, swarm.overlap, offsets, end + swarm.overlap).windows():
            opening.setdefault(window.due, []).append(window.fragment)
        return opening

    def _result(self, wall: Floats, counted: int) -> Rounds:
        windows = max(1, self.windows)
        compute = self.swarm.sync_every * self.swarm.step_seconds
        return Rounds(
            compute=compute,
            wall=np.maximum(wall, compute),
            exchange=self.exchange / counted,
            in_time=self.in_time / windows,
            late=self.late / windows,
        )

    def _forget(self) -> None:
        """The queue has settled: count from here."""
        self.after.clear()
        self.windows = 0
        self.exchange, self.in_time, self.late = self.zero, self.zero, self.zero

    def _open(self, step: int, transfer: Transfer) -> None:
        start = np.maximum(self.now, self.free)
        given_up = np.zeros(self.now.shape, bool)
        if self.swarm.merge_wait is not None:  # who does not wait lets go of what takes too long
            given_up = start - self.now > self.patience
        self.free = np.where(given_up, self.free, start + transfer.occupied)
        arrival = np.where(given_up, np.inf, start + transfer.taken)
        self.exchange = self.exchange + np.where(given_up, 0.0, arrival - self.now)
        self.waiting.append((step + self.swarm.overlap, arrival))

    def _merge(self, step: int) -> None:
        """Everything that merges at this boundary."""
        self._settle_late(step)
        arrivals = []
        while self.waiting and self.waiting[0][0] <= step:
            arrivals.append(self.waiting.popleft()[1])
        self.windows += len(arrivals)
        if not arrivals:
            return
        longest = np.inf if self.swarm.merge_wait is None else self.now + self.swarm.merge_wait
        self.now = np.maximum(self.now, np.minimum(np.maximum.reduce(arrivals), longest))
        for arrival in arrivals:
            self.in_time = self.in_time + (arrival <= self.now)
            self.after.append((step, np.where(arrival <= self.now, np.inf, arrival)))

    def _settle_late(self, step: int) -> None:
        """Count what came late of the windows of which that is known by now.

        Time goes by a step at a time since their merge, and by no wait in between: where waits are as long as steps,
        a little more is on time than is counted.
        """
        while self.after and self.after[0][0] + self.swarm.late_steps <= step:
            merged_at, arrival = self.after.popleft()
            last_chance = self.now - (step - merged_at - self.swarm.late_steps) * self.swarm.step_seconds
            self.late = self.late + (arrival <= last_chance)
