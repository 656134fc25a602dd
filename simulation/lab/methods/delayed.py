"""Results that come a whole round late, and Eager updates (arXiv 2502.12996): what was sent at the end of one round of
training travels during the next, so that nothing waits and no step is lost.

At the end of round n a replica sends Δ_n, measured from where it began the round, and takes the outer step by the mean
of round n − 1. Eager: with its own Δ_n in the place of its Δ_(n−1), so replicas differ by what only they know yet.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from protocol.schedule import Window
from simulation.lab.methods.exchange import Sent, Setting, average, mean_of, weighed, whole
from simulation.lab.methods.outer import OUTER


class Delayed:
    """Per replica m: anchor_m ← OuterOpt_m(anchor_m, mean of the round before [+ w_m·Δ_m − w_m'·Δ_m']), where Δ_m, w_m
    are its own of this round and Δ_m', w_m' those of the round before. The round before the first has a mean of 0."""

    delay: Final = 1

    def __init__(self, setting: Setting, *, eager: bool = False) -> None:
        self.setting = setting
        self._eager = eager
        replicas = range(setting.recipe.replicas)
        self._anchors = [list(setting.initial) for _ in replicas]
        self._optimizers = [OUTER[setting.recipe.outer]() for _ in replicas]
        self._before: list[Sent] = [{} for _ in setting.initial]
        self._rounds = [0] * len(setting.initial)

    def base(self, replica: int, fragment: int) -> Tensor:
        return self._anchors[replica][fragment]

    def close(self, window: Window, sent: Sent) -> set[int]:
        fragment = window.fragment
        here, before = whole(sent), self._before[fragment]
        if not here and not before:
            return set()
        mean = torch.zeros_like(self.setting.initial[fragment])
        if before:
            mean = self.setting.receive(window, mean_of(self.setting.recipe, before), len(self._anchors))
        for replica in range(len(self._anchors)):
            self._step(replica, fragment, mean + self._news(replica, here) - self._news(replica, before, sent=True))
        self._before[fragment] = here
        self._rounds[fragment] += 1
        return set(range(len(self.setting.chunks[fragment])))

    def _news(self, replica: int, round_: Sent, *, sent: bool = False) -> Tensor | float:
        """The replica's own share of a round's mean: as the others got it (`sent`), or exactly."""
        if not self._eager or replica not in round_:
            return 0.0
        weights = dict(zip(round_, weighed(self.setting.recipe, round_), strict=True))
        own = round_[replica]
        return (own.values if sent else own.exact) * (weights[replica] / sum(weights.values()))

    def _step(self, replica: int, fragment: int, mean: Tensor) -> None:
        lr, momentum = self.setting.lr(fragment), self.setting.momentum(self._rounds[fragment])
        anchors = self._anchors[replica]
        anchors[fragment] = self._optimizers[replica].step(fragment, anchors[fragment], mean, lr=lr, momentum=momentum)

    def target(self, replica: int, fragment: int, local: Tensor) -> Tensor:
        return self._anchors[replica][fragment]

    def outer(self, fragment: int) -> Tensor:
        return average([anchors[fragment] for anchors in self._anchors])
