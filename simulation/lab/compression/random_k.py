"""Random-k: exactly a share of the values, chosen at random (Stich et al. 2018, arXiv 1809.07599).

Given generators in the same state, all replicas choose the same values: the random subsets of SPARTA and WASH (arXiv
2405.17517). With `rescale` what is sent is divided by the share, which makes it unbiased; without, error feedback may
bring the rest later. Bits: 32 a value that is sent, and 64 for the seed that the choice follows from.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from simulation.lab.compression.base import FP32_BITS, SEED_BITS, Sent, checked, uniform
from simulation.lab.compression.sparse import check_share, num_kept, only


@dataclass(frozen=True)
class RandomK:
    """A random share of the values; the others zero."""

    share: float = 0.1
    rescale: bool = False
    name: str = "random-k"

    def __post_init__(self) -> None:
        check_share("share", self.share)

    def compress(self, delta: Tensor, *, memory: dict[str, Tensor], generator: torch.Generator) -> Sent:
        flat = checked(delta)
        kept = chosen(flat, self.share, generator)
        values = only(flat, kept)
        if self.rescale:
            values *= flat.numel() / max(1, kept.numel())
        return Sent(values.view(delta.shape), float(FP32_BITS * kept.numel() + SEED_BITS))


def chosen(flat: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Indices of a random share of `flat` (n): those with the greatest random numbers."""
    chances = uniform(tuple(flat.shape), generator, flat.device)
    return chances.topk(num_kept(share, flat.numel()), sorted=False).indices
