"""What a run of the lab leaves behind: losses, bits, and what the outer gradients looked like. All of it is JSON."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean

import torch
from torch import Tensor

from aggregation.fragments import Layout


@dataclass
class History:
    """Losses in nats per token; steps are swarm steps."""

    loss: float = float("nan")
    """Held-out, of the outer parameters at the end."""
    first: float = float("nan")
    """Held-out, of the first replica's own parameters."""
    average: float = float("nan")
    """Held-out, of the plain mean of all replicas' parameters."""
    train: list[float] = field(default_factory=list)
    """Mean training loss of each step; of the step before where no replica trained."""
    outer: list[tuple[int, float]] = field(default_factory=list)
    """(step, held-out loss of the outer parameters)."""
    bits_up: float = 0.0
    """Sent by one replica, on average."""
    bits_down: float = 0.0
    """Received by each replica."""
    peak_bits: float = 0.0
    """The most that one replica sent for one step."""
    norms: list[tuple[int, int, float, float]] = field(default_factory=list)
    """(step, fragment, mean ‖Δ‖ of the replicas, ‖Δ̄‖) of each window, before compression."""
    cosine: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """By layer: (step, mean cosine of two replicas' Δ). `all` is everything but the embedding."""
    steps_taken: list[int] = field(default_factory=list)
    """Inner steps of each replica."""
    digest: str = ""
    """SHA-256 of the outer state, as peers of a network report it; empty for methods without an agreed anchor."""


def layer_of(name: str) -> str:
    """The layer that a parameter belongs to: its block's number, or its module's name outside the blocks."""
    numbered = re.search(r"\.(\d+)\.", name)
    return numbered[1] if numbered else name.split(".")[0]


def similarities(layout: Layout, fragment: int, deltas: Sequence[Tensor]) -> dict[str, float]:
    """By layer, the mean cosine over all pairs of flat Δ of a fragment. Empty for fewer than two."""
    if len(deltas) < 2:
        return {}
    parts: defaultdict[str, list[slice]] = defaultdict(list)
    names, starts = layout.fragments[fragment].names, layout.starts(fragment)
    for name, start, stop in zip(names, starts, [*starts[1:], layout.fragments[fragment].numel], strict=True):
        parts[layer_of(name)].append(slice(start, stop))
    every = [part for layer, slices in parts.items() if layer != "embedding" for part in slices]
    return {layer: _cosine(deltas, slices) for layer, slices in [*parts.items(), ("all", every)] if slices}


def _cosine(deltas: Sequence[Tensor], slices: Sequence[slice]) -> float:
    vectors = [torch.cat([delta[part] for part in slices]) for delta in deltas]
    return fmean(float(torch.cosine_similarity(a, b, dim=0)) for a, b in combinations(vectors, 2))
