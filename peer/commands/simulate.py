"""`potluck simulate`: seeded runs of whole swarms under faults, on a virtual network (docs/simulator.md).

With `potluck lab` the only command that imports `simulation` (docs/decisions/0013 and 0018).
"""

from __future__ import annotations

import json
import sys
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Final

from peer import clock
from peer.exit_codes import DONE, FAILED
from peer.signals import stoppable
from protocol.errors import UserError
from simulation.campaign import Tally, Terms, Violation, campaign
from simulation.events import KINDS
from simulation.invariants import NAMES
from simulation.processes import resolve_jobs

FEWEST, MOST = 2, 64
"""Peers of a simulated swarm."""
LINE_EVERY: Final = 10.0
"""Seconds between two lines of progress where nobody watches a terminal."""


@dataclass(frozen=True, kw_only=True)
class SimulateOptions:
    """The command's flags, as given."""

    peers: str
    seeds: int
    faults: str
    first: int
    jobs: int | None
    json: bool


def run_simulate(options: SimulateOptions) -> int:
    """Run the seeds and say what they showed; the exit code. UserError for flags that make no sense."""
    terms = Terms(parse_peers(options.peers), parse_kinds(options.faults))
    if options.seeds < 1:
        raise UserError.field("--seeds", options.seeds, "must be at least 1")
    if options.first < 0:
        raise UserError.field("--from", options.first, "must be at least 0")
    jobs = resolve_jobs(options.jobs)
    seeds = range(options.first, options.first + options.seeds)
    with _Progress(len(seeds), quiet=options.json) as progress, stoppable():
        try:
            tally = campaign(terms, seeds, jobs=jobs, progress=progress.show)
        except BrokenProcessPool:
            progress.end()
            print("potluck: a process of the simulation was killed; is there enough memory?", file=sys.stderr)
            return FAILED
    if options.json:
        found = [violation.as_json() for violation in tally.violations]
        print(json.dumps({"seeds": tally.seeds, "violations": found}, indent=1))
    else:
        print(_text(tally, options))
    return FAILED if tally.violations else DONE


def parse_peers(text: str) -> tuple[int, int]:
    """`2..12` or `5` as the fewest and the most peers; UserError for anything else."""
    low, _, high = text.partition("..")
    try:
        fewest, most = int(low), int(high or low)
    except ValueError:
        fewest, most = 0, 0
    if not FEWEST <= fewest <= most <= MOST or text.endswith(".."):
        raise UserError.field("--peers", text, f"must be a number or a range like 2..12, within {FEWEST} and {MOST}")
    return fewest, most


def parse_kinds(text: str) -> tuple[str, ...]:
    """`all`, or names of `KINDS` with commas between; UserError for anything else."""
    names = [name.strip() for name in text.split(",")]
    if names == ["all"]:
        return tuple(KINDS)
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise UserError.field("--faults", text, f"{unknown[0]!r} must be all, or some of {', '.join(KINDS)}")
    return tuple(name for name in KINDS if name in names)


def _text(tally: Tally, options: SimulateOptions) -> str:
    did = f"{tally.seeds:,} seeds, {tally.faults:,} faults, {tally.links:,} links checked"
    if not tally.violations:
        return f"{did}: no promise was broken."
    parts = [_violation_text(violation, options) for violation in tally.violations]
    return "\n\n".join([*parts, f"{did}: {len(parts)} of the seeds broke a promise."])


def _violation_text(violation: Violation, options: SimulateOptions) -> str:
    lines = [
        f"Seed {violation.seed}, {violation.peers} peers: {violation.invariant} ({NAMES[violation.invariant]}).",
        f"  {violation.seen}",
        *(f"  {event}" for event in violation.events),
    ]
    again = f"potluck simulate --peers {options.peers} --faults {options.faults} --from {violation.seed} --seeds 1"
    return "\n".join([*lines, f"  Again: {again}"])


class _Progress:
    """One line on stderr, for people. A context manager."""

    def __init__(self, seeds: int, *, quiet: bool) -> None:
        self._seeds = seeds
        self._terminal = sys.stderr.isatty()
        self._quiet = quiet and not self._terminal
        self._began = self._said = clock.monotonic()

    def show(self, tally: Tally, shrunk: int) -> None:
        """What is known so far."""
        now = clock.monotonic()
        is_last = tally.seeds == self._seeds
        if self._quiet or (now < self._said + (0.2 if self._terminal else LINE_EVERY) and not is_last):
            return
        self._said = now
        rate = tally.seeds / max(now - self._began, 1e-3)
        text = f"{tally.seeds:,} of {self._seeds:,} seeds, {rate:.1f} a second, {len(tally.violations)} violations"
        text += f", {shrunk} shrunk" if shrunk else ""
        sys.stderr.write(f"\r\x1b[K{text}" if self._terminal else f"{text}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Leave the line."""
        if self._terminal and not self._quiet:
            sys.stderr.write("\n")
            self._terminal = False

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
