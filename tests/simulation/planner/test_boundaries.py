"""potluck's timing against sums done by hand: steps of a second, and windows that take whole seconds."""

import numpy as np
import pytest

from simulation.planner.boundaries import Rounds, Swarm, simulate
from simulation.planner.exchange import Transfer


def rounds(*, overlap: int, taken: float, fragments: int = 1, every: int = 4, **other: float) -> Rounds:
    transfer = Transfer(np.array([other.pop("occupied", taken)]), np.array([taken]))
    late_steps = int(other.pop("late_steps", 10))
    swarm = Swarm(
        step_seconds=1.0,
        sync_every=every,
        overlap=overlap,
        transfers=[transfer] * fragments,
        merge_wait=other.get("merge_wait"),
        late_steps=late_steps,
    )
    return simulate(swarm)


@pytest.mark.parametrize(
    ("overlap", "fragments", "taken", "waits"),
    [
        (0, 1, 2.0, 2.0),  # nothing is hidden
        (1, 1, 2.0, 1.0),  # one step hides one second of it
        (2, 1, 2.0, 0.0),
        (0, 2, 2.0, 4.0),  # two windows a round
        (1, 2, 2.0, 2.0),
        (3, 2, 3.0, 2.0),  # six seconds of link in a round of four: the link decides
    ],
)
def test_what_is_exposed_if_merges_are_awaited(overlap: int, fragments: int, taken: float, waits: float) -> None:
    found = rounds(overlap=overlap, fragments=fragments, taken=taken)
    assert found.exposed.tolist() == pytest.approx([waits])
    assert found.utilization.tolist() == pytest.approx([4 / (4 + waits)])
    assert found.in_time.tolist() == [1.0] and found.late.tolist() == [0.0] == found.skipped.tolist()


def test_hidden_and_exposed_make_the_exchange() -> None:
    found = rounds(overlap=1, taken=3.0)
    assert (found.exchange[0], found.hidden[0], found.exposed[0]) == (3.0, 1.0, 2.0)


def test_a_window_arrives_after_its_link_is_free() -> None:
    # The link carries for a second, the answer takes one more: two windows at once take three seconds together.
    assert rounds(overlap=0, taken=2.0, occupied=1.0, fragments=2, every=1).exposed.tolist() == [3.0]


def test_potluck_does_not_wait() -> None:
    found = rounds(overlap=1, taken=3.5, merge_wait=0.0)
    assert found.utilization.tolist() == [1.0]
    assert (found.in_time[0], found.late[0], found.skipped[0]) == (0.0, 1.0, 0.0)
    in_time = rounds(overlap=3, taken=3.0, merge_wait=0.0)
    assert (in_time.in_time[0], in_time.late[0], in_time.skipped[0]) == (1.0, 0.0, 0.0)


@pytest.mark.parametrize(("late_steps", "late"), [(1, 0.0), (2, 0.0), (3, 1.0)])
def test_what_comes_too_late_is_skipped(late_steps: int, late: float) -> None:
    # Opened at 0, merged at 1 at the earliest, here at 3.5: after two more steps it is not, after three it is.
    found = rounds(overlap=1, taken=3.5, merge_wait=0.0, late_steps=late_steps)
    assert (found.late[0], found.skipped[0]) == (late, 1.0 - late)


def test_with_no_overlap_it_waits_for_merge_wait() -> None:
    found = rounds(overlap=0, taken=3.5, merge_wait=1.0)
    assert found.utilization.tolist() == [0.8]  # four steps and a second
    assert (found.in_time[0], found.late[0]) == (0.0, 1.0)
    assert rounds(overlap=0, taken=0.5, merge_wait=1.0).utilization.tolist() == pytest.approx([4 / 4.5])


def test_a_link_that_is_too_small_gives_windows_up() -> None:
    """Six seconds of link in a round of four seconds: a third of the windows never leaves."""
    found = rounds(overlap=3, taken=3.0, fragments=2, merge_wait=0.0, late_steps=100)
    assert found.utilization.tolist() == [1.0]
    assert found.skipped[0] == pytest.approx(1 / 3, abs=0.05)
