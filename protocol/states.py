"""What the ledger needs of whoever owns tensors and disks. States are opaque to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


class Arithmetic(Protocol[S]):
    """What the ledger needs to know about tensors. Every method is pure; ValueError means bad bytes.

    `contribution` and `mean` are for the window; they stand here so that there is one interface to implement.
    """

    def contribution(self, chunk: int, state: S, local: Any) -> bytes: ...
    def mean(self, chunk: int, contributions: Sequence[tuple[int, bytes]]) -> bytes: ...
    def apply(self, chunk: int, state: S, payload: bytes) -> S: ...
    def check_contribution(self, chunk: int, payload: bytes) -> None: ...
    def check_result(self, chunk: int, payload: bytes) -> None: ...
    def digest(self, state: S) -> bytes: ...
    def distance(self, chunk: int, state: S, local: Any) -> float: ...
    def dump(self, state: S) -> bytes: ...
    def load(self, chunk: int, data: bytes) -> S: ...
    def result_bytes(self, chunk: int) -> int: ...


class OlderStates(Protocol[S_co]):
    """States that a peer has on disk: where a losing branch goes back to. Called in the outer thread, so quick."""

    def heads(self, chunk: int) -> Sequence[bytes]:
        """The heads at which states of the chunk are there, newest first."""

    def load(self, chunk: int, head: bytes) -> S_co | None:
        """The state at a head; None if it cannot be read any more. The ledger checks its digest."""
