"""Which layers are sent after which step, in the model of the paper's graph. Steps count from 1, layers from 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

PATTERNS: Final = ("strided", "sequential")


@dataclass(frozen=True, slots=True)
class Timetable:
    """Fragment p is sent in the steps 1 + offsets[p] + r·period, r ≥ 0."""

    fragments: tuple[tuple[int, ...], ...]
    """The layers of each fragment, in order."""
    period: int
    offsets: tuple[int, ...]

    def due(self, step: int) -> list[int]:
        """The layers that are sent in a step."""
        layers: list[int] = []
        for fragment, offset in zip(self.fragments, self.offsets, strict=True):
            if step > offset and (step - 1 - offset) % self.period == 0:
                layers += fragment
        return layers


def cut(layers: int, fragment_layers: int, pattern: str = "strided") -> tuple[tuple[int, ...], ...]:
    """The fragments of at most `fragment_layers` layers: every P-th layer (strided), or neighbours (sequential)."""
    fragments = -(-layers // fragment_layers)
    if pattern == "sequential":
        size = fragment_layers
        return tuple(tuple(range(start, min(start + size, layers))) for start in range(0, layers, size))
    return tuple(tuple(range(first, layers, fragments)) for first in range(fragments))


def whole(layers: int, period: int) -> Timetable:
    """Everything at once, every `period` steps: data parallel training (period 1) and DiLoCo (period H)."""
    return Timetable((tuple(range(layers)),), period, (0,))


def streaming(fragments: Sequence[Sequence[int]], sync_every: int) -> Timetable:
    """The paper's simulator: the next fragment every round(H / P) steps, the first one in the first step.

    So a fragment's turn comes every P·round(H / P) steps, which is H where P divides it. (With offsets p·H // P
    instead, as in Algorithm 2 and in `protocol.schedule`, two of the 50 known cells of Table 4 come out differently.)
    """
    gap = max(1, round(sync_every / len(fragments)))
    offsets = tuple(index * gap for index in range(len(fragments)))
    return Timetable(tuple(map(tuple, fragments)), gap * len(fragments), offsets)
