"""Table 4 and Figure 16 of the paper, from its own conventions (docs/planner.md), with the true thresholds beside them.

The paper prints, for a wanted utilization, the last bandwidth of its grid that does *not* reach it. `paper_gbits` is
that; `true_gbits` is the next one, the first that does; `exact_gbits` is where in between it is reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulation.planner.graph import Floats, Job, Outcome, simulate
from simulation.planner.shapes import PAPER_MODELS, PAPER_SCALES, Shape
from simulation.planner.timetable import Timetable, cut, streaming, whole

SYNC_EVERY: Final = 100
FRAGMENT_LAYERS: Final = 3
STEPS: Final = 200
UTILIZATIONS: Final = (0.5, 0.8, 0.9, 0.95, 0.99)
GRID: Final[Floats] = np.round(10.0 ** (-1.0 + 4.0 / 49.0 * np.arange(75)), 2)
"""Gbit/s: the paper's grid, round(logspace(-1, 3, 50), 2), and its continuation to 100 Tbit/s, for Figure 16."""
REFINEMENTS: Final = 2
POINTS: Final = 33
"""Of the grid's step, 20%, a thousandth is left: 0.02% of a bandwidth."""


@dataclass(frozen=True, slots=True)
class Method:
    """One row of Table 4."""

    name: str
    title: str
    bits: int
    """Sent for each parameter."""
    overlap: int = 0
    """τ."""
    fragmented: bool = True
    every_step: bool = False

    def timetable(self, layers: int, fragment_layers: int = FRAGMENT_LAYERS, pattern: str = "strided") -> Timetable:
        """When the layers of a model are sent."""
        if not self.fragmented:
            return whole(layers, 1 if self.every_step else SYNC_EVERY)
        return streaming(cut(layers, fragment_layers, pattern), SYNC_EVERY)


METHODS: Final = (
    Method("data-parallel", "Data-Parallel", 16, fragmented=False, every_step=True),
    Method("diloco", "DiLoCo", 16, fragmented=False),
    Method("streaming", "Streaming DiLoCo", 16),
    Method("overlap", "with overlap", 16, overlap=1),
    Method("overlap-fp4", "with overlap, FP4", 4, overlap=1),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One number of the table, in Gbit/s; null where no bandwidth of the grid reaches the utilization."""

    scale: str
    method: str
    utilization: float
    paper_gbits: float | None
    true_gbits: float | None
    exact_gbits: float | None


def run(shape: Shape, method: Method, gbits: Floats, timetable: Timetable | None = None) -> Outcome:
    """A run of the paper's kind at each of these bandwidths, Gbit/s (B,): all-reduce factor 1, no latency."""
    assert shape.step_seconds is not None
    job = Job(
        layers=shape.layers,
        step_seconds=shape.step_seconds,
        timetable=timetable or method.timetable(shape.layers),
        overlap=method.overlap,
        steps=STEPS,
    )
    return simulate(job, shape.layer * method.bits / (gbits * 1e9))


def column(scale: str, shape: Shape, utilizations: Sequence[float] = UTILIZATIONS) -> Iterator[Cell]:
    """The cells of one model."""
    for method in METHODS:
        reached = run(shape, method, GRID).utilization
        firsts = [_first(reached >= utilization) for utilization in utilizations]
        exact = _thresholds(shape, method, utilizations, firsts)
        for utilization, first, threshold in zip(utilizations, firsts, exact, strict=True):
            paper = _tenths(GRID[first - 1]) if first else None
            true = _printed(GRID[first]) if first is not None else None
            yield Cell(scale, method.name, utilization, paper, true, threshold)


def _first(enough: npt.NDArray[np.bool_]) -> int | None:
    """The index of the first bandwidth that is enough, if one is."""
    return int(enough.argmax()) if enough.any() else None


def _tenths(gbits: float) -> float:
    """As the paper prints it."""
    return float(f"{gbits:.1f}")


def _printed(gbits: float) -> float:
    """A tenth is too coarse below 10 Gbit/s for what a link needs."""
    return float(f"{gbits:.{1 if gbits >= 10 else 2}f}")


def _thresholds(
    shape: Shape, method: Method, utilizations: Sequence[float], firsts: Sequence[int | None]
) -> list[float | None]:
    """Where each utilization is reached, between the two bandwidths of the grid around it. All are run at once."""
    ends = {index: (GRID[first - 1], GRID[first]) for index, first in enumerate(firsts) if first}
    for _ in range(REFINEMENTS if ends else 0):
        points = np.array([np.linspace(low, high, POINTS) for low, high in ends.values()])
        reached = run(shape, method, points.reshape(-1)).utilization.reshape(points.shape)
        for row, index in enumerate(ends):
            enough = reached[row] >= utilizations[index]
            at_most = max(1, int(enough.argmax())) if enough.any() else POINTS - 1
            ends[index] = (points[row, at_most - 1], points[row, at_most])
    return [float(f"{ends[index][1]:.4g}") if index in ends else None for index in range(len(firsts))]


def table(utilizations: Sequence[float] = UTILIZATIONS) -> list[Cell]:
    """Table 4."""
    return [cell for scale, shape in PAPER_SCALES.items() for cell in column(scale, shape, utilizations)]


def figure16(utilizations: Sequence[float] = UTILIZATIONS) -> list[Cell]:
    """The same for the two models of Figure 16."""
    return [cell for name, shape in PAPER_MODELS.items() for cell in column(name, shape, utilizations)]


def at(gbits: float) -> list[dict[str, Any]]:
    """The utilization of every model and method at one bandwidth."""
    models: Mapping[str, Shape] = {**PAPER_SCALES, **PAPER_MODELS}
    found = []
    for scale, shape in models.items():
        for method in METHODS:
            value = float(run(shape, method, np.array([gbits])).utilization[0])
            found.append({"scale": scale, "method": method.name, "gbits": gbits, "utilization": round(value, 4)})
    return found


def as_json(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """The cells as plain dictionaries."""
    return [asdict(cell) for cell in cells]
