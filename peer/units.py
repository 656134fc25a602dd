"""Quantities as people write them on a command line: 50mbit, 40ms, 989tflops."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from protocol.errors import UserError

_BITS: Final[Mapping[str, float]] = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
_SECONDS: Final[Mapping[str, float]] = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_FLOPS: Final[Mapping[str, float]] = {"": 1.0, "gflops": 1e9, "tflops": 1e12, "pflops": 1e15, "eflops": 1e18}
_QUANTITY: Final = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)")


def parse_bandwidth(flag: str, text: str) -> float:
    """Bits a second, above 0: 50mbit, 50mbit/s and 50mbps are 5e7. UserError that names the flag for anything else."""
    plain = text.strip().lower().removesuffix("/s")
    plain = re.sub(r"(?<=[kmgt])bps$", "bit", plain)
    value = _parse(plain, _BITS)
    if value is None or value <= 0:
        raise UserError.field(flag, text, "must be a bandwidth such as 50mbit or 1gbit")
    return value


def parse_seconds(flag: str, text: str) -> float:
    """Seconds, at least 0: 40ms is 0.04. UserError that names the flag for anything else."""
    value = _parse(text.strip().lower(), _SECONDS)
    if value is None:
        raise UserError.field(flag, text, "must be a time such as 40ms or 0.2s")
    return value


def parse_flops(flag: str, text: str) -> float:
    """Floating-point operations a second, above 0: 989e12 and 989tflops. UserError for anything else."""
    value = _parse(text.strip().lower(), _FLOPS)
    if value is None or value <= 0:
        raise UserError.field(flag, text, "must be operations a second such as 989e12 or 989tflops")
    return value


def _parse(text: str, units: Mapping[str, float]) -> float | None:
    found = _QUANTITY.fullmatch(text)
    if not found or found[2] not in units:
        return None
    try:
        value = float(found[1]) * units[found[2]]
    except ValueError:  # 1.2.3
        return None
    return value if math.isfinite(value) else None


def format_bandwidth(bits: float) -> str:
    """5e7 is "50 Mbit/s"."""
    power = max(0, min(4, math.floor(math.log10(max(bits, 1.0)) / 3)))
    return f"{bits / 1000**power:.3g} {('', 'k', 'M', 'G', 'T')[power]}bit/s"


def format_seconds(seconds: float) -> str:
    """0.0123 is "12.3 ms"."""
    if seconds < 1e-6:
        return "0 s"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:.0f} s"
