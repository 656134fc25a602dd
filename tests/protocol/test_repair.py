"""Repair: a difference that lasts is asked about, once, and what is missing is pulled; a bad donor costs time only."""

from __future__ import annotations

import pytest
import torch

from aggregation.arithmetic import Arithmetic
from aggregation.codecs import Fp32
from aggregation.outer import ChunkState
from protocol.commands import Send
from protocol.errors import ProtocolError
from protocol.ledger import Ledger
from protocol.messages import AskHeads, Heads, LinkMessage, Part, Pull, StateMessage, Status, sha256
from protocol.presence import Presence
from protocol.repair import LINKS_A_PULL, PULLS_AT_A_TIME, Repair
from protocol.roster import Roster
from protocol.window import Rules, Windows
from simulation.swarm import CheapKeys

RUN = b"r" * 32
ME, A, B = (bytes([n]) * 32 for n in (1, 2, 3))
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
        for key in (ME, A, B):
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


def test_at_most_four_pulls_at_a_time_and_one_a_chunk_and_patience() -> None:
    bench = Bench()
    bench.repair.heard_heads(A, ahead(*range(CHUNKS)), 0.0)
    assert len(bench.sends()) == PULLS_AT_A_TIME
    bench.repair.heard_heads(B, ahead(*range(CHUNKS)), 0.1)
    assert bench.sends() == []
    grow(bench.ledger, 0, 10)
    bench.repair.adopted(0, 0.2)
    assert [message.chunk for _, message in bench.sends() if isinstance(message, Pull)] == [4]


def test_a_pull_that_nobody_answers_ends_and_the_next_goes_out() -> None:
    bench = Bench()
    bench.repair.heard_heads(A, ahead(*range(CHUNKS)), 0.0)
    bench.sends()
    bench.repair.handle_timer(2.0 * bench.repair.patience)
    assert [message.chunk for _, message in bench.sends() if isinstance(message, Pull)] == [4, 5]
    bench.repair.heard_heads(B, ahead(0), 2.5)
    assert len(bench.sends()) == 1, "another donor is asked"


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


def test_links_are_served_in_order_and_bounded() -> None:
    bench = Bench()
    genesis = bench.ledger.chains[0].base_head
    grow(bench.ledger, 0, *range(10, 10 * (LINKS_A_PULL + 5), 10))
    bench.repair.serve(A, Pull(0, (genesis,)), ARITHMETIC.dump)
    served = [message for _, message in bench.sends()]
    assert all(isinstance(message, LinkMessage) for message in served)
    dues = [message.link.due for message in served if isinstance(message, LinkMessage)]
    assert dues == list(range(10, 10 * (LINKS_A_PULL + 1), 10))


def test_a_whole_state_is_served_to_who_knows_nothing_of_ours() -> None:
    bench = Bench()
    grow(bench.ledger, 0, 10, 20)
    for have in ((), (bytes(32),)):
        bench.repair.serve(A, Pull(0, have), ARITHMETIC.dump)
        (command,) = bench.commands
        assert isinstance(command, Send) and isinstance(command.message, StateMessage)
        taker = ledger()
        assert taker.adopt_state(command.message, command.bulk)
        assert taker.chains[0].head == bench.ledger.chains[0].head
        bench.commands.clear()


def test_nothing_is_served_to_who_has_it_or_at_genesis() -> None:
    bench = Bench()
    bench.repair.serve(A, Pull(0, ()), ARITHMETIC.dump)
    grow(bench.ledger, 1, 10)
    chain = bench.ledger.chains[1]
    bench.repair.serve(A, Pull(1, (chain.head, chain.base_head)), ARITHMETIC.dump)
    assert bench.sends() == []
    with pytest.raises(ProtocolError):
        bench.repair.serve(A, Pull(CHUNKS, ()), ARITHMETIC.dump)
