"""The window's two transition tables (docs/protocol.md, sections 4 and 5), row by row."""

from __future__ import annotations

from math import inf

import msgspec
import pytest
import torch

from aggregation.arithmetic import Arithmetic
from aggregation.codecs import Fp32
from aggregation.outer import ChunkState
from protocol.commands import Close, Contributed, Missed, Send
from protocol.errors import ProtocolError
from protocol.ledger import Adoption, Ledger
from protocol.messages import LEAVING, TOKENS_A_STEP, Contribution, LinkMessage, Open, Parent, Status, sha256
from protocol.presence import Presence
from protocol.roster import Roster
from protocol.sending import MISSING_AFTER, SILENT_AFTER
from protocol.window import FORGET_AFTER, FROZEN, LIGHTER, MISSED_KEPT, SUPERSEDED, TOO_FEW, Rules, Windows
from simulation.swarm import CheapKeys

RUN = b"r" * 32
ME, A, B, C = (bytes([n]) * 32 for n in (1, 2, 3, 4))
ARITHMETIC = Arithmetic([1], contribution_codec=Fp32(), result_codec=Fp32(), lr=0.5, momentum=0.0)
ROUND = 10


class Bench:
    """One peer's windows, with everything that they command."""

    def __init__(self, complete_set: int = 0) -> None:
        genesis = [ChunkState(torch.zeros(1), torch.zeros(1))]
        keys = CheapKeys(ME)
        self.ledger = Ledger(run=RUN, genesis=genesis, arithmetic=ARITHMETIC, keys=keys, weight_cap=4)
        self.roster = Roster(run=RUN, key=ME)
        for key in (ME, A, B, C):
            self.roster.learn(Presence(1, RUN, key, (), "train", key == ME, 0, 0.0, 1e9), now=0.0, wall=0.0)
        self.commands: list[object] = []
        rules = Rules(ROUND, 4, (0,), complete_set)
        self.windows = Windows(rules=rules, ledger=self.ledger, roster=self.roster, emit=self.commands.append)

    def take(self) -> list[object]:
        commands, self.commands[:] = list(self.commands), []
        return commands

    def sends(self) -> list[tuple[bytes, type]]:
        return [(one.to, type(one.message)) for one in self.take() if isinstance(one, Send)]

    def closed(self) -> LinkMessage | None:
        """The link that was closed since the last look, adopted as the node does it."""
        closes = [one for one in self.take() if isinstance(one, Close)]
        assert len(closes) <= 1, "closes exactly one group"
        for one in closes:
            self.adopt(one.message, one.payload)
        return closes[0].message if closes else None

    def adopt(self, message: LinkMessage, payload: bytes) -> None:
        assert self.ledger.adopt(message, payload) in (Adoption.EXTENDED, Adoption.REPLACED)
        self.windows.adopted(0)

    def contribution(
        self, peer: bytes, due: int, tokens: int = 100, parent: Parent | None = None
    ) -> tuple[Contribution, bytes]:
        payload = Fp32().encode(torch.tensor([float(peer[0])]))
        parent = parent or self.ledger.parent(0, self.ledger.tip(0))
        return Contribution(0, due, parent, tokens, sha256(payload), peer, bytes(64)), payload

    def receive(
        self,
        peer: bytes,
        due: int,
        now: float,
        tokens: int = 100,
        parent: Parent | None = None,
        via: bytes | None = None,
    ) -> None:
        self.windows.receive(*self.contribution(peer, due, tokens, parent), now, via)

    def rank(self, *owners: bytes) -> None:
        """From here on this is the ranking of the only chunk."""
        self.roster.ranked = lambda chunks, due: dict.fromkeys(chunks, owners)  # type: ignore[method-assign]

    def round(self, due: int, now: float, *peers: bytes, tokens: int = 100) -> LinkMessage:
        """A window that closes with exactly these contributors."""
        for peer in peers:
            self.receive(peer, due, now, tokens)
        self.windows.handle_timer(now + 1.0)
        link = self.closed()
        assert link is not None
        assert {part.peer for part in link.link.parts} == set(peers)
        return link


def opened(bench: Bench, owners: tuple[bytes, ...] = (A, B, C)) -> None:
    bench.windows.sending.contribute(*bench.contribution(ME, 10), owners, 0.0)


