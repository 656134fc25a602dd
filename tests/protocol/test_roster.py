"""Who is here, how far, and who owns what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.messages import FINISHED, LEAVING, TRAINING, Link, Part, Status
from protocol.presence import Presence
from protocol.roster import MAX_NEIGHBOURS, Roster

RUN = b"r" * 32


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def record(number: int, *, issued: float = 0.0, role: str = "train", owns: bool = True, from_step: int = 0) -> Presence:
    return Presence(1, RUN, key(number), (), role, owns, from_step, issued, issued + 60.0)  # type: ignore[arg-type]


def roster(number: int = 4) -> Roster:
    made = Roster(run=RUN, key=key(0))
    for index in range(number):
        made.learn(record(index), now=0.0, wall=0.0)
    return made


def say(one: Roster, number: int, step: int, phase: int = TRAINING) -> None:
    one.say(key(number), Status(step, phase, bytes(32)))


def test_the_newest_record_counts_and_replays_do_nothing() -> None:
    one = roster(0)
    assert one.learn(record(1, issued=10.0), now=5.0, wall=10.0)
    assert one.neighbours[key(1)].expires == 65.0
    assert not one.learn(record(1, issued=10.0, owns=False), now=6.0, wall=11.0)
    assert not one.learn(record(1, issued=9.0, owns=False), now=6.0, wall=11.0)
    assert one.neighbours[key(1)].record.owns
    assert one.learn(record(1, issued=20.0, owns=False), now=15.0, wall=20.0)
    assert not one.neighbours[key(1)].record.owns


def test_a_flood_of_made_up_peers_is_not_kept_and_not_passed_on() -> None:
    one = roster(0)
    assert all(one.learn(record(index), now=0.0, wall=0.0) for index in range(MAX_NEIGHBOURS))
    assert not one.learn(record(MAX_NEIGHBOURS + 1), now=0.0, wall=0.0)
    assert len(one.neighbours) == MAX_NEIGHBOURS
    assert one.learn(record(1, issued=1.0), now=0.0, wall=0.0), "a known peer's newer record is still taken"


def test_lost_until_anything_is_heard() -> None:
    one = roster()
    one.lose(key(1))
    assert one.is_lost(key(1)) and key(1) not in one.live()
    one.seen(key(1))
    assert not one.is_lost(key(1))
    one.lose(key(0))
    assert not one.is_lost(key(0)), "we are never lost to ourselves"
    assert one.is_lost(key(99)), "nothing is expected of a stranger"


def test_expired_peers_go_unless_they_still_speak() -> None:
    one = roster()
    say(one, 1, 5)
    say(one, 2, 5)
    one.lose(key(2))
    one.forget_expired(59.0)
    assert len(one.neighbours) == 4
    one.forget_expired(60.0)
    assert set(one.neighbours) == {key(0), key(1)}


def test_words_of_strangers_are_not_kept() -> None:
    one = roster()
    say(one, 99, 1 << 39)
    one.late(key(99), 5.0)
    one.seen(key(99))
    assert key(99) not in one.neighbours


def test_trainers_are_live_and_training() -> None:
    one = roster(5)
    one.learn(record(4, issued=1.0, role="own"), now=0.0, wall=1.0)
    say(one, 1, 9, FINISHED)
    say(one, 2, 9, LEAVING)
    assert one.trainers() == {key(0), key(3)}
    assert one.live() == [key(1), key(3), key(4)]


@pytest.mark.parametrize(
    ("steps", "right"),
    [([7], 7), ([7, 3], 7), ([7, 3, 5], 5), ([9, 8, 2, 1], 8), ([1 << 39, 4, 4, 4], 4), ([0, 0, 0], 0)],
)
def test_pace_is_what_half_have_reached(steps: list[int], right: int) -> None:
    one = roster(len(steps))
    for number, step in enumerate(steps):
        say(one, number, step)
    assert one.pace() == right


def test_pace_counts_the_finished_and_not_the_lost() -> None:
    one = roster(3)
    say(one, 0, 10)
    say(one, 1, 100, FINISHED)
    say(one, 2, 100, FINISHED)
    assert one.pace() == 100
    one.lose(key(1))
    one.lose(key(2))
    assert one.pace() == 10
    assert Roster(run=RUN, key=key(0)).pace() == 0


def test_usual_lateness_is_the_slowest_ones_worst_of_eight() -> None:
    one = roster()
    assert one.usual_lateness([key(1)]) is None
    for seconds in (9.0, *[0.1] * 7):
        one.late(key(1), seconds)
    one.late(key(2), 1.0)
    assert one.usual_lateness([key(1), key(2)]) == 9.0
    one.late(key(1), 0.2)
    assert one.usual_lateness([key(1), key(2)]) == 1.0
    assert one.usual_lateness([key(1), key(3)]) is None
    assert one.usual_lateness([]) == 0.0


def test_owners_can_be_dialled_and_count_from_their_step() -> None:
    one = roster(2)
    one.learn(record(2, owns=False), now=0.0, wall=0.0)
    one.learn(record(3, from_step=50), now=0.0, wall=0.0)
    one.lose(key(1))
    assert one.owners(49) == [key(0), key(1)], "a lost one stays in the ranking"
    assert one.owners(50) == [key(0), key(1), key(3)]


def test_without_owners_every_ranking_is_empty() -> None:
    assert roster(0).ranked([3, 4], 10) == {3: (), 4: ()}


@given(st.integers(1, 16), st.lists(st.integers(0, 500), min_size=1, max_size=64, unique=True))
def test_rankings_hold_every_owner_and_share_the_load(owners: int, chunks: list[int]) -> None:
    one, other = roster(owners), Roster(run=RUN, key=key(1))
    for index in reversed(range(owners)):
        other.learn(record(index), now=3.0, wall=0.0)
    ranking = one.ranked(sorted(chunks), 10)
    assert ranking == other.ranked(sorted(chunks), 10), "the same roster gives the same ranking"
    assert all(sorted(order) == [key(index) for index in range(owners)] for order in ranking.values())
    busiest = max(Counter(order[0] for order in ranking.values()).values())
    assert busiest <= -(-len(chunks) * 1.1 // owners)


def test_a_newcomer_takes_few_chunks_from_others() -> None:
    before, after = roster(8).ranked(range(64), 10), roster(9).ranked(range(64), 10)
    moved = sum(before[chunk][0] != after[chunk][0] for chunk in range(64))
    assert moved < 32


def test_newcomers_and_made_up_peers_do_not_pull_the_pace_down() -> None:
    one = roster(6)
    say(one, 0, 100)
    say(one, 1, 90)
    say(one, 2, 0)  # has just come; of the others there is only a record
    assert one.pace() == 100


def weighing(*tokens: int, steps: Sequence[int]) -> Roster:
    """Peers at these steps, and one link that names what they trained."""
    one = roster(len(steps))
    for number, step in enumerate(steps):
        say(one, number, step)
    one.weigh(0, link_of(*tokens))
    return one


def link_of(*tokens: int, span: int = 10) -> Link:
    parts = tuple(Part(key(n), count, bytes(32), bytes(64)) for n, count in enumerate(tokens) if count)
    return Link(0, 10, span, bytes(32), bytes(32), 1, parts, sum(tokens), sum(tokens), bytes(32))


@pytest.mark.parametrize(
    ("tokens", "steps", "right"),
    [
        ((100, 10, 10), [500, 50, 49], 500),  # a fast minority is the pace
        ((100, 10, 10), [50, 500, 499], 499),  # and does not hold the others when it stands still
        ((100, *[2] * 20), [300, *[30] * 20], 300),  # twenty laptops do not hold one that trains more than all
        ((10, 10, 5, 1), [100, 98, 50, 10], 98),
        ((10, 10, 10, 10), [1 << 39, 40, 40, 40], 40),  # one bad clock moves nobody
        ((100, 0, 0), [500, 50, 49], 500),  # only one was named so far
    ],
)
def test_pace_is_what_half_of_the_tokens_or_half_of_the_peers_have_reached(
    tokens: tuple[int, ...], steps: list[int], right: int
) -> None:
    assert weighing(*tokens, steps=steps).pace() == right


def test_the_newest_link_of_each_chunk_is_what_counts() -> None:
    one = weighing(10, 100, 10, steps=[50, 500, 49])
    one.weigh(0, link_of(10, 0, 10))
    assert one.pace() == 50
    one.weigh(1, link_of(0, 1000, 0))
    assert one.pace() == 500
    one.lose(key(1))
    assert one.pace() == 50, "the lost do not count"


def test_two_behind_nat_are_apart_and_hear_the_pace_from_an_owner() -> None:
    one = Roster(run=RUN, key=key(0))

    def learn(number: int, role: str, addresses: tuple[str, ...], issued: float = 0.0) -> None:
        known = Presence(1, RUN, key(number), addresses, role, bool(addresses), 0, issued, 60.0)  # type: ignore[arg-type]
        one.learn(known, now=issued, wall=issued)

    assert not one.is_apart(key(0)) and not one.is_apart(key(9)), "nobody is known"
    learn(0, "train", ())
    learn(1, "own", ("/ip4/45.0.0.1/tcp/1",))
    learn(2, "train", ("/ip4/45.0.0.2/tcp/1",))
    say(one, 0, 10)
    say(one, 1, 500)
    assert not one.is_apart(key(0)) and not one.is_apart(key(1)), "whom we can dial"
    assert one.pace() == 10, "only trainers say the pace where all of them can be heard"
    learn(3, "train", ())
    assert one.is_apart(key(3))
    assert one.pace() == 500, "what the owner sees of those that we cannot hear"
    learn(0, "train", ("/ip4/45.0.0.9/tcp/1",), issued=1.0)
    assert not one.is_apart(key(3)), "it can dial us"
