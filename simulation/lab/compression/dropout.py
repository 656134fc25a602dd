"""Dropping each value at random: FedDropout (Wen et al. 2022) and DARE (Yu et al. 2024, arXiv 2311.03099).

Two of the value-dropping methods of the paper's Figure 11. Each value is dropped with probability `drop`; DARE divides
what is left by 1 - drop, so that the mean is kept, and FedDropout does not. Which values are left follows from a seed,
so the indices cost 64 bits together. Bits: 32 a value that is left, about 32 · (1 - drop) a parameter.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from simulation.lab.compression.base import FP32_BITS, SEED_BITS, Sent, checked, uniform


@dataclass(frozen=True)
class Dropout:
    """Random values as they are, or rescaled; the others zero."""

    drop: float = 0.5
    rescale: bool = False
    name: str = "fed-dropout"

    def __post_init__(self) -> None:
        if not 0 <= self.drop < 1:
            raise ValueError(f"drop = {self.drop}: must be at least 0 and below 1")

    def compress(self, delta: Tensor, *, memory: dict[str, Tensor], generator: torch.Generator) -> Sent:
        flat = checked(delta)
        kept = uniform(tuple(flat.shape), generator, flat.device) >= self.drop
        values = torch.where(kept, flat / (1 - self.drop) if self.rescale else flat, 0.0)
        bits = FP32_BITS * int(kept.sum()) + SEED_BITS
        return Sent(values.view(delta.shape), float(bits))
