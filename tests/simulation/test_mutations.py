"""The tests of the tests: with any one rule of the protocol taken away, some scenario or some seed must fail.

Each mutant takes one rule out of the running code. A mutant that survives means that nothing here would notice if the
rule were lost.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import pytest

from protocol import merging, pace, retrying, sending, window
from protocol.commands import Send
from protocol.groups import weight_of
from protocol.ledger import Adoption, Chain, Entry, Ledger
from protocol.messages import Contribution, Parent
from protocol.node import Node
from protocol.pace import Pace
from protocol.repair import Repair
from protocol.retrying import Retries
from protocol.roster import Roster
from protocol.sending import Outbound, Sending
from protocol.window import Gathering, Windows
from simulation import swarm
from simulation.faults import run
from simulation.scenarios import SCENARIOS

SEEDS = 30
MANY_SEEDS = 300

Patch = pytest.MonkeyPatch


def failover_off(patch: Patch) -> None:
    """A contribution goes to its first owner and nowhere else."""
    original = Sending._to_next_owner

    def only_first(self: Sending, out: Outbound, now: float) -> None:
        if out.cursor < 0:
            original(self, out, now)
            out.cursor = max(out.cursor, 0)
        else:
            out.since = inf

    patch.setattr(Sending, "_to_next_owner", only_first)


def silence_ignored(patch: Patch) -> None:
    """Only a closed stream makes a contributor turn to the next owner."""
    patch.setattr(sending, "SILENT_AFTER", 10**6)


def grouping_off(patch: Patch) -> None:
    """Contributions are averaged whatever head and state they were measured from."""

    def all_in_one(self: Windows, gathering: Gathering) -> list[tuple[Contribution, bytes]]:
        return list(gathering.received.values())

    patch.setattr(Windows, "_best", all_in_one)


def grouping_by_head_only(patch: Patch) -> None:
    """The state's digest does not keep contributions apart."""
    original = Windows._best

    def same_state(self: Windows, gathering: Gathering) -> list[tuple[Contribution, bytes]]:
        best = original(self, gathering)
        heads = {contribution.parent.head for contribution, _ in best}
        return [item for item in gathering.received.values() if item[0].parent.head in heads]

    patch.setattr(Windows, "_best", same_state)


def greatest_claim_wins(patch: Patch) -> None:
    """Of several groups the one with the greatest weight is closed, not the one with most contributors."""

    def heaviest(self: Windows, gathering: Gathering) -> list[tuple[Contribution, bytes]]:
        groups: dict[Parent, list[tuple[Contribution, bytes]]] = {}
        for item in gathering.received.values():
            groups.setdefault(item[0].parent, []).append(item)
        return max(groups.values(), key=lambda group: group[0][0].parent.cumulative + weight_of(group, 4))

    patch.setattr(Windows, "_best", heaviest)


def threshold_off(patch: Patch) -> None:
    """Any minority may close."""
    original = Windows._best

    def always(self: Windows, gathering: Gathering) -> list[tuple[Contribution, bytes]]:
        due, gathering.due = gathering.due, 1 << 20
        try:
            return original(self, gathering)
        finally:
            gathering.due = due

    patch.setattr(Windows, "_best", always)


def deadline_off(patch: Patch) -> None:
    """An owner waits for everyone it expects, for ever."""
    patch.setattr(Windows, "_time_gathering", lambda self, gathering, now: None)


def deadline_at_once(patch: Patch) -> None:
    """An owner closes with the first that come."""
    patch.setattr(window, "DEADLINE_FLOOR", 0.001)
    patch.setattr(window, "DEADLINE_MARGIN", 0.0)
    patch.setattr(Roster, "usual_lateness", lambda self, keys: -0.1)


def lateness_of_the_late_ignored(patch: Patch) -> None:
    """A peer that came after the close is forgotten: next time it is not waited for either."""
    patch.setattr(Windows, "came_late", lambda self, peer, chunk, due, now: None)
    patch.setattr(Windows, "_answer", lambda self, message, to, now: None)


