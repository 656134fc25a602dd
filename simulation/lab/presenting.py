"""An entry's answer for people and programs: rows, JSON, a chart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isfinite, isinf
from statistics import fmean, stdev
from typing import Any

from simulation.charts import Chart, Series
from simulation.json_numbers import finite
from simulation.lab.entries.entry import Case, Entry, Outcome, Outcomes, mean_and_spread, value

HEADINGS = {
    "bits_up": "MB sent",
    "bits_down": "MB received",
    "peak_bits": "peak kB",
    "norm ratio": "‖mean Δ‖/‖Δ‖",
    "norm 0": "‖Δ‖ of 0",
    "norm 1": "‖Δ‖ of 1",
}
_DIVISORS = {"bits_up": 8e6, "bits_down": 8e6, "peak_bits": 8e3}


def rows(entry: Entry, outcomes: Outcomes) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of the table: the first column with its spread over seeds, the others without."""
    headings = ["", entry.columns[0], "±", *(HEADINGS.get(column, column) for column in entry.columns[1:])]
    return headings, [[label, *_cells(entry, outcomes[label])] for label in outcomes]


def _cells(entry: Entry, outcomes: Sequence[Outcome]) -> list[str]:
    first, spread = mean_and_spread(outcomes, entry.columns[0])
    others = [_cell(column, mean_and_spread(outcomes, column)[0]) for column in entry.columns[1:]]
    return [_cell(entry.columns[0], first), "" if spread is None else f"{spread:.4f}", *others]


def _cell(column: str, number: float) -> str:
    if not isfinite(number):
        return "diverged" if isinf(number) else "–"
    return f"{number / _DIVISORS[column]:.3g}" if column in _DIVISORS else f"{number:.4f}"


def as_json(entry: Entry, cases: Sequence[Case], outcomes: Outcomes) -> dict[str, Any]:
    """Statement, verdict and rows of an entry; numbers that are not finite are null."""
    finding = entry.judge(outcomes)
    return {
        "entry": entry.name,
        "title": entry.title,
        "statement": entry.statement,
        "verdict": finding.verdict,
        "findings": list(finding.lines),
        "rows": [_row(entry, case, outcomes[case.label]) for case in cases if case.label in outcomes],
    }


def _row(entry: Entry, case: Case, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    numbers = {}
    for column in entry.columns:
        mean, spread = mean_and_spread(outcomes, column)
        numbers[column] = {
            "mean": finite(mean),
            "spread": spread,
            "seeds": [finite(value(outcome, column)) for outcome in outcomes],
        }
    return {"label": case.label, "x": case.x, "curve": case.curve, "numbers": numbers, "recipe": asdict(case.recipe)}


def markdown(entry: Entry, outcomes: Outcomes, answer: Mapping[str, Any]) -> str:
    """An answer (`as_json`) as a section of a Markdown page: a heading, the statement and verdict, table, findings."""
    headings, cells = rows(entry, outcomes)
    table = [headings, ["---"] * len(headings), *cells]
    verdict = answer["verdict"]
    return (
        "\n".join(
            [
                f"## `{entry.name}`: {entry.title}\n",
                f"{entry.statement} **{verdict[0].upper()}{verdict[1:]}.**\n",
                *(f"| {' | '.join(line)} |" for line in table),
                "",
                *(f"- {line}" for line in answer["findings"]),
            ]
        ).rstrip()
        + "\n"
    )


def chart(entry: Entry, cases: Sequence[Case], outcomes: Outcomes, note: str) -> Chart:
    """A curve over `x` where the entry has one, else the loss, or the cosines by layer, over the run."""
    if entry.plot == "cosine":
        series, labels = _cosines(outcomes), ("step", "cosine of two replicas' Δ")
    elif entry.x_label:
        series, labels = _sweeps(cases, outcomes), (entry.x_label, "held-out loss (nats a token)")
    else:
        series, labels = _over_steps(outcomes), ("step", "held-out loss (nats a token)")
    return Chart(entry.title, *labels, series, log_x=entry.log_x, note=note)


def _sweeps(cases: Sequence[Case], outcomes: Outcomes) -> list[Series]:
    made = []
    for curve in dict.fromkeys(case.curve for case in cases if case.x is not None):
        points = {
            case.x: mean_and_spread(outcomes[case.label], "loss")
            for case in cases
            if case.x is not None and case.curve == curve and case.label in outcomes
        }
        xs = [x for x in sorted(points) if isfinite(points[x][0])]
        spreads = [spread for x in xs if (spread := points[x][1]) is not None]
        ys = [points[x][0] for x in xs]
        made.append(Series(curve or "loss", xs, ys, spreads if len(spreads) == len(xs) else None))
    return made


def _over_steps(outcomes: Outcomes) -> list[Series]:
    return [_mean_curve(label, [outcome["outer"] for outcome in several]) for label, several in outcomes.items()]


def _cosines(outcomes: Outcomes) -> list[Series]:
    """Of the first row. A run that diverged has fewer points."""
    several = next(iter(outcomes.values()))
    layers = dict.fromkeys(layer for outcome in several for layer in outcome["cosine"])
    return [_mean_curve(layer, [outcome["cosine"].get(layer, ()) for outcome in several]) for layer in layers]


def _mean_curve(label: str, curves: Sequence[Sequence[tuple[float, float | None]]]) -> Series:
    """The mean of curves, with their spread; without the points that one of them lacks."""
    found: defaultdict[float, list[float]] = defaultdict(list)
    for curve in curves:
        for x, y in curve:
            if y is not None:
                found[x].append(y)
    kept = [(x, ys) for x, ys in sorted(found.items()) if len(ys) == len(curves)]
    spread = [stdev(ys) for _, ys in kept] if len(curves) > 1 else None
    return Series(label, [x for x, _ in kept], [fmean(ys) for _, ys in kept], spread)
