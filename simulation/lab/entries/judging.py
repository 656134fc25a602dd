"""What an entry's rows show: claims with their noise, and the best row or rows. No claim is made of too few seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, isnan, sqrt
from statistics import fmean, stdev
from typing import Final

from simulation.lab.entries.entry import Finding, Judge, Outcomes, mean_and_spread, value

FEWEST_SEEDS: Final = 3
"""No claim is made of fewer."""
TOO_FEW: Final = "too few seeds"
REPRODUCED: Final = "reproduced"
NOT_REPRODUCED: Final = "not reproduced"
WITHIN_NOISE: Final = "within noise"
NOT_HERE: Final = "not at this size"
"""None of the rows that the statement is about fits the number of steps or layers."""

ONE_SIDED: Final = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.90, 1.86, 1.83)
"""Student's t that chance passes once in twenty times, for 1, 2, … degrees of freedom."""
AS_CHEAP: Final = 1.02
"""Times the bytes of another row: headers and scales differ a little."""


@dataclass(frozen=True)
class Claim:
    """`low` has the lower number than `high`; or, with `within`, at most that share more than it."""

    low: str
    high: str
    within: float | None = None
    what: str = "loss"
    what_high: str = ""
    """The number of `high`, where it is another one."""

    @property
    def rows(self) -> set[str]:
        """The rows that it is about."""
        return {self.low, self.high}

    def judge(self, outcomes: Outcomes) -> Finding | None:
        """A verdict over seeds, which share initial parameters and data, so differences are taken seed by seed.

        None when a row is not there, or lacks the number.
        """
        if self.low not in outcomes or self.high not in outcomes:
            return None
        lows = [value(outcome, self.what) for outcome in outcomes[self.low]]
        highs = [value(outcome, self.what_high or self.what) for outcome in outcomes[self.high]]
        if any(map(isnan, [*lows, *highs])):
            return None
        gaps = [_gap(low, high, self.within or 0.0) for low, high in zip(lows, highs, strict=True)]
        return Finding(_verdict(gaps), (self._words(fmean(lows), fmean(highs)),))

    def _words(self, low: float, high: float) -> str:
        ours = f"{self.low} ({self.what})" if self.what != "loss" or self.what_high else self.low
        theirs = f"{self.high} ({self.what_high or self.what})" if self.what != "loss" or self.what_high else self.high
        wanted = f"at most {100 * self.within:g}% above" if self.within is not None else "below"
        return f"{ours} {low:.4f} {wanted} {theirs} {high:.4f}"


@dataclass(frozen=True)
class Bound:
    """A row's number is below one that is given."""

    row: str
    what: str
    below: float

    @property
    def rows(self) -> set[str]:
        """The rows that it is about."""
        return {self.row}

    def judge(self, outcomes: Outcomes) -> Finding | None:
        """As a Claim's."""
        values = [value(outcome, self.what) for outcome in outcomes.get(self.row, ())]
        if not values or any(map(isnan, values)):
            return None
        words = f"{self.row} ({self.what}) {fmean(values):.4f} below {self.below:g}"
        return Finding(_verdict([found - self.below for found in values]), (words,))


def _gap(low: float, high: float, allowed: float) -> float:
    """How much too high `low` is. A run that diverged has lost; two that did are level."""
    if not isfinite(high):
        return 0.0 if not isfinite(low) else -inf
    return low - high - allowed * abs(high)


def _verdict(gaps: Sequence[float]) -> str:
    """Below zero, above it, or too near to it to say: noise is what a mean of as many gaps has by chance."""
    if len(gaps) < FEWEST_SEEDS:
        return TOO_FEW
    if not all(map(isfinite, gaps)):
        return REPRODUCED if max(gaps) < 0 else NOT_REPRODUCED
    noise = ONE_SIDED[min(len(gaps) - 1, len(ONE_SIDED)) - 1] * stdev(gaps) / sqrt(len(gaps))
    gap = fmean(gaps)
    return WITHIN_NOISE if abs(gap) <= noise else REPRODUCED if gap < 0 else NOT_REPRODUCED


@dataclass(frozen=True)
class Judged:
    """A judge of several claims: reproduced if all hold beyond the noise; not, if one fails beyond it; else noise."""

    claims: tuple[Claim | Bound, ...]

    def __call__(self, outcomes: Outcomes) -> Finding:
        findings = [finding for claim in self.claims if (finding := claim.judge(outcomes))]
        verdicts = [finding.verdict for finding in findings]
        order = (TOO_FEW, NOT_REPRODUCED, WITHIN_NOISE, REPRODUCED)
        verdict = next((verdict for verdict in order if verdict in verdicts), NOT_HERE)
        return Finding(verdict, tuple(f"{f.lines[0]}: {f.verdict}" for f in findings))


def judged(*claims: Claim | Bound) -> Judge:
    """The judge of these claims."""
    return Judged(claims)


def best(outcomes: Outcomes, what: str = "loss") -> Finding:
    """For an open question: which row is lowest, and which others it does not beat beyond the noise."""
    order = sorted(outcomes, key=lambda label: mean_and_spread(outcomes[label], what)[0])
    if len(outcomes[order[0]]) < FEWEST_SEEDS:
        return Finding(TOO_FEW, (f"lowest: {order[0]}",))
    if len(order) < 2:
        return Finding(NOT_HERE)
    level = [label for label in order[1:] if not _beats(outcomes, order[0], label, what)]
    lines = (f"lowest: {order[0]}", *([f"not beaten beyond noise: {', '.join(level)}"] if level else []))
    return Finding(WITHIN_NOISE if level else f"best: {order[0]}", lines)


def best_early(outcomes: Outcomes) -> Finding:
    """`best` by the loss after a quarter of the run."""
    return best(outcomes, "early")


def best_for_bytes(outcomes: Outcomes) -> Finding:
    """For a question about bytes: the rows that none beats beyond the noise which costs as much or less."""
    order = sorted(outcomes, key=lambda label: mean_and_spread(outcomes[label], "bytes")[0])
    if len(outcomes[order[0]]) < FEWEST_SEEDS:
        return Finding(TOO_FEW)
    if len(order) < 2:
        return Finding(NOT_HERE)
    cost = {label: mean_and_spread(outcomes[label], "bytes")[0] for label in order}
    beaten = {
        label: next((o for o in order if cost[o] <= AS_CHEAP * cost[label] and _beats(outcomes, o, label, "loss")), "")
        for label in order
    }
    kept = [f"{label} ({cost[label] / 1e6:.3g} MB)" for label in order if not beaten[label]]
    lost = [f"{label} by {other}" for label, other in beaten.items() if other]
    lines = (f"not beaten by any as cheap: {', '.join(kept)}", *([f"beaten: {', '.join(lost)}"] if lost else []))
    return Finding(f"best: {kept[0]}" if len(kept) == 1 else "a choice", lines)


def _beats(outcomes: Outcomes, low: str, high: str, what: str) -> bool:
    finding = Claim(low, high, what=what).judge(outcomes)
    return finding is not None and finding.verdict == REPRODUCED
