"""Blocks of consecutive values with one scale each, and how a scale is stored."""

import torch
from torch import Tensor


def in_blocks(flat: Tensor, block: int) -> Tensor:
    """(n) -> (blocks, block), with zeros behind the last value."""
    missing = -flat.numel() % block
    return torch.nn.functional.pad(flat, (0, missing)).view(-1, block)


def out_of_blocks(blocks: Tensor, numel: int) -> Tensor:
    """(blocks, block) -> (numel), without what was padded."""
    return blocks.reshape(-1)[:numel]
