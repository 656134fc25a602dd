"""Doing the lab's runs: how long it will take, progress, and each result on the disk as it ends."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from peer import clock
from peer.commands.lab_results import Planned, Results
from peer.commands.lab_workload import Setting, workload_for
from simulation.lab.engine import Run
from simulation.lab.history import History
from simulation.lab.workload import Workload
from simulation.processes import processes

LINE_EVERY: Final = 10.0
"""Seconds between two lines of progress where nobody watches a terminal."""
MEASURED_STEPS: Final = 3
EVALUATIONS_AT_THE_END: Final = 3


def run_all(
    plans: Mapping[str, Sequence[Planned]], setting: Setting, results: Results, *, jobs: int, quiet: bool
) -> Generator[str]:
    """Do what is missing, `jobs` runs at once; yields the entries' names in order, each when its results are there.

    Close it: that ends what is under way. Raises BrokenProcessPool if a process was killed.
    """
    wanted = dict.fromkeys(run for runs in plans.values() for run in runs)
    missing = [run for run in wanted if results.find(run) is None]
    left = {name: set(runs) & set(missing) for name, runs in plans.items()}
    jobs = max(1, min(jobs, len(missing)))
    progress = Progress(len(wanted), missing, jobs=jobs, quiet=quiet)
    if missing:
        progress.begin(workload_for(setting))
    tasks = [partial(history_of, setting, run) for run in missing]
    yield from _ready(left)
    with processes(jobs) as each:
        for index, history in each(tasks):
            run = missing[index]
            results.keep(run, history)
            progress.ended(run, next(iter(left)))
            for runs in left.values():
                runs.discard(run)
            for name in _ready(left):
                progress.clear()
                yield name


def _ready(left: dict[str, set[Planned]]) -> Iterator[str]:
    """Take out the first entries, as far as nothing is left to do for them."""
    while left and not left[name := next(iter(left))]:
        del left[name]
        yield name


def history_of(setting: Setting, run: Planned) -> History:
    """Do one run, here."""
    every = max(1, run.recipe.steps // run.evaluations)
    return Run(run.recipe, workload_for(setting), run.seed, evaluate_every=every).run()


class Progress:
    """What is done and what is left, on stderr."""

    def __init__(self, total: int, missing: Sequence[Planned], *, jobs: int, quiet: bool) -> None:
        self._terminal = sys.stderr.isatty()
        self._quiet = quiet and not self._terminal
        self._total = total
        self._left = len(missing)
        self._cost = sum(run.cost for run in missing)
        self._missing = missing
        self._jobs = jobs
        self._pace = 0.0
        """Seconds of an inner step with all processes at work, evaluations included."""
        self._began = clock.monotonic()
        self._done = 0.0
        self._said = 0.0

    def begin(self, workload: Workload) -> None:
        """Measure a few steps and say how long all will take."""
        sample = max(self._missing, key=lambda run: run.recipe.replicas)
        recipe = sample.recipe
        run = Run(recipe, workload, sample.seed)
        run.advance()  # the first step is slower than the others
        began = clock.monotonic()
        for _ in range(MEASURED_STEPS):
            run.advance()
        steps = clock.monotonic() - began
        began = clock.monotonic()
        workload.evaluate(recipe, run.outer())
        evaluation = clock.monotonic() - began
        self._pace = steps / (MEASURED_STEPS * recipe.replicas)
        seconds = (
            self._pace * self._cost
            + evaluation * sum(run.evaluations + EVALUATIONS_AT_THE_END for run in self._missing)
        ) / self._jobs
        self._pace = seconds / self._cost
        there = self._total - self._left
        self._say(f"Runs: {self._total}, done before: {there}; the others take about {duration(seconds)}.")
        self._began = clock.monotonic()

    def ended(self, run: Planned, entry: str) -> None:
        """One more is done; the first entry that lacks some is `entry`."""
        self._left -= 1
        self._done += run.cost
        now = clock.monotonic()
        if self._quiet or now < self._said + (0.2 if self._terminal else LINE_EVERY):
            return
        self._said = now
        text = f"{entry}: {self._total - self._left} of {self._total} runs, {duration(self._seconds_left(now))} to go"
        sys.stderr.write(f"\r\x1b[K{text}" if self._terminal else f"{text}\n")
        sys.stderr.flush()

    def _seconds_left(self, now: float) -> float:
        """By the measurement at first, by what was seen later."""
        pace = (now - self._began) / self._done if self._done > self._cost / 50 else self._pace
        return max(0.0, pace * (self._cost - self._done))

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
