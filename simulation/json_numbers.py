"""Numbers as JSON can hold them: it has no word for those that are not finite."""

from __future__ import annotations

from math import isfinite
from typing import Any


def finite(number: float) -> float | None:
    """The number, or None for one that JSON does not have."""
    return number if isfinite(number) else None


def finite_throughout(value: Any) -> Any:
    """The same of every number in dicts, lists and tuples; tuples become lists."""
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, dict):
        return {key: finite_throughout(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite_throughout(each) for each in value]
    return value
