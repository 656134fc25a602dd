"""What every compression of the lab is: an outer gradient goes in, what its receiver decodes comes out, with its size.

A compression here is the composition of a sender's encoder and a receiver's decoder, so that a question about learning
needs no bytes. The bits are those of a real encoding, indices, scales and seeds included, framing and headers not.
"""

from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

FP32_BITS: Final = 32
SEED_BITS: Final = 64
"""A random choice that the receiver repeats from a seed costs the seed, not the indices."""
LARGEST: Final = 2.0**96
"""The greatest magnitude that is compressed. Rescaling, sums of residuals and products then stay within fp32."""


@dataclass(frozen=True)
class Sent:
    """One compressed outer gradient."""

    values: Tensor
    """What the receiver decodes: fp32, in the shape of the outer gradient."""
    bits: float
    """Bits on the wire, all together."""


class Compression(Protocol):
    """One method. It holds its settings and nothing else: what it remembers lies in the caller's `memory`."""

    @property
    def name(self) -> str:
        """What `compression(name)` makes it from."""

    def compress(self, delta: Tensor, *, memory: dict[str, Tensor], generator: torch.Generator) -> Sent:
        """Compress `delta`, fp32 of any shape, which is not changed.

        `memory` belongs to one sender and one tensor, starts empty, and is kept by the caller from round to round.
        `generator` gives the random numbers of the methods that need some; equal states give equal results.
        Raises ValueError when a value is not finite or above 2^96, with `memory` as it was.
        """


def checked(delta: Tensor) -> Tensor:
    """`delta`, flat. Raises ValueError when a value is not finite or too large to be compressed."""
    assert delta.dtype == torch.float32, delta.dtype
    flat = delta.detach().reshape(-1)
    greatest = float(flat.abs().max()) if flat.numel() else 0.0
    if not greatest <= LARGEST:  # a NaN compares false
        raise ValueError(f"outer gradient holds {greatest}: every value must be finite and at most 2^96")
    return flat


def uniform(shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
    """fp32 in [0, 1). Drawn where the generator lives, so that a GPU and a CPU draw the same."""
    return torch.rand(shape, generator=generator, device=generator.device).to(device)
