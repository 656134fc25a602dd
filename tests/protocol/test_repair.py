"""Repair: a difference that lasts is asked about, once, and what is missing is pulled; a bad donor costs time only."""

from __future__ import annotations

import pytest
import torch

from aggregation.arithmetic import Arithmetic
from aggregation.codecs import Fp32
from aggregation.outer import ChunkState
from protocol.commands import Send
from protocol.errors import ProtocolError
from protocol.giving import LINKS_A_PULL, LONGEST_QUEUE, WINDOW_FIRST
from protocol.ledger import Ledger
from protocol.messages import AskHeads, Busy, Heads, LinkMessage, Part, Pull, StateMessage, Status, sha256
from protocol.presence import Presence
from protocol.repair import PULLS_A_DONOR, PULLS_AT_A_TIME, Repair
from protocol.roster import Roster
from protocol.window import Rules, Windows
from simulation.swarm import CheapKeys

RUN = b"r" * 32
ME, A, B, C = (bytes([n]) * 32 for n in (1, 2, 3, 4))
CHUNKS = 6
ARITHMETIC = Arithmetic([1] * CHUNKS, contribution_codec=Fp32(), result_codec=Fp32(), lr=0.5, momentum=0.0)


def ledger() -> Ledger[ChunkState]:
    genesis = [ChunkState(torch.zeros(1), torch.zeros(1)) for _ in range(CHUNKS)]
    return Ledger(run=RUN, genesis=genesis, arithmetic=ARITHMETIC, keys=CheapKeys(ME), weight_cap=4)


def grow(one: Ledger[ChunkState], chunk: int, *dues: int) -> None:
    payload = Fp32().encode(torch.tensor([0.5]))
    for due in dues:
        parent = one.parent(chunk, one.tip(chunk))
        one.adopt(*one.close(chunk, due, parent, [(Part(A, 100, sha256(payload), bytes(64)), payload)]))


class Bench:
    def __init__(self) -> None:
        self.ledger = ledger()
        self.roster = Roster(run=RUN, key=ME)
        for key in (ME, A, B, C):
            self.roster.learn(Presence(1, RUN, key, (), "train", True, 0, 0.0, 1e9), now=0.0, wall=0.0)
        self.commands: list[object] = []
        emit = self.commands.append
        windows = Windows(rules=Rules(10, 4, (0,) * CHUNKS), ledger=self.ledger, roster=self.roster, emit=emit)
        self.windows = windows
        self.repair = Repair(ledger=self.ledger, roster=self.roster, windows=windows, random=lambda: 0.5, emit=emit)

    def sends(self) -> list[tuple[bytes, object]]:
        commands, self.commands[:] = list(self.commands), []
        assert all(isinstance(one, Send) and one.repair for one in commands), "repair has the lowest priority"
        return [(one.to, one.message) for one in commands if isinstance(one, Send)]

    def status(self, peer: bytes, heads: bytes, now: float) -> None:
        self.roster.say(peer, Status(1, 0, heads))
        self.repair.heard_status(peer, now)


def ahead(*chunks: int) -> Heads:
    other = ledger()
    for chunk in chunks:
        grow(other, chunk, 10)
    return Heads(tuple(chain.order for chain in other.chains))


def test_a_difference_that_lasts_is_asked_about_once() -> None:
    bench = Bench()
    bench.status(A, bytes(32), 0.0)
    bench.status(A, bytes(32), 0.5)
    assert bench.sends() == [] and bench.repair.timer == 1.0
    bench.repair.handle_timer(0.99)
    assert bench.sends() == []
    bench.repair.handle_timer(1.0)
    assert bench.sends() == [(A, AskHeads())]
    bench.repair.handle_timer(9.0)
    assert bench.sends() == []


def test_a_difference_that_ends_is_not_asked_about() -> None:
    bench = Bench()
    bench.status(A, bytes(32), 0.0)
    bench.status(A, bench.ledger.digest(), 0.5)
    bench.repair.handle_timer(2.0)
    assert bench.sends() == []


def test_the_lost_are_not_asked() -> None:
    bench = Bench()
    bench.status(A, bytes(32), 0.0)
    bench.roster.lose(A)
    bench.repair.handle_timer(2.0)
    assert bench.sends() == []