# Contributing


def test_opened_sends_to_the_first_owner_that_is_not_lost() -> None:
    bench = Bench()
    bench.roster.lose(A)
    opened(bench)
    written, sent = bench.take()
    assert isinstance(written, Contributed) and isinstance(sent, Send)
    assert sent.to == B and sent.bulk


def test_a_lost_owner_is_replaced_at_once() -> None:
    bench = Bench()
    opened(bench)
    bench.take()
    for lost, turned_to in ((A, B), (B, C)):
        bench.roster.lose(lost)
        bench.windows.lost(lost, 0.1)
        assert bench.sends() == [(turned_to, Contribution)]


def test_a_lost_peer_that_is_not_the_current_owner_changes_nothing() -> None:
    bench = Bench()
    opened(bench)
    bench.take()
    bench.roster.lose(C)
    bench.windows.lost(C, 0.1)
    assert bench.take() == []


def test_a_silent_owner_is_replaced_after_two_patiences() -> None:
    bench = Bench()
    opened(bench)
    bench.take()
    silent = SILENT_AFTER * bench.windows.patience
    assert bench.windows.timer == silent
    bench.windows.handle_timer(silent - 0.01)
    assert bench.take() == []
    bench.windows.handle_timer(silent)
    assert bench.sends() == [(B, Contribution)]
    assert bench.windows.timer == 2 * silent


def test_with_no_owner_left_it_waits_and_then_says_so() -> None:
    bench = Bench()
    opened(bench, owners=(A,))
    bench.roster.lose(A)
    bench.windows.lost(A, 0.1)
    bench.take()
    bench.windows.handle_timer(MISSING_AFTER * bench.windows.patience)
    assert bench.take() == [Missed(0, 10, "no owner left")]
    assert not bench.windows.outbound


def test_without_owners_at_all_nothing_is_sent() -> None:
    bench = Bench()
    opened(bench, owners=())
    assert bench.sends() == []
    bench.windows.handle_timer(MISSING_AFTER * bench.windows.patience)
    assert bench.take() == [Missed(0, 10, "no owner left")]


@pytest.mark.parametrize("due", [10, 20])
def test_a_link_of_this_or_a_later_due_step_settles(due: int) -> None:
    bench = Bench()
    opened(bench)
    assert bench.ledger.adopt(*close_elsewhere(due)) is Adoption.EXTENDED
    bench.take()
    bench.windows.adopted(0)
    assert not bench.windows.outbound
    assert bench.take() == ([] if due == 10 else [Missed(0, 10, SUPERSEDED)])
    bench.windows.handle_timer(1000.0)
    assert bench.take() == []


def close_elsewhere(due: int) -> tuple[LinkMessage, bytes]:
    """A link from genesis that another owner closed."""
    other = Bench()
    other.windows.patience = 0.0
    for peer in (A, B, C, ME):
        other.receive(peer, due, 0.0)
    (close,) = [one for one in other.take() if isinstance(one, Close)]
    return close.message, close.payload


def test_nothing_in_six_patiences_is_missing() -> None:
    bench = Bench()
    opened(bench)
    for step in range(1, MISSING_AFTER + 1):
        bench.windows.handle_timer(step * bench.windows.patience)
    missed = [one for one in bench.take() if isinstance(one, Missed)]
    assert missed == [Missed(0, 10, "no link came")]
    assert not bench.windows.outbound


def test_who_returns_gets_what_no_owner_was_left_for() -> None:
    bench = Bench()
    opened(bench, owners=(A, B))
    for peer in (A, B):
        bench.roster.lose(peer)
        bench.windows.lost(peer, 0.1)
    bench.take()
    bench.windows.sending.returned(C, 0.2)
    assert bench.take() == [], "it is no owner of this chunk"
    bench.roster.seen(A)
    bench.windows.sending.returned(A, 0.3)
    assert bench.sends() == [(A, Contribution)]
    bench.windows.sending.returned(B, 0.4)
    assert bench.take() == [], "it is on its way already"


