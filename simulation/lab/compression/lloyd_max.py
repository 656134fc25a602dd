"""Two and three bits with the levels that suit a normal distribution best (Max 1960, "Quantizing for minimum
distortion", Table I), times the block's root mean square.

No level is zero, so that every value is sent with its sign, as by the 2-bit codes of MuLoCo (arXiv 2505.23725) with
error feedback. Bits: 2 or 3 a value, and 16 a block: 2.06 and 3.06 with blocks of 256. What is far out is clipped: use
error feedback.
"""

from dataclasses import dataclass
from typing import ClassVar

from simulation.lab.compression.levels import Levels


@dataclass(frozen=True)
class TwoBit(Levels):
    """Four levels; a normal distribution keeps 88% of its energy."""

    table: ClassVar[tuple[float, ...]] = (-1.510, -0.4528, 0.4528, 1.510)
    code_bits: ClassVar[int] = 2
    measure: ClassVar[str] = "rms"
    block: int = 256
    scale: str = "bf16"
    rounding: str = "nearest"
    name: str = "two-bit"


@dataclass(frozen=True)
class ThreeBit(Levels):
    """Eight levels; a normal distribution keeps 97% of its energy."""

    table: ClassVar[tuple[float, ...]] = (-2.152, -1.344, -0.7560, -0.2451, 0.2451, 0.7560, 1.344, 2.152)
    code_bits: ClassVar[int] = 3
    measure: ClassVar[str] = "rms"
    block: int = 256
    scale: str = "bf16"
    rounding: str = "nearest"
    name: str = "three-bit"
