"""SparseLoCo (arXiv 2508.15706): error feedback that forgets, and the greatest few of every chunk in two bits.

    e ← 0.95 · e + α · Δ;   send Q(top 64 of each 4,096 of e);   e ← e − sent

Q gives each sent value a sign and one of two magnitudes. They are the chunk's own, in bf16: the mean of the magnitudes
below the chunk's mean magnitude, and that of the others. (The greatest of a chunk are never near zero, so that levels
evenly spaced from zero would be wasted.) Bits for each sent value: 2, and an index of 12; for each chunk: 32. That is
0.227 a parameter, and the paper's 0.22 without the chunks' magnitudes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from simulation.lab.compression.base import FP32_BITS, Sent, checked
from simulation.lab.compression.blocks import check_block, in_blocks, num_blocks, out_of_blocks, stored
from simulation.lab.compression.error_feedback import ErrorFeedback, WithFeedback

_CODE_BITS = 2
_LEVELS_BITS = 2 * 16


@dataclass(frozen=True)
class ChunkedTopK:
    """The `kept` greatest magnitudes of each `chunk` consecutive values, in two bits; of a shorter one its share."""

    kept: int = 64
    chunk: int = 4096
    name: str = "chunked-top-k"

    def __post_init__(self) -> None:
        check_block(self.chunk)
        if not 1 <= self.kept <= self.chunk:
            raise ValueError(f"kept = {self.kept}: must be between 1 and the chunk, {self.chunk}")

    def compress(self, delta: Tensor, *, memory: dict[str, Tensor], generator: torch.Generator) -> Sent:
        flat = checked(delta)
        chunks = in_blocks(flat, self.chunk)  # (chunks, chunk)
        magnitudes, indices = chunks.abs().topk(self.kept, dim=1)  # (chunks, kept), the greatest first
        counted = self._counted(magnitudes, flat.numel())
        signed = torch.copysign(_two_levels(magnitudes, counted), chunks.gather(1, indices)) * counted
        values = torch.zeros_like(chunks).scatter(1, indices, signed)
        return Sent(out_of_blocks(values, flat.numel()).view(delta.shape), self._bits(flat.numel()))

    def _num_kept(self, size: int) -> int:
        """How many of a chunk of that size are sent: the same share, rounded up."""
        return -(-self.kept * size // self.chunk)

    def _counted(self, magnitudes: Tensor, numel: int) -> Tensor:
        """1 for the magnitudes (chunks, kept) that are sent, 0 for those that a shorter last chunk has no room for."""
        counted = torch.ones_like(magnitudes)
        if numel % self.chunk:
            counted[-1, self._num_kept(numel % self.chunk) :] = 0
        return counted

    def _bits(self, numel: int) -> float:
        whole, rest = divmod(numel, self.chunk)
        sent = whole * self.kept + (self._num_kept(rest) if rest else 0)
        index = (self.chunk - 1).bit_length()
        bits = sent * (_CODE_BITS + index) + _LEVELS_BITS * num_blocks(numel, self.chunk)
        return float(min(bits, FP32_BITS * numel))


def _two_levels(magnitudes: Tensor, counted: Tensor) -> Tensor:
    """Each of the counted magnitudes (chunks, kept) as the mean of those on its side of their mean."""
    upper = counted * (magnitudes >= _mean(magnitudes, counted))
    lower = counted - upper
    high, low = (stored(_mean(magnitudes, side), "bf16") for side in (upper, lower))
    return torch.where(upper > 0, high, low)


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    """Over each row, (rows, 1); 0 where nothing counts."""
    return (values * weights / weights.sum(dim=1, keepdim=True).clamp(min=1)).sum(dim=1, keepdim=True)


@dataclass(frozen=True)
class SparseLoCo(WithFeedback):
    """Chunked Top-K in two bits under error feedback with decay."""

    kept: int = 64
    chunk: int = 4096
    decay: float = 0.95
    alpha: float = 1.0
    name: str = "sparse-loco"

    def method(self) -> ErrorFeedback:
        return ErrorFeedback(ChunkedTopK(self.kept, self.chunk), self.decay, self.alpha)
