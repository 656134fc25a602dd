"""Shrinking: the fewest events that still fail, and deterministic replays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import window
from simulation.campaign import Terms, campaign
from simulation.events import Event
from simulation.faults import random_plan, run
from simulation.shrink import shrink

EVENTS = tuple(Event(float(number), "cut", number % 3) for number in range(12))


@given(needed=st.sets(st.integers(0, 11), max_size=4))
def test_what_is_needed_is_what_is_left(needed: set[int]) -> None:
    wanted = {EVENTS[index] for index in needed}
    assert set(shrink(EVENTS, lambda some: wanted <= set(some))) == wanted


@given(of=st.integers(1, 12))
def test_the_result_is_minimal_where_any_few_do(of: int) -> None:
    assert len(shrink(EVENTS, lambda some: len(some) >= of)) == of


def test_tries_are_bounded_and_what_is_returned_was_seen_to_fail() -> None:
    seen: list[tuple[Event, ...]] = []

    def fails(some: tuple[Event, ...]) -> bool:
        seen.append(some)
        return EVENTS[3] in some and EVENTS[8] in some

    result = shrink(EVENTS, fails, tries=5)
    assert len(seen) == 5
    assert result == EVENTS or result in seen


@pytest.mark.timeout(300)
def test_a_failing_seed_is_shrunk_to_events_that_fail_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the closing threshold taken out: whoever is cut off closes alone."""
    monkeypatch.setattr(window, "is_enough", lambda *_: True)
    terms = Terms(peers=(4, 6), kinds=("partition", "duplication"))
    tally = campaign(terms, range(6, 9), jobs=1)
    found = [one for one in tally.violations if one.invariant == "enough-of-us"]
    assert found
    one = found[0]
    assert one.events and {event.kind for event in one.events} == {"partition"}, one.events
    plan = random_plan(one.seed, peers=terms.peers)
    assert run(one.seed, plan, one.events).invariant == one.invariant
    for index in range(len(one.events)):
        fewer = one.events[:index] + one.events[index + 1 :]
        assert run(one.seed, plan, fewer).invariant != one.invariant
