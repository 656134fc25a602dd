"""The paper's Figures 4, 7, 9, 14 and 16 from the model of its graph, and the same curves for a user's own plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from simulation.charts import Chart, Series
from simulation.planner.graph import Flight, Floats, Job, simulate
from simulation.planner.paper import FRAGMENT_LAYERS, GRID, METHODS, SYNC_EVERY, run
from simulation.planner.plan import Plan, awaited
from simulation.planner.shapes import PAPER_MODELS, PAPER_SCALES, Shape
from simulation.planner.timetable import PATTERNS, cut, streaming

TABLE_GRID: Final = GRID[:50]
"""Up to 1 Tbit/s."""
LARGE_GRID: Final = GRID[:62]
"""Up to 10 Tbit/s."""
X, Y = "bandwidth, Gbit/s", "compute utilization"


def curves(shape: Shape, grid: Floats) -> Chart:
    """Utilization over bandwidth for every method, as in Figures 4 and 16."""
    lines = [_series(method.title, grid, run(shape, method, grid).utilization) for method in METHODS]
    note = f"{shape.layers} layers, step {shape.step_seconds:g} s, H = {SYNC_EVERY}"
    return Chart(shape.name, X, Y, lines, log_x=True, note=note)


def figure_4() -> list[Chart]:
    """Utilization over bandwidth at three scales."""
    return [curves(shape, TABLE_GRID) for shape in PAPER_SCALES.values()]


def figure_7() -> list[Chart]:
    """Strided against sequential fragments, 100B."""
    shape, lines = PAPER_SCALES["100B"], []
    for method in METHODS[2:]:
        for pattern in PATTERNS:
            timetable = method.timetable(shape.layers, FRAGMENT_LAYERS, pattern)
            reached = run(shape, method, TABLE_GRID, timetable).utilization
            lines.append(_series(f"{method.title}, {pattern}", TABLE_GRID, reached, dashed=pattern != "strided"))
    return [Chart("100B: strided and sequential fragments", X, Y, lines, log_x=True)]


def figure_9() -> list[Chart]:
    """Utilization over τ, 100B, 16 and 4 bits a parameter."""
    shape, overlaps = PAPER_SCALES["100B"], range(21)
    charts = []
    for base, bandwidths in ((METHODS[3], (1.0, 2.0, 3.0, 5.0)), (METHODS[4], (0.3, 0.5, 0.8, 1.2))):
        gbits = np.array(bandwidths)
        rows = np.array([run(shape, replace(base, overlap=overlap), gbits).utilization for overlap in overlaps])
        lines = [Series(f"{gbit:g} Gbit/s", list(overlaps), rows[:, at].tolist()) for at, gbit in enumerate(bandwidths)]
        charts.append(Chart(f"100B, {base.bits} bits a parameter", "overlap τ, steps", Y, lines))
    return charts


def figure_14() -> list[Chart]:
    """When each layer is on its way, one chart a pattern: twelve layers and H = 8, small enough to see."""
    return [_flights_chart(pattern) for pattern in PATTERNS]


def _flights_chart(pattern: str) -> Chart:
    layers, step, steps = 12, 1.0, 9
    flights: list[Flight] = []
    job = Job(layers=layers, step_seconds=step, timetable=streaming(cut(layers, 3, pattern), 8), overlap=1, steps=steps)
    simulate(job, np.array([0.5]), flights)
    sent = [(flight.layer, float(flight.sent[0]), float(flight.arrived[0])) for flight in flights]
    xs = [x for _, begin, end in sent for x in (begin, end, np.nan)]
    ys = [float(y) for layer, _, _ in sent for y in (layer, layer, np.nan)]
    note = "τ = 1; times in steps, waits included"
    return Chart(f"{pattern} fragments", "time", "layer", [Series("from gradient to result", xs, ys)], note=note)


def figure_16() -> list[Chart]:
    """Utilization over bandwidth for Llama 405B and DeepSeek-V3."""
    return [curves(shape, LARGE_GRID) for shape in PAPER_MODELS.values()]


FIGURES: Final[Mapping[int, Callable[[], list[Chart]]]] = {
    4: figure_4,
    7: figure_7,
    9: figure_9,
    14: figure_14,
    16: figure_16,
}


def of_plan(plan: Plan) -> list[Chart]:
    """Utilization over bandwidth for a plan and what it could be instead; upload and download keep their ratio."""
    factors = np.logspace(-2, 2, 81)
    mbits = plan.up / 1e6 * factors
    title = f"{plan.shape.name}, {plan.peers} peers"
    lines = [_series(label, mbits, awaited(other, factors).utilization) for label, other in _variants(plan)]
    here = Series("this link", [plan.up / 1e6] * 2, [0.0, 1.0], dashed=True)
    note = f"download = {plan.down / plan.up:g} × upload; merges awaited"
    return [Chart(title, "upload, Mbit/s", Y, [*lines, here], log_x=True, note=note)]


def _variants(plan: Plan) -> list[tuple[str, Plan]]:
    """The plan, with what each step from data parallel training towards it brings."""
    parallel = replace(plan, method="data-parallel", codec="bf16", sync_every=1, overlap=0)
    if plan.method == "data-parallel":
        return [("data-parallel", plan)]
    diloco = replace(plan, method="diloco", overlap=0)
    found = [("data-parallel, bf16", parallel), (f"diloco, H = {plan.sync_every}", diloco)]
    if plan.method == "streaming":
        found += [("streaming, τ = 0", replace(plan, overlap=0))]
    if plan.overlap:
        found += [(f"{plan.method}, τ = {plan.overlap}", plan)]
    return found


def _series(label: str, xs: Floats, ys: Floats, *, dashed: bool = False) -> Series:
    return Series(label, xs.tolist(), ys.tolist(), dashed=dashed)
