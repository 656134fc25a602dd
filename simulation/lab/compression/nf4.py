"""NF4, the 4-bit levels of QLoRA (Dettmers et al. 2023, arXiv 2305.14314, appendix E), for normal distributions.

Sixteen levels between -1 and 1 at quantiles of a normal distribution, zero among them, times the block's greatest
magnitude. Bits: 4 a value and 16 a block; with blocks of 512, the default, 4.03, as much as e3m0's default.
"""

from dataclasses import dataclass
from typing import ClassVar

from simulation.lab.compression.levels import Levels

_NEGATIVE = (-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004)
_POSITIVE = (0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0)


@dataclass(frozen=True)
class NF4(Levels):
    """Four bits at the quantiles of a normal distribution."""

    table: ClassVar[tuple[float, ...]] = (*_NEGATIVE, 0.0, *_POSITIVE)
    code_bits: ClassVar[int] = 4
    block: int = 512
    scale: str = "bf16"
    rounding: str = "nearest"
    name: str = "nf4"
