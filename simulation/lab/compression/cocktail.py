"""CocktailSGD (Wang et al. 2023): random-k, the greatest of those, and integers of four bits, with error feedback.

A random tenth of the values, known from a seed, then the greatest `top` of them, then int4 with a scale for each
`block` of what is left. Bits: 64 for the seed; for each value sent 4, and its index among the random ones (or one bit
for each of those); 16 a block. With the defaults 0.19 a parameter: 0.02 · 4, 0.1 for a bitmap, and the scales.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from simulation.lab.compression.base import SEED_BITS, Sent, checked
from simulation.lab.compression.error_feedback import ErrorFeedback, WithFeedback
from simulation.lab.compression.integers import Integers
from simulation.lab.compression.random_k import chosen
from simulation.lab.compression.sparse import check_share, greatest, index_bits, num_kept


@dataclass(frozen=True)
class RandomTopInt:
    """The composition, without error feedback."""

    random: float = 0.1
    top: float = 0.2
    bits: int = 4
    block: int = 64
    name: str = "random-top-int"

    def __post_init__(self) -> None:
        check_share("random", self.random)
        check_share("top", self.top)
        Integers(self.bits, self.block)

    def compress(self, delta: Tensor, *, memory: dict[str, Tensor], generator: torch.Generator) -> Sent:
        flat = checked(delta)
        random = chosen(flat, self.random, generator).sort().values
        kept = random[greatest(flat[random], num_kept(self.top, random.numel()))].sort().values
        integers = Integers(self.bits, self.block).compress(flat[kept], memory={}, generator=generator)
        values = torch.zeros_like(flat)
        values[kept] = integers.values
        bits = SEED_BITS + index_bits(kept.numel(), random.numel()) + integers.bits
        return Sent(values.view(delta.shape), bits)


@dataclass(frozen=True)
class Cocktail(WithFeedback):
    """The composition under error feedback."""

    random: float = 0.1
    top: float = 0.2
    bits: int = 4
    block: int = 64
    decay: float = 1.0
    name: str = "cocktail"

    def method(self) -> ErrorFeedback:
        return ErrorFeedback(RandomTopInt(self.random, self.top, self.bits, self.block), self.decay)
