"""The outer optimizer and the merge (Streaming DiLoCo, arXiv 2501.18512, Algorithm 2).

Every peer must get the same bytes from the same inputs, on any CPU and for any number of threads. So there are only
separate elementwise multiplies, adds and subtracts here, each rounded by itself. `add(alpha=)`, `lerp` and `addcmul`
contract into a fused multiply-add on some CPUs and not on others; reductions depend on the number of threads. A process
that turns flush-to-zero on (torch.set_flush_denormal) gets other bytes for denormals, and the ledger will say so.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class ChunkState:
    """What the swarm last agreed on for a chunk: both fp32, 1-D (numel), on the CPU; never changed in place."""

    anchor: Tensor
    momentum: Tensor

    def __post_init__(self) -> None:
        for tensor in (self.anchor, self.momentum):
            assert tensor.dtype == torch.float32 and tensor.dim() == 1 and tensor.device.type == "cpu", tensor.dtype
        assert self.anchor.shape == self.momentum.shape, (self.anchor.shape, self.momentum.shape)


def fresh(anchor: Tensor) -> ChunkState:
    """The state at genesis: a copy of the initial parameters (numel, any device and float dtype), momentum zero."""
    anchor = anchor.detach().to("cpu", torch.float32, copy=True)
    return ChunkState(anchor, torch.zeros_like(anchor))


def outer_gradient(anchor: Tensor, local: Tensor) -> Tensor:
    """Δ = anchor − θ, fp32 (numel): it points from where training got to back to where it began, like a gradient.

    Algorithm 2, with θ(t−H) read as the outer parameters: with α > 0 it would differ between replicas. `local` may be
    on any device and of any float dtype.
    """
    return anchor - local.detach().to(anchor.device, torch.float32)


def accumulate(contributions: Sequence[tuple[int, Tensor]]) -> Tensor:
    """Σ Δ · fp32(weight / Σ weights) in the given order, fp32 (numel); the caller's order is part of the result.

    Raises ValueError when there is nothing to add up, a weight is not positive, or the shapes differ.
    """
    if not contributions:
        raise ValueError("contributions: must have at least one")
    total = sum(weight for weight, _ in contributions)
    mean = torch.zeros_like(contributions[0][1])
    for weight, delta in contributions:
        if weight < 1:
            raise ValueError(f"weight = {weight}: must be at least 1")
        if delta.shape != mean.shape:
            raise ValueError(f"shape = {tuple(delta.shape)}: must be {tuple(mean.shape)}, as the first contribution's")
        mean += delta * (weight / total)
    return mean


def outer_step(state: ChunkState, mean_delta: Tensor, *, lr: float, momentum: float) -> ChunkState:
    """SGD with Nesterov momentum: v ← μ·v + Δ̄, anchor ← anchor − lr·(Δ̄ + μ·v).

    The outer optimizer of Algorithm 2. `mean_delta` is Δ̄, fp32 (numel). Neither input is changed.
    """
    velocity = state.momentum * momentum
    velocity += mean_delta
    step = velocity * momentum
    step += mean_delta
    step *= lr
    return ChunkState(state.anchor - step, velocity)


def merge(local: Tensor, anchor: Tensor, alpha: float) -> Tensor:
    """α·θ + (1 − α)·anchor (Algorithm 2, line 12), a new tensor of `local`'s shape, device and dtype.

    Computed in fp32. α = 1 gives the local values and α = 0 the anchor's, exactly. Raises ValueError for α outside
    [0, 1].
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha = {alpha}: must be between 0 and 1")
    if alpha == 1:
        return local.detach().clone()
    theirs = anchor.detach().to(local.device, torch.float32).reshape(local.shape)
    if alpha == 0:
        return theirs.to(local.dtype, copy=True)
    mixed = local.detach().to(torch.float32) * alpha
    mixed += theirs * (1 - alpha)
    return mixed.to(local.dtype)


def state_digest(state: ChunkState) -> bytes:
    """SHA-256 (32 bytes) of the anchor's then the momentum's little-endian fp32 bytes."""
    digest = hashlib.sha256(little_endian(state.anchor))
    digest.update(little_endian(state.momentum))
    return digest.digest()


def little_endian(values: Tensor) -> memoryview:
    """The bytes of a contiguous fp32 CPU tensor in little-endian order, without a copy where the machine is so."""
    assert values.dtype == torch.float32, values.dtype
    return values.detach().contiguous().reshape(-1).numpy().astype("<f4", copy=False).view(np.uint8).data
