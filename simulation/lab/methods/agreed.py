"""One anchor that all agree on: FedAvg, FedOpt, DiLoCo (arXiv 2311.08105) and Streaming DiLoCo (2501.18512)."""

from __future__ import annotations

import hashlib
from typing import Final

import torch
from torch import Tensor

from aggregation.outer import ChunkState, state_digest
from protocol.schedule import Window
from simulation.lab.methods.exchange import Sent, Setting, chunk_means
from simulation.lab.methods.outer import OUTER


class Agreed:
    """The anchor takes one outer step a window by the weighted mean of what arrived; everyone mixes it in."""

    delay: Final = 0

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.optimizer = OUTER[setting.recipe.outer]()
        self._anchors = [fragment.clone() for fragment in setting.initial]
        self._rounds = [0] * len(self._anchors)

    def base(self, replica: int, fragment: int) -> Tensor:
        return self._anchors[fragment]

    def close(self, window: Window, sent: Sent) -> set[int]:
        fragment = window.fragment
        means = list(chunk_means(self.setting, fragment, sent))
        if not means:
            return set()
        flat = torch.zeros_like(self._anchors[fragment])
        for _, chunk, mean in means:
            flat[chunk.start : chunk.stop] = mean
        received = self.setting.receive(window, flat, self.setting.recipe.replicas)
        anchor = self._anchors[fragment].clone()
        for _, chunk, _ in means:
            part = slice(chunk.start, chunk.stop)
            anchor[part] = self._step(fragment, chunk.index, anchor[part], received[part])
        self._anchors[fragment] = anchor
        self._rounds[fragment] += 1
        return {index for index, _, _ in means}

    def _step(self, fragment: int, chunk: int, anchor: Tensor, mean: Tensor) -> Tensor:
        lr, momentum = self.setting.lr(fragment), self.setting.momentum(self._rounds[fragment])
        return self.optimizer.step(chunk, anchor, mean, lr=lr, momentum=momentum)

    def target(self, replica: int, fragment: int, local: Tensor) -> Tensor:
        return self._anchors[fragment]

    def outer(self, fragment: int) -> Tensor:
        return self._anchors[fragment]

    def digest(self) -> str:
        """SHA-256 of all outer state, as a peer reports it (`outer_digest`)."""
        whole = hashlib.sha256()
        for fragment, chunks in enumerate(self.setting.chunks):
            for chunk in chunks:
                anchor = self._anchors[fragment][chunk.start : chunk.stop].clone()
                whole.update(state_digest(ChunkState(anchor, self.optimizer.momentum(chunk.index, anchor))))
        return whole.hexdigest()
