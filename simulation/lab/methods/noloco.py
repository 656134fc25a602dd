"""NoLoCo (arXiv 2506.10911): no common anchor. In each window replicas meet in random pairs, which average their Δ and
pull their anchors together."""

from __future__ import annotations

import random
from typing import Final

from torch import Tensor

from protocol.schedule import Window
from simulation.lab.methods.exchange import Sent, Setting, average, mean_of, whole


class Pairs:
    """Per replica m with its pair: v_m ← μ·v_m + lr·Δ̄ + γ·(anchor_m − mean anchor), anchor_m ← anchor_m − v_m."""

    delay: Final = 0

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        replicas = range(setting.recipe.replicas)
        self._anchors = [[fragment.clone() for fragment in setting.initial] for _ in replicas]
        self._velocities = [[fragment * 0 for fragment in setting.initial] for _ in replicas]
        self._chance = random.Random(f"pairs {setting.seed}")
        self._rounds = [0] * len(setting.initial)

    def base(self, replica: int, fragment: int) -> Tensor:
        return self._anchors[replica][fragment]

    def close(self, window: Window, sent: Sent) -> set[int]:
        here = list(whole(sent))
        self._chance.shuffle(here)
        for first in range(0, len(here), 2):
            self._meet(window, {replica: sent[replica] for replica in sorted(here[first : first + 2])})
        self._rounds[window.fragment] += 1
        return set(range(len(self.setting.chunks[window.fragment]))) if here else set()

    def _meet(self, window: Window, pair: Sent) -> None:
        """One pair, or the one replica that is left over. A pair also exchanges its anchors, uncompressed."""
        fragment = window.fragment
        mean = self.setting.receive(window, mean_of(self.setting.recipe, pair), len(pair))
        if len(pair) > 1:
            self.setting.pass_on(fragment, len(pair))
        middle = average([self._anchors[replica][fragment] for replica in pair])
        momentum = self.setting.momentum(self._rounds[fragment])
        for replica in pair:
            anchor = self._anchors[replica][fragment]
            velocity = self._velocities[replica][fragment] * momentum + mean * self.setting.lr(fragment)
            velocity = velocity + (anchor - middle) * self.setting.recipe.pull
            self._velocities[replica][fragment] = velocity
            self._anchors[replica][fragment] = anchor - velocity

    def target(self, replica: int, fragment: int, local: Tensor) -> Tensor:
        return self._anchors[replica][fragment]

    def outer(self, fragment: int) -> Tensor:
        return average([anchors[fragment] for anchors in self._anchors])
