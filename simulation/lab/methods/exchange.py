"""What replicas do with each other's contributions to a fragment: the part in which the methods differ most."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from aggregation.fragments import Chunk
from aggregation.outer import accumulate
from protocol.ledger import weights
from protocol.schedule import Window
from simulation.lab.compression.combine import combine_for, mean
from simulation.lab.recipe import Recipe

Receive = Callable[[Window, Tensor, int], Tensor]
"""(window, mean, number of replicas that get it) -> what they decode of it. Counts the bits."""
PassOn = Callable[[int, int], None]
"""(fragment, number of replicas): counts the bits of as many anchors, exact, that replicas send each other."""


@dataclass(frozen=True)
class Contribution:
    """What one replica sent in one window."""

    tokens: tuple[int, ...]
    """For each chunk of the fragment, the samples since what last counted there: its weight."""
    samples: int
    """All that the replica had trained on."""
    values: Tensor
    """Δ as its receiver decodes it: flat fp32 (fragment)."""
    exact: Tensor
    """Δ before it was compressed."""
    arrived: tuple[bool, ...]
    """For each chunk of the fragment, whether it came through."""


Sent = Mapping[int, Contribution]
"""By replica, in the order of replicas: sums are in this order."""


@dataclass(frozen=True)
class Setting:
    """What an exchange is made from."""

    recipe: Recipe
    initial: Sequence[Tensor]
    """The initial parameters, flat fp32, by fragment."""
    chunks: Sequence[Sequence[Chunk]]
    """By fragment."""
    receive: Receive
    pass_on: PassOn
    seed: int

    def lr(self, fragment: int) -> float:
        """The outer learning rate of a fragment."""
        factors = self.recipe.lr_of_fragment
        return self.recipe.outer_lr * (factors[fragment] if factors else 1.0)

    def momentum(self, rounds: int) -> float:
        """The outer momentum in round `rounds` (from 0)."""
        warm_up = self.recipe.momentum_rounds
        return self.recipe.outer_momentum * (min(1.0, rounds / warm_up) if warm_up else 1.0)


class Exchange(Protocol):
    """Outer parameters of all fragments, and how they move. It has no part in time: the engine says when."""

    @property
    def delay(self) -> int:
        """How many windows after its own a contribution takes effect."""

    def base(self, replica: int, fragment: int) -> Tensor:
        """What the replica's Δ is measured from, flat fp32."""

    def close(self, window: Window, sent: Sent) -> set[int]:
        """Take a window's contributions; returns the chunks (numbered within its fragment) that have a result."""

    def target(self, replica: int, fragment: int, local: Tensor) -> Tensor:
        """What the replica, whose parameters are `local` now, mixes in after the fragment's newest window."""

    def outer(self, fragment: int) -> Tensor:
        """The parameters to evaluate and to keep, flat fp32."""


def weighed(recipe: Recipe, sent: Sent, chunk: int = 0) -> list[int]:
    """The weight of each contribution to a chunk, in order: tokens with the network's cap, or 1."""
    if recipe.weighting == "equal":
        return [1] * len(sent)
    return list(weights([contribution.tokens[chunk] for contribution in sent.values()], recipe.weight_cap))


def whole(sent: Sent) -> Sent:
    """The contributions of which nothing was lost: for methods that know no chunks."""
    return {replica: contribution for replica, contribution in sent.items() if all(contribution.arrived)}


def mean_of(recipe: Recipe, sent: Sent, part: slice = slice(None), chunk: int = 0) -> Tensor:
    """The weighted mean of a part of the contributions, with the weights of a chunk: flat fp32, the network's or what
    belongs to a compression."""
    shares, values = weighed(recipe, sent, chunk), [contribution.values[part] for contribution in sent.values()]
    combine = combine_for(recipe.up)
    if combine is mean:  # the same sum, by the product's own code
        return accumulate(list(zip(shares, values, strict=True)))
    return combine(values, shares)


def chunk_means(setting: Setting, fragment: int, sent: Sent) -> Iterator[tuple[int, Chunk, Tensor]]:
    """(index in the fragment, chunk, mean of what arrived) of each chunk of which anything did."""
    for index, chunk in enumerate(setting.chunks[fragment]):
        here = {replica: c for replica, c in sent.items() if c.arrived[index]}
        if here:
            yield index, chunk, mean_of(setting.recipe, here, slice(chunk.start, chunk.stop), index)


def average(tensors: Sequence[Tensor]) -> Tensor:
    """The plain mean, fp32."""
    return torch.stack(list(tensors)).mean(dim=0)
