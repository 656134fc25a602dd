"""Seats: the same for all who see the same records, never two peers on one, and well spread."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from protocol.presence import Presence
from protocol.roster import Roster
from protocol.seats import assign, start_of

CLAIMS = st.lists(
    st.tuples(st.integers(0, 3), st.binary(min_size=1, max_size=2), st.integers(0, 5)),
    max_size=12, unique_by=lambda claim: claim[1],
)  # fmt: skip


@given(CLAIMS)
def test_everyone_gets_one_whatever_the_order(claims: list[tuple[int, bytes, int]]) -> None:
    seats = assign(claims)
    assert seats.keys() == {key for _, key, _ in claims}
    assert len(set(seats.values())) == len(claims)
    assert assign(claims[::-1]) == seats
    for first, key, seat in claims:  # who came first keeps what it claims
        rivals = [rival for rival in claims if rival[2] == seat and rival[:2] < (first, key)]
        assert rivals or seats[key] == seat


@given(CLAIMS)
def test_once_given_they_stay(claims: list[tuple[int, bytes, int]]) -> None:
    seats = assign(claims)
    assert assign([(first, key, seats[key]) for first, key, _ in claims]) == seats


@given(st.integers(1, 10))
def test_so_many_seats_cut_the_circle_evenly(power: int) -> None:
    assert sorted(start_of(seat) for seat in range(2**power)) == [Fraction(n, 2**power) for n in range(2**power)]


def record(key: int, seat: int, *, from_step: int = 0, role: str = "train") -> Presence:
    return Presence(1, bytes(32), bytes([key]) * 32, (), role, True, from_step, 0.0, 60.0, "", seat)  # type: ignore[arg-type]


def test_a_newcomer_takes_the_smallest_free_one_and_those_who_came_together_agree() -> None:
    rosters = [Roster(run=bytes(32), key=bytes([number]) * 32) for number in (1, 2, 3)]
    for roster in rosters:
        for number in (1, 2, 3):
            roster.learn(record(number, 0), now=0.0, wall=0.0)
        roster.learn(record(9, 1, role="own"), now=0.0, wall=0.0)
    assert [roster.seat(0, 0) for roster in rosters] == [0, 1, 2]
    newcomer = Roster(run=bytes(32), key=bytes(32))
    for number, seat in ((1, 0), (2, 3), (3, 1)):
        newcomer.learn(record(number, seat), now=0.0, wall=0.0)
    assert newcomer.seat(0, 40) == 2, "though its key is the smallest: the others were here before"
    assert newcomer.seat(2, 40) == 2
    newcomer.learn(record(5, 2, from_step=40), now=0.0, wall=0.0)
    assert newcomer.seat(2, 40) == 2, "of two that came together the smaller key stays"
