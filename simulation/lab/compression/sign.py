"""Sign only: every value becomes the mean magnitude of its block, with its sign.

The scaled sign of EF-signSGD (Karimireddy et al. 2019, arXiv 1901.09847), which needs error feedback: "sign+ef". The
mean magnitude is the scale that leaves the least squared error. Bits: 1 a value and 16 a block, 1.06 with blocks of
256. Zero counts as positive.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from simulation.lab.compression.base import Sent
from simulation.lab.compression.blocks import check_block, check_scale, coded


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
        return coded(
            delta,
            block=self.block,
            scale=self.scale,
            code_bits=1,
            measured=lambda blocks, sizes: (blocks.abs() / sizes).sum(dim=1, keepdim=True),
            in_units=lambda blocks, scales: torch.where(blocks < 0, -1.0, 1.0),
        )
