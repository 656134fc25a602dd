"""The emulated links of a local swarm: a proxy in front of each peer and of the bootstrap server.

Each process listens at a port of its own, which only its proxy is told, and announces the proxy's.
"""

from __future__ import annotations

from peer.commands.faults import Faults, Partition
from peer.commands.report_format import LinkEntry
from peer.links.proxy import HOST
from peer.links.shape import LinkShape
from peer.links.sockets import free_port, owner_of
from peer.links.table import ENTRY, OUTSIDE, NodeTraffic
from peer.links.thread import LinkThread


class SwarmLinks:
    """All links of one swarm, from its making until `close`."""

    def __init__(self, faults: Faults, num_peers: int, seed: int) -> None:
        self._shapes = dict(enumerate(faults.links))
        self._processes: dict[int, int] = {}
        """The node of each process id. Replaced, never changed: the proxy's thread reads it."""
        self._thread = LinkThread([ENTRY, *range(num_peers)], self._shapes, self._owner_of, seed=seed)

    def flags(self, node: int) -> list[str]:
        """What the next life of a node's process must be told: where to listen, and what to announce."""
        port = free_port(HOST)
        self._thread.set_backend(node, port)
        listen, announce = (f"/ip4/{HOST}/tcp/{number}" for number in (port, self._thread.ports[node]))
        return ["--listen", listen, "--announce", announce]

    def started(self, node: int, pid: int) -> None:
        """A node's process was started; an earlier one of it is gone."""
        others = {process: other for process, other in self._processes.items() if other != node}
        self._processes = {**others, pid: node}

    def cut(self, partition: Partition) -> None:
        """Part the groups."""
        self._thread.cut(partition, partition.group_of)

    def heal(self, partition: Partition) -> None:
        """Connect them again."""
        self._thread.heal(partition)

    def entries(self) -> tuple[LinkEntry, ...]:
        """What went through each link, for the report; the entry node first."""
        traffic = self._thread.traffic()
        return tuple(self._entry(node, traffic.get(node, NodeTraffic())) for node in sorted(self._thread.ports))

    def _entry(self, node: int, traffic: NodeTraffic) -> LinkEntry:
        shape = self._shapes.get(node, LinkShape())
        return LinkEntry(
            peer=None if node == ENTRY else node,
            mbit=shape.mbit,
            latency=shape.latency,
            loss=shape.loss,
            bytes_up=traffic.up,
            bytes_down=traffic.down,
            accepted=traffic.accepted,
            refused=traffic.refused,
        )

    def close(self) -> None:
        """End all connections. May be called twice."""
        self._thread.close()

    def _owner_of(self, port: int, remote_port: int) -> int:
        return owner_of(self._processes, port, remote_port, otherwise=OUTSIDE)
