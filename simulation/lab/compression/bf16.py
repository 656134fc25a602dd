"""bfloat16: fp32's sign and exponent and seven mantissa bits, rounded to nearest, ties to even. 16 bits a parameter.

It is what the paper's unquantized methods send (arXiv 2501.18512, Table 4).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from simulation.lab.compression.base import Sent, checked


@dataclass(frozen=True)
class BFloat16:
    """The values rounded to eight significant bits."""

    name: str = "bf16"

    def compress(self, delta: Tensor, *, memory: dict[str, Tensor], generator: torch.Generator) -> Sent:
        values = checked(delta).bfloat16().float()
        return Sent(values.view(delta.shape), 16.0 * delta.numel())
