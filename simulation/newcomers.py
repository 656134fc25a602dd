"""Newcomers to a simulated run that is under way, beside the peers of its plan."""

from __future__ import annotations

from protocol.pace import owns_from
from simulation.fetching import Fetching
from simulation.identity import Identity
from simulation.swarm import SimulatedPeer, Swarm


def add(swarm: Swarm, name: str, rate: float | None = None) -> SimulatedPeer:
    """One more peer, which knows everyone and whom everyone knows from now on. It gives `rate` bytes a second away."""
    peer = SimulatedPeer(len(swarm.peers), swarm.world, Identity(f"newcomer {name}"))
    swarm.world.population += 1
    peer.node.repair.giving.rate = rate
    peer.from_step = owns_from(max(other.step for other in swarm.live), swarm.plan.schedule)
    peer.enter([other.record for other in swarm.live], dialling=True)
    swarm.peers.append(peer)
    Fetching(peer)
    return peer
