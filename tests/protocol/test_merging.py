"""When settled chunks are mixed: at τ own steps, late, never, at once with αⁿ; each at most once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.merging import Merges, Mix, TooLate
from protocol.schedule import Window


def merges(overlap: int = 3, late_steps: int = 5) -> Merges:
    return Merges(overlap=overlap, late_steps=late_steps, fragment_of=(0, 0, 1))


def test_a_chunk_is_mixed_at_its_own_boundary_and_once() -> None:
    one = merges()
    one.opened(Window(0, 10), own_step=7)
    one.settled(0, 10, links=1, mix=True)
    assert one.take(8) == one.take(9) == []
    assert one.take(10) == [Mix(0, 10, power=1, late=0)]
    assert one.take(11) == []


def test_without_overlap_it_is_mixed_at_once() -> None:
    one = merges(overlap=0)
    one.opened(Window(0, 10), own_step=7)
    one.settled(1, 10, links=1, mix=True)
    assert one.take(7) == [Mix(1, 10, power=1, late=0)]


def test_late_is_mixed_up_to_late_steps_and_not_after() -> None:
    for own_step, right in ((15, Mix(0, 10, 1, 5)), (16, TooLate(0, 10, 6))):
        one = merges()
        one.opened(Window(0, 10), own_step=7)
        one.settled(0, 10, links=1, mix=True)
        assert one.take(own_step) == [right]
        assert one.take(own_step + 1) == []


def test_a_window_that_never_opened_here_is_mixed_at_once_with_the_power_of_its_links() -> None:
    one = merges()
    one.settled(2, 30, links=4, mix=True)
    assert one.take(1) == [Mix(2, 30, power=4, late=0)]


def test_links_that_come_one_by_one_add_up_to_one_mix() -> None:
    one = merges()
    for due in (10, 20, 30):
        one.settled(2, due, links=1, mix=True)
    assert one.take(1) == [Mix(2, 30, power=3, late=0)]


def test_a_replaced_sibling_moves_the_anchor_only() -> None:
    one = merges()
    one.opened(Window(0, 10), own_step=7)
    one.settled(0, 10, links=1, mix=True)
    assert len(one.take(10)) == 1
    one.settled(0, 10, links=1, mix=False)
    assert one.take(11) == []


def test_a_sibling_that_comes_before_the_mix_does_not_cancel_it() -> None:
    one = merges()
    one.opened(Window(0, 10), own_step=7)
    one.settled(0, 10, links=1, mix=True)
    one.settled(0, 10, links=1, mix=False)
    assert one.take(10) == [Mix(0, 10, power=1, late=0)]


def test_the_window_before_may_settle_late_while_the_next_is_open() -> None:
    one = merges(late_steps=20)
    one.opened(Window(0, 10), own_step=10)
    one.opened(Window(0, 20), own_step=20)
    one.settled(0, 10, links=1, mix=True)
    assert one.take(21) == [Mix(0, 10, power=1, late=8)]
    one.settled(0, 20, links=1, mix=True)
    assert one.take(23) == [Mix(0, 20, power=1, late=0)]


def test_waiting_names_the_chunks_that_have_not_settled() -> None:
    one = merges()
    assert one.waiting(Window(0, 10)) == [], "a window that was never opened is not waited for"
    one.opened(Window(0, 10), own_step=7)
    assert one.waiting(Window(0, 10)) == [0, 1]
    one.settled(1, 10, links=1, mix=True)
    assert one.waiting(Window(0, 10)) == [0]
    one.settled(0, 20, links=2, mix=True)
    assert one.waiting(Window(0, 10)) == []


def test_chosen_chunks_only_and_none_that_is_not_there() -> None:
    one = merges()
    one.settled(0, 10, links=1, mix=True)
    one.settled(2, 10, links=1, mix=True)
    assert one.take(1, [2, 1]) == [Mix(2, 10, power=1, late=0)]
    assert one.take(1) == [Mix(0, 10, power=1, late=0)]


@given(
    st.lists(st.tuples(st.sampled_from(["open", "settle", "take"]), st.integers(0, 2), st.integers(1, 3)), max_size=60)
)
def test_nothing_is_mixed_twice_or_held_for_ever(events: list[tuple[str, int, int]]) -> None:
    one = merges()
    settled = mixed = 0
    for own_step, (kind, chunk, links) in enumerate(events):
        due = 10 * (own_step + 1)
        if kind == "open":
            one.opened(Window(min(chunk // 2, 1), due), own_step)
        elif kind == "settle":
            settled += 1
            one.settled(chunk, due, links, mix=True)
        else:
            mixed += len(one.take(own_step))
        assert len(one._opened) <= 4 and len(one._pending) <= 3
    mixed += len(one.take(len(events) + 1000))
    assert mixed <= settled and (mixed > 0) == (settled > 0)
    assert not one._pending
