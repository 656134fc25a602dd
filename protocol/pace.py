"""How far a peer may be pulled along (docs/protocol.md, section 9; design: notice).

A peer that learns of a window that it has not reached jumps to it, so that a swarm runs at the pace of its fast half.
One bad clock must not drag everyone: nothing further than one gap between two windows beyond the pace is followed.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.schedule import Schedule, Window


def furthest(pace: int, schedule: Schedule) -> int:
    """The latest due step that may be noticed: the pace plus ⌈H/P⌉."""
    return pace + -(-schedule.sync_every // len(schedule.offsets))


def boundary(step: int, noticed: Iterable[Window], schedule: Schedule) -> tuple[int, list[Window]]:
    """One step boundary: from swarm step `step` to the next one, or further if a window was noticed.

    Returns the new swarm step and the windows that open now, in order: for each fragment the newest one passed.
    """
    reached = max([step + 1, *(window.due for window in noticed)])
    newest: dict[int, Window] = {}
    for passed in range(step + 1, reached + 1):
        newest.update({window.fragment: window for window in schedule.opening(passed)})
    return reached, sorted(newest.values())
