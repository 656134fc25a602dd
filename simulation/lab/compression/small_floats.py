"""Small floating-point formats beside E3M0: E2M1 (four bits, the MX formats' FP4) and E2M0 (three bits).

E2M1 has half the range of exponents and one mantissa bit: 0, ±0.5, ±1, ±1.5, ±2, ±3, ±4, ±6. E2M0 is E3M0 with one
bit less: zero and the greatest magnitude's power of two, its half and its quarter. Bits: 4 or 3 a value and 8, 16 or
32 a block. With a bf16 scale and blocks of 512, the defaults, a value costs 4.03 bits, as much as e3m0's default.
"e2m1:block=32,scale=e8m0" is MXFP4 but for its rounding of scales, which may clip.
"""

from dataclasses import dataclass
from typing import ClassVar

from simulation.lab.compression.levels import Levels

_E2M1 = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M0 = (1.0, 2.0, 4.0)


def _both_signs(positive: tuple[float, ...]) -> tuple[float, ...]:
    return (*(-x for x in reversed(positive)), 0.0, *positive)


@dataclass(frozen=True)
class E2M1(Levels):
    """A sign, two exponent bits, one mantissa bit."""

    table: ClassVar[tuple[float, ...]] = _both_signs(_E2M1)
    code_bits: ClassVar[int] = 4
    block: int = 512
    scale: str = "bf16"
    rounding: str = "nearest"
    name: str = "e2m1"


@dataclass(frozen=True)
class E2M0(Levels):
    """A sign and two exponent bits."""

    table: ClassVar[tuple[float, ...]] = _both_signs(_E2M0)
    code_bits: ClassVar[int] = 3
    block: int = 512
    scale: str = "bf16"
    rounding: str = "nearest"
    name: str = "e2m0"
