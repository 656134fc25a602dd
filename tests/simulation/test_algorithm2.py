"""Four peers in lock-step over the virtual network do Algorithm 2 of Streaming DiLoCo (arXiv 2501.18512), bit for bit.

The reference below is a straight line: plain loops over replicas, numpy arithmetic of its own, no ledger, window or
message. It shares with the product only the codec, which is specified by its bytes and tested against golden ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
import torch

from aggregation.codecs import Codec, codec
from simulation.network import Weather
from simulation.swarm import Plan, Swarm

Vector = npt.NDArray[np.float32]

LR, MOMENTUM = 0.4, 0.9
STEPS, ROUND, FRAGMENTS, CHUNKS, ELEMENTS = 34, 10, 2, 2, 48
TOKENS = (100, 250, 30, 700)


@dataclass
class Replica:
    """One of M: its parameters, chunk by chunk, and what it has snapshot and not yet merged."""

    index: int
    tokens_a_step: int
    theta: list[Vector]
    sent: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """Per fragment's chunk: tokens since its last snapshot, packed Δ."""

    def train(self) -> None:
        """The inner optimizer of the simulated trainer: every parameter goes 5% of its way to a point."""
        for chunk, values in enumerate(self.theta):
            point = np.float32(self.index + chunk)
            self.theta[chunk] = values - (values - point) * np.float32(0.05)


def packed(values: Vector, how: Codec) -> bytes:
    return how.encode(torch.from_numpy(values.copy()))


def unpacked(data: bytes, how: Codec) -> Vector:
    return how.decode(data, ELEMENTS).numpy()


def initial() -> list[Vector]:
    """The simulated swarm's initial parameters, chunk by chunk."""
    ramp = np.arange(ELEMENTS, dtype=np.float32) / np.float32(64)
    return [ramp + np.float32(chunk) for chunk in range(FRAGMENTS * CHUNKS)]


def outer_step(anchor: Vector, velocity: Vector, mean: Vector) -> tuple[Vector, Vector]:
    """Nesterov: v ← μ·v + Δ̄, anchor ← anchor − lr·(Δ̄ + μ·v); every operation rounded to fp32."""
    velocity = velocity * np.float32(MOMENTUM) + mean
    return anchor - (velocity * np.float32(MOMENTUM) + mean) * np.float32(LR), velocity