def state_digest_unchecked(patch: Patch) -> None:
    """A link is applied to whatever state we have."""
    original = Ledger._extend

    def trusting(self: Ledger[Any], chain: Chain[Any], entry: Entry) -> Adoption:
        real = self._arithmetic

        class Blind:
            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

            def digest(self, state: Any) -> bytes:
                return entry.message.link.state

        self._arithmetic = Blind()  # type: ignore[assignment]
        try:
            return original(self, chain, entry)
        finally:
            self._arithmetic = real

    patch.setattr(Ledger, "_extend", trusting)


def order_off(patch: Patch) -> None:
    """No link is greater than another."""
    patch.setattr(Entry, "order", property(lambda self: (1, b"")))


def order_reversed(patch: Patch) -> None:
    """The lighter branch wins."""
    patch.setattr(Entry, "order", property(lambda self: (-self.message.link.cumulative, self.head)))


def no_tie_break(patch: Patch) -> None:
    """Links of equal weight are equal."""
    patch.setattr(Entry, "order", property(lambda self: (self.message.link.cumulative, b"")))


def siblings_refused(patch: Patch) -> None:
    """A peer never steps back."""
    patch.setattr(Ledger, "_switch", lambda self, chain, branch, start: Adoption.OLD)


def repair_off(patch: Patch) -> None:
    """Nobody asks for what it lacks."""
    patch.setattr(Repair, "want", lambda self, peer, chunk, have, now: None)


def whole_state_off(patch: Patch) -> None:
    """A whole state is never taken."""
    patch.setattr(Ledger, "adopt_state", lambda self, message, bulk: False)


def notice_off(patch: Patch) -> None:
    """Nobody is pulled along."""
    patch.setattr(Pace, "release", lambda self: None)


def pace_unbounded(patch: Patch) -> None:
    """Any window may be noticed, and owned."""
    patch.setattr(pace, "furthest", lambda pace, schedule: 1 << 40)
    patch.setattr(Pace, "is_far", lambda self, due: False)


def tokens_of_missed_windows_lost(patch: Patch) -> None:
    """Only the last round's tokens count."""
    original = Node.open

    def forgetting(self: Node, window: Any, local: Any, tokens: int, now: float) -> None:
        for chunk in self.chunks_of(window.fragment):
            marks = self.contributor.marks
            marks[chunk] = max(marks.get(chunk, 0), tokens - 1200)
        original(self, window, local, tokens, now)

    patch.setattr(Node, "open", forgetting)


def tokens_counted_twice(patch: Patch) -> None:
    """All tokens since the start, each time."""
    original = Node.open

    def never_settled(self: Node, window: Any, local: Any, tokens: int, now: float) -> None:
        self.contributor.marks.clear()
        original(self, window, local, tokens, now)

    patch.setattr(Node, "open", never_settled)


def merges_lost(patch: Patch) -> None:
    """Settled chunks are never mixed (what torchft issue 212 was)."""
    patch.setattr(merging.Merges, "take", lambda self, own_step, chunks=None: [])


def trainer_waits(patch: Patch) -> None:
    """Training waits for the network at its merge boundary, as long as it takes."""

    def unsettled(self: swarm.SimulatedPeer) -> bool:
        merging_now = self.plan.schedule.merging(self.step + (self.plan.overlap > 0))
        return any(self.merges.waiting(one) for one in merging_now)

    patch.setattr(swarm.SimulatedPeer, "_is_unsettled", unsettled)
    patch.setattr(swarm.SimulatedPeer, "_give_up", lambda self, then: None)


def passing_on_off(patch: Patch) -> None:
    """Every owner closes what it gets itself."""
    patch.setattr(Windows, "_better", lambda self, chunk, due, silent: None)


def only_the_owner_gets_it(patch: Patch) -> None:
    """An owner that has lost all before it asks nobody else."""

    def send(self: Sending, out: Outbound, now: float) -> None:
        out.since = now
        self._emit(Send(out.owners[out.cursor], out.contribution, out.payload))
        self._arm(now + sending.SILENT_AFTER * self.patience)

    patch.setattr(Sending, "_send", send)


