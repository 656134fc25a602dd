"""Newcomers to a simulated run that is under way: they get the outer parameters first, as peer/newcomer.py does."""

from __future__ import annotations

from typing import Final

from protocol.merging import Merges
from protocol.messages import sha256
from protocol.presence import Presence
from simulation.swarm import RUN, SimulatedPeer, Swarm

LOOK_EVERY: Final = 0.05


def add(swarm: Swarm, name: str, rate: float | None = None) -> SimulatedPeer:
    """One more peer, which knows everyone and whom everyone knows from now on. It gives `rate` bytes a second away."""
    plan, now = swarm.plan, swarm.clock.now
    swarm.keys.append(sha256(f"newcomer {name}".encode()))
    peer = SimulatedPeer(len(swarm.keys) - 1, plan, swarm.network, swarm.keys, swarm.invariants)
    peer.node.repair.giving.rate = rate
    pace = max(other.step for other in swarm.live)
    owns_from = pace + 2 * -(-plan.sync_every // plan.fragments)
    record = Presence(1, RUN, peer.key, (), "train", True, owns_from, now, 1e9)
    for one in (peer, *swarm.live):
        one.node.roster.learn(record, now=now, wall=now)
    for other in swarm.live:
        other._do(lambda now, other=other: other.node.greet(peer.key, now))  # type: ignore[misc]
        peer._do(lambda now, other=other: peer.node.greet(other.key, now))  # type: ignore[misc]
    swarm.peers.append(peer)
    peer._do(peer.node.repair.begin_joining)
    swarm.clock.at(now + LOOK_EVERY, lambda: _look(swarm, peer))
    return peer


def _look(swarm: Swarm, peer: SimulatedPeer) -> None:
    """Start training once everything is here."""
    repair = peer.node.repair
    if not peer.node.roster.pace() or repair.bare() or repair.lacking():
        swarm.clock.at(swarm.clock.now + LOOK_EVERY, lambda: _look(swarm, peer))
        return
    repair.end_joining()
    plan, chunks = swarm.plan, range(len(swarm.plan.fragment_of))
    peer.anchors = [peer.node.ledger.tip(chunk).anchor for chunk in chunks]
    peer.theta = [anchor.clone() for anchor in peer.anchors]
    peer.merges = Merges(overlap=plan.overlap, late_steps=plan.late_steps, fragment_of=plan.fragment_of)
    peer.noticed.clear()
    peer.step = peer.node.roster.pace()
    peer.start()
