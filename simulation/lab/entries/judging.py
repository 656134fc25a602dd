"""What an entry's rows show: claims with their noise, and the best row or rows. No claim is made of too few seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, isnan
from statistics import fmean
from typing import Final

from simulation.lab.entries.entry import Finding, Judge, Outcomes, mean_and_spread, value
from simulation.lab.entries.student import chance

FEWEST_SEEDS: Final = 3
"""No claim is made of fewer."""
TOO_FEW: Final = "too few seeds"
REPRODUCED: Final = "reproduced"
NOT_REPRODUCED: Final = "not reproduced"
WITHIN_NOISE: Final = "within noise"
NOT_HERE: Final = "not at this size"
"""None of the rows that the statement is about fits the number of steps or layers."""

BY_CHANCE: Final = 0.05
"""A difference counts if chance makes one as great less often; among several comparisons, any of them."""
AS_CHEAP: Final = 1.02
"""Times the bits of another row, each way: headers and scales differ a little."""


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

    def judge(self, outcomes: Outcomes, *, among: int = 1) -> Finding | None:
        """A verdict over seeds, which share initial parameters and data, so differences are taken seed by seed.

        None when a row is not there, or lacks the number. `among` so many claims one alone is enough against all.
        """
        if self.low not in outcomes or self.high not in outcomes:
            return None
        lows = [value(outcome, self.what) for outcome in outcomes[self.low]]
        highs = [value(outcome, self.what_high or self.what) for outcome in outcomes[self.high]]
        if any(map(isnan, [*lows, *highs])):
            return None
        gaps = [_gap(low, high, self.within or 0.0) for low, high in zip(lows, highs, strict=True)]
        return Finding(_verdict(gaps, among), (self._words(fmean(lows), fmean(highs)),))

    def _words(self, low: float, high: float) -> str:
        ours = f"{self.low} ({self.what})" if self.what != "loss" or self.what_high else self.low
        theirs = f"{self.high} ({self.what_high or self.what})" if self.what != "loss" or self.what_high else self.high
        wanted = f"at most {100 * self.within:g}% above" if self.within is not None else "below"
        return f"{ours} {low:.4f} {wanted} {theirs} {high:.4f}"


@dataclass(frozen=True)
class Bound:
    """A row's number is between two that are given."""

    row: str
    what: str
    below: float
    above: float = -inf

    @property
    def rows(self) -> set[str]:
        """The rows that it is about."""
        return {self.row}

    def judge(self, outcomes: Outcomes, *, among: int = 1) -> Finding | None:
        """As a Claim's."""
        values = [value(outcome, self.what) for outcome in outcomes.get(self.row, ())]
        if not values or any(map(isnan, values)):
            return None
        right = f"below {self.below:g}" if self.above == -inf else f"between {self.above:g} and {self.below:g}"
        words = f"{self.row} ({self.what}) {fmean(values):.4f} {right}"
        return Finding(_verdict([max(found - self.below, self.above - found) for found in values], among), (words,))


def _gap(low: float, high: float, allowed: float) -> float:
    """How much too high `low` is. A run that diverged has lost; two that did are level."""
    if not isfinite(high):
        return 0.0 if not isfinite(low) else -inf
    return low - high - allowed * abs(high)


def _verdict(gaps: Sequence[float], among: int) -> str:
    """Below zero, above it, or too near to it to say: chance would do it too often (`student.chance`).

    For a claim once in twenty times is enough, since all must hold; against one it is that for all `among` together.
    Where runs diverged the others must at least not say the contrary.
    """
    if len(gaps) < FEWEST_SEEDS:
        return TOO_FEW
    if not all(map(isfinite, gaps)):
        return REPRODUCED if max(gaps) <= 0 else NOT_REPRODUCED if min(gaps) >= 0 else WITHIN_NOISE
    below = chance(gaps)
    if below <= BY_CHANCE:
        return REPRODUCED
    return NOT_REPRODUCED if 1 - below <= BY_CHANCE / among else WITHIN_NOISE


@dataclass(frozen=True)
class Judged:
    """A judge of several claims: reproduced if all hold beyond the noise; not, if one fails beyond it; else noise."""

    claims: tuple[Claim | Bound, ...]

    def __call__(self, outcomes: Outcomes) -> Finding:
        judged = [claim.judge(outcomes, among=len(self.claims)) for claim in self.claims]
        findings = [finding for finding in judged if finding]
        verdicts = [finding.verdict if finding else NOT_HERE for finding in judged]
        order = (TOO_FEW, NOT_REPRODUCED, NOT_HERE, WITHIN_NOISE, REPRODUCED)
        verdict = next(verdict for verdict in order if verdict in verdicts)
        return Finding(verdict, tuple(f"{f.lines[0]}: {f.verdict}" for f in findings))


def judged(*claims: Claim | Bound) -> Judge:
    """The judge of these claims."""
    return Judged(claims)


def best(outcomes: Outcomes) -> Finding:
    """For an open question: which row is lowest, and which others it does not beat beyond the noise."""
    order = sorted(outcomes, key=lambda label: mean_and_spread(outcomes[label], "loss")[0])
    if len(outcomes[order[0]]) < FEWEST_SEEDS:
        return Finding(TOO_FEW, (f"lowest: {order[0]}",))
    if len(order) < 2:
        return Finding(NOT_HERE)
    # Which one is lowest is chance too: so twice as many comparisons as there are others.
    level = [label for label in order[1:] if not _beats(outcomes, order[0], label, 2 * (len(order) - 1))]
    lines = (f"lowest: {order[0]}", *([f"not beaten beyond noise: {', '.join(level)}"] if level else []))
    return Finding(WITHIN_NOISE if level else f"best: {order[0]}", lines)


def best_for_bytes(outcomes: Outcomes) -> Finding:
    """For a question about bytes: the rows that none beats beyond the noise which costs as little or less each way."""
    order = sorted(outcomes, key=lambda label: mean_and_spread(outcomes[label], "bytes")[0])
    if len(outcomes[order[0]]) < FEWEST_SEEDS:
        return Finding(TOO_FEW)
    if len(order) < 2:
        return Finding(NOT_HERE)
    cost = {label: [mean_and_spread(outcomes[label], way)[0] for way in ("bits_up", "bits_down")] for label in order}
    beaten: dict[str, str] = {}
    for label in order:
        rivals = [
            other
            for other in order
            if other != label and all(o <= AS_CHEAP * own for o, own in zip(cost[other], cost[label], strict=True))
        ]
        beaten[label] = next((rival for rival in rivals if _beats(outcomes, rival, label, len(rivals))), "")
    kept = [f"{label} ({sum(cost[label]) / 8e6:.3g} MB)" for label in order if not beaten[label]]
    lost = [f"{label} by {other}" for label, other in beaten.items() if other]
    lines = (f"not beaten by any as cheap: {', '.join(kept)}", *([f"beaten: {', '.join(lost)}"] if lost else []))
    return Finding(f"best: {kept[0]}" if len(kept) == 1 else "a choice", lines)


def _beats(outcomes: Outcomes, low: str, high: str, among: int) -> bool:
    """Whether `low` is below `high`, as one of so many comparisons: a claim against the contrary."""
    finding = Claim(high, low).judge(outcomes, among=among)
    return finding is not None and finding.verdict == NOT_REPRODUCED
