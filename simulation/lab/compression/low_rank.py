"""PowerSGD (Vogels et al. 2019, arXiv 1905.13727): a matrix as the product of two thin ones, with error feedback.

    P ← orthonormal columns of M · Q;   Q ← Mᵀ · P;   send P and Q;   the receiver takes P · Qᵀ

One step of a power iteration a round: Q is kept as the start of the next (`warm`), so that P comes to span the leading
left singular vectors if M changes little. M (rows, columns) is the tensor's first axis against the others; a tensor of
one axis, or one whose factors would be no smaller, goes uncompressed, as in the paper. Each replica has a P and a Q of
its own (the paper averages both between the two lines above, which an owner with both hops could do as well).

Bits: 32 · rank · (rows + columns). The factors may be compressed in turn, which gives low rank with four bits, one
half of CocktailSGD's idea (Wang et al. 2023): the columns of P as decoded are then no longer orthonormal,
so Q is the least-squares fit Mᵀ · P · (Pᵀ P)⁻¹.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from simulation.lab.compression.base import Compression, Sent, checked
from simulation.lab.compression.e3m0 import E3M0
from simulation.lab.compression.error_feedback import ErrorFeedback, WithFeedback
from simulation.lab.compression.integers import Integers
from simulation.lab.compression.none import Uncompressed

FACTORS: Final[dict[str, Compression]] = {
    "none": Uncompressed(),
    "e3m0": E3M0(),
    "int8": Integers(),
    "int4": Integers(4, 64, name="int4"),
}
BASIS = "basis"
_RTOL: Final = 1e-3
"""Decoded columns that nearly depend on each other are not told apart: their errors would be multiplied."""


@dataclass(frozen=True)
class LowRank:
    """A matrix in `rank` dimensions, without error feedback."""

    rank: int = 4
    factors: str = "none"
    warm: bool = True
    name: str = "low-rank"

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank = {self.rank}: must be at least 1")
        if self.factors not in FACTORS:
            raise ValueError(f"factors = {self.factors!r}: must be one of {', '.join(FACTORS)}")

    def compress(self, delta: Tensor, *, memory: dict[str, Tensor], generator: torch.Generator) -> Sent:
        flat = checked(delta)
        if not self._smaller(delta):
            return Uncompressed().compress(delta, memory=memory, generator=generator)
        unit = _power_of_two(flat)  # the factors then fit into any codec; a power of two changes no digit of them
        matrix = flat.view(delta.shape[0], -1).double() / unit
        start = memory[BASIS] if self.warm and BASIS in memory else _random(matrix.shape[1], self.rank, generator)
        values, basis, bits = self._projected(matrix, start.to(matrix), memory, generator)
        if self.warm:
            memory[BASIS] = basis.float()
        return Sent((values * unit).float().view(delta.shape), bits)

    def _smaller(self, delta: Tensor) -> bool:
        """Whether the factors have fewer values than the tensor."""
        if delta.dim() < 2 or not delta.numel():
            return False
        rows = delta.shape[0]
        return self.rank * (rows + delta.numel() // rows) < delta.numel()

    def _projected(
        self, matrix: Tensor, start: Tensor, memory: dict[str, Tensor], generator: torch.Generator
    ) -> tuple[Tensor, Tensor, float]:
        """(rows, columns) and (columns, rank) -> what is decoded, the next start (columns, rank), the bits."""
        codec = FACTORS[self.factors]
        left = torch.linalg.qr(matrix @ start).Q  # (rows, rank)
        sent_left = codec.compress(left.float(), memory={}, generator=generator)
        left = sent_left.values.double()
        right = matrix.T @ (
            left if self.factors == "none" else torch.linalg.pinv(left, rtol=_RTOL).T
        )  # (columns, rank)
        sent_right = codec.compress(right.float(), memory={}, generator=generator)
        return left @ sent_right.values.double().T, right, sent_left.bits + sent_right.bits


def _power_of_two(flat: Tensor) -> float:
    """The least one above every magnitude."""
    return 2.0 ** int(torch.frexp(flat.abs().max()).exponent)


def _random(columns: int, rank: int, generator: torch.Generator) -> Tensor:
    return torch.randn((columns, rank), generator=generator, device=generator.device)


@dataclass(frozen=True)
class PowerSGD(WithFeedback):
    """Low rank under error feedback."""

    rank: int = 4
    factors: str = "none"
    warm: bool = True
    decay: float = 1.0
    name: str = "power-sgd"

    def method(self) -> ErrorFeedback:
        return ErrorFeedback(LowRank(self.rank, self.factors, self.warm), self.decay)
