"""The paper's simulator (arXiv 2501.18512, section 3.1 and Figure 3): a graph of layers over one link.

A step of L layers is a chain of 3·L − 1 units of equal time: L forward (layer 0 first), then from the last layer down
to the first a backward unit of the activation and one of the parameters; the first layer needs no activation's. When
a layer's parameter unit is done, and its fragment is due, its reduction enters one link, first in first out. Its next
forward unit waits for it; with τ, the forward unit τ steps later. A run waits for its last message.

All times are in seconds, and are arrays over the bandwidths that are computed at once, float64 (B,).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulation.planner.timetable import Timetable

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run."""

    layers: int
    step_seconds: float
    timetable: Timetable
    overlap: int = 0
    """τ in steps."""
    delay: float = 0.0
    """Seconds from a reduction's leaving the link to its arrival."""
    steps: int = 200


@dataclass(frozen=True, slots=True)
class Flight:
    """One layer's reduction."""

    layer: int
    ready: int
    """The step in which the layer's forward unit waits for it."""
    sent: Floats
    arrived: Floats


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of computing, and of all. Float64 (B,)."""

    compute: float
    wall: Floats

    @property
    def utilization(self) -> Floats:
        """Share of the time spent in computing."""
        return self.compute / self.wall

    @property
    def exposed(self) -> Floats:
        """Time that was spent waiting."""
        return self.wall - self.compute


@dataclass(frozen=True, slots=True)
class Outcome(Spent):
    """What a run took."""

    link_busy: Floats


def units(layers: int) -> int:
    """Units of one step."""
    return 3 * layers - 1


def sent_after(layer: int, layers: int) -> int:
    """How many units of its step are over when a layer's parameter gradient is there."""
    return layers + min(2 * (layers - layer), 2 * layers - 1)


def simulate(job: Job, layer_seconds: Floats, flights: list[Flight] | None = None) -> Outcome:
    """Run it, with a reduction of one layer taking `layer_seconds` (B,) on the link.

    `flights`, if given, gets every reduction, in order: for pictures.
    """
    unit = job.step_seconds / units(job.layers)
    now, free, busy = (np.zeros_like(layer_seconds) for _ in range(3))
    flying: dict[tuple[int, int], Flight] = {}
    for step in range(1, job.steps + 1):
        done = 0
        for at, layer, sends in _events(job, step, flying):
            now = now + (at - done) * unit
            done = at
            if not sends:
                now = np.maximum(now, flying.pop((layer, step)).arrived)
                continue
            free = np.maximum(free, now) + layer_seconds
            busy = busy + layer_seconds
            flight = Flight(layer, step + 1 + job.overlap, now, free + job.delay)
            flying[layer, flight.ready] = flight
            if flights is not None:
                flights.append(flight)
        now = now + (units(job.layers) - done) * unit
    last = free + job.delay * (busy > 0)
    return Outcome(job.steps * job.step_seconds, np.maximum(now, last), busy)


def _events(job: Job, step: int, flying: Iterable[tuple[int, int]]) -> list[tuple[int, int, bool]]:
    """(units before it, layer, whether it sends) of all that happens in a step, in order: waits, then sends."""
    waits = [(layer, layer, False) for layer, ready in flying if step == ready]
    sends = [(sent_after(layer, job.layers), layer, True) for layer in job.timetable.due(step)]
    return sorted(waits) + sorted(sends)
