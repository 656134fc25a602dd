"""How far a peer may be pulled along, and which windows open at a boundary that jumps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.messages import Status
from protocol.pace import PASSED, Pace, boundary, furthest
from protocol.presence import Presence
from protocol.roster import Roster
from protocol.schedule import Schedule, Window, spread

SCHEDULE = Schedule(12, 2, spread(2, 12), 100)


def test_furthest_is_one_gap_beyond_the_pace() -> None:
    assert furthest(20, SCHEDULE) == 26
    assert furthest(20, Schedule(10, 2, spread(3, 10), 100)) == 24


def test_an_ordinary_boundary_is_one_step() -> None:
    assert boundary(10, [], SCHEDULE) == (11, [])
    assert boundary(11, [], SCHEDULE) == (12, [Window(0, 12)])


def test_a_noticed_window_is_jumped_to_and_opened() -> None:
    assert boundary(13, [Window(1, 18)], SCHEDULE) == (18, [Window(1, 18)])


def test_windows_passed_by_a_jump_open_too_but_only_the_newest_of_a_fragment() -> None:
    assert boundary(11, [Window(1, 30)], SCHEDULE) == (30, [Window(0, 24), Window(1, 30)])


def test_a_notice_of_the_past_changes_nothing() -> None:
    assert boundary(20, [Window(0, 12)], SCHEDULE) == (21, [])


@given(st.integers(0, 99), st.lists(st.sampled_from(list(SCHEDULE.windows())), max_size=3))
def test_a_step_only_goes_forward_and_opens_what_it_passes(step: int, noticed: list[Window]) -> None:
    reached, windows = boundary(step, noticed, SCHEDULE)
    assert reached >= step + 1 and reached >= max((window.due for window in noticed), default=0)
    assert windows == sorted(windows) and len({window.fragment for window in windows}) == len(windows)
    assert all(step < window.due <= reached and SCHEDULE.is_due(window) for window in windows)
    assert {w.fragment for w in windows} == {w.fragment for w in SCHEDULE.windows() if step < w.due <= reached}


def test_the_swarms_seconds_a_step_are_seen_in_how_the_pace_moves() -> None:
    key, run = b"k" * 32, b"r" * 32
    roster = Roster(run=run, key=key)
    roster.learn(Presence(1, run, key, (), "train", True, 0, 0.0, 1e9), now=0.0, wall=0.0)
    pace = Pace(roster=roster, schedule=SCHEDULE, emit=lambda command: None)
    assert pace.seconds_a_step() is None
    for step in range(1, 2 * PASSED):
        roster.say(key, Status(step, 0, bytes(32)))
        pace.watch(100.0 + 0.5 * step)
        pace.watch(100.0 + 0.5 * step + 0.1)  # nothing has moved
    assert pace.seconds_a_step() == 0.5
    for step in range(2 * PASSED, 3 * PASSED):
        roster.say(key, Status(step, 0, bytes(32)))
        pace.watch(200.0 + 2.0 * step)
    assert pace.seconds_a_step() == 2.0, "only the last moves count"
