"""What is tried again: what nobody closed, one window, the oldest, once, and only over a quick network."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from protocol.commands import Retry
from protocol.retrying import Retries
from protocol.schedule import Schedule, Window
from protocol.window import Rules

FRAGMENT_OF = (0, 0, 1, 2)


class Bench:
    """Three fragments, due at 100, 133 and 166 of every round of 100; D is one second."""

    def __init__(self) -> None:
        self.commands: list[object] = []
        self.chains = [SimpleNamespace(due=0) for _ in FRAGMENT_OF]
        self.windows = SimpleNamespace(patience=1.0, outbound={})
        self.retries = Retries(
            ledger=SimpleNamespace(chains=self.chains),  # type: ignore[arg-type]
            windows=self.windows,  # type: ignore[arg-type]
            rules=Rules(100, 4, FRAGMENT_OF),
            schedule=Schedule(100, 5, (0, 33, 66), 1000),
            emit=self.commands.append,
        )

    def window(self, fragment: int, due: int, now: float, *closed: int, after: float = 0.1) -> list[object]:
        """Open a window, and let the links of some of its chunks come; returns what was commanded."""
        self.retries.opened(Window(fragment, due), now)
        for chunk in closed:
            self.chains[chunk].due = due
            self.retries.settled(chunk, due, now + after)
        commands, self.commands[:] = list(self.commands), []
        return commands


def test_a_chunk_that_nobody_closed_is_tried_again_in_the_next_window_once() -> None:
    bench = Bench()
    assert bench.window(0, 100, 0.0, 1) == []
    assert bench.retries.missing(Window(0, 100)) == [0]
    assert bench.window(1, 133, 50.0, 2) == [Retry(Window(0, 100))]
    assert bench.window(2, 166, 99.0, 3) == [], "once"


def test_where_all_was_closed_nothing_is_tried_again() -> None:
    bench = Bench()
    bench.window(0, 100, 0.0, 0, 1)
    assert bench.window(1, 133, 50.0, 2) == []


@pytest.mark.parametrize("after", [0.5, 3.0])
def test_a_slow_network_gets_nothing_more_to_carry(after: float) -> None:
    bench = Bench()
    bench.window(0, 100, 0.0, 1, after=after)
    assert bench.window(1, 133, 50.0, 2) == []


def test_after_a_window_that_was_missed_whole_nothing_is_tried_again() -> None:
    bench = Bench()
    bench.window(0, 100, 0.0)
    assert bench.window(1, 133, 50.0) == []


def test_of_several_the_oldest_is_tried_and_the_fragment_that_is_due_is_not() -> None:
    bench = Bench()
    bench.window(0, 100, 0.0)
    bench.window(1, 133, 50.0)
    bench.window(2, 166, 99.0, 3)
    assert bench.window(0, 200, 150.0, 0, 1) == [Retry(Window(1, 133))]


def test_what_is_still_in_flight_is_not_tried_again() -> None:
    bench = Bench()
    bench.window(0, 100, 0.0, 1)
    bench.windows.outbound[0, 100] = object()
    assert bench.window(1, 133, 50.0, 2) == []


def test_what_could_not_merge_before_the_fragments_next_window_is_not_tried_again() -> None:
    bench = Bench()
    bench.window(0, 100, 0.0, 1)
    assert bench.window(2, 196, 99.0, 3) == []
