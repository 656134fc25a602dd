"""Disks of simulated peers, and lives after a kill."""

from __future__ import annotations

from dataclasses import replace

import torch

from simulation.disk import Disk, Snapshot
from simulation.scenarios import CALM
from simulation.swarm import Plan, SimulatedPeer, Swarm


def snapshot(step: int) -> Snapshot:
    return Snapshot(step, torch.zeros(1, 1), ())


def test_the_newest_complete_snapshot_is_found() -> None:
    disk = Disk(write_seconds=1.0)
    assert disk.newest(0.0) is None
    disk.save(snapshot(12), 10.0)
    disk.save(snapshot(24), 20.0)
    newest = disk.newest(20.5)
    assert newest is not None and newest.step == 12, "the last one was cut short"
    again = disk.newest(30.0)
    assert again is newest, "a half-written one does not become whole later"


def test_a_full_disk_keeps_the_older_ones() -> None:
    disk = Disk(write_seconds=0.0, full_until=15.0)
    disk.save(snapshot(12), 10.0)
    assert disk.newest(16.0) is None and disk.failed == 1
    for step in range(24, 240, 12):
        disk.save(snapshot(step), float(step))
    newest = disk.newest(300.0)
    assert newest is not None and newest.step == 228
    assert len(disk._written) <= 4


def back(with_disk: bool, plan: Plan = CALM) -> tuple[SimulatedPeer, SimulatedPeer, Swarm]:
    """A peer that is killed at about step 40 and back two steps later: (old life, new life, swarm)."""
    swarm = Swarm(plan, seed=5)
    swarm.clock.run(20.0)
    old = swarm.peers[1]
    swarm.crash(1)
    swarm.clock.run(21.0)
    swarm.start_again(1, with_disk=with_disk)
    return old, swarm.peers[1], swarm


def test_a_restart_with_disk_is_the_same_peer_one_snapshot_earlier() -> None:
    old, new, swarm = back(True)
    assert new.key == old.key
    assert 0 < old.step - new.step <= CALM.sync_every + 1
    assert [chain.due for chain in new.node.ledger.chains] <= [chain.due for chain in old.node.ledger.chains]
    swarm.clock.run(60.0)
    assert len(swarm.heads()) == 1
    newest = swarm.peers[0].node.ledger.chains[0].newest
    assert newest is not None and {part.peer for part in newest.message.link.parts} == set(swarm.keys)


def test_a_restart_without_disk_is_a_newcomer_that_catches_up() -> None:
    old, new, swarm = back(False)
    assert new.key != old.key
    assert new.step == 0 and all(chain.newest is None for chain in new.node.ledger.chains)
    swarm.clock.run(60.0)
    assert new.step == CALM.steps
    assert len(swarm.heads()) == 1
    newest = swarm.peers[0].node.ledger.chains[0].newest
    assert newest is not None and {part.peer for part in newest.message.link.parts} == set(swarm.keys)


def test_no_token_of_an_earlier_life_counts_twice() -> None:
    _, new, swarm = back(True, replace(CALM, steps=84))
    swarm.clock.run(60.0)
    chain = [entry.message.link for entry in swarm.peers[0].node.ledger.recent(0, 99)]
    total = sum(part.tokens for link in chain for part in link.parts if part.peer == new.key)
    assert total <= 100 * chain[-1].due
