"""A workload of which every number can be computed by hand, for tests of methods.

The model is two blocks of one matrix each, all values equal and zero at first. Replica i's inner step moves every value
a tenth of its way to the point i + 1, so each Δ is known in closed form. The loss is the first fragment's value.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from aggregation.fragments import Layout, partition
from simulation.lab.recipe import Recipe

RATE: Final = 0.1
WIDTH: Final = 4


class Walker:
    """Goes a tenth of its way to the mean of its seats' points in every step."""

    def __init__(self, layout: Layout, seats: Sequence[int]) -> None:
        self._values = [torch.zeros(fragment.numel) for fragment in layout.fragments]
        self._point = sum(seat + 1.0 for seat in seats) / len(seats)
        self._trained: Collection[int] = range(len(self._values))

    def train(self, step: int) -> float:
        """See Trainee."""
        for fragment in self._trained:
            self._values[fragment] += (self._point - self._values[fragment]) * RATE
        return abs(float(self._values[0][0]) - self._point)

    def read(self, fragment: int) -> Tensor:
        """See Trainee."""
        return self._values[fragment].clone()

    def write(self, fragment: int, start: int, values: Tensor) -> None:
        """See Trainee."""
        self._values[fragment][start : start + values.numel()] = values

    def train_only(self, fragments: Collection[int]) -> None:
        """See Trainee."""
        self._trained = fragments


class Descent:
    """See Workload."""

    def layout(self, recipe: Recipe) -> Layout:
        """See Workload."""
        blocks = nn.ModuleDict({"blocks": nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))})
        return partition(blocks, fragments=recipe.fragments, pattern=recipe.pattern)  # type: ignore[arg-type]

    def trainee(self, recipe: Recipe, seed: int, seats: Sequence[int]) -> Walker:
        """See Workload."""
        return Walker(self.layout(recipe), seats)

    def evaluate(self, recipe: Recipe, parameters: Sequence[Tensor]) -> float:
        """See Workload."""
        return float(parameters[0][0])


def walked(value: float, point: float, steps: int) -> float:
    """Where a walker is after some steps from `value`."""
    return point + (value - point) * (1 - RATE) ** steps