def test_what_is_greater_is_pulled_and_the_rest_is_not() -> None:
    bench = Bench()
    grow(bench.ledger, 2, 10, 20)
    bench.repair.heard_heads(A, ahead(1, 2), 0.0)
    chain = bench.ledger.chains[1]
    assert bench.sends() == [(A, Pull(1, (chain.head, chain.base_head)))]


def pulls(bench: Bench) -> list[tuple[bytes, int]]:
    """Whom the pulls since the last look went to, and for which chunk."""
    return [(to, message.chunk) for to, message in bench.sends() if isinstance(message, Pull)]


def asked_of_two(bench: Bench) -> bytes:
    """A and B both have more of chunk 0: whom it was asked of."""
    for donor in (A, B):
        bench.repair.heard_heads(donor, ahead(0), 0.0)
    ((first, _),) = pulls(bench)
    return first


def test_a_donor_gets_two_pulls_at_a_time_and_the_next_donor_the_others() -> None:
    bench = Bench()
    bench.repair.heard_heads(A, ahead(*range(CHUNKS)), 0.0)
    assert pulls(bench) == [(A, 0), (A, 1)] and PULLS_A_DONOR == 2
    bench.repair.heard_heads(B, ahead(*range(CHUNKS)), 0.1)
    assert pulls(bench) == [(B, 2), (B, 3)]
    bench.repair.heard_heads(C, ahead(*range(CHUNKS)), 0.1)
    assert pulls(bench) == [] and PULLS_AT_A_TIME == 4
    grow(bench.ledger, 0, 10)
    bench.repair.adopted(0, 0.2)
    assert pulls(bench) == [(C, 4)], "the idlest"


def test_a_chunk_is_asked_for_once_a_patience() -> None:
    bench = Bench()
    bench.repair.heard_heads(A, ahead(0), 0.0)
    bench.repair.adopted(0, 0.1)
    bench.repair.heard_heads(A, ahead(0), 0.9)
    assert len(pulls(bench)) == 1
    bench.repair.heard_heads(A, ahead(0), 1.0)
    assert len(pulls(bench)) == 1


def test_a_donor_of_whom_nothing_comes_is_replaced_and_what_it_sends_late_is_taken() -> None:
    bench = Bench()
    first = asked_of_two(bench)
    limit = 2 * bench.repair.patience
    bench.repair.handle_timer(limit)
    ((second, _),) = pulls(bench)
    assert {first, second} == {A, B}
    assert bench.repair.asked(first, 0) and bench.repair.asked(second, 0) and not bench.repair.asked(C, 0)
    bench.repair.handle_timer(2 * limit)
    assert pulls(bench) == [], "all have been tried: the next difference begins anew"
    bench.repair.heard_heads(A, ahead(0), 2 * limit)
    assert len(pulls(bench)) == 1


def test_a_donor_that_brings_something_is_waited_for() -> None:
    bench = Bench()
    bench.repair.heard_heads(A, ahead(0, 1), 0.0)
    bench.repair.heard_heads(B, ahead(0, 1), 0.0)
    assert pulls(bench) == [(A, 0), (A, 1)]
    bench.repair.heard_from(A, 0, placed=True, whole=True, now=1.9)
    bench.repair.handle_timer(2.1)
    assert pulls(bench) == []
    # What A's last state took, twice, is how long the next one may take.
    bench.repair.handle_timer(1.9 + 2 * 1.9)
    assert pulls(bench) == [(B, 1)]
    assert bench.repair.donors == {A}


def test_links_that_have_no_place_do_not_put_a_donors_end_off() -> None:
    """An owner closes window after window of the chunk that it was asked for; our request was lost."""
    bench = Bench()
    first = asked_of_two(bench)
    limit = 2 * bench.repair.patience
    for part in range(1, 8):
        bench.repair.heard_from(first, 0, placed=False, whole=False, now=limit * part / 8)
    bench.repair.handle_timer(limit)
    ((second, _),) = pulls(bench)
    assert second != first and not bench.repair.donors


