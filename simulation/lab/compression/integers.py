"""n-bit integers in blocks: x ≈ q · s, |q| ≤ g = 2^(n-1) - 1, with the scale s = (the block's greatest magnitude) / g.

int8 is that of Dettmers 2015 (arXiv 1511.04561) and of INTELLECT-1's ring, with blocks. Bits: n a value, and 16 (bf16)
a block: 8.06 for int8 with blocks of 256. int2 is ternary: zero and the greatest magnitude with either sign.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from simulation.lab.compression.base import Sent, uniform
from simulation.lab.compression.blocks import check_block, check_scale, coded, unit
from simulation.lab.compression.rounding import check_rounding


@dataclass(frozen=True)
class Integers:
    """Integers of `bits` bits with one scale a block."""

    bits: int = 8
    block: int = 256
    scale: str = "bf16"
    rounding: str = "nearest"
    name: str = "int8"

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 16:
            raise ValueError(f"bits = {self.bits}: must be between 2 and 16")
        check_block(self.block)
        check_scale(self.scale)
        check_rounding(self.rounding)

    def compress(self, delta: Tensor, *, memory: dict[str, Tensor], generator: torch.Generator) -> Sent:
        greatest = 2 ** (self.bits - 1) - 1
        return coded(
            delta,
            block=self.block,
            scale=self.scale,
            code_bits=self.bits,
            measured=lambda blocks, sizes: blocks.abs().amax(dim=1, keepdim=True) / greatest,
            in_units=lambda blocks, scales: self._rounded(unit(blocks, scales), generator).clamp(-greatest, greatest),
        )

    def _rounded(self, values: Tensor, generator: torch.Generator) -> Tensor:
        """To whole numbers; nearest takes ties to even."""
        if self.rounding == "nearest":
            return values.round()
        return (values + uniform(tuple(values.shape), generator, values.device)).floor()
