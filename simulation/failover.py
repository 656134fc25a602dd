"""How many of a killed owner's chunks still close within their window, by the latency of the links.

An owner is killed at a random moment between a window's opening and its merge. Its chunks of that window count as
closed in time if every survivor merges them when they are due, τ of its own steps after its snapshot. Latency is one
way, as a share of what τ hides (τ times the step's seconds), with a tenth of it as jitter.

The way of a chunk whose owner dies with the contributions in its hands: the contribution (one latency), the broken
stream (one, and DETECTION), the contribution again to the next owner (one), the link (one). So at a quarter of τ there
is no time left, except for chunks that were closed before.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from simulation.network import Weather
from simulation.swarm import Plan, SimulatedPeer, Swarm

DUE: Final = 48
SHARES: Final = (1 / 64, 1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2)
"""Latencies of the table, as shares of what τ hides."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chunks of killed owners, in one window each."""

    owned: int = 0
    in_time: int = 0
    """Merged by all survivors when they were due."""
    in_hand: int = 0
    """Not closed yet when the owner was killed."""
    in_hand_in_time: int = 0

    def and_also(self, other: Chunks) -> Chunks:
        """Both together."""
        return Chunks(
            self.owned + other.owned,
            self.in_time + other.in_time,
            self.in_hand + other.in_hand,
            self.in_hand_in_time + other.in_hand_in_time,
        )

    @property
    def share(self) -> float:
        """Of the killed owners' chunks, those closed in time."""
        return self.in_time / self.owned

    @property
    def share_in_hand(self) -> float:
        """Of those that their owner had not closed."""
        return self.in_hand_in_time / self.in_hand if self.in_hand else 1.0


def plan(share: float) -> Plan:
    """Eight peers, eight chunks a fragment; τ hides four seconds."""
    hidden = 8 * 0.5
    weather = Weather(delay=share * hidden, jitter=0.1 * share * hidden)
    return Plan(
        peers=8,
        steps=DUE + 24,
        sync_every=24,
        overlap=8,
        chunks_a_fragment=8,
        elements=32,
        step_seconds=0.5,
        weather=weather,
    )


def killed_owner(share: float, seed: int) -> Chunks:
    """One owner killed at one moment of the window of step DUE."""
    run = plan(share)
    swarm = Swarm(run, seed, recording=False)
    dice = random.Random(f"killed owner {seed}")
    window = range(run.chunks_a_fragment)
    while max(peer.step for peer in swarm.peers) < DUE:
        swarm.clock.run(swarm.clock.now + 0.01)
    victim = dice.randrange(run.peers)
    key = swarm.keys[victim]
    ranking = swarm.peers[0].node.roster.ranked(window, DUE)
    owned = [chunk for chunk in window if ranking[chunk][0] == key]
    swarm.clock.run(swarm.clock.now + dice.random() * run.overlap * run.step_seconds)
    in_hand = {chunk for chunk in owned if swarm.peers[victim].node.ledger.chains[chunk].due < DUE}
    swarm.crash(victim)
    while min(peer.step for peer in swarm.live) < DUE + run.overlap + 1:
        swarm.clock.run(swarm.clock.now + 0.1)
    in_time = {chunk for chunk in owned if all(_merged_in_time(peer, chunk) for peer in swarm.live)}
    return Chunks(len(owned), len(in_time), len(in_hand), len(in_hand & in_time))


def _merged_in_time(peer: SimulatedPeer, chunk: int) -> bool:
    return any(mix.chunk == chunk and mix.due == DUE and mix.late == 0 for mix in peer.mixes)


def measure(share: float, kills: int) -> Chunks:
    """The sum of so many kills."""
    total = Chunks()
    for seed in range(kills):
        total = total.and_also(killed_owner(share, seed))
    return total


def table(rows: dict[float, Chunks]) -> str:
    """For people."""
    lines = ["latency, share of what τ hides   chunks   closed in time   of those not yet closed at the kill"]
    for share, chunks in rows.items():
        lines.append(
            f"{share:30.3f} {chunks.owned:8d} {chunks.share:15.1%} {chunks.in_hand_in_time:19d} of {chunks.in_hand:<4d}"
            f" {chunks.share_in_hand:7.1%}"
        )
    return "\n".join(lines)
