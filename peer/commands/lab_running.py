"""Doing the lab's runs: how long it will take, progress, and each result on the disk as it ends."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from peer import clock
from peer.commands.lab_results import Results
from simulation.lab.engine import Run
from simulation.lab.recipe import Recipe
from simulation.lab.workload import Workload

LINE_EVERY: Final = 10.0
"""Seconds between two lines of progress where nobody watches a terminal."""
MEASURED_STEPS: Final = 3
EVALUATIONS: Final = 6
"""During a run; three more follow at its end."""


@dataclass(frozen=True)
class Planned:
    """A run to do."""

    recipe: Recipe
    seed: int

    @property
    def cost(self) -> float:
        """Inner steps."""
        speeds = [self.recipe.speeds[min(index, len(self.recipe.speeds) - 1)] for index in range(self.recipe.replicas)]
        return self.recipe.steps * sum(speeds)


def run_all(
    plans: Mapping[str, Sequence[Planned]], workload: Workload, results: Results, *, quiet: bool
) -> Iterator[str]:
    """Do what is missing, entry by entry; yields an entry's name when its results are there."""
    wanted = dict.fromkeys(run for runs in plans.values() for run in runs)
    missing = [run for run in wanted if results.find(run.recipe, run.seed) is None]
    progress = Progress(len(wanted), missing, quiet=quiet)
    if missing:
        progress.begin(workload)
    for name, runs in plans.items():
        for run in dict.fromkeys(runs):
            if results.find(run.recipe, run.seed) is None:
                progress.show(name)
                every = max(1, run.recipe.steps // EVALUATIONS)
                history = Run(run.recipe, workload, run.seed, evaluate_every=every).run()
                results.keep(run.recipe, run.seed, history)
                progress.ended(run)
        progress.clear()
        yield name


class Progress:
    """What is done and what is left, on stderr."""

    def __init__(self, total: int, missing: Sequence[Planned], *, quiet: bool) -> None:
        self._terminal = sys.stderr.isatty()
        self._quiet = quiet and not self._terminal
        self._total = total
        self._left = len(missing)
        self._cost = sum(run.cost for run in missing)
        self._missing = missing
        self._pace = 0.0
        """Seconds of an inner step, evaluations included."""
        self._began = clock.monotonic()
        self._done = 0.0
        self._said = 0.0

    def begin(self, workload: Workload) -> None:
        """Measure a few steps and say how long all will take."""
        sample = max(self._missing, key=lambda run: run.recipe.replicas)
        recipe = replace(sample.recipe, steps=sample.recipe.steps)
        run = Run(recipe, workload, sample.seed)
        run.advance()  # the first step is slower than the others
        began = clock.monotonic()
        for _ in range(MEASURED_STEPS):
            run.advance()
        steps = clock.monotonic() - began
        began = clock.monotonic()
        workload.evaluate(recipe, run.outer())
        evaluation = (clock.monotonic() - began) * (EVALUATIONS + 3)
        self._pace = steps / (MEASURED_STEPS * recipe.replicas)
        seconds = self._pace * self._cost + evaluation * self._left
        self._pace = seconds / self._cost
        there = self._total - self._left
        self._say(f"Runs: {self._total}, done before: {there}; the others take about {duration(seconds)}.")
        self._began = clock.monotonic()

    def show(self, name: str) -> None:
        """What is being done."""
        now = clock.monotonic()
        if self._quiet or now < self._said + (0.2 if self._terminal else LINE_EVERY):
            return
        self._said = now
        text = f"{name}: {self._total - self._left} of {self._total} runs, {duration(self._seconds_left(now))} to go"
        sys.stderr.write(f"\r\x1b[K{text}" if self._terminal else f"{text}\n")
        sys.stderr.flush()

    def _seconds_left(self, now: float) -> float:
        """By the measurement at first, by what was seen later."""
        pace = (now - self._began) / self._done if self._done > self._cost / 50 else self._pace
        return max(0.0, pace * (self._cost - self._done))

    def ended(self, run: Planned) -> None:
        """One more is done."""
        self._left -= 1
        self._done += run.cost

    def clear(self) -> None:
        """Leave the line to the answer that follows."""
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _say(self, text: str) -> None:
        if not self._quiet:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def duration(seconds: float) -> str:
    """Such as 40 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
