"""Newcomers on the virtual network: no donor is overrun, nothing is fetched twice, and the dead are replaced."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from protocol.messages import LinkMessage, StateMessage, decode
from simulation.network import Weather
from simulation.newcomers import add
from simulation.scenarios import CALM, finish, links, names, when
from simulation.swarm import SimulatedPeer, Swarm

PLAN = replace(CALM, steps=120, chunks_a_fragment=10, weather=Weather(delay=0.02, jitter=0.02))
STATE = 8 * PLAN.elements + PLAN.elements // 2 + PLAN.elements // 32
"""Bytes of one chunk's whole state: anchor, momentum, and the newest result with its scales."""


class Taken:
    """Bytes of links and states by who sent them to whom, and states by chunk, from now on."""

    def __init__(self, swarm: Swarm) -> None:
        self.by_pair: Counter[tuple[bytes, bytes]] = Counter()
        self.states: Counter[tuple[bytes, int]] = Counter()
        send = swarm.network.send

        def counted(source: bytes, to: bytes, header: bytes, bulk: bytes) -> None:
            if bulk and isinstance(message := decode(header), LinkMessage | StateMessage):
                self.by_pair[source, to] += len(bulk)
                self.states[to, message.link.chunk] += isinstance(message, StateMessage)
            send(source, to, header, bulk)

        swarm.network.send = counted  # type: ignore[method-assign]

    def given(self, source: bytes) -> int:
        return sum(count for (giver, _), count in self.by_pair.items() if giver == source)

    def taken(self, to: bytes) -> int:
        return sum(count for (_, taker), count in self.by_pair.items() if taker == to)


def run_until_joined(swarm: Swarm, newcomers: list[SimulatedPeer], limit: float) -> None:
    end = swarm.clock.now + limit
    while not all(peer.step for peer in newcomers):
        assert swarm.clock.now < end, "a newcomer does not get in"
        swarm.clock.run(swarm.clock.now + 0.05)


def test_twenty_newcomers_at_once_spread_over_four_donors() -> None:
    swarm = Swarm(PLAN, seed=21)
    swarm.clock.run(when(PLAN, 43))
    for peer in swarm.peers:
        peer.node.repair.giving.rate = 20_000.0
    donors, taken = list(swarm.peers), Taken(swarm)
    newcomers = [add(swarm, str(number), rate=20_000.0) for number in range(20)]
    run_until_joined(swarm, newcomers, 30.0)
    loads = [taken.given(donor.key) for donor in donors]
    assert max(loads) <= 2 * sum(loads) / len(loads), loads
    whole = STATE * len(PLAN.fragment_of)
    assert all(taken.taken(peer.key) <= 1.3 * whole for peer in newcomers), "nothing twice, new links included"
    finish(swarm)
    last = links(donors[0], 0)[-1]
    assert all(names(last, peer.key) for peer in newcomers)


def test_a_donor_that_dies_while_it_gives_is_replaced_and_what_came_is_kept() -> None:
    plan = replace(PLAN, peers=3)
    swarm = Swarm(plan, seed=22)
    swarm.clock.run(when(plan, 43))
    for peer in swarm.peers:
        peer.node.repair.giving.rate = 1_000.0
    taken = Taken(swarm)
    newcomer = add(swarm, "late")
    while len(newcomer.node.repair.bare()) in (0, len(plan.fragment_of)):
        swarm.clock.run(swarm.clock.now + 0.05)
    swarm.crash(0)
    run_until_joined(swarm, [newcomer], 60.0)
    assert sum(taken.states[newcomer.key, chunk] > 1 for chunk in range(len(plan.fragment_of))) <= 2
    assert newcomer.step > 43
    first = [link for link in links(newcomer, 0) if names(link, newcomer.key)]
    assert not first, "it has contributed nothing before it had the state"
    finish(swarm)
    assert names(links(newcomer, 0)[-1], newcomer.key)


def returns_with_nothing(swarm: Swarm, index: int) -> SimulatedPeer:
    swarm.crash(index)
    swarm.clock.run(swarm.clock.now + 1.0)
    swarm.start_again(index, with_disk=False)
    return swarm.peers[index]


def run_until_it_trains(swarm: Swarm, peer: SimulatedPeer, limit: float) -> None:
    end = swarm.clock.now + limit
    while not peer.own_step:
        assert swarm.clock.now < end, "it does not begin to train"
        swarm.clock.run(swarm.clock.now + 0.05)


def test_a_peer_that_returns_with_nothing_fetches_before_it_trains() -> None:
    swarm = Swarm(PLAN, seed=23)
    swarm.clock.run(when(PLAN, 43))
    peer = returns_with_nothing(swarm, 0)
    run_until_it_trains(swarm, peer, 10.0)
    assert not peer.node.repair.bare() and not peer.bare
    assert peer.step >= 43, "it begins at the swarm's step"
    finish(swarm)
    assert names(links(swarm.peers[1], 0)[-1], peer.key)


def test_where_no_window_has_been_there_is_nothing_to_fetch() -> None:
    swarm = Swarm(PLAN, seed=24)
    swarm.clock.run(when(PLAN, 2))
    peer = returns_with_nothing(swarm, 0)
    run_until_it_trains(swarm, peer, 3.0)
    assert peer.step < 10 and not peer.joined
    finish(swarm)


def test_what_begins_without_a_chunk_contributes_none_of_its_fragment() -> None:
    plan = replace(PLAN, steps=200)
    swarm = Swarm(plan, seed=25)
    swarm.clock.run(when(plan, 43))
    for other in swarm.peers:
        other.node.repair.giving.ask = lambda *_: None  # type: ignore[method-assign]
    peer = returns_with_nothing(swarm, 0)
    run_until_it_trains(swarm, peer, 20.0)
    assert peer.bare == set(range(20)), "nobody gave anything: it trains all the same"
    swarm.clock.run(swarm.clock.now + 2 * plan.sync_every * plan.step_seconds)
    assert not any(names(link, peer.key) for chunk in range(20) for link in links(swarm.peers[1], chunk))
    for other in swarm.peers[1:]:
        del other.node.repair.giving.ask
    finish(swarm)
    assert not peer.bare and names(links(swarm.peers[1], 0)[-1], peer.key)