def test_a_window_ends_with_one_reason_the_first() -> None:
    bench = Bench()
    bench.round(10, 0.0, ME, A, B, C)
    bench.windows.sending.contribute(*bench.contribution(ME, 20), (ME,), 10.0)
    bench.receive(ME, 20, 10.0)
    bench.windows.handle_timer(10.0 + bench.windows.patience)
    for later in range(2, MISSING_AFTER + 1):
        bench.windows.handle_timer(10.0 + later * bench.windows.patience)
    assert [one for one in bench.take() if isinstance(one, Missed)] == [Missed(0, 20, TOO_FEW)]


def test_the_reasons_of_a_chunk_that_is_never_closed_do_not_pile_up() -> None:
    bench = Bench()
    for due in range(10, 10_000, 10):
        bench.windows.miss(0, due, TOO_FEW)
    assert len(bench.take()) == 999
    assert len(bench.windows._missed) <= MISSED_KEPT + 1


def test_a_gathering_that_a_later_link_overtakes_says_so() -> None:
    bench = Bench()
    bench.receive(A, 10, 0.0)
    bench.take()
    bench.adopt(*close_elsewhere(20))
    assert Missed(0, 10, SUPERSEDED) in bench.take()
    assert not bench.windows.gathering


def test_what_stands_on_a_lighter_branch_is_not_closed_and_says_so() -> None:
    bench = Bench()
    heavy = bench.round(10, 0.0, ME, A, B, C, tokens=10**6)
    genesis = Parent(heavy.link.parent, heavy.link.state, 0, 0, 0, 0, 0)
    bench.receive(A, 20, 10.0, parent=genesis)
    span = bench.windows.gathering[0, 20].span
    bench.windows.handle_timer(10.0 + span)
    bench.windows.handle_timer(10.0 + FORGET_AFTER * span)
    assert bench.take()[-1] == Missed(0, 20, LIGHTER)


# Passing on


def passing_on(*owners: bytes) -> Bench:
    """X = C cannot reach A; we can, and A ranks before us."""
    bench = Bench()
    bench.rank(*(owners or (A, ME, B)))
    bench.receive(C, 10, 0.0)
    return bench


def test_what_comes_to_a_lesser_owner_is_passed_on_unchanged() -> None:
    bench = passing_on()
    (sent,) = bench.take()
    assert isinstance(sent, Send)
    assert (sent.to, sent.message, sent.bulk) == (A, *bench.contribution(C, 10))
    bench.receive(C, 10, 0.1)
    assert bench.take() == [], "once"
    bench.receive(B, 10, 0.2)
    assert bench.sends() == [(A, Contribution)]


def test_what_was_passed_on_to_us_is_never_passed_on() -> None:
    bench = Bench()
    bench.rank(A, ME, B)
    bench.receive(C, 10, 0.0, via=B)
    assert Contribution not in [kind for _, kind in bench.sends()]
    assert bench.windows.gathering[0, 10].to is None


def test_an_owner_whose_betters_are_lost_keeps_its_own_and_gives_it_to_the_next() -> None:
    bench = Bench()
    bench.roster.lose(A)
    bench.roster.lose(B)
    opened(bench, (A, ME, B, C))
    assert [to for to, _ in bench.sends()] == [ME, C], "C may reach A; and if A is gone, we close"
    first = Bench()
    opened(first, (ME, A, B))
    assert [to for to, _ in first.sends()] == [ME], "nobody is better than the first"


def test_nothing_is_passed_on_to_its_own_contributor() -> None:
    bench = Bench()
    bench.rank(A, B, ME)
    bench.roster.lose(A)
    bench.receive(B, 10, 0.0)
    assert bench.sends() == []
    bench.receive(C, 10, 0.1)
    assert bench.sends() == [(B, Contribution)]
    bench.windows.lost(A, 0.2)
    bench.roster.seen(A)
    bench.windows.lost(C, 0.3)
    assert bench.sends() == [(A, Contribution), (A, Contribution)], "a better one is here again: it gets all"


def test_who_comes_through_us_too_late_is_waited_for_next_time() -> None:
    bench = Bench()
    link, old = bench.round(10, 0.0, B), bench.ledger.chains[0].base_head
    bench.rank(A, ME, B)
    bench.take()
    parent = Parent(old, link.link.state, 0, 0, 0, 0, 0)
    bench.receive(C, 10, 1.0, parent=parent)
    assert bench.sends() == [(C, LinkMessage), (A, Contribution)]
    bench.receive(B, 10, 1.0, parent=parent)
    assert bench.sends() == [(B, LinkMessage)], "the link names it: it was not late"
    bench.receive(C, 10, 1.0, parent=parent, via=B)
    assert bench.sends() == [(B, LinkMessage)], "never passed on twice"


