"""From a failing list of events to the shortest one that still fails (delta debugging, Zeller and Hildebrandt 2002).

Runs are deterministic, so every try is one run. A shorter list counts only if it breaks the same invariant. The result
is minimal in this sense: with any one event taken out, that invariant holds, unless the number of tries ran out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simulation.events import Event

TRIES: Final = 200


def shrink(
    events: tuple[Event, ...], still_fails: Callable[[tuple[Event, ...]], bool], tries: int = TRIES
) -> tuple[Event, ...]:
    """The shortest list found. `still_fails` is asked at most `tries` times; it need not hold for fewer events."""
    left = tries

    def fails(some: tuple[Event, ...]) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and still_fails(some)

    if events and fails(()):
        return ()
    pieces = 2
    while len(events) > 1 and left > 0:
        size = -(-len(events) // pieces)
        shorter = _without_a_piece(events, size, fails)
        if shorter is not None:
            events, pieces = shorter, max(2, pieces - 1)
        elif size == 1:
            break
        else:
            pieces = min(2 * pieces, len(events))
    return events


def _without_a_piece(
    events: tuple[Event, ...], size: int, fails: Callable[[tuple[Event, ...]], bool]
) -> tuple[Event, ...] | None:
    for start in range(0, len(events), size):
        rest = events[:start] + events[start + size :]
        if rest and fails(rest):
            return rest
    return None