def test_what_a_lost_donor_was_to_give_comes_from_another_at_once() -> None:
    bench = Bench()
    bench.repair.heard_heads(A, ahead(*range(CHUNKS)), 0.0)
    bench.sends()
    bench.roster.lose(A)
    bench.repair.lost(A, 0.1)
    assert pulls(bench) == [], "nobody else is known to have it"
    bench.repair.heard_heads(B, ahead(*range(CHUNKS)), 0.1)
    assert {donor for donor, _ in pulls(bench)} == {B}
    bench.repair.heard_heads(C, ahead(*range(CHUNKS)), 0.2)
    assert pulls(bench) == [(C, 2), (C, 3)]
    bench.roster.lose(B)
    bench.repair.lost(B, 0.3)
    bench.repair.adopted(2, 0.4)
    assert pulls(bench) == [(C, 1)], "what B was to give comes first"


def test_a_donor_that_is_busy_is_asked_later_and_another_now() -> None:
    bench = Bench()
    first = asked_of_two(bench)
    bench.repair.heard_busy(first, Busy(0, 5000), 0.1)
    ((second, _),) = pulls(bench)
    assert second != first
    bench.repair.heard_busy(second, Busy(0, 300), 0.2)
    assert pulls(bench) == []
    bench.repair.handle_timer(0.4)
    assert pulls(bench) == []
    bench.repair.handle_timer(0.6)
    assert pulls(bench) == [(second, 0)], "the one whose wait is over"


def test_a_liar_costs_two_of_the_pulls_at_a_time() -> None:
    bench = Bench()
    liar = Heads(tuple((1 << 60, bytes(32)) for _ in range(CHUNKS)))
    bench.repair.heard_heads(A, liar, 0.0)
    bench.repair.heard_heads(B, ahead(*range(CHUNKS)), 0.0)
    asked = pulls(bench)
    assert sum(donor == A for donor, _ in asked) <= PULLS_A_DONOR
    assert any(donor == B for donor, _ in asked)


def test_a_newcomer_asks_everyone_soon_and_knows_what_it_lacks() -> None:
    bench = Bench()
    for peer in (A, B):
        bench.roster.say(peer, Status(30, 0, bytes(32)))
    assert bench.repair.bare() == set(range(CHUNKS)), "someone has more, and nobody has said of what"
    bench.repair.begin_joining(0.0)
    bench.repair.handle_timer(0.25)
    assert [to for to, message in bench.sends() if message == AskHeads()] == [A, B]
    bench.repair.heard_heads(A, ahead(1, 2), 0.3)
    assert bench.repair.bare() == bench.repair.lacking() == {1, 2}
    grow(bench.ledger, 1, 10)
    bench.repair.adopted(1, 0.4)
    assert bench.repair.bare() == bench.repair.lacking() == {2}
    bench.roster.lose(A)
    bench.repair.lost(A, 0.5)
    bench.roster.lose(B)
    assert bench.repair.bare() == bench.repair.lacking() == set(), "alone, what we have is the run"


def test_a_wrong_state_asks_for_the_whole_one_at_once() -> None:
    bench = Bench()
    chain = bench.ledger.chains[0]
    bench.repair.want(A, 0, (chain.head, chain.base_head), 0.0)
    bench.sends()
    bench.repair.want(A, 0, (), 0.1)
    assert bench.sends() == [(A, Pull(0, ()))]
    bench.repair.want(B, 0, (), 0.2)
    assert bench.sends() == [], "once"


def test_a_young_window_excuses_for_one_patience_only() -> None:
    bench = Bench()
    bench.windows.in_flight = lambda chunk, now: True  # type: ignore[method-assign]
    for now, pulls in ((0.0, 0), (0.9, 0), (1.0, 1)):
        bench.repair.heard_heads(A, ahead(0), now)
        assert sum(isinstance(message, Pull) for _, message in bench.sends()) == pulls, now
    bench.repair.heard_heads(A, ahead(0), 100.0)
    assert bench.sends() == [], "a difference long after that is another one"


def test_heads_of_another_number_of_chunks_are_refused() -> None:
    with pytest.raises(ProtocolError):
        Bench().repair.heard_heads(A, Heads(()), 0.0)


def test_heads_are_served() -> None:
    bench = Bench()
    grow(bench.ledger, 3, 10)
    bench.repair.serve_heads(A)
    assert bench.sends() == [(A, Heads(tuple(chain.order for chain in bench.ledger.chains)))]


