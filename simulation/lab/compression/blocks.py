"""Blocks of consecutive values with one scale each, and how a scale is stored."""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from simulation.lab.compression.base import Sent, checked

SCALE_BITS: Final = {"fp32": 32, "bf16": 16, "e8m0": 8}
"""e8m0 is a power of two, as in the MX formats and in e3m0."""


def in_blocks(flat: Tensor, block: int) -> Tensor:
    """(n) -> (blocks, block), with zeros behind the last value."""
    missing = -flat.numel() % block
    return torch.nn.functional.pad(flat, (0, missing)).view(-1, block)


def out_of_blocks(blocks: Tensor, numel: int) -> Tensor:
    """(blocks, block) -> (numel), without what was padded."""
    return blocks.reshape(-1)[:numel]


def block_sizes(blocks: Tensor, numel: int) -> Tensor:
    """How many real values each of the (blocks, block) has: (blocks, 1), fp32."""
    sizes = torch.full((len(blocks), 1), float(blocks.shape[1]), device=blocks.device)
    sizes[-1:] -= blocks.numel() - numel
    return sizes


def num_blocks(numel: int, block: int) -> int:
    return -(-numel // block)


def check_block(block: int) -> None:
    """Raises ValueError unless a block holds a value."""
    if block < 1:
        raise ValueError(f"block = {block}: must be at least 1")


def check_scale(scale: str) -> None:
    """Raises ValueError unless it is the name of a way to store one."""
    if scale not in SCALE_BITS:
        raise ValueError(f"scale = {scale!r}: must be one of {', '.join(SCALE_BITS)}")


def stored(scales: Tensor, scale: str) -> Tensor:
    """Scales (fp32, not negative) as the receiver reads them: never smaller, so that no greatest value is clipped.

    Scales below 2^-126, of blocks with nothing but denormals, become zero.
    """
    scales = torch.where(scales < 2.0**-126, 0.0, scales)
    if scale == "bf16":
        return ((scales.view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32)
    if scale == "e8m0":
        return ((scales.view(torch.int32) + 0x7FFFFF) & 0x7F800000).view(torch.float32)
    return scales


def unit(blocks: Tensor, scales: Tensor) -> Tensor:
    """blocks / scales, and zero where the scale is."""
    return torch.where(scales > 0, blocks / torch.where(scales > 0, scales, 1.0), 0.0)


def coded(
    delta: Tensor,
    *,
    block: int,
    scale: str,
    code_bits: int,
    measured: Callable[[Tensor, Tensor], Tensor],
    in_units: Callable[[Tensor, Tensor], Tensor],
) -> Sent:
    """`delta` as codes of `code_bits` bits, times one scale a block. Raises ValueError as `Compression.compress`.

    `measured` gives the wanted scales (blocks, 1) of the values (blocks, block), of which each block really has so many
    (blocks, 1). `in_units` gives what the codes stand for, in units of the scales that are stored.
    """
    flat = checked(delta)
    blocks = in_blocks(flat, block)
    scales = stored(measured(blocks, block_sizes(blocks, flat.numel())), scale)
    values = out_of_blocks(in_units(blocks, scales) * scales, flat.numel())
    bits = code_bits * flat.numel() + SCALE_BITS[scale] * num_blocks(flat.numel(), block)
    return Sent(values.view(delta.shape), float(bits))
