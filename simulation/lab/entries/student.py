"""How likely chance alone is to move the mean of a few differences as far: Student's t, one-sided."""

from __future__ import annotations

from collections.abc import Sequence
from math import atan, cos, pi, sin, sqrt
from statistics import fmean, stdev


def chance(values: Sequence[float]) -> float:
    """The probability, from 0 to 1, that as many normal values of mean 0 have a mean as far below 0 as these, or
    farther, by their own standard deviation. At least two finite values."""
    mean, spread = fmean(values), stdev(values)
    if not spread:
        return 0.5 if not mean else float(mean > 0)
    return 1.0 - upper_tail(mean / (spread / sqrt(len(values))), len(values) - 1)


def upper_tail(t: float, degrees: int) -> float:
    """P(T > t) for Student's t of so many degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = atan(t / sqrt(degrees))
    odd = degrees % 2
    term, total = (cos(angle) if odd else 1.0), 0.0
    for power in range(1 if odd else 0, degrees - 1, 2):
        total += term
        term *= cos(angle) ** 2 * (power + 1) / (power + 2)
    inside = 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
    return (1 - inside) / 2
