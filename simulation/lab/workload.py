"""What the lab trains, as the engine sees it. The real one is built of the product's model and text (peer/commands)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from torch import Tensor

from aggregation.fragments import Layout
from simulation.lab.recipe import Recipe


class Trainee(Protocol):
    """One replica: a model at its initial parameters, its inner optimizer, its place in the data."""

    def train(self, step: int) -> float:
        """One inner step on the next batch, with the learning rate of swarm step `step` (from 0). Returns the loss."""

    def read(self, fragment: int) -> Tensor:
        """A copy of the fragment's parameters, flat fp32 on the CPU."""

    def write(self, fragment: int, start: int, values: Tensor) -> None:
        """Replace the fragment's parameters from `start` on by `values`, flat fp32."""

    def train_only(self, fragments: Collection[int]) -> None:
        """From the next step on, the parameters of all other fragments stand still."""


class Workload(Protocol):
    """A model, its data and its inner optimizer."""

    def layout(self, recipe: Recipe) -> Layout:
        """How the recipe cuts the model. UserError if the model does not have as many layers."""

    def trainee(self, recipe: Recipe, seed: int, seats: Sequence[int]) -> Trainee:
        """A replica that reads the data of `seats`: one, or for data-parallel training all of them at every step."""

    def evaluate(self, recipe: Recipe, parameters: Sequence[Tensor]) -> float:
        """Held-out loss, in nats per token, of a model given as flat fragments."""
