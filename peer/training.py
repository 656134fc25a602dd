"""One replica's inner training: AdamW, its learning-rate schedule, and one step. Nothing here communicates.

For one seed, device and thread count the arithmetic is the same at every run. Left out: mixed precision, gradient
accumulation, compilation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from peer.models import Decoder
from protocol.errors import UserError
from protocol.manifest import Manifest

FINAL_RATE = 0.1  # the cosine ends at this share of the peak


@dataclass(frozen=True)
class InnerConfig:
    """The inner optimizer's numbers. Steps count the peer's own inner steps; `clip` bounds the gradient's norm."""

    total_steps: int
    lr: float = 4e-3
    warmup_steps: int = 30
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.99)
    clip: float = 1.0

    def __post_init__(self) -> None:
        rules = (
            ("total_steps", self.total_steps >= 1, "must be at least 1"),
            ("warmup_steps", self.warmup_steps >= 0, "must be at least 0"),
            ("lr", 0 < self.lr < math.inf, "must be above 0"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "must be at least 0"),
            ("betas", all(0 <= beta < 1 for beta in self.betas), "must be at least 0 and below 1"),
            ("clip", 0 < self.clip < math.inf, "must be above 0"),
        )
        for name, holds, right in rules:
            if not holds:
                raise UserError.field(f"training.{name}", getattr(self, name), right)


def inner_config(manifest: Manifest) -> InnerConfig:
    """The inner optimizer's numbers of a run, all from its manifest."""
    section = manifest.training
    return InnerConfig(
        total_steps=manifest.run.steps,
        lr=section.lr,
        warmup_steps=section.warmup,
        weight_decay=section.weight_decay,
        betas=(section.beta1, section.beta2),
        clip=section.clip,
    )


@dataclass(frozen=True)
class StepResult:
    """One inner step: loss (nats per token, z-loss included), gradient norm before clipping, tokens predicted.

    `skipped` says that the loss or the gradient was not finite, so that the parameters were left alone.
    """

    loss: float
    grad_norm: float
    tokens: int
    skipped: bool = False


def resolve_device(name: str) -> torch.device:
    """The device for `auto` (cuda where there is one), `cpu` or `cuda`; UserError if it is another or is absent."""
    if name not in ("auto", "cpu", "cuda"):
        raise UserError.field("device", name, "must be auto, cpu or cuda")
    present = name != "cpu" and torch.cuda.is_available()
    if name == "cuda" and not present:
        raise UserError.field("device", name, "torch finds no CUDA device here; use cpu or auto")
    return torch.device("cuda" if present else "cpu")


def set_threads(threads: int) -> None:
    """Let torch compute with that many threads in this process; 0 leaves its default."""
    assert threads >= 0, threads
    if threads:
        torch.set_num_threads(threads)


def make_optimizer(model: nn.Module, config: InnerConfig) -> torch.optim.AdamW:
    """AdamW over all trainable parameters, with weight decay on matrices only (norms and biases have none)."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in trainable if p.dim() <= 1], "weight_decay": 0.0},
    ]
    # fused: one kernel for all tensors, also on the CPU, where it halves the optimizer's share of a tiny model's step.
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)


def learning_rate(step: int, config: InnerConfig) -> float:
    """The rate of inner step `step` (from 0): linear warm-up, then a cosine to a tenth at `total_steps`, then flat."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    span = max(1, config.total_steps - config.warmup_steps)
    progress = min(1.0, (step - config.warmup_steps) / span)
    return config.lr * (FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + math.cos(math.pi * progress)))


def train_step(
    model: Decoder,
    optimizer: torch.optim.Optimizer,
    batch: Tensor,
    config: InnerConfig,
    step: int,
    *,
    warm_up: float = 1.0,
) -> StepResult:
    """Train on one batch, int64 (B, T+1) on any device, as inner step `step` (from 0).

    `warm_up` is the share of that step's learning rate to use: a newcomer's fresh optimizer starts gently.

    A loss or gradient that is not finite leaves parameters and optimizer untouched (and its hooks uncalled).
    """
    for group in optimizer.param_groups:
        group["lr"] = warm_up * learning_rate(step, config)
    loss = model.loss(batch.to(model.turns.device))
    loss.backward()  # type: ignore[no-untyped-call]
    norm = nn.utils.clip_grad_norm_(model.parameters(), config.clip)
    values = float(loss.detach()), float(norm)
    skipped = not all(map(math.isfinite, values))
    if not skipped:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return StepResult(loss=values[0], grad_norm=values[1], tokens=batch[:, 1:].numel(), skipped=skipped)
