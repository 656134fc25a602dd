"""Many seeds, in several processes; what fails is shrunk to the fewest events that still fail.

The result depends on the seeds alone, not on the number of processes or on their speed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from simulation.events import KINDS, Event, random_events
from simulation.faults import Outcome, random_plan, run
from simulation.processes import processes
from simulation.shrink import shrink

SEEDS_A_TASK: Final = 5
SHRUNK: Final = 10
"""Of the failing seeds, the first ones that are shrunk; if there are more, they hardly say more."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What the seeds are drawn under: another range of peers or other kinds make other runs of the same seed."""

    peers: tuple[int, int] = (2, 12)
    kinds: tuple[str, ...] = tuple(KINDS)


@dataclass(frozen=True, slots=True)
class Violation:
    """A seed that broke a promise."""

    seed: int
    peers: int
    invariant: str
    seen: str
    events: tuple[Event, ...]

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "seed": self.seed,
            "invariant": self.invariant,
            "events": [event.as_json() for event in self.events],
            "peers": self.peers,
            "seen": self.seen,
        }


@dataclass(frozen=True, slots=True)
class Tally:
    """What a number of seeds did, all in all."""

    seeds: int = 0
    faults: int = 0
    links: int = 0
    violations: tuple[Violation, ...] = ()

    def and_also(self, other: Tally) -> Tally:
        """Both together, violations in the order of their seeds."""
        violations = sorted([*self.violations, *other.violations], key=lambda one: one.seed)
        return Tally(self.seeds + other.seeds, self.faults + other.faults, self.links + other.links, tuple(violations))


def examine(terms: Terms, seeds: range) -> Tally:
    """Run some seeds, here."""
    tally = Tally()
    for seed in seeds:
        plan = random_plan(seed, peers=terms.peers)
        events = random_events(seed, plan, terms.kinds)
        outcome = run(seed, plan, events, recording=False)
        found = (_violation(outcome, plan.peers, events),) if outcome.invariant else ()
        tally = tally.and_also(Tally(1, len(events), outcome.links, found))
    return tally


def _violation(outcome: Outcome, peers: int, events: tuple[Event, ...]) -> Violation:
    seen = outcome.violation.removeprefix(f"{outcome.invariant}: ")
    return Violation(outcome.seed, peers, outcome.invariant, seen, events)


def shortened(terms: Terms, violation: Violation) -> Violation:
    """The same violation from as few events as still show it."""
    plan = random_plan(violation.seed, peers=terms.peers)

    def still_fails(events: tuple[Event, ...]) -> bool:
        return run(violation.seed, plan, events, recording=False).invariant == violation.invariant

    events = shrink(violation.events, still_fails)
    return _violation(run(violation.seed, plan, events, recording=False), plan.peers, events)


def campaign(
    terms: Terms, seeds: range, *, jobs: int, progress: Callable[[Tally, int], None] = lambda tally, shrunk: None
) -> Tally:
    """Run all seeds in `jobs` processes (1: in this one), then shrink the first few that failed.

    `progress` gets what is known so far, and how many of the violations are shrunk. Raises BrokenProcessPool if a
    process was killed.
    """
    starts = range(seeds.start, seeds.stop, SEEDS_A_TASK)
    tasks = [partial(examine, terms, range(start, min(start + SEEDS_A_TASK, seeds.stop))) for start in starts]
    tally = Tally()
    with processes(min(jobs, len(tasks))) as each:
        for _, some in each(tasks):
            tally = tally.and_also(some)
            progress(tally, 0)
        violations = list(tally.violations)
        shrinking = [partial(shortened, terms, one) for one in violations[:SHRUNK]]
        for number, (index, shorter) in enumerate(each(shrinking), 1):
            violations[index] = shorter
            progress(tally, number)
    return replace(tally, violations=tuple(violations))
