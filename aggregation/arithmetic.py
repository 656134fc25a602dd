"""All tensor work that the ledger needs, behind bytes: protocol/ passes payloads and states on and sees no tensor.

The ledger knows these methods by their shape only (a typing.Protocol of its own), so the two packages do not import
each other. Chunks are numbered as `Layout.chunks` numbers them.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from aggregation.codecs import LARGEST, Codec
from aggregation.outer import ChunkState, accumulate, little_endian, outer_gradient, outer_step, state_digest


class Arithmetic:
    """The arithmetic of one run: chunk sizes, the two codecs, the outer optimizer's numbers. It has no state."""

    def __init__(
        self, chunks: Sequence[int], *, contribution_codec: Codec, result_codec: Codec, lr: float, momentum: float
    ) -> None:
        self._numel = tuple(chunks)
        self._contributions = contribution_codec
        self._results = result_codec
        self._lr = lr
        self._momentum = momentum

    def contribution(self, chunk: int, state: ChunkState, local: Tensor) -> bytes:
        """Packed Δ = anchor − local; `local` is (numel), any float dtype. Raises ValueError when Δ is not finite."""
        assert local.numel() == self._numel[chunk] == state.anchor.numel(), chunk
        return self._contributions.encode(outer_gradient(state.anchor, local.reshape(-1)))

    def mean(self, chunk: int, contributions: Sequence[tuple[int, bytes]]) -> bytes:
        """The packed mean of (weight, payload) pairs, weighted, added up in the order given (fp32, paper section 2.4).

        The payloads must have passed `check_contribution`; then their mean can always be packed. Raises ValueError as
        `accumulate` does.
        """
        numel = self._numel[chunk]
        decoded = [(weight, self._contributions.decode(payload, numel)) for weight, payload in contributions]
        # Weights are rounded, so the mean of the greatest values could come out a hair above them.
        return self._results.encode(accumulate(decoded).clamp_(-LARGEST, LARGEST))

    def apply(self, chunk: int, state: ChunkState, payload: bytes) -> ChunkState:
        """The state after one more result. Raises ValueError when it would not be finite, alike on every peer."""
        mean = self._results.decode(payload, self._numel[chunk])
        after = outer_step(state, mean, lr=self._lr, momentum=self._momentum)
        _check_finite(after)
        return after

    def check_contribution(self, chunk: int, payload: bytes) -> None:
        """Raises ValueError unless the contributions' codec could have made this payload."""
        self._contributions.check(payload, self._numel[chunk])

    def check_result(self, chunk: int, payload: bytes) -> None:
        """Raises ValueError unless the results' codec could have made this payload."""
        self._results.check(payload, self._numel[chunk])

    def contribution_bytes(self, chunk: int) -> int:
        """Length of a packed contribution, scales included."""
        return self._contributions.packed_bytes(self._numel[chunk])

    def result_bytes(self, chunk: int) -> int:
        """Length of a packed result, scales included."""
        return self._results.packed_bytes(self._numel[chunk])

    def digest(self, state: ChunkState) -> bytes:
        """SHA-256 of a state."""
        return state_digest(state)

    def distance(self, chunk: int, state: ChunkState, local: Tensor) -> float:
        """‖Δ‖₂, how far the local parameters are from the anchor. For thresholds: not the same bytes everywhere."""
        assert local.numel() == self._numel[chunk], chunk
        return float(torch.dist(state.anchor, local.reshape(-1).to(state.anchor.dtype)))

    def dump(self, state: ChunkState) -> bytes:
        """A state as bytes: the anchor, then the momentum, little-endian fp32 (8 bytes a parameter)."""
        return b"".join((little_endian(state.anchor), little_endian(state.momentum)))

    def load(self, chunk: int, data: bytes) -> ChunkState:
        """The state that `dump` wrote. Raises ValueError on a wrong size or a value that is not finite."""
        numel = self._numel[chunk]
        if len(data) != 8 * numel:
            raise ValueError(f"state of chunk {chunk} has {len(data)} bytes: must have {8 * numel}")
        values = torch.from_numpy(np.frombuffer(data, "<f4").astype(np.float32))
        state = ChunkState(values[:numel], values[numel:])
        _check_finite(state)
        return state


def _check_finite(state: ChunkState) -> None:
    if not (bool(state.anchor.isfinite().all()) and bool(state.momentum.isfinite().all())):
        raise ValueError("chunk state holds a value that is not finite")