def test_the_link_is_relayed_to_who_sent_to_us_named_or_not() -> None:
    bench = passing_on()
    bench.take()
    bench.adopt(*close_elsewhere(10))
    assert bench.sends() == [(C, LinkMessage)]


def test_we_close_when_the_last_better_owner_is_lost() -> None:
    bench = passing_on(A, B, ME)
    bench.take()
    bench.roster.lose(A)
    bench.windows.lost(A, 0.5)
    assert bench.sends() == [(B, Contribution)], "B is better than we are"
    bench.roster.lose(B)
    bench.windows.lost(B, 0.6)
    assert (ME, Open) in bench.sends()
    bench.receive(ME, 10, 0.7)
    link = bench.closed()
    assert link is not None and len(link.link.parts) == 2


def test_a_better_owner_that_is_silent_is_given_up() -> None:
    bench = passing_on()
    bench.take()
    bench.windows.handle_timer(SILENT_AFTER * bench.windows.patience)
    assert {kind for _, kind in bench.sends()} == {Open}, "now we ask for the others' contributions ourselves"
    bench.windows.handle_timer((SILENT_AFTER + 1) * bench.windows.patience)
    assert bench.closed() is not None


def test_an_owner_that_our_own_contribution_gave_up_is_not_tried() -> None:
    bench = Bench()
    bench.rank(A, ME, B)
    bench.windows.sending.contribute(*bench.contribution(ME, 10), (A, ME, B), 0.0)
    bench.receive(C, 10, 0.5)
    bench.windows.handle_timer(SILENT_AFTER * bench.windows.patience)
    assert bench.sends()[-2:] == [(ME, Contribution), (B, Contribution)], "to ourselves; and B may reach A after all"
    bench.receive(ME, 10, SILENT_AFTER * bench.windows.patience)
    assert bench.windows.gathering[0, 10].to is None


def test_of_two_that_take_each_other_for_the_better_one_the_lesser_key_closes() -> None:
    bench = passing_on()
    bench.receive(B, 10, 0.1, via=A)
    assert bench.windows.gathering[0, 10].to is None, "our key is the lesser one"
    other = Bench()
    other.roster.learn(Presence(1, RUN, bytes(32), (), "train", True, 0, 0.0, 1e9), now=0.0, wall=0.0)
    other.rank(bytes(32), ME)
    other.receive(C, 10, 0.0)
    other.receive(B, 10, 0.1, via=bytes(32))
    assert other.windows.gathering[0, 10].to == bytes(32)


def test_late_ones_that_were_passed_on_are_answered_through_who_passed_them_on() -> None:
    bench = Bench()
    link = bench.round(10, 0.0, ME, A, B)
    bench.take()
    old = Parent(link.link.parent, link.link.state, 0, 0, 0, 0, 0)
    bench.receive(C, 10, 2.5, parent=old, via=B)
    assert bench.sends() == [(B, LinkMessage)]


def test_who_is_lost_to_us_but_reaches_us_through_another_is_waited_for() -> None:
    bench = Bench()
    bench.roster.lose(C)
    for peer in (ME, A, B):
        bench.receive(peer, 10, 0.0)
    link = bench.closed()
    assert link is not None, "lost, and nobody passes on for it"
    genesis = Parent(link.link.parent, link.link.state, 0, 0, 0, 0, 0)
    bench.receive(C, 10, 0.5, parent=genesis, via=B)
    bench.take()
    for peer in (ME, A, B):
        bench.receive(peer, 20, 10.0)
    assert bench.closed() is None
    bench.receive(C, 20, 10.3, via=B)
    link = bench.closed()
    assert link is not None and len(link.link.parts) == 4


def test_who_was_frozen_while_it_passed_on_forgets() -> None:
    bench = passing_on()
    bench.take()
    bench.windows.handle_timer(100.0)
    assert bench.take() == [Missed(0, 10, FROZEN)]
    assert not bench.windows.gathering


# Owning