def passed_on_not_expected(patch: Patch) -> None:
    """Who reaches an owner only through another is not waited for."""
    original = Windows._expected

    def forgetting(self: Windows, chunk: int, due: int) -> set[bytes]:
        self._through.clear()
        return original(self, chunk, due)

    patch.setattr(Windows, "_expected", forgetting)


def retries_off(patch: Patch) -> None:
    """What nobody closed is left."""
    patch.setattr(Retries, "opened", lambda self, window, now: None)


def retries_whatever_the_network(patch: Patch) -> None:
    """Retries go out however slow the last window was."""
    patch.setattr(retrying, "QUICK", inf)
    patch.setattr(Retries, "settled", lambda self, chunk, due, now: setattr(self, "_took", 0.0))
    original = Retries.opened

    def always(self: Retries, window: Any, now: float) -> None:
        self._took = 0.0
        original(self, window, now)

    patch.setattr(Retries, "opened", always)


def pace_by_number_only(patch: Patch) -> None:
    """A fast minority does not count."""
    patch.setattr(Roster, "weigh", lambda self, chunk, link: None)


def deadlines_of_a_slow_owner(patch: Patch) -> None:
    """A slow owner waits as long as its own τ hides."""
    patch.setattr(Windows, "hidden", property(lambda self: inf, lambda self, seconds: None), raising=False)


def lost_peers_awaited(patch: Patch) -> None:
    """A closed stream changes nothing."""
    patch.setattr(Node, "lost", lambda self, peer, now: None)


MUTANTS = [
    failover_off,
    silence_ignored,
    grouping_off,
    grouping_by_head_only,
    greatest_claim_wins,
    threshold_off,
    deadline_off,
    deadline_at_once,
    lateness_of_the_late_ignored,
    state_digest_unchecked,
    order_off,
    order_reversed,
    no_tie_break,
    siblings_refused,
    repair_off,
    whole_state_off,
    notice_off,
    pace_unbounded,
    tokens_of_missed_windows_lost,
    tokens_counted_twice,
    merges_lost,
    trainer_waits,
    passing_on_off,
    only_the_owner_gets_it,
    passed_on_not_expected,
    retries_off,
    retries_whatever_the_network,
    pace_by_number_only,
    deadlines_of_a_slow_owner,
    lost_peers_awaited,
]


BY_SEEDS = {
    failover_off: "failover",
    grouping_off: "head check",
    grouping_by_head_only: "state digest",
    state_digest_unchecked: "state digest",
    order_off: "branch order",
    order_reversed: "branch order",
    threshold_off: "closing threshold",
    deadline_off: "deadline",
}
"""Rules whose loss must show in random seeds alone, without a scenario that was made for it."""


def caught_by_a_seed(most: int) -> str:
    """The first of `most` seeds that notices something; empty if none does."""
    for seed in range(most):
        if violation := run(seed, recording=False).violation:
            return f"seed {seed}: {violation}"
    return ""


def caught_by() -> str:
    """The first scenario or seed that notices something; empty if none does."""
    for scenario in SCENARIOS:
        try:
            scenario()
        except Exception as error:  # noqa: BLE001  (whatever a broken program raises, it was noticed)
            return f"{scenario.__name__}: {error!r}"
    return caught_by_a_seed(SEEDS)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_unchanged_protocol_passes() -> None:
    assert caught_by() == ""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_mutant_is_caught(mutate: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutate(monkeypatch)
    caught = caught_by()
    print(f"{mutate.__name__} caught by {caught}")
    assert caught


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mutate", BY_SEEDS, ids=lambda mutate: mutate.__name__)
def test_mutant_is_caught_by_random_seeds_alone(mutate: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutate(monkeypatch)
    caught = caught_by_a_seed(MANY_SEEDS)
    print(f"{BY_SEEDS[mutate]}: {mutate.__name__} caught by {caught}")
    assert caught
