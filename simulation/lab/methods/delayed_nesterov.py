"""Delayed Nesterov (Async Local-SGD, arXiv 2401.09135, Algorithm 3 with c = 0): contributions are applied one by one as
they come, the faster replica's first, and momentum only once in M of them.

As in the paper's dynamic local updates, a slow replica takes fewer steps, so that all come in the same window. Each
goes on from the anchor just after its own contribution, and its next Δ is measured from there.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from protocol.schedule import Window
from simulation.lab.methods.exchange import Sent, Setting, whole


class Arrivals:
    """For the n-th contribution g, M replicas: b ← b + g; anchor ← anchor − lr·g / M, and after every M-th as well
    m ← μ·m + b / M, anchor ← anchor − lr·μ·m, b ← 0."""

    delay: Final = 0

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._anchors = [fragment.clone() for fragment in setting.initial]
        self._pulled = [list(setting.initial) for _ in range(setting.recipe.replicas)]
        self._buffer = [torch.zeros_like(fragment) for fragment in setting.initial]
        self._velocity = [torch.zeros_like(fragment) for fragment in setting.initial]
        self._count = [0] * len(setting.initial)

    def base(self, replica: int, fragment: int) -> Tensor:
        return self._pulled[replica][fragment]

    def close(self, window: Window, sent: Sent) -> set[int]:
        fragment = window.fragment
        here = whole(sent)
        for replica in sorted(here, key=lambda replica: (-here[replica].tokens[0], replica)):
            self._arrive(fragment, self.setting.receive(window, here[replica].values, 1))
            self._pulled[replica][fragment] = self._anchors[fragment]
        return set(range(len(self.setting.chunks[fragment]))) if here else set()

    def _arrive(self, fragment: int, delta: Tensor) -> None:
        replicas, lr = self.setting.recipe.replicas, self.setting.lr(fragment)
        self._count[fragment] += 1
        self._buffer[fragment] = self._buffer[fragment] + delta
        anchor = self._anchors[fragment] - delta * (lr / replicas)
        if self._count[fragment] % replicas == 0:
            momentum = self.setting.momentum(self._count[fragment] // replicas - 1)
            self._velocity[fragment] = self._velocity[fragment] * momentum + self._buffer[fragment] / replicas
            anchor = anchor - self._velocity[fragment] * (lr * momentum)
            self._buffer[fragment] = torch.zeros_like(delta)
        self._anchors[fragment] = anchor

    def target(self, replica: int, fragment: int, local: Tensor) -> Tensor:
        return self._pulled[replica][fragment]

    def outer(self, fragment: int) -> Tensor:
        return self._anchors[fragment]
