"""How good a model is on the held-out text: plain cross-entropy, the same windows of it at every call."""

from __future__ import annotations

import torch
from torch import Tensor

from peer.models import Decoder
from protocol.errors import UserError


def evaluate(model: Decoder, validation: Tensor, *, sequence: int, max_tokens: int = 32_768, batch: int = 16) -> float:
    """Nats per token of `validation`, uint8 (bytes,), without the z-loss and without gradients.

    Reads windows of `sequence` + 1 bytes, none of which overlap in what they predict, spread evenly over the text:
    as many as give `max_tokens` predictions, and at least one. Train or evaluation mode is as it was afterwards.
    Raises UserError when the text is shorter than one window.
    """
    windows = _windows(validation, sequence, max_tokens)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return _mean_loss(model, windows, batch)
    finally:
        model.train(was_training)


def _mean_loss(model: Decoder, windows: Tensor, batch: int) -> float:
    total = 0.0
    for part in torch.split(windows, batch):
        tokens = part.to(device=model.turns.device, dtype=torch.int64)
        total += float(model.cross_entropy(tokens)) * len(part)
    return total / len(windows)


def _windows(validation: Tensor, sequence: int, max_tokens: int) -> Tensor:
    """uint8 (windows, sequence + 1)."""
    available = (validation.numel() - 1) // sequence
    if available < 1:
        right = f"must be below the {validation.numel()} bytes of validation text"
        raise UserError.field("data.sequence", sequence, right)
    count = max(1, min(available, max_tokens // sequence))
    starts = torch.arange(count) * available // count * sequence
    return validation[starts[:, None] + torch.arange(sequence + 1)]
