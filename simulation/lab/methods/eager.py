"""Eager updates (arXiv 2502.12996): a replica merges with its newest Δ in place of the one that it sent τ steps ago.

Only what it merges with is its own: the anchor moves by the mean that all have, so replicas still agree on it.
"""

from __future__ import annotations

from torch import Tensor

from aggregation.outer import outer_gradient
from protocol.schedule import Window
from simulation.lab.methods.agreed import Agreed
from simulation.lab.methods.exchange import Sent, Setting, weighed


class Eager(Agreed):
    """As `Agreed`, and the target of replica m is moved by lr·(1+μ)·w_m·(stale Δ_m − fresh Δ_m).

    That is the outer step by the mean in which Δ_m is fresh: Nesterov's step is linear in the mean, and its newest
    term enters it 1 + μ times.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        assert setting.recipe.outer == "nesterov", setting.recipe.outer
        self._before: dict[int, tuple[Tensor, Sent, float]] = {}

    def close(self, window: Window, sent: Sent) -> set[int]:
        fragment = window.fragment
        momentum = self.setting.momentum(self._rounds[fragment])
        self._before[fragment] = self._anchors[fragment], sent, momentum
        return super().close(window, sent)

    def target(self, replica: int, fragment: int, local: Tensor) -> Tensor:
        before, sent, momentum = self._before[fragment]
        anchor = self._anchors[fragment]
        if replica not in sent:
            return anchor
        weights = dict(zip(sent, weighed(self.setting.recipe, sent), strict=True))
        share = weights[replica] / sum(weights.values())
        newer = outer_gradient(before, local) - sent[replica].values
        for chunk, arrived in zip(self.setting.chunks[fragment], sent[replica].arrived, strict=True):
            if not arrived:
                newer[chunk.start : chunk.stop] = 0.0  # nothing of it is in the mean
        return anchor - newer * (self.setting.lr(fragment) * (1 + momentum) * share)
