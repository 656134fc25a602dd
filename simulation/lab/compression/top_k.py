"""Top-K: the share of the values with the greatest magnitudes (Stich et al. 2018, arXiv 1809.07599), as fp32.

One of the value-dropping methods of the paper's Figure 11. Bits: 32 a value that is sent, and for each its index of
⌈log2 n⌉ bits, or a bitmap of n bits for all, whichever is less.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from simulation.lab.compression.base import Sent, checked
from simulation.lab.compression.sparse import check_share, greatest, num_kept, only, sparse_bits


@dataclass(frozen=True)
class TopK:
    """The greatest magnitudes; the others zero."""

    share: float = 0.05
    name: str = "top-k"

    def __post_init__(self) -> None:
        check_share("share", self.share)

    def compress(self, delta: Tensor, *, memory: dict[str, Tensor], generator: torch.Generator) -> Sent:
        flat = checked(delta)
        kept = greatest(flat, num_kept(self.share, flat.numel()))
        return Sent(only(flat, kept).view(delta.shape), float(sparse_bits(kept.numel(), flat.numel())))
