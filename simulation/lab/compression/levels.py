"""Codes that stand for the levels of a table, times a scale for each block. The formats of few bits are such tables."""

from typing import ClassVar

import torch
from torch import Tensor

from simulation.lab.compression.base import Sent, checked, uniform
from simulation.lab.compression.blocks import (
    SCALE_BITS,
    block_sizes,
    check_block,
    check_scale,
    in_blocks,
    num_blocks,
    out_of_blocks,
    stored,
    unit,
)
from simulation.lab.compression.rounding import check_rounding


class Levels:
    """A table, and how it is used: a subclass is a dataclass with the fields below."""

    table: ClassVar[tuple[float, ...]]
    """Ascending, in units of the scale."""
    code_bits: ClassVar[int]
    measure: ClassVar[str] = "absmax"
    """What a block's scale is: its greatest magnitude over the table's, or its root mean square."""
    block: int
    scale: str
    rounding: str

    def __post_init__(self) -> None:
        check_block(self.block)
        check_scale(self.scale)
        check_rounding(self.rounding)

    def compress(self, delta: Tensor, *, memory: dict[str, Tensor], generator: torch.Generator) -> Sent:
        flat = checked(delta)
        blocks = in_blocks(flat, self.block)
        scales = stored(self._measured(blocks, flat.numel()), self.scale)
        values = self._rounded(unit(blocks, scales), generator) * scales
        bits = self.code_bits * flat.numel() + SCALE_BITS[self.scale] * num_blocks(flat.numel(), self.block)
        return Sent(out_of_blocks(values, flat.numel()).view(delta.shape), float(bits))

    def _measured(self, blocks: Tensor, numel: int) -> Tensor:
        """The wanted scale of each of the (blocks, block): (blocks, 1)."""
        greatest = blocks.abs().amax(dim=1, keepdim=True)
        if self.measure == "absmax":
            return greatest / max(self.table)
        squares = unit(blocks, greatest).square().sum(dim=1, keepdim=True)  # of at most 1, so that no square overflows
        return greatest * (squares / block_sizes(blocks, numel)).sqrt()

    def _rounded(self, values: Tensor, generator: torch.Generator) -> Tensor:
        """Each value at a level: the nearest, a tie to the upper; or one of its two neighbours without bias."""
        table = torch.tensor(self.table, dtype=torch.float32, device=values.device)
        if self.rounding == "nearest":
            return table[torch.bucketize(values, (table[1:] + table[:-1]) / 2, right=True)]
        values = values.clamp(table[0], table[-1])
        upper = torch.bucketize(values, table, right=True).clamp(1, len(table) - 1)
        low, high = table[upper - 1], table[upper]
        chances = uniform(tuple(values.shape), generator, values.device)
        return torch.where(chances * (high - low) < values - low, high, low)
