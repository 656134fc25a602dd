"""What survives a kill: a peer's snapshots, as its disk lets it write them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor

from aggregation.outer import ChunkState
from protocol.ledger import Entry, Ledger

KEPT: Final = 2


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A peer between two inner steps: its parameters, and every chunk as the ledger keeps it."""

    step: int
    theta: Tensor
    """(chunks, elements), fp32."""
    chains: tuple[tuple[ChunkState, bytes, Entry | None], ...]
    """Of each chunk: the state one link behind, the head that names it, and the newest link."""


def photograph(step: int, theta: Tensor, ledger: Ledger[Any]) -> Snapshot:
    """A snapshot of now."""
    chains = tuple((chain.base, chain.base_head, chain.newest) for chain in ledger.chains)
    return Snapshot(step, theta.clone(), chains)


def restore(snapshot: Snapshot, ledger: Ledger[Any]) -> None:
    """Bring a fresh ledger to where the snapshot's was. Earlier links are not kept on disk."""
    for chain, (base, head, newest) in zip(ledger.chains, snapshot.chains, strict=True):
        chain.base, chain.base_head, chain.newest = base, head, newest


@dataclass(slots=True)
class Disk:
    """One peer's directory."""

    write_seconds: float = 0.05
    full_until: float = 0.0
    failed: int = 0
    _written: list[tuple[float, Snapshot]] = field(default_factory=list)
    """(when it is complete, snapshot), the newest last."""

    def save(self, snapshot: Snapshot, now: float) -> None:
        """Write one in the background. A full disk keeps the older ones."""
        if now < self.full_until:
            self.failed += 1
            return
        self._written.append((now + self.write_seconds, snapshot))
        complete = [one for one in self._written if one[0] <= now]
        if len(complete) > KEPT:
            self._written.remove(complete[0])

    def newest(self, now: float) -> Snapshot | None:
        """The newest one that is complete. One that a kill cut short is thrown away."""
        self._written = [one for one in self._written if one[0] <= now]
        return self._written[-1][1] if self._written else None
