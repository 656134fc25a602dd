"""An entry of the lab: a question as a list of recipes, what the paper says, and the numbers of its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from statistics import fmean, stdev
from typing import Any, Final

from simulation.lab.recipe import Recipe

Outcome = Mapping[str, Any]
"""A `History` as JSON."""
Outcomes = Mapping[str, Sequence[Outcome]]
"""By label, one for each seed, in the order of seeds."""


@dataclass(frozen=True)
class Scale:
    """How large an entry is run."""

    steps: int
    """S of its longest run, unless the entry trains some longer."""
    sync_every: int
    """H where the entry does not vary it."""
    batch: int
    """Samples of a replica's step."""
    layers: int
    """Of the model."""
    most_replicas: int = 32
    """Cases with more are left out."""
    outer: tuple[float, float] = (0.4, 0.9)
    """Outer learning rate and momentum where the entry does not vary them: the paper's."""

    def fits(self, rounds: int, steps: int | None = None) -> bool:
        """Whether a run has at least two rounds of this length."""
        return 2 * rounds <= (self.steps if steps is None else steps)

    def base(self, **changes: Any) -> Recipe:
        """The streaming run that entries vary: two replicas, three layers a fragment."""
        values: dict[str, Any] = {
            "replicas": 2,
            "steps": self.steps,
            "batch": self.batch,
            "sync_every": self.sync_every,
            "fragments": max(1, self.layers // 3),
            "overlap": (1,),
            "settle": True,
            "outer_lr": self.outer[0],
            "outer_momentum": self.outer[1],
        }
        return Recipe(**{**values, **changes})


@dataclass(frozen=True)
class Case:
    """One row: a recipe, and for a curve its place on it."""

    label: str
    recipe: Recipe
    x: float | None = None
    curve: str = ""


@dataclass(frozen=True)
class Finding:
    """What an entry's rows show: a verdict, and the comparisons that led to it in words."""

    verdict: str
    lines: tuple[str, ...] = ()


Judge = Callable[[Outcomes], Finding]


@dataclass(frozen=True)
class Entry:
    """One question."""

    name: str
    title: str
    statement: str
    """What the paper says, or for an open question what is asked."""
    cases: Callable[[Scale], list[Case]]
    judge: Judge
    columns: tuple[str, ...] = ("loss",)
    """What the table shows of a `History`, as `value` knows it."""
    x_label: str = ""
    log_x: bool = False
    plot: str = "loss"
    """What is drawn: loss, or cosine (by layer, over the run)."""
    longer: int = 1
    """How many times the usual number of steps it needs."""
    evaluations: int = 12
    """Of the outer parameters during a run: the points of its curve."""


LOSSES: Final = ("loss", "first", "average")


def value(outcome: Outcome, what: str) -> float:
    """A number of an outcome; NaN if not measured. A loss is infinite, since the run
    diverged, if it was not finite or ended above the first step's.

    Cosines are means over the first or last quarter of the run, or over all of it. `norm P` is ‖Δ‖ of fragment P and
    `norm ratio` ‖Δ̄‖ / ‖Δ‖, means over the run. `early` is the loss after a quarter of the run, `bytes` what a replica
    sends and receives.
    """
    if what.startswith("cosine "):
        return _cosine(outcome, what.removeprefix("cosine "))
    if what == "early":
        reached = [loss for step, loss in outcome["outer"] if step >= len(outcome["train"]) / 4]
        return _number(reached[0]) if reached else float("nan")
    if what == "bytes":
        return (float(outcome["bits_up"]) + float(outcome["bits_down"])) / 8
    if what == "norm ratio":
        ratios = [mean / each for _, _, each, mean in outcome["norms"] if each and mean is not None]
        return fmean(ratios) if ratios else float("nan")
    if what.startswith("norm "):
        of = int(what.removeprefix("norm "))
        norms = [each for _, fragment, each, _ in outcome["norms"] if fragment == of and each is not None]
        return fmean(norms) if norms else float("nan")
    number = _number(outcome[what])
    return inf if what in LOSSES and outcome.get("train") and number > _number(outcome["train"][0]) else number


def _number(found: float | None) -> float:
    return float("inf") if found is None else float(found)


def _cosine(outcome: Outcome, what: str) -> float:
    """`start`, `end`, a layer's name, or `others`: the layers but the first."""
    cosines = outcome["cosine"]
    if what in ("start", "end"):
        points = _finite(cosines.get("all", ()))
        quarter = max(1, len(points) // 4)
        chosen = points[:quarter] if what == "start" else points[-quarter:]
    elif what == "others":
        deeper = (points for layer, points in cosines.items() if layer.isdigit() and layer != "0")
        chosen = [cosine for points in deeper for cosine in _finite(points)]
    else:
        chosen = _finite(cosines.get(what, ()))
    return fmean(chosen) if chosen else float("nan")


def _finite(points: Sequence[tuple[int, float | None]]) -> list[float]:
    """The values of (step, value), without those of a run that had diverged."""
    return [value for _, value in points if value is not None]


def mean_and_spread(outcomes: Sequence[Outcome], what: str) -> tuple[float, float | None]:
    """The mean over seeds, and their sample standard deviation; None for one seed."""
    values = [value(outcome, what) for outcome in outcomes]
    return fmean(values), stdev(values) if len(values) > 1 and all(map(isfinite, values)) else None
