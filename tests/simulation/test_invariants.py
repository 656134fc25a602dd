"""What a peer holds does not grow with the run; and every named invariant can be named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulation.events import Event, schedule
from simulation.invariants import Broken, sizes
from simulation.network import Weather
from simulation.swarm import Plan, Swarm


def test_what_a_peer_holds_is_the_same_after_forty_rounds_as_after_ten() -> None:
    plan = Plan(peers=3, steps=480, overlap=2, elements=32, weather=Weather(delay=0.02, jitter=0.1, loss=0.05))
    swarm = Swarm(plan, seed=3, recording=False)
    schedule(swarm, (Event(3.0, "freeze", 1, (), 2.0, 1.0), Event(6.0, "cut", 0, (1,), 2.0)))
    swarm.clock.run(13.0)
    early = [sizes(peer.node) for peer in swarm.peers]
    swarm.clock.run(47.0)
    late = [sizes(peer.node) for peer in swarm.peers]
    for before, after in zip(early, late, strict=True):
        for name, size in after.items():
            assert size <= before[name] + 24, name
    assert swarm.network.in_flight < 100
    assert all(len(peer.noticed) < 10 for peer in swarm.peers)


def test_frames_in_the_air_are_bounded() -> None:
    swarm = Swarm(Plan(peers=2), seed=1)
    with pytest.raises(Broken, match="bounded-memory"):
        swarm.invariants.on_the_way(10_000, 2)


def test_training_that_waits_is_noticed() -> None:
    swarm = Swarm(replace(Plan(), peers=2), seed=1)
    swarm.invariants.stepped(b"k", 1.0, 0.5)
    swarm.invariants.stepped(b"k", 1.55, 0.5)
    with pytest.raises(Broken, match="training-never-blocks"):
        swarm.invariants.stepped(b"k", 2.5, 0.5)
