"""Table 4 of the paper (arXiv 2501.18512), cell by cell, from its own conventions."""

import time

import numpy as np
import pytest

from simulation.planner.paper import GRID, METHODS, UTILIZATIONS, Cell, at, column, figure16, run, table
from simulation.planner.shapes import PAPER_MODELS, PAPER_SCALES

pytestmark = pytest.mark.timeout(300)  # a few seconds of processor, on machines that may be busy

PRINTED = {
    ("1B", "data-parallel"): (86.8, 152.6, 184.2, 222.3, 569.0),
    ("1B", "diloco"): (1.4, 6.2, 13.3, 23.3, 86.8),
    ("1B", "streaming"): (1.4, 5.2, 9.1, 16.0, 28.1),
    ("1B", "overlap"): (1.4, 4.3, 6.2, 9.1, 11.0),
    ("1B", "overlap-fp4"): (0.4, 0.9, 1.7, 2.0, 3.0),
    ("100B", "data-parallel"): (184.2, 323.8, 390.7, 390.7, 471.5),
    ("100B", "diloco"): (3.0, 11.0, 23.3, 49.4, 184.2),
    ("100B", "streaming"): (2.4, 6.2, 9.1, 11.0, 19.3),
    ("100B", "overlap"): (1.7, 3.6, 4.3, 5.2, 5.2),
    ("100B", "overlap-fp4"): (0.5, 0.9, 1.1, 1.1, 1.4),
}
"""The two columns that are known whole, at 50, 80, 90, 95 and 99%."""
OFF = {("100B", "overlap", 0.95)}
"""Ours needs 5.167 Gbit/s there, the grid point is 5.18: a hair below it, where the paper is a hair above."""
KNOWN_OF_10B = {
    ("data-parallel", 0.5): 104.8,
    ("data-parallel", 0.95): 268.3,
    ("data-parallel", 0.99): 471.5,
    ("overlap-fp4", 0.5): 0.4,
    ("overlap-fp4", 0.95): 1.4,
    ("overlap-fp4", 0.99): 1.7,
}
"""What the paper's text says of the third column."""


@pytest.fixture(scope="module")
def cells() -> dict[tuple[str, str, float], Cell]:
    return {(cell.scale, cell.method, cell.utilization): cell for cell in table()}


def test_the_known_columns(cells: dict[tuple[str, str, float], Cell]) -> None:
    printed = {
        (*key, utilization): value
        for key, values in PRINTED.items()
        for utilization, value in zip(UTILIZATIONS, values, strict=True)
    }
    wrong = {key for key, value in printed.items() if cells[key].paper_gbits != value}
    assert wrong == OFF
    for key in wrong:  # within one step of the grid
        index = [f"{point:.1f}" for point in GRID].index(f"{printed[key]:.1f}")
        assert f"{GRID[index - 1]:.1f}" == f"{cells[key].paper_gbits:.1f}"


def test_what_is_known_of_the_third_column(cells: dict[tuple[str, str, float], Cell]) -> None:
    assert {key: cells["10B", *key].paper_gbits for key in KNOWN_OF_10B} == KNOWN_OF_10B


def test_the_table_is_whole(cells: dict[tuple[str, str, float], Cell]) -> None:
    assert len(cells) == 75
    assert {method for _, method, _ in cells} == {method.name for method in METHODS}


def test_true_thresholds_are_true(cells: dict[tuple[str, str, float], Cell]) -> None:
    first = cells["1B", "data-parallel", 0.5]
    assert (first.paper_gbits, first.true_gbits) == (86.8, 104.8)
    for (scale, name, utilization), cell in cells.items():
        assert cell.paper_gbits and cell.true_gbits and cell.exact_gbits
        assert cell.paper_gbits * 0.99 < cell.exact_gbits * 1.05 and cell.exact_gbits <= cell.true_gbits * 1.01
        method = next(method for method in METHODS if method.name == name)
        around = run(PAPER_SCALES[scale], method, np.array([0.995, 1.005]) * cell.exact_gbits).utilization
        assert around[0] < utilization <= around[1], cell


def test_the_grid_is_the_papers() -> None:
    assert GRID[:50].tolist() == np.round(np.logspace(-1, 3, 50), 2).tolist()


def test_figure_16() -> None:
    """Of Llama 405B and DeepSeek-V3 the paper says: FP4 near 100% at about 5 and 4 Gbit/s, DeepSeek's data parallel
    at about a terabit."""
    found = {(cell.scale, cell.method, cell.utilization): cell for cell in figure16()}
    assert len(found) == 50
    assert found["llama-405b", "overlap-fp4", 0.99].true_gbits < 5
    assert 3.5 < found["deepseek-v3", "overlap-fp4", 0.99].true_gbits < 5
    assert 800 < found["deepseek-v3", "data-parallel", 0.95].true_gbits < 1300


def test_utilization_at_a_bandwidth_agrees_with_the_table(cells: dict[tuple[str, str, float], Cell]) -> None:
    found = {(row["scale"], row["method"]): row["utilization"] for row in at(9.1)}
    assert (
        found["1B", "overlap"] < 0.95 <= {(r["scale"], r["method"]): r["utilization"] for r in at(11)}["1B", "overlap"]
    )
    assert len(found) == 5 * (len(PAPER_SCALES) + len(PAPER_MODELS))


def test_another_utilization_lies_between() -> None:
    fp4 = {cell.utilization: cell for cell in column("1B", PAPER_SCALES["1B"], (0.9, 0.93, 0.95))
           if cell.method == "overlap-fp4"}  # fmt: skip
    assert fp4[0.9].exact_gbits < fp4[0.93].exact_gbits < fp4[0.95].exact_gbits


def test_it_is_fast() -> None:
    """Processor seconds, which a busy machine does not change much."""
    began = time.process_time()
    run(PAPER_SCALES["100B"], METHODS[-1], GRID)
    one = time.process_time() - began
    began = time.process_time()
    table()
    whole = time.process_time() - began
    assert one < 1 and whole < 20, (one, whole)