def weighted_mean(deltas: list[tuple[int, Vector]]) -> Vector:
    """Token-weighted, tokens capped at four times their lower median; added up in the order given."""
    tokens = [count for count, _ in deltas]
    cap = 4 * sorted(tokens)[(len(tokens) - 1) // 2]
    capped = [min(count, cap) for count in tokens]
    total = np.zeros(ELEMENTS, np.float32)
    for weight, (_, delta) in zip(capped, deltas, strict=True):
        total = total + delta * np.float32(weight / sum(capped))
    return total


def reference(peers: int, tau: int, alpha: float, way: str) -> tuple[list[Vector], list[Vector], list[list[Vector]]]:
    """Anchors, momenta and every replica's parameters after STEPS steps of Algorithm 2."""
    how = codec(way, block=32)
    anchors = initial()
    velocities = [np.zeros(ELEMENTS, np.float32) for _ in anchors]
    replicas = [Replica(m, TOKENS[m], [a.copy() for a in anchors]) for m in range(peers)]
    snapshot_at = dict.fromkeys(range(FRAGMENTS), 0)
    for step in range(1, STEPS + 1):
        for replica in replicas:
            replica.train()
        for fragment in range(FRAGMENTS):
            chunks = range(fragment * CHUNKS, (fragment + 1) * CHUNKS)
            offset = fragment * ROUND // FRAGMENTS
            if step - offset >= ROUND and (step - offset) % ROUND == 0 and step + tau <= STEPS:
                for replica in replicas:  # line 6: Δ, and send it
                    tokens = (step - snapshot_at[fragment]) * replica.tokens_a_step
                    for chunk in chunks:
                        replica.sent[chunk] = tokens, packed(anchors[chunk] - replica.theta[chunk], how)
                snapshot_at[fragment] = step
            due = step - tau
            if due - offset >= ROUND and (due - offset) % ROUND == 0:
                for chunk in chunks:  # lines 9 to 12: block-receive, outer step, merge
                    deltas = [(r.sent[chunk][0], unpacked(r.sent[chunk][1], how)) for r in replicas]
                    mean = unpacked(packed(weighted_mean(deltas), how), how)
                    anchors[chunk], velocities[chunk] = outer_step(anchors[chunk], velocities[chunk], mean)
                    for replica in replicas:
                        replica.theta[chunk] = mixed(replica.theta[chunk], anchors[chunk], alpha)
    return anchors, velocities, [replica.theta for replica in replicas]


def mixed(local: Vector, anchor: Vector, alpha: float) -> Vector:
    return local * np.float32(alpha) + anchor * np.float32(1 - alpha)


def swarm_of(peers: int, tau: int, alpha: float, way: str) -> Swarm:
    plan = Plan(
        peers=peers,
        steps=STEPS,
        sync_every=ROUND,
        overlap=tau,
        fragments=FRAGMENTS,
        chunks_a_fragment=CHUNKS,
        elements=ELEMENTS,
        mixing=alpha,
        contribution_codec=way,
        result_codec=way,
        tokens_a_step=TOKENS,
        lockstep=True,
        weather=Weather(delay=0.03, jitter=0.02),
    )
    swarm = Swarm(plan, seed=1)
    swarm.clock.run(60.0)
    assert all(peer.step == STEPS for peer in swarm.peers), "lock-step must not stall"
    assert len(swarm.heads()) == 1
    return swarm


def same(vector: Vector, tensor: torch.Tensor) -> bool:
    return vector.tobytes() == tensor.numpy().tobytes()


@pytest.mark.parametrize("way", ["e3m0", "fp32"])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("tau", [0, 1, 3])
def test_four_peers_are_algorithm_2_to_the_bit(tau: int, alpha: float, way: str) -> None:
    anchors, velocities, thetas = reference(4, tau, alpha, way)
    swarm = swarm_of(4, tau, alpha, way)
    for peer in swarm.peers:
        for chunk in range(FRAGMENTS * CHUNKS):
            tip = peer.node.ledger.tip(chunk)
            assert same(anchors[chunk], tip.anchor), (peer.index, chunk)
            assert same(velocities[chunk], tip.momentum), (peer.index, chunk)
            assert same(thetas[peer.index][chunk], peer.theta[chunk]), (peer.index, chunk)


def test_every_window_had_all_four_and_one_link_a_round() -> None:
    swarm = swarm_of(4, 3, 0.5, "e3m0")
    ledger = swarm.peers[0].node.ledger
    for chunk in range(FRAGMENTS * CHUNKS):
        links = [entry.message.link for entry in ledger.recent(chunk, 99)]
        due = [w.due for w in swarm.plan.schedule.windows() if w.fragment == swarm.plan.fragment_of[chunk]]
        assert [link.due for link in links] == due
        assert all([part.peer for part in link.parts] == swarm.keys for link in links)


def test_one_peer_with_fp32_no_overlap_and_no_mixing_is_diloco_with_one_worker() -> None:
    """DiLoCo with M = 1: H inner steps, an outer Nesterov step on anchor − θ, and θ starts again from the anchor."""
    anchor = initial()
    velocity = [np.zeros(ELEMENTS, np.float32) for _ in anchor]
    worker = Replica(0, 100, [a.copy() for a in anchor])
    for step in range(1, STEPS + 1):
        worker.train()
        for chunk in range(4):
            if step > ROUND // 2 + 4 and step % ROUND == (0 if chunk < CHUNKS else ROUND // FRAGMENTS):
                mean = anchor[chunk] - worker.theta[chunk]
                anchor[chunk], velocity[chunk] = outer_step(anchor[chunk], velocity[chunk], mean)
                worker.theta[chunk] = anchor[chunk].copy()
    peer = swarm_of(1, 0, 0.0, "fp32").peers[0]
    for chunk in range(4):
        assert same(anchor[chunk], peer.node.ledger.tip(chunk).anchor)
        assert same(worker.theta[chunk], peer.theta[chunk])


def test_lockstep_twice_gives_the_same_heads_whatever_the_speeds() -> None:
    def heads(seed: int, slowness: tuple[float, ...], delay: float) -> set[bytes]:
        weather = Weather(delay=delay, jitter=0.2)
        plan = Plan(steps=40, lockstep=True, slowness=slowness, weather=weather)
        swarm = Swarm(plan, seed=1)
        for _ in range(seed):
            swarm.network.random()
        swarm.clock.run(200.0)
        assert all(peer.step == 40 for peer in swarm.peers)
        return swarm.heads()

    assert heads(0, (), 0.01) == heads(5, (1.0, 4.0, 1.0, 2.0), 0.4)
