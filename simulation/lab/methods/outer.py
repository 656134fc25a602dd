"""Outer optimizers: plain steps, Nesterov (the product's own arithmetic) and Adam (FedOpt, arXiv 2003.00295)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Protocol

import torch
from torch import Tensor

from aggregation.outer import ChunkState, outer_step

ADAM_BETA2: Final = 0.99
ADAM_EPSILON: Final = 1e-3
"""τ of FedOpt's adaptive server optimizers; larger than usual, because Δ is not a gradient but a distance."""


class OuterOptimizer(Protocol):
    """Moves outer parameters by a mean Δ. What it remembers is kept by the key of what it moves."""

    def step(self, key: Hashable, anchor: Tensor, mean: Tensor, *, lr: float, momentum: float) -> Tensor:
        """The outer parameters after `mean`, flat fp32; no input is changed."""

    def momentum(self, key: Hashable, anchor: Tensor) -> Tensor:
        """What it would call momentum for that key; zeros in the beginning."""


class Nesterov:
    """SGD with Nesterov momentum as the network does it, to the bit. With momentum 0 it is plain SGD."""

    def __init__(self) -> None:
        self._velocity: dict[Hashable, Tensor] = {}

    def step(self, key: Hashable, anchor: Tensor, mean: Tensor, *, lr: float, momentum: float) -> Tensor:
        state = outer_step(ChunkState(anchor, self.momentum(key, anchor)), mean, lr=lr, momentum=momentum)
        self._velocity[key] = state.momentum
        return state.anchor

    def momentum(self, key: Hashable, anchor: Tensor) -> Tensor:
        found = self._velocity.get(key)
        return torch.zeros_like(anchor) if found is None else found


class Adam:
    """FedAdam: m ← μ·m + (1−μ)·Δ̄, v ← β₂·v + (1−β₂)·Δ̄², anchor ← anchor − lr·m / (√v + ε). No bias correction."""

    def __init__(self) -> None:
        self._moments: dict[Hashable, tuple[Tensor, Tensor]] = {}

    def step(self, key: Hashable, anchor: Tensor, mean: Tensor, *, lr: float, momentum: float) -> Tensor:
        first, second = self._moments.get(key, (torch.zeros_like(anchor), torch.zeros_like(anchor)))
        first = first * momentum + mean * (1 - momentum)
        second = second * ADAM_BETA2 + mean * mean * (1 - ADAM_BETA2)
        self._moments[key] = first, second
        return anchor - first / (second.sqrt() + ADAM_EPSILON) * lr

    def momentum(self, key: Hashable, anchor: Tensor) -> Tensor:
        return self._moments[key][0] if key in self._moments else torch.zeros_like(anchor)


OUTER: dict[str, Callable[[], OuterOptimizer]] = {"nesterov": Nesterov, "adam": Adam}
"""By the name in `Recipe.outer`."""
