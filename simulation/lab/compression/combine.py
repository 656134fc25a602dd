"""How an owner makes one outer gradient of what several replicas sent: the mean, or the signs' election of TIES.

TIES-Merging (Yadav et al. 2023, arXiv 2306.01708) has two halves: the sender trims, which is Top-K with a share of 0.2
(the compression "ties"), and the receiver elects, here. For each parameter the sign with the greater weighted sum of
magnitudes is elected, and the result is the weighted mean of the values with that sign alone. Values that were trimmed
(zeros) neither vote nor count.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from simulation.lab.compression.specification import base_name


class Combine(Protocol):
    """Combines what an owner decoded of several replicas (`Sent.values`), with positive weights of any sum."""

    def __call__(self, values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        """fp32 in the shape of the values. Raises ValueError as `mean` does."""


def mean(values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Σ w·v / Σ w, added up in the order given, as the network does it (`aggregation.outer.accumulate`).

    Raises ValueError when there is nothing to combine, or a weight is missing or not positive and finite.
    """
    total = _checked_total(values, weights)
    result = torch.zeros_like(values[0])
    for one, weight in zip(values, weights, strict=True):
        result += one * (weight / total)
    return result


def elect_and_mean(values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """For each parameter the weighted mean of the values that have the elected sign; 0 where the votes are equal.

    Raises ValueError as `mean` does.
    """
    elected = mean(values, weights).sign()
    total = sum(weights)
    result, counted = torch.zeros_like(elected), torch.zeros_like(elected)
    for one, weight in zip(values, weights, strict=True):
        agrees = ((one.sign() == elected) & (elected != 0)).float()
        result += one * agrees * (weight / total)
        counted += agrees * (weight / total)
    return result / torch.where(counted > 0, counted, 1.0)


def _checked_total(values: Sequence[Tensor], weights: Sequence[float]) -> float:
    if not values or len(values) != len(weights):
        raise ValueError(f"{len(weights)} weights for {len(values)} contributions: must be one each, of at least one")
    total = sum(weights)
    if not (min(weights) > 0 and total < float("inf")):
        raise ValueError(f"weights = {list(weights)}: must be positive and finite")
    return total


COMBINES: dict[str, Combine] = {"mean": mean, "elect": elect_and_mean}


def combine(name: str) -> Combine:
    """The way of that name. Raises ValueError on an unknown one."""
    if name not in COMBINES:
        raise ValueError(f"combine = {name!r}: must be one of {', '.join(COMBINES)}")
    return COMBINES[name]


def combine_for(compression: str) -> Combine:
    """The way that belongs to a compression: election for "ties", the mean for every other."""
    return elect_and_mean if base_name(compression) == "ties" else mean
