"""How a chunk of an outer gradient becomes bytes, and back.

Two codecs behind one small interface. `fp32` is the numbers themselves. `e3m0` is the paper's 4-bit format (arXiv
2501.18512, section 2.4): a sign and three exponent bits, so zero and seven powers of two over a range of 64:1, with
one scale byte for each block of at most 256 values. A whole tensor with one scale would be unsafe: most of a
heavy-tailed gradient would become zero.

E3M0 in full. A payload is ceil(numel / block) scale bytes, then ceil(numel / 2) bytes of codes, the earlier value in
the low half. A code is sign * 8 + c. With the block's scale byte s, c = 0 is zero and c = 1..7 is 2^(s+c-134), so
that c = 7 is the block's greatest magnitude rounded to a power of two. Every value goes to the nearest representable
one, a tie to the greater magnitude. The scale is kept within 8..254:

- at most 254, so that a value near the greatest fp32 number rounds down to 2^127 and never to infinity;
- at least 8, so that half of the smallest code is a normal fp32 number. Magnitudes below 2^-126 (all denormals)
  become zero;
- a block with nothing but zeros has scale byte 0.

The encoding is canonical: one payload for one decoded vector. There is no negative zero, a scale above 8 has a code
with c = 7 in its block, and the unused half byte of an odd length is zero. `check` holds all senders to this, so equal
values have one digest. Encoding is integer arithmetic on fp32 bit patterns, and decoding multiplies powers of two that
are normal numbers: the same bytes on every CPU, for any number of threads and any flush-to-zero mode.
"""

from abc import ABC, abstractmethod
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_Bytes = npt.NDArray[np.uint8]
_T = TypeVar("_T", bound=np.generic)

MAX_BLOCK = 256
_PIECE = 1 << 16  # elements handled at once: the working arrays then stay in a core's cache
_MAGNITUDE = np.int32(0x7FFFFFFF)
_INFINITY = 0x7F800000
LARGEST = 2.0**127  # the greatest magnitude that a payload can hold
_LARGEST_BITS = 0x7F000000  # its bit pattern
_HALF = 0x400000  # added to a bit pattern, it rounds the exponent to the nearest power of two
_LOWEST_SCALE, _HIGHEST_SCALE = 8, 254
_NEGATIVE_ZERO = 8


class Codec(ABC):
    """Turns a 1-D fp32 CPU tensor into bytes and back; encoding a decoded payload gives that payload again."""

    name: str

    @abstractmethod
    def packed_bytes(self, numel: int) -> int:
        """Length of the payload of `numel` values, scales included."""

    @abstractmethod
    def encode(self, values: Tensor) -> bytes:
        """Payload of a 1-D fp32 tensor. Raises ValueError when a value is not finite or too large."""

    @abstractmethod
    def decode(self, payload: bytes, numel: int) -> Tensor:
        """The 1-D fp32 tensor (numel) of a payload that has passed `check`. Raises ValueError on a wrong length."""

    @abstractmethod
    def check(self, payload: bytes, numel: int) -> None:
        """Raises ValueError unless `encode` could have made this payload from `numel` values."""

    def _check_length(self, payload: bytes, numel: int) -> None:
        if len(payload) != self.packed_bytes(numel):
            right = self.packed_bytes(numel)
            raise ValueError(f"{self.name} payload of {numel} values has {len(payload)} bytes: must have {right}")


class Fp32(Codec):
    """The values as little-endian fp32. Magnitudes above 2^127 are refused, so that no weighted mean can overflow."""

    name = "fp32"

    def packed_bytes(self, numel: int) -> int:
        return 4 * numel

    def encode(self, values: Tensor) -> bytes:
        array = _array(values)
        _check_magnitudes(array)
        return array.astype("<f4", copy=False).tobytes()

    def decode(self, payload: bytes, numel: int) -> Tensor:
        self._check_length(payload, numel)
        return torch.from_numpy(np.frombuffer(payload, "<f4").astype(np.float32))

    def check(self, payload: bytes, numel: int) -> None:
        self._check_length(payload, numel)
        _check_magnitudes(np.frombuffer(payload, "<f4"))


