"""Arithmetic that is done once a swarm instead of once a peer: every peer of a simulated run applies the same links.

Every method of aggregation/'s `Arithmetic` is a pure function, and states are never changed in place. So equal inputs,
compared by all their bytes, may share one result. What that would hide, a state changed in place, `unchanged` finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from aggregation.arithmetic import Arithmetic
from aggregation.outer import ChunkState, state_digest


class Remembered:
    """An `Arithmetic` and what it has computed."""

    def __init__(self, real: Arithmetic) -> None:
        self._real = real
        self._digests: dict[int, tuple[ChunkState, bytes]] = {}
        self._results: dict[tuple[Any, ...], Any] = {}

    def _once(self, key: tuple[Any, ...], compute: Any, *arguments: Any) -> Any:
        """A ValueError is not remembered: it comes again."""
        if key not in self._results:
            self._results[key] = compute(*arguments)
        return self._results[key]

    def contribution(self, chunk: int, state: ChunkState, local: Tensor) -> bytes:
        return self._real.contribution(chunk, state, local)

    def mean(self, chunk: int, contributions: Sequence[tuple[int, bytes]]) -> bytes:
        payload: bytes = self._once(("mean", chunk, *contributions), self._real.mean, chunk, contributions)
        return payload

    def apply(self, chunk: int, state: ChunkState, payload: bytes) -> ChunkState:
        key = ("apply", chunk, self.digest(state), payload)
        after: ChunkState = self._once(key, self._real.apply, chunk, state, payload)
        return after

    def check_contribution(self, chunk: int, payload: bytes) -> None:
        self._once(("contribution", chunk, payload), self._real.check_contribution, chunk, payload)

    def check_result(self, chunk: int, payload: bytes) -> None:
        self._once(("result", chunk, payload), self._real.check_result, chunk, payload)

    def result_bytes(self, chunk: int) -> int:
        return self._real.result_bytes(chunk)

    def digest(self, state: ChunkState) -> bytes:
        """By identity; the state is kept, so that no other one can get its id."""
        known = self._digests.get(id(state))
        if known is None:
            known = self._digests[id(state)] = (state, self._real.digest(state))
        return known[1]

    def distance(self, chunk: int, state: ChunkState, local: Tensor) -> float:
        return self._real.distance(chunk, state, local)

    def dump(self, state: ChunkState) -> bytes:
        return self._real.dump(state)

    def load(self, chunk: int, data: bytes) -> ChunkState:
        state: ChunkState = self._once(("load", chunk, data), self._real.load, chunk, data)
        return state

    def unchanged(self) -> bool:
        """Whether every state still has the bytes that it had when it was first seen."""
        return all(state_digest(state) == digest for state, digest in self._digests.values())
