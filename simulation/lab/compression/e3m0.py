"""E3M0, the paper's four bits (arXiv 2501.18512, section 2.4), by the codec that the network uses.

Bits: those of the packed bytes, 4 a value and 8 a block (`aggregation.codecs`): 4.03 with blocks of 256.

Nearest rounding is the codec alone. Stochastic rounding moves every value to a representable one before, so that the
codec, which keeps representable values, adds nothing. It has no bias: a value between two powers of two goes to the
upper one with the probability that makes its mean itself, and so does a value between zero and the block's smallest
code, which depends on how the block's greatest value was rounded.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from aggregation.codecs import E3M0 as Codec
from aggregation.codecs import MAX_BLOCK
from simulation.lab.compression.base import Sent, checked, uniform
from simulation.lab.compression.blocks import in_blocks, out_of_blocks
from simulation.lab.compression.rounding import check_rounding

_LOWEST_TOP = -119
"""Exponent of the greatest code under the codec's least scale."""
_CODES_BELOW_TOP = 6
"""The smallest code is 2^6 times smaller than the greatest."""


@dataclass(frozen=True)
class E3M0:
    """A sign and three exponent bits a value, one scale byte a block of consecutive values."""

    block: int = MAX_BLOCK
    rounding: str = "nearest"
    name: str = "e3m0"

    def __post_init__(self) -> None:
        Codec(self.block)
        check_rounding(self.rounding)

    def compress(self, delta: Tensor, *, memory: dict[str, Tensor], generator: torch.Generator) -> Sent:
        flat = checked(delta)
        if self.rounding == "stochastic":
            flat = _representable(flat, self.block, generator)
        codec = Codec(self.block)
        payload = codec.encode(flat)
        values = codec.decode(payload, flat.numel()).to(delta.device)
        return Sent(values.view(delta.shape), 8.0 * len(payload))


def _representable(flat: Tensor, block: int, generator: torch.Generator) -> Tensor:
    """`flat` (n) with every value at random at one of its two representable neighbours. In fp64, where all is exact."""
    magnitudes = in_blocks(flat.abs(), block).double()  # (blocks, block)
    chances = uniform(tuple(magnitudes.shape), generator, flat.device).double()
    fractions, exponents = torch.frexp(magnitudes)  # fraction in [0.5, 1): the power below is 2^(exponent - 1)
    powers = exponents - 1 + (chances < 2 * fractions - 1).int()
    powers = torch.where(magnitudes > 0, powers, _LOWEST_TOP)
    smallest = powers.max(dim=1, keepdim=True).values.clamp(min=_LOWEST_TOP) - _CODES_BELOW_TOP
    floor = torch.ldexp(torch.ones_like(magnitudes), smallest)
    rounded = torch.ldexp(torch.ones_like(magnitudes), powers)
    small = torch.where(chances * floor < magnitudes, floor, 0.0)
    kept = torch.where(magnitudes >= floor, rounded, small)
    return torch.copysign(out_of_blocks(kept.float(), flat.numel()), flat)
