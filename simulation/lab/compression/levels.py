"""Codes that stand for the levels of a table, times a scale for each block. The formats of few bits are such tables."""

from typing import ClassVar

import torch
from torch import Tensor

from simulation.lab.compression.base import Sent, uniform
from simulation.lab.compression.blocks import check_block, check_scale, coded, unit
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
        return coded(
            delta,
            block=self.block,
            scale=self.scale,
            code_bits=self.code_bits,
            measured=self._measured,
            in_units=lambda blocks, scales: self._rounded(unit(blocks, scales), generator),
        )

    def _measured(self, blocks: Tensor, sizes: Tensor) -> Tensor:
        """The wanted scale of each of the (blocks, block), which have so many values (blocks, 1): (blocks, 1)."""
        greatest = blocks.abs().amax(dim=1, keepdim=True)
        if self.measure == "absmax":
            return greatest / max(self.table)
        squares = unit(blocks, greatest).square().sum(dim=1, keepdim=True)  # of at most 1, so that no square overflows
        return greatest * (squares / sizes).sqrt()

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