def test_the_first_contribution_opens_the_window_to_those_who_have_not_sent() -> None:
    bench = Bench()
    bench.receive(A, 10, 0.0)
    assert bench.sends() == [(ME, Open), (B, Open), (C, Open)]
    bench.receive(B, 10, 0.1)
    assert bench.take() == [], "once a window and peer"


def test_it_closes_when_all_the_expected_have_come() -> None:
    bench = Bench()
    for now, peer in enumerate((C, A, ME)):
        bench.receive(peer, 10, now / 10)
        assert bench.closed() is None
    bench.receive(B, 10, 0.4)
    link = bench.closed()
    assert link is not None
    assert [part.peer for part in link.link.parts] == [ME, A, B, C]
    assert (link.link.weight, link.link.span, link.link.depth) == (400, 10, 1)


def test_a_contributor_counts_once_and_the_first_counts() -> None:
    bench = Bench()
    bench.receive(A, 10, 0.0, tokens=100)
    bench.receive(A, 10, 0.1, tokens=399)
    bench.windows.handle_timer(1.0)
    link = bench.closed()
    assert link is not None
    assert [part.tokens for part in link.link.parts] == [100]


def test_it_does_not_wait_for_the_lost_and_the_leaving() -> None:
    bench = Bench()
    bench.receive(A, 10, 0.0)
    bench.receive(ME, 10, 0.0)
    bench.roster.say(B, Status(10, LEAVING, bytes(32)))
    assert bench.closed() is None
    bench.roster.lose(C)
    bench.windows.lost(C, 0.2)
    link = bench.closed()
    assert link is not None and len(link.link.parts) == 2


def test_at_the_deadline_it_closes_with_those_who_have_come() -> None:
    bench = Bench()
    bench.receive(A, 10, 0.0)
    bench.receive(B, 10, 0.1)
    bench.take()
    deadline = bench.windows.timer
    assert deadline == bench.windows.patience, "no history: all that is hidden"
    bench.windows.handle_timer(deadline - 0.01)
    assert bench.closed() is None
    bench.windows.handle_timer(deadline)
    link = bench.closed()
    assert link is not None and len(link.link.parts) == 2


def test_the_deadline_is_the_slowest_expected_peers_usual_lateness_with_a_margin() -> None:
    bench = Bench()
    bench.windows.patience = 10.0
    for late in (0.2, 2.0, 0.1):
        for peer in (ME, A, B, C):
            bench.roster.late(peer, late if peer == C else 0.0)
    bench.receive(A, 10, 5.0)
    assert bench.windows.timer == pytest.approx(5.0 + 2.0 * 1.5 + 0.1)


def test_the_deadline_has_a_floor_and_a_cap() -> None:
    for late, span in ((0.0, 0.5), (100.0, 3.0)):
        bench = Bench()
        bench.windows.patience = 3.0
        for peer in (ME, A, B, C):
            bench.roster.late(peer, late)
        bench.receive(A, 10, 0.0)
        assert bench.windows.timer == span


def test_the_deadline_of_a_slow_owner_is_capped_by_what_the_swarm_can_hide() -> None:
    bench = Bench()
    bench.windows.patience, bench.windows.hidden = 20.0, 2.0
    bench.receive(A, 10, 0.0)
    assert bench.windows.timer == 2.0


def test_late_contributions_are_answered_and_their_lateness_counts() -> None:
    bench = Bench()
    link = bench.round(10, 0.0, ME, A, B)
    bench.take()
    old = Parent(link.link.parent, link.link.state, 0, 0, 0, 0, 0)
    bench.receive(C, 10, 2.5, parent=old)
    assert bench.sends() == [(C, LinkMessage)]
    assert bench.roster.usual_lateness([C]) == 2.5
    bench.receive(A, 20, 12.0)
    assert (C, Open) in bench.sends(), "who came late is expected next time"


def test_who_says_that_it_came_late_is_expected_next_time() -> None:
    bench = Bench()
    for due in (10, 20):
        bench.round(due, due, ME, A, B)
    bench.windows.came_late(C, 0, 20, 21.5)
    assert bench.roster.usual_lateness([C]) == 1.5
    bench.windows.came_late(A, 0, 20, 29.0)
    assert bench.roster.usual_lateness([A]) == 0.0, "it is in the link"
    bench.receive(A, 30, 30.0)
    assert (C, Open) in bench.sends()