class E3M0(Codec):
    """Sign and three exponent bits a value, one power-of-two scale a block; the format is at the head of this file."""

    name = "e3m0"

    def __init__(self, block: int = MAX_BLOCK) -> None:
        if not 1 <= block <= MAX_BLOCK:
            raise ValueError(f"block = {block}: must be between 1 and {MAX_BLOCK}")
        self.block = block
        self._piece = 2 * block * max(1, _PIECE // (2 * block))  # whole blocks, and an even number of values

    def packed_bytes(self, numel: int) -> int:
        return self._num_blocks(numel) + (numel + 1) // 2

    def encode(self, values: Tensor) -> bytes:
        array = _array(values)
        num_blocks = self._num_blocks(array.size)
        out = np.empty(self.packed_bytes(array.size), np.uint8)
        scales, packed = out[:num_blocks], out[num_blocks:]
        for start in range(0, array.size, self._piece):
            piece = _padded(array[start : start + self._piece], 2 * self.block).reshape(-1, self.block)
            piece_scales, codes = _quantize(piece)
            _fill(scales[start // self.block :], piece_scales)
            pairs = codes.reshape(-1).view("<u2")
            _fill(packed[start // 2 :], (pairs | (pairs >> 4)).astype(np.uint8))
        return out.tobytes()

    def decode(self, payload: bytes, numel: int) -> Tensor:
        self._check_length(payload, numel)
        scales, packed = self._split(payload, numel)
        units = _unit(scales)
        out = np.empty(2 * packed.size, np.float32)
        for start in range(0, numel, self._piece):
            stop = start + self._piece
            pairs = packed[start // 2 : stop // 2]
            np.take(_DECODED, pairs, out=out[start:stop].view(np.uint64), mode="clip")
            _scale_blocks(out[start : min(stop, numel)], units[start // self.block :], self.block)
        return torch.from_numpy(out[:numel])

    def check(self, payload: bytes, numel: int) -> None:
        self._check_length(payload, numel)
        scales, packed = self._split(payload, numel)
        codes = _unpack(packed)
        if (codes == _NEGATIVE_ZERO).any():
            raise ValueError("e3m0 payload holds a negative zero: zeros must have code 0")
        if codes[numel:].any():
            raise ValueError("e3m0 payload ends with a half byte that is not zero")
        tops = (_padded(codes[:numel], self.block) & 7).reshape(-1, self.block).max(axis=1, initial=0)
        if not _scales_fit(scales, tops).all():
            raise ValueError("e3m0 payload holds a scale byte that does not belong to its block's codes")

    def _num_blocks(self, numel: int) -> int:
        return -(-numel // self.block)

    def _split(self, payload: bytes, numel: int) -> tuple[_Bytes, _Bytes]:
        array = np.frombuffer(payload, np.uint8)
        return array[: self._num_blocks(numel)], array[self._num_blocks(numel) :]


def codec(name: str, block: int = MAX_BLOCK) -> Codec:
    """The codec of that name; `block` is the number of values under one scale. Raises ValueError on an unknown name."""
    if name == Fp32.name:
        return Fp32()
    if name == E3M0.name:
        return E3M0(block)
    raise ValueError(f"codec = {name!r}: must be one of {E3M0.name}, {Fp32.name}")


def _quantize(values: npt.NDArray[np.float32]) -> tuple[_Bytes, _Bytes]:
    """(blocks, block) fp32 -> scale bytes (blocks), codes (blocks, block). Raises ValueError on a non-finite value."""
    magnitudes = values.view(np.int32) & _MAGNITUDE
    tops = magnitudes.max(axis=1)
    if (tops >= _INFINITY).any():
        raise ValueError("e3m0 cannot encode a value that is not finite")
    scales = ((tops + _HALF) >> 23).clip(_LOWEST_SCALE, _HIGHEST_SCALE)
    # From here on a magnitude counts from the block's zero point in half exponents: 0 is below half the smallest code,
    # so it is zero; 1 is the upper half of the way to the smallest code, so it is 1; above, two halves make one code.
    magnitudes -= ((scales - 7 << 23) - _HALF)[:, None]
    np.clip(magnitudes, 0, (8 << 23) - 1, out=magnitudes)
    magnitudes >>= 22
    halves = magnitudes.astype(np.uint8)
    nonzero = np.minimum(halves, 1)
    codes = np.maximum(halves >> 1, nonzero)
    nonzero &= np.signbit(values).view(np.uint8)
    codes |= nonzero << 3
    return np.where(tops < 1 << 23, 0, scales).astype(np.uint8), codes


def _scales_fit(scales: _Bytes, tops: _Bytes) -> npt.NDArray[np.bool_]:
    """Whether each block's scale byte is the one that `_quantize` gives with that greatest code (0..7)."""
    lowest = (scales == _LOWEST_SCALE) & (tops > 0)
    normal = (scales > _LOWEST_SCALE) & (scales <= _HIGHEST_SCALE) & (tops == 7)
    fit: npt.NDArray[np.bool_] = ((scales == 0) & (tops == 0)) | lowest | normal
    return fit


def _unpack(packed: _Bytes) -> _Bytes:
    codes = np.empty((packed.size, 2), np.uint8)
    np.bitwise_and(packed, 15, out=codes[:, 0])
    np.right_shift(packed, 4, out=codes[:, 1])
    return codes.reshape(-1)


def _decoded_pairs() -> npt.NDArray[np.uint64]:
    """For each byte of codes its two values at scale 127, as the 8 bytes of two fp32 numbers."""
    one = np.array([0.0] + [2.0 ** (c - 7) for c in range(1, 8)], np.float32)
    nibbles = np.concatenate([one, np.where(one > 0, -one, 0)]).astype(np.float32)
    return nibbles[_unpack(np.arange(256, dtype=np.uint8))].view(np.uint64)


_DECODED = _decoded_pairs()


def _unit(scales: _Bytes) -> npt.NDArray[np.float32]:
    """2^(scale - 127) of each scale byte; 0 for scale byte 0."""
    return (scales.astype(np.int32) << 23).view(np.float32)


def _scale_blocks(values: npt.NDArray[np.float32], units: npt.NDArray[np.float32], block: int) -> None:
    """Multiplies each block of `values` by its unit, in place. Exact: both factors are powers of two or zero."""
    whole = values.size - values.size % block
    blocks = values[:whole].reshape(-1, block)
    blocks *= units[: len(blocks), None]
    if whole < values.size:
        values[whole:] *= units[len(blocks)]


def _array(values: Tensor) -> npt.NDArray[np.float32]:
    assert values.dtype == torch.float32 and values.dim() == 1, (values.dtype, values.shape)
    array: npt.NDArray[np.float32] = values.detach().cpu().contiguous().numpy()
    return array


def _check_magnitudes(array: npt.NDArray[np.float32]) -> None:
    if array.size and int((array.view(np.int32) & _MAGNITUDE).max()) > _LARGEST_BITS:
        raise ValueError("fp32 payload holds a value that is not finite or above 2^127")


def _padded(array: npt.NDArray[_T], multiple: int) -> npt.NDArray[_T]:
    """The array, with zeros behind up to a whole multiple."""
    missing = -array.size % multiple
    return np.pad(array, (0, missing)) if missing else array


def _fill(target: _Bytes, source: _Bytes) -> None:
    """Writes as much of `source` as `target` has room for: what is over is padding."""
    size = min(target.size, source.size)
    target[:size] = source[:size]
