"""Random subsets of the parameters, often and without an outer optimizer: SPARTA averages them over all replicas, WASH
(arXiv 2405.17517) shuffles them between replicas.

Everyone draws the same subset from the round's number, so its indices are not sent.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from protocol.schedule import Window
from simulation.lab.methods.exchange import Sent, Setting, average, mean_of, whole


class Subsets:
    """Replicas send −θ (their Δ from zero) of a random share of the values, and take the mean of it, with α = 0."""

    delay: Final = 0

    def __init__(self, setting: Setting, *, shuffle: bool = False) -> None:
        self.setting = setting
        self._shuffle = shuffle
        self._generator = torch.Generator().manual_seed(setting.seed)
        self._zeros = [torch.zeros_like(fragment) for fragment in setting.initial]
        self._latest = [[fragment] * setting.recipe.replicas for fragment in setting.initial]
        """What each replica had in the newest window, by fragment."""
        self._news: dict[int, dict[int, Tensor]] = {}
        self._masks: dict[int, Tensor] = {}

    def base(self, replica: int, fragment: int) -> Tensor:
        return self._zeros[fragment]

    def close(self, window: Window, sent: Sent) -> set[int]:
        fragment = window.fragment
        here = whole(sent)
        if not here:
            return set()
        numel = self._zeros[fragment].numel()
        mask = torch.rand(numel, generator=self._generator) < self.setting.recipe.share
        self._masks[fragment] = mask
        if self._shuffle:
            self._news[fragment] = self._shuffled(window, here)
        else:
            mean = -self.setting.receive(window, mean_of(self.setting.recipe, here), len(here))
            self._news[fragment] = dict.fromkeys(here, mean)
        for replica, contribution in here.items():
            self._latest[fragment][replica] = torch.where(mask, self._news[fragment][replica], -contribution.exact)
        return set(range(len(self.setting.chunks[fragment])))

    def _shuffled(self, window: Window, here: Sent) -> dict[int, Tensor]:
        """Each element's values go to the replicas in a random order of its own."""
        arrived = [self.setting.receive(window, contribution.values, 1) for contribution in here.values()]
        values = -torch.stack(arrived)  # (replicas, numel)
        order = torch.rand(values.shape, generator=self._generator).argsort(dim=0)
        return dict(zip(here, values.gather(0, order), strict=True))

    def target(self, replica: int, fragment: int, local: Tensor) -> Tensor:
        news = self._news[fragment].get(replica)
        return local if news is None else torch.where(self._masks[fragment], news, local)

    def outer(self, fragment: int) -> Tensor:
        return average(self._latest[fragment])