def test_a_link_adopted_while_gathering_answers_those_it_does_not_name() -> None:
    bench = Bench()
    bench.receive(A, 10, 0.0)
    bench.receive(B, 10, 0.0)
    bench.take()
    alone = Bench()
    alone.receive(A, 10, 0.0, tokens=1000)
    alone.windows.handle_timer(1.0)
    (close,) = [one for one in alone.take() if isinstance(one, Close)]
    bench.adopt(close.message, close.payload)
    assert bench.sends() == [(B, LinkMessage)]
    assert not bench.windows.gathering


def test_a_window_that_cannot_close_is_forgotten_after_four_deadlines() -> None:
    bench = Bench()
    bench.round(10, 0.0, ME, A, B, C)
    bench.receive(A, 20, 10.0)
    span = bench.windows.gathering[0, 20].span
    bench.windows.handle_timer(10.0 + span)
    assert bench.closed() is None, "a quarter of the weight is not enough"
    bench.windows.handle_timer(10.0 + FORGET_AFTER * span - 0.01)
    assert bench.windows.gathering
    bench.windows.handle_timer(10.0 + FORGET_AFTER * span)
    assert not bench.windows.gathering
    assert bench.take()[-1] == Missed(0, 20, TOO_FEW)


def test_after_the_deadline_it_closes_as_soon_as_there_are_enough() -> None:
    bench = Bench()
    bench.round(10, 0.0, ME, A, B, C)
    bench.receive(A, 20, 10.0)
    bench.receive(B, 20, 10.0)
    bench.windows.handle_timer(10.0 + bench.windows.gathering[0, 20].span)
    assert bench.closed() is None, "half is not more than half"
    bench.receive(C, 20, 11.5)
    link = bench.closed()
    assert link is not None and len(link.link.parts) == 3


def test_an_owner_that_was_frozen_over_its_deadline_forgets() -> None:
    bench = Bench()
    bench.receive(A, 10, 0.0)
    bench.take()
    bench.windows.handle_timer(100.0)
    assert bench.take() == [Missed(0, 10, FROZEN)]
    assert not bench.windows.gathering


@pytest.mark.parametrize(("missed", "peers"), [(0, 3), (1, 2), (2, 1)])
def test_the_threshold_halves_with_every_round_missed(missed: int, peers: int) -> None:
    bench = Bench()
    bench.round(10, 0.0, ME, A, B, C)
    due = 20 + ROUND * missed
    enough, few = (A, B, C)[:peers], (A, B, C)[: peers - 1]
    for who, closes in ((few, False), (enough, True)):
        for peer in who:
            bench.receive(peer, due, float(due), tokens=10 * (due - 10))
        if who:
            bench.windows.handle_timer(due + 1.0)
        assert (bench.closed() is not None) == closes


def test_a_light_peer_that_joins_a_heavy_one_keeps_no_window_open() -> None:
    bench = Bench()
    bench.round(10, 0.0, B, tokens=1000)
    bench.take()
    bench.receive(C, 20, 10.0, tokens=10)
    bench.receive(B, 20, 10.1, tokens=1000)
    link = bench.closed()
    assert link and link.link.weight == 50, "the cap holds: but all who made the last link are here"


def test_who_made_less_than_half_of_the_last_link_does_not_close_with_others() -> None:
    bench = Bench()
    for peer, tokens in ((A, 100), (B, 100), (C, 120)):
        bench.receive(peer, 10, 0.0, tokens)
    bench.windows.handle_timer(1.0)
    assert bench.closed()
    bench.receive(C, 20, 10.0, tokens=10)
    bench.receive(ME, 20, 10.0, tokens=10)
    bench.windows.handle_timer(11.0)
    assert bench.closed() is None


def test_from_genesis_a_single_peer_may_close() -> None:
    bench = Bench()
    bench.round(10, 0.0, A, tokens=1)


