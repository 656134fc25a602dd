"""Newcomers to a simulated run that is under way: they get the outer parameters first, as peer/newcomer.py does."""

from __future__ import annotations

from typing import Final

import torch

from protocol.merging import Merges
from protocol.pace import owns_from
from simulation.identity import Identity
from simulation.swarm import SimulatedPeer, Swarm

LOOK_EVERY: Final = 0.05


def add(swarm: Swarm, name: str, rate: float | None = None) -> SimulatedPeer:
    """One more peer, which knows everyone and whom everyone knows from now on. It gives `rate` bytes a second away."""
    plan, now = swarm.plan, swarm.clock.now
    peer = SimulatedPeer(len(swarm.peers), swarm.world, Identity(f"newcomer {name}"))
    swarm.world.population += 1
    peer.node.repair.giving.rate = rate
    pace = max(other.step for other in swarm.live)
    peer.from_step = owns_from(pace, plan.schedule)
    peer.enter([other.record for other in swarm.live], dialling=True)
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
    peer.theta = torch.stack(peer.anchors)
    peer.merges = Merges(overlap=plan.overlap, late_steps=plan.late_steps, fragment_of=plan.fragment_of)
    peer.noticed.clear()
    peer.step = peer.node.roster.pace()
    peer.start()
