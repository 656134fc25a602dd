"""One plan for a user: a model, a method and links, and what follows from them.

`data-parallel` is the paper's graph with a ring all-reduce at every step. `diloco` and `streaming` are potluck's own
exchange and timing (exchange.py, boundaries.py): the whole model at once with τ = 0, and fragments with τ > 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final

import numpy as np

from simulation.planner import boundaries, graph
from simulation.planner.boundaries import Rounds, Swarm
from simulation.planner.exchange import PACKED, Owners, Wire, ring_factor
from simulation.planner.graph import Floats
from simulation.planner.shapes import Shape
from simulation.planner.timetable import whole

METHODS: Final = ("data-parallel", "diloco", "streaming")
TRAINING_BYTES: Final = 16
"""On the device for a parameter: weight, gradient and Adam's two moments, all fp32."""
SNAPSHOT_BYTES: Final = 4
OUTER_BYTES: Final = 8
"""On the host for a parameter: anchor and momentum, fp32."""
STEPS: Final = 20
"""Inner steps of a data parallel run: each is like the one before."""
LONGEST_ROUND: Final = 100_000
"""The greatest H that is tried."""
ONE: Final[Floats] = np.ones(1)
MOST_SKIPPED: Final = 0.05
"""Share of windows that a plan which reaches its target may skip."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What was asked. Bandwidths in bits a second, times in seconds; checked by whoever makes it."""

    shape: Shape
    method: str
    step_seconds: float
    up: float
    down: float
    latency: float = 0.0
    """One way."""
    peers: int = 2
    sync_every: int = 100
    """H; 1 for data parallel."""
    overlap: int = 5
    """τ."""
    fragment_layers: int = 3
    codec: str = "e3m0"
    result_codec: str = "e3m0"
    merge_wait: float | None = None
    """The longest that potluck waits for a merge; None is its default: one step with τ = 0, else not at all."""

    @property
    def fragments(self) -> int:
        """P."""
        return 1 if self.method != "streaming" else -(-self.shape.layers // self.fragment_layers)

    @cached_property
    def sizes(self) -> tuple[float, ...]:
        """Parameters of each fragment."""
        return self.shape.fragment_sizes(self.fragments)

    @cached_property
    def owners(self) -> Owners:
        """potluck's exchange."""
        return Owners(peers=self.peers, codec=self.codec, result_codec=self.result_codec)

    @property
    def longest_wait(self) -> float:
        """`merge_wait`, or what stands for it."""
        if self.merge_wait is not None:
            return self.merge_wait
        return 0.0 if self.overlap else self.step_seconds

    def wire(self, factors: Floats) -> Wire:
        """The link, with both bandwidths times each of `factors` (B,)."""
        return Wire.of(self.up * factors, self.down * factors, self.latency)


def round_bytes(plan: Plan) -> float:
    """Bytes that one peer sends, and receives, in a round of H steps (data parallel: in a step), on average."""
    if plan.method == "data-parallel":
        return PACKED[plan.codec](plan.shape.parameters, 256) * ring_factor(plan.peers)
    return sum(map(plan.owners.sent, plan.sizes))


def awaited(plan: Plan, factors: Floats = ONE) -> Rounds:
    """What training costs if every merge waits until it is complete, at bandwidths times `factors` (B,)."""
    if plan.method == "data-parallel":
        return _data_parallel(plan, factors)
    return boundaries.simulate(_swarm(plan, factors, None))


def skipping(plan: Plan, factors: Floats = ONE) -> Rounds:
    """What potluck does: it waits for at most `merge_wait`, and merges late or skips. Not for data parallel."""
    return boundaries.simulate(_swarm(plan, factors, plan.longest_wait))


def _swarm(plan: Plan, factors: Floats, merge_wait: float | None) -> Swarm:
    wire, owners = plan.wire(factors), plan.owners
    made = {size: owners.transfer(size, wire) for size in set(plan.sizes)}
    return Swarm(
        step_seconds=plan.step_seconds,
        sync_every=plan.sync_every,
        overlap=plan.overlap,
        transfers=[made[size] for size in plan.sizes],
        merge_wait=merge_wait,
    )


def _data_parallel(plan: Plan, factors: Floats) -> Rounds:
    wire, layers = plan.wire(factors), plan.shape.layers
    layer = PACKED[plan.codec](plan.shape.parameters / layers, 256) * ring_factor(plan.peers)
    job = graph.Job(
        layers=layers,
        step_seconds=plan.step_seconds,
        timetable=whole(layers, 1),
        delay=2 * (plan.peers - 1) * plan.latency,
        steps=STEPS,
    )
    outcome = graph.simulate(job, layer / np.minimum(wire.up, wire.down))
    nothing = np.zeros_like(outcome.wall)
    return Rounds(
        compute=plan.step_seconds,
        wall=np.maximum(outcome.wall / STEPS, plan.step_seconds),
        exchange=outcome.link_busy / STEPS,
        in_time=nothing + 1,
        late=nothing,
    )


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that one peer needs."""

    device: float
    """Weights, gradients, Adam's moments, and the snapshot of the largest fragment."""
    host: float
    """Anchors, momentum, the newest results packed, and what is packed of the windows in flight."""


def memory(plan: Plan) -> Memory:
    """What a peer needs, sharded over its devices or not. Activations are left out: they are the batch's."""
    parameters = plan.shape.parameters
    if plan.method == "data-parallel":
        return Memory(TRAINING_BYTES * parameters, 0.0)
    pack = PACKED[plan.codec], PACKED[plan.result_codec]
    in_flight = min(plan.fragments, 1 + plan.overlap * plan.fragments // plan.sync_every)
    largest = max(plan.sizes)
    packed = pack[1](parameters, 256) + in_flight * sum(codec(largest, 256) for codec in pack)
    return Memory(TRAINING_BYTES * parameters + SNAPSHOT_BYTES * largest, OUTER_BYTES * parameters + packed)


def reaches(plan: Plan, target: float) -> bool:
    """Whether the utilization with every merge awaited is at least `target`, and a swarm merges nearly all windows.

    A swarm that hides its exchange (τ above 0) does not wait for it: what takes longer than τ and some steps more is
    never merged, and however long the rounds are, such a plan trains its peers apart.
    """
    return bool(_enough(plan, target, ONE)[0])


def smallest_sync_every(plan: Plan, target: float) -> int | None:
    """The smallest H above τ that reaches it; None if none up to LONGEST_ROUND does."""
    return _smallest(lambda rounds: reaches(replace(plan, sync_every=rounds), target), plan.overlap + 1, LONGEST_ROUND)


def smallest_overlap_for_any_round(plan: Plan, target: float) -> int | None:
    """The smallest τ with which a round that is long enough reaches it; None if none does."""
    longest = replace(plan, sync_every=LONGEST_ROUND)
    return _smallest(lambda steps: reaches(replace(longest, overlap=steps), target), 0, LONGEST_ROUND - 1)


def smallest_overlap(plan: Plan, target: float) -> int | None:
    """The smallest τ below H that reaches it; None if none does."""
    return _smallest(lambda steps: reaches(replace(plan, overlap=steps), target), 0, plan.sync_every - 1)


def _smallest(holds: Callable[[int], bool], low: int, high: int) -> int | None:
    """The smallest number for which it holds, if it holds from there on.

    Offsets are whole steps, so that utilization may dip by a hair between two neighbours: then one of the smallest.
    """
    if holds(low):
        return low
    reach = 1
    while not holds(min(low + reach, high)):
        if low + reach >= high:
            return None
        low, reach = low + reach, 2 * reach
    high = min(low + reach, high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def factor_needed(plan: Plan, target: float) -> float | None:
    """By what both bandwidths must be multiplied to reach it, to 0.1%; None if a millionfold is not enough."""
    enough = partial(_enough, plan, target)
    points = np.logspace(-6, 6, 49)
    for _ in range(4):
        reached = enough(points)
        if not reached[-1]:
            return None
        first = int(reached.argmax())
        if first == 0:
            return float(points[0])
        points = np.geomspace(points[first - 1], points[first], 17)
    return float(points[-1])


def _enough(plan: Plan, target: float, factors: Floats) -> np.typing.NDArray[np.bool_]:
    reached = awaited(plan, factors).utilization >= target
    if plan.method != "data-parallel":
        reached &= skipping(plan, factors).skipped <= MOST_SKIPPED
    return np.asarray(reached, bool)