def test_one_group_is_closed_and_deltas_of_other_heads_stay_out() -> None:
    bench = Bench()
    first = bench.round(10, 0.0, ME, A, B, C)
    genesis = Parent(first.link.parent, first.link.state, 0, 0, 0, 0, 0)
    tip = bench.ledger.parent(0, bench.ledger.tip(0))
    wrong_state = msgspec.structs.replace(tip, state=bytes(32))
    bench.receive(A, 20, 10.0, tokens=10**6, parent=genesis)
    bench.receive(B, 20, 10.0, tokens=10**6, parent=wrong_state)
    bench.receive(C, 20, 10.0)
    bench.receive(ME, 20, 10.0)
    bench.windows.handle_timer(10.0 + bench.windows.patience)
    assert bench.closed() is None, "half of the last weight is not enough, and nobody fills the rest"


def test_a_liar_with_a_made_up_branch_does_not_take_the_window() -> None:
    bench = Bench()
    bench.round(10, 0.0, ME, A, B, C)
    lie = Parent(bytes(32), bytes(32), 7, 10, 10, 1 << 60, 1 << 61)
    bench.receive(A, 20, 10.0, tokens=10 * TOKENS_A_STEP, parent=lie)
    for peer in (ME, B, C):
        bench.receive(peer, 20, 10.0)
    link = bench.closed()
    assert link is not None
    assert {part.peer for part in link.link.parts} == {ME, B, C}


def test_an_owner_that_is_behind_closes_what_most_were_measured_from() -> None:
    bench, ahead = Bench(), Bench()
    ahead.round(10, 0.0, ME, A, B, C)
    newer = ahead.ledger.parent(0, ahead.ledger.tip(0))
    for peer in (A, B, C):
        bench.receive(peer, 20, 10.0, parent=newer)
    bench.receive(ME, 20, 10.0)
    (close,) = [one for one in bench.take() if isinstance(one, Close)]
    assert close.message.link.parent == newer.head
    assert set(close.also) == {ME, A, B, C}, "the losing senders get the link too"


def test_contributions_that_cannot_be_are_refused_and_nothing_starts() -> None:
    bench = Bench()
    bench.round(10, 0.0, ME, A, B, C)
    tip = bench.ledger.parent(0, bench.ledger.tip(0))
    for change in (
        {"weight": 399},
        {"cumulative": 401},
        {"depth": 2},
        {"due": 9},
        {"span": 9},
        {"due": 20},
        {"due": 30},
    ):
        with pytest.raises(ProtocolError):
            bench.receive(A, 20, 10.0, parent=msgspec.structs.replace(tip, **change))
    for impossible in (
        Parent(bytes(32), bytes(32), 0, 0, 0, 0, 1),
        Parent(bytes(32), bytes(32), 0, 5, 0, 0, 0),
        Parent(bytes(32), bytes(32), 3, 5, 6, 1, 1),
        Parent(bytes(32), bytes(32), 3, 5, 0, 1, 1),
        Parent(bytes(32), bytes(32), 3, 5, 5, 2, 1),
        Parent(bytes(32), bytes(32), 3, 5, 5, 0, 1),
    ):
        with pytest.raises(ProtocolError):
            bench.receive(A, 20, 10.0, parent=impossible)
    with pytest.raises(ProtocolError, match="more tokens"):
        bench.receive(A, 20, 10.0, tokens=10 * TOKENS_A_STEP + 1)
    assert not bench.windows.gathering


def test_enormous_tokens_count_four_times_the_lower_median() -> None:
    bench = Bench()
    for peer, tokens in ((ME, 100), (A, 100), (B, 100), (C, 10 * TOKENS_A_STEP)):
        bench.receive(peer, 10, 0.0, tokens=tokens)
    link = bench.closed()
    assert link is not None and link.link.weight == 700


def test_lock_step_waits_for_the_complete_set_however_long() -> None:
    bench = Bench(complete_set=4)
    assert bench.windows.patience == inf
    for peer in (ME, A, B):
        bench.receive(peer, 10, 0.0)
    bench.roster.lose(C)
    bench.windows.lost(C, 1.0)
    bench.windows.handle_timer(1e6)
    assert bench.closed() is None
    bench.receive(C, 10, 1e6)
    assert bench.closed() is not None


def test_in_flight_is_a_young_window_of_the_chunk() -> None:
    bench = Bench()
    opened(bench)
    assert bench.windows.in_flight(0, 0.1)
    assert not bench.windows.in_flight(1, 0.1)
    assert not bench.windows.in_flight(0, SILENT_AFTER * bench.windows.patience)
