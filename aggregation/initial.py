"""Initial parameters that every peer computes for itself, to the same bytes.

torch.randn gives other bytes on other CPUs, so the generator is specified here by its bytes. Piece k of parameter
`name`, 2^18 values in row-major order, is the output of SHAKE-128 on

    "potluck initial 1" 0x00 ‖ seed (8 bytes) ‖ k (8 bytes) ‖ name (UTF-8)          all integers little-endian

read as four 16-bit little-endian numbers a value. Their sum less its mean is an integer of bell shape (Irwin-Hall of
order four, within ±3.46 standard deviations); one fp32 multiplication gives it the spread asked for. An integer sum
and a single rounding cannot differ between machines.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from aggregation.outer import little_endian

DEFAULT_STD = 0.02
_PIECE = 1 << 18
_MEAN = 2 * 65535  # of the sum of four uniform 16-bit numbers
_DEVIATION = math.sqrt((2**32 - 1) / 3)  # four times the variance of one, (2^32 - 1) / 12


def normal(seed: int, name: str, shape: tuple[int, ...], std: float) -> Tensor:
    """A fp32 CPU tensor of that shape, about N(0, std²). Raises ValueError for a seed outside 64 bits or a bad std."""
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed = {seed}: must be between 0 and 2^64 - 1")
    if not (std >= 0 and math.isfinite(std)):
        raise ValueError(f"std of {name} = {std}: must be finite and not negative")
    values = np.empty(math.prod(shape), np.float32)
    for start in range(0, values.size, _PIECE):
        piece = values[start : start + _PIECE]
        piece[:] = _sums(seed, name, start // _PIECE, piece.size)
    values *= np.float32(std / _DEVIATION)
    return torch.from_numpy(values).reshape(shape)


def _sums(seed: int, name: str, piece: int, size: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    header = b"potluck initial 1\0" + seed.to_bytes(8, "little") + piece.to_bytes(8, "little")
    stream = hashlib.shake_128(header + name.encode()).digest(8 * size)
    parts = np.frombuffer(stream, "<u2").reshape(size, 4).astype(np.int32)
    return parts[:, 0] + parts[:, 1] + parts[:, 2] + parts[:, 3] - np.int32(_MEAN)


@torch.no_grad()
def initialize(module: nn.Module, seed: int, stds: Mapping[str, float] | None = None) -> None:
    """Fills every trainable parameter in place; a tied one once, under its first name.

    `stds` gives the standard deviation of the parameters it names. The others: matrices and larger N(0, 0.02²),
    vectors called `bias` zeros, other vectors (the scales of norms) ones. Raises ValueError when `stds` names no such
    parameter.
    """
    stds = {} if stds is None else stds
    parameters = dict(_trainable(module))
    unknown = sorted(stds.keys() - parameters.keys())
    if unknown:
        raise ValueError(f"stds names {unknown[0]!r}: must be a trainable parameter of the module")
    for name, parameter in parameters.items():
        parameter.copy_(_initial(seed, name, tuple(parameter.shape), stds.get(name)))


def _initial(seed: int, name: str, shape: tuple[int, ...], std: float | None) -> Tensor:
    if std is not None or len(shape) > 1:
        return normal(seed, name, shape, DEFAULT_STD if std is None else std)
    if name.rpartition(".")[2].endswith("bias"):
        return torch.zeros(shape)
    return torch.ones(shape)


def parameters_digest(parameters: nn.Module | Iterable[tuple[str, Tensor]]) -> bytes:
    """SHA-256 (32 bytes) over each trainable parameter's name, shape and fp32 bytes, in the module's or given order."""
    named = _trainable(parameters) if isinstance(parameters, nn.Module) else parameters
    digest = hashlib.sha256()
    for name, tensor in named:
        digest.update(f"{name}{list(tensor.shape)}\n".encode())
        digest.update(little_endian(tensor.detach().to("cpu", torch.float32)))
    return digest.digest()


def _trainable(module: nn.Module) -> Iterable[tuple[str, Tensor]]:
    return ((name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad)
