"""The messages that several of these tests build: valid ones, with the fields that a test wants to be otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from protocol.messages import Contribution, Link, Parent, Part


def some(byte: int, size: int = 32) -> bytes:
    return bytes([byte]) * size


@pytest.fixture
def build_link() -> Callable[..., Link]:
    """`build_link(due=24)`: a link of two contributors on genesis, not signed."""
    parts = (Part(some(3), 100, some(4), some(5, 64)), Part(some(6), 300, some(7), some(8, 64)))
    fields: dict[str, Any] = {
        "chunk": 3,
        "due": 120,
        "span": 120,
        "parent": some(1),
        "state": some(2),
        "depth": 1,
        "parts": parts,
        "weight": 400,
        "cumulative": 400,
        "result": some(9),
    }
    return lambda **changes: Link(**(fields | changes))


@pytest.fixture
def build_contribution() -> Callable[..., Contribution]:
    """`build_contribution(tokens=5)`: a contribution on genesis, its signature made up."""
    fields: dict[str, Any] = {
        "chunk": 3,
        "due": 120,
        "parent": Parent(some(1), some(2), 0, 0, 0, 0, 0),
        "tokens": 100,
        "payload": some(4),
        "peer": some(3),
        "signature": some(5, 64),
    }
    return lambda **changes: Contribution(**(fields | changes))
