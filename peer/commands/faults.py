"""Faults of a local swarm, done to real processes and to the links between them. Peers count from 0.

What each fault is, and which of them a swarm gets. `peer/commands/fault_flags.py` reads them from flags,
`peer/commands/fault_runner.py` does them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from peer.links.shape import LinkShape

FaultKind = Literal["kill", "leave", "freeze", "restart", "join", "partition"]
Group = tuple[int, ...]


@dataclass(frozen=True)
class Kill:
    """SIGKILL to peer `peer` when it reports swarm step `step`."""

    kind: ClassVar[FaultKind] = "kill"
    peer: int
    step: int


@dataclass(frozen=True)
class Leave:
    """SIGTERM to peer `peer` when it reports swarm step `step`: it says goodbye and ends."""

    kind: ClassVar[FaultKind] = "leave"
    peer: int
    step: int


@dataclass(frozen=True)
class Freeze:
    """SIGSTOP to peer `peer` and its libp2p daemon when it reports swarm step `step`, SIGCONT `seconds` later."""

    kind: ClassVar[FaultKind] = "freeze"
    peer: int
    step: int
    seconds: float


@dataclass(frozen=True)
class Restart:
    """SIGKILL to peer `peer` when it reports swarm step `step`; `seconds` later it is started with its directory."""

    kind: ClassVar[FaultKind] = "restart"
    peer: int
    step: int
    seconds: float


@dataclass(frozen=True)
class Join:
    """Peer `peer` is started only when somebody in the swarm reports step `step`."""

    kind: ClassVar[FaultKind] = "join"
    peer: int
    step: int


@dataclass(frozen=True)
class Partition:
    """From swarm step `step` on, for `seconds`, nothing passes between peers of different groups.

    Peers that no group names, and the entry node, are in the first one.
    """

    kind: ClassVar[FaultKind] = "partition"
    groups: tuple[Group, ...]
    step: int
    seconds: float

    def group_of(self, node: int) -> int:
        """The number of a node's group."""
        return next((number for number, group in enumerate(self.groups) if node in group), 0)


@dataclass(frozen=True)
class Slow:
    """Every inner step of peer `peer` takes `factor` times as long."""

    peer: int
    factor: float


Fault = Kill | Leave | Freeze | Restart | Join | Partition
PeerFault = Kill | Leave | Freeze | Restart
"""What becomes due by the steps that the peer itself reports."""


@dataclass(frozen=True)
class Faults:
    """All faults of one local swarm."""

    kills: tuple[Kill, ...] = ()
    freezes: tuple[Freeze, ...] = ()
    slows: tuple[Slow, ...] = ()
    leaves: tuple[Leave, ...] = ()
    restarts: tuple[Restart, ...] = ()
    joins: tuple[Join, ...] = ()
    partitions: tuple[Partition, ...] = ()
    links: tuple[LinkShape, ...] = ()
    """One for each peer; empty if no flag asks for any."""

    def slowdown(self, peer: int) -> float:
        """The factor by which a peer is slowed down; 1 for none."""
        return next((slow.factor for slow in self.slows if slow.peer == peer), 1.0)

    def join_of(self, peer: int) -> Join | None:
        """When a peer comes, if not at the start."""
        return next((join for join in self.joins if join.peer == peer), None)

    def of_peer(self, peer: int) -> Iterator[PeerFault]:
        """What happens to a peer by its own steps, in the order of these."""
        yield from (fault for fault in self.events() if isinstance(fault, PeerFault) and fault.peer == peer)

    def events(self) -> list[Fault]:
        """Everything that happens at a step, in the order of the steps."""
        every: list[Fault] = [*self.joins, *self.partitions, *self.freezes, *self.restarts, *self.leaves, *self.kills]
        return sorted(every, key=lambda fault: fault.step)

    @property
    def need_proxies(self) -> bool:
        """Whether anything is to be done to links: only then do connections go through proxies."""
        return bool(self.partitions or self.links)