def serve(bench: Bench, message: Pull, now: float = 0.0, peer: bytes = A) -> None:
    bench.repair.serve(peer, message, ARITHMETIC.dump, now)


def test_links_are_served_in_order_and_a_state_where_that_is_smaller() -> None:
    bench = Bench()
    genesis = bench.ledger.chains[0].base_head
    grow(bench.ledger, 0, 10, 20, 30)  # three results of 4 bytes; a state has 8, and a result
    serve(bench, Pull(0, (genesis,)))
    served = [message for _, message in bench.sends()]
    assert [message.link.due for message in served if isinstance(message, LinkMessage)] == [10, 20, 30]
    grow(bench.ledger, 0, 40)
    serve(bench, Pull(0, (genesis,)))
    assert [type(message) for _, message in bench.sends()] == [StateMessage]
    grow(bench.ledger, 0, *range(50, 10 * (LINKS_A_PULL + 5), 10))
    serve(bench, Pull(0, (genesis,)))
    assert [type(message) for _, message in bench.sends()] == [StateMessage]


def test_what_is_given_away_is_capped_and_the_others_are_told_when() -> None:
    bench = Bench()
    for chunk in range(CHUNKS):
        grow(bench.ledger, chunk, 10, 20)
    bench.repair.giving.rate = 24.0  # a state has 12 bytes here: two a second
    for chunk in range(CHUNKS):
        serve(bench, Pull(chunk, ()), peer=(A, B, C)[chunk % 3])
    sent = bench.sends()
    given = [message.link.chunk for _, message in sent if isinstance(message, StateMessage)]
    refused = [message for _, message in sent if isinstance(message, Busy)]
    assert given == [0] and {message.chunk for message in refused} == {3, 4, 5}
    assert all(message.wait >= 1000 * LONGEST_QUEUE for message in refused)
    serve(bench, Pull(1, ()), peer=B)
    assert bench.sends() == [], "who asks twice has asked once"
    for now, chunk in ((0.5, 1), (1.0, 2)):
        bench.repair.handle_timer(now - 0.01)
        assert bench.sends() == []
        assert bench.repair.timer == now
        bench.repair.handle_timer(now)
        assert [message.link.chunk for _, message in bench.sends() if isinstance(message, StateMessage)] == [chunk]
    bench.roster.lose(B)
    serve(bench, Pull(0, ()), now=1.0, peer=B)
    bench.repair.handle_timer(9.0)
    assert bench.sends() == [], "nothing for the lost"


def test_a_window_in_flight_goes_first_for_a_moment() -> None:
    bench = Bench()
    grow(bench.ledger, 0, 10, 20)
    bench.repair.giving.rate = 1e9
    bench.repair.giving._window_in_flight = lambda now: True  # type: ignore[method-assign]
    serve(bench, Pull(0, ()), now=1.0)
    bench.repair.handle_timer(1.0 + WINDOW_FIRST - 0.01)
    assert bench.sends() == []
    bench.repair.handle_timer(1.0 + WINDOW_FIRST)
    assert len(bench.sends()) == 1
    bench.repair.giving.rate = None
    serve(bench, Pull(0, ()), now=2.0)
    assert len(bench.sends()) == 1, "without a cap there is nothing to compete for"


def test_a_whole_state_is_served_to_who_knows_nothing_of_ours() -> None:
    bench = Bench()
    grow(bench.ledger, 0, 10, 20)
    for have in ((), (bytes(32),)):
        serve(bench, Pull(0, have))
        (command,) = bench.commands
        assert isinstance(command, Send) and isinstance(command.message, StateMessage)
        taker = ledger()
        assert taker.adopt_state(command.message, command.bulk)
        assert taker.chains[0].head == bench.ledger.chains[0].head
        bench.commands.clear()


def test_nothing_is_served_to_who_has_it_or_at_genesis() -> None:
    bench = Bench()
    serve(bench, Pull(0, ()))
    grow(bench.ledger, 1, 10)
    chain = bench.ledger.chains[1]
    serve(bench, Pull(1, (chain.head, chain.base_head)))
    assert bench.sends() == []
    with pytest.raises(ProtocolError):
        serve(bench, Pull(CHUNKS, ()))
