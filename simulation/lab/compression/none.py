"""No compression: the fp32 values themselves, what everything else is measured against. 32 bits a parameter."""

from dataclasses import dataclass

import torch
from torch import Tensor

from simulation.lab.compression.base import FP32_BITS, Sent, checked


@dataclass(frozen=True)
class Uncompressed:
    """The values as they are."""

    name: str = "none"

    def compress(self, delta: Tensor, *, memory: dict[str, Tensor], generator: torch.Generator) -> Sent:
        return Sent(checked(delta).clone().view(delta.shape), float(FP32_BITS * delta.numel()))
