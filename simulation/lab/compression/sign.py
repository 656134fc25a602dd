"""Sign only: every value becomes the mean magnitude of its block, with its sign.

The scaled sign of EF-signSGD (Karimireddy et al. 2019, arXiv 1901.09847), which needs error feedback: "sign+ef". The
mean magnitude is the scale that leaves the least squared error. Bits: 1 a value and 16 a block, 1.06 with blocks of
256. Zero counts as positive.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from simulation.lab.compression.base import Sent, checked
from simulation.lab.compression.blocks import (
    SCALE_BITS,
    block_sizes,
    check_block,
    check_scale,
    in_blocks,
    num_blocks,
    out_of_blocks,
    stored,
)


@dataclass(frozen=True)
class Sign:
    """One bit a value, one scale a block."""

    block: int = 256
    scale: str = "bf16"
    name: str = "sign"

    def __post_init__(self) -> None:
        check_block(self.block)
        check_scale(self.scale)

    def compress(self, delta: Tensor, *, memory: dict[str, Tensor], generator: torch.Generator) -> Sent:
        flat = checked(delta)
        blocks = in_blocks(flat, self.block)
        sizes = block_sizes(blocks, flat.numel())
        means = (blocks.abs() / sizes).sum(dim=1, keepdim=True)
        values = torch.where(blocks < 0, -1.0, 1.0) * stored(means, self.scale)
        bits = flat.numel() + SCALE_BITS[self.scale] * num_blocks(flat.numel(), self.block)
        return Sent(out_of_blocks(values, flat.numel()).view(delta.shape), float(bits))
