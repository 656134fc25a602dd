"""The schedule against the definition, written out: due at t_p + r·H, r ≥ 1, merged by the end of the run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.schedule import Schedule, Window, spread


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    sync_every = draw(st.integers(1, 12))
    offsets = st.lists(st.integers(0, sync_every - 1), min_size=1, max_size=5)
    even = st.integers(1, 5).map(lambda fragments: spread(fragments, sync_every))
    return Schedule(
        sync_every=sync_every,
        overlap=draw(st.integers(0, sync_every - 1)),
        offsets=draw(st.one_of(offsets.map(tuple), even)),
        steps=draw(st.integers(1, 60)),
    )


def by_definition(schedule: Schedule) -> list[Window]:
    windows = [
        Window(fragment, offset + rounds * schedule.sync_every)
        for fragment, offset in enumerate(schedule.offsets)
        for rounds in range(1, schedule.steps + 1)
        if offset + rounds * schedule.sync_every + schedule.overlap <= schedule.steps
    ]
    return sorted(windows, key=lambda window: (window.due, window.fragment))


def steps_of(schedule: Schedule) -> range:
    return range(-2, schedule.steps + 2 * schedule.sync_every)


@given(schedules())
def test_windows_are_those_of_the_definition_in_order(schedule: Schedule) -> None:
    assert list(schedule.windows()) == by_definition(schedule)
    assert all(schedule.is_due(window) for window in schedule.windows())


@given(schedules())
def test_every_window_opens_once_and_merges_overlap_later(schedule: Schedule) -> None:
    opened = [(step, window) for step in steps_of(schedule) for window in schedule.opening(step)]
    merged = [(step, window) for step in steps_of(schedule) for window in schedule.merging(step)]
    assert opened == [(window.due, window) for window in schedule.windows()]
    assert merged == [(window.due + schedule.overlap, window) for window in schedule.windows()]
    assert all(step <= schedule.steps for step, _ in merged)


@given(schedules())
def test_in_flight_is_what_opened_and_has_not_merged(schedule: Schedule) -> None:
    flying: list[Window] = []
    for step in steps_of(schedule):
        flying += schedule.opening(step)
        flying = [window for window in flying if window not in schedule.merging(step)]
        assert schedule.in_flight(step) == tuple(flying)
        assert len({window.fragment for window in flying}) == len(flying), "a fragment has one window at a time"


@given(schedules())
def test_neighbours_of_a_window(schedule: Schedule) -> None:
    windows = list(schedule.windows())
    for fragment in range(len(schedule.offsets)):
        own = [window for window in windows if window.fragment == fragment]
        assert [schedule.previous(window) for window in own] == [None, *own[:-1]][: len(own)]
        for step in steps_of(schedule):
            later = [window.due for window in own if window.due > step]
            assert schedule.next_due(fragment, step) == (later[0] if later else None)


@given(schedules())
def test_latest_due(schedule: Schedule) -> None:
    dues = [window.due for window in by_definition(schedule)]
    for step in steps_of(schedule):
        assert schedule.latest_due(step) == max((due for due in dues if due <= step), default=0)


@given(schedules(), st.integers(-3, 8), st.integers(-100, 200))
def test_is_due_takes_any_integers(schedule: Schedule, fragment: int, due: int) -> None:
    assert schedule.is_due(Window(fragment, due)) == (Window(fragment, due) in by_definition(schedule))


@given(st.integers(1, 20), st.integers(1, 200))
def test_spread_is_even(fragments: int, sync_every: int) -> None:
    offsets = spread(fragments, sync_every)
    assert len(offsets) == fragments and offsets[0] == 0 and offsets[-1] < sync_every
    gaps = [later - earlier for earlier, later in zip(offsets, (*offsets[1:], sync_every), strict=True)]
    assert max(gaps) - min(gaps) <= 1


def test_several_windows_are_in_flight_when_overlap_exceeds_the_gap() -> None:
    schedule = Schedule(sync_every=8, overlap=5, offsets=spread(4, 8), steps=100)
    assert schedule.in_flight(14) == (Window(1, 10), Window(2, 12), Window(3, 14))


def test_the_paper_first_rounds() -> None:
    """H = 100, two fragments, τ = 5: the first window is at 100, not at 0, and the other fragment's 50 later."""
    schedule = Schedule(sync_every=100, overlap=5, offsets=spread(2, 100), steps=355)
    assert [(w.fragment, w.due) for w in schedule.windows()] == [
        (0, 100),
        (1, 150),
        (0, 200),
        (1, 250),
        (0, 300),
        (1, 350),
    ]


def test_windows_are_ordered_by_due_step_and_then_by_fragment() -> None:
    assert sorted([Window(1, 7), Window(0, 9), Window(0, 7)]) == [Window(0, 7), Window(1, 7), Window(0, 9)]


@pytest.mark.parametrize("overlap", [-1, 10, 11])
def test_overlap_outside_a_round_is_refused(overlap: int) -> None:
    with pytest.raises(AssertionError):
        Schedule(sync_every=10, overlap=overlap, offsets=(0,), steps=100)
