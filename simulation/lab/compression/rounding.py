"""How a value goes to a representable one: to the nearest, or to one of its neighbours at random without bias."""

from typing import Final

ROUNDINGS: Final = ("nearest", "stochastic")


def check_rounding(rounding: str) -> None:
    """Raises ValueError unless it is the name of one."""
    if rounding not in ROUNDINGS:
        raise ValueError(f"rounding = {rounding!r}: must be one of {', '.join(ROUNDINGS)}")
