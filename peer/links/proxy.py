"""A TCP proxy in front of every node of a local swarm, which knows whose each connection is.

libp2p dials from the port that it listens at wherever it can, so the source's port usually names the node. Where it
does not, whoever made the proxy is asked who owns the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from random import Random
from typing import Final

from peer.links.relay import PIECE, Relay
from peer.links.shape import SEGMENT
from peer.links.table import ENTRY, LinkTable, Node

log = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
_RECEIVE_BUFFER: Final = 16 * 1024
_SHAPED_LIMIT: Final = 16 * 1024
_BACKLOG: Final = 128

OwnerOf = Callable[[int, int], Node]
"""(port of the connecting socket, port that it connected to) → whose it is. Runs in a thread of its own."""


class Proxy:
    """Listeners, one a node, and the connections that they accepted."""

    def __init__(self, table: LinkTable, owner_of: OwnerOf, *, shaped: bool, seed: int = 0) -> None:
        """`shaped`: kernel buffers are kept small, so that what a slow link holds up is held at its sender."""
        self._table, self._owner_of, self._shaped = table, owner_of, shaped
        self._limit = _SHAPED_LIMIT if shaped else PIECE
        self._random = Random(seed)
        self._backends: dict[Node, int] = {}
        self._nodes: dict[int, Node] = {}
        """From the port that a node listens at to the node."""
        self._servers: list[asyncio.Server] = []
        self._relays: set[asyncio.Task[None]] = set()

    async def open(self, node: Node) -> int:
        """Listen for a node; returns the port that others dial."""
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if self._shaped:
            _keep_little(listening)
        listening.bind((HOST, 0))

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(self._serve(node, reader, writer))
            self._relays.add(task)
            task.add_done_callback(self._relays.discard)

        self._servers.append(await asyncio.start_server(accept, sock=listening, backlog=_BACKLOG, limit=self._limit))
        return int(listening.getsockname()[1])

    def set_backend(self, node: Node, port: int) -> None:
        """From now on the node listens at `port`, in this life of it."""
        if node in self._backends:
            self._nodes.pop(self._backends[node], None)
        self._backends[node] = port
        self._nodes[port] = node

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._relays)

    async def close(self) -> None:
        """End everything at once."""
        for server in self._servers:
            server.close()
        for task in self._relays:
            task.cancel()
        if self._relays:
            await asyncio.wait(self._relays, timeout=5)

    async def _serve(self, node: Node, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            source = await self._whose(writer)
            if await self._relay(source, node, (reader, writer)):
                return
            self._table.traffic[node].refused += 1
        except OSError as error:
            log.debug("a connection to node %d broke: %s", node, error)
        except Exception:  # one connection must not cost the others theirs
            log.exception("a connection to %s failed", "the entry node" if node == ENTRY else f"peer {node}")
        finally:
            if not writer.is_closing():
                writer.transport.abort()

    async def _whose(self, writer: asyncio.StreamWriter) -> Node:
        port, ours = writer.get_extra_info("peername")[1], writer.get_extra_info("sockname")[1]
        if port in self._nodes:
            return self._nodes[port]
        return await asyncio.to_thread(self._owner_of, port, ours)

    async def _relay(
        self, source: Node, node: Node, accepted: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    ) -> bool:
        """Carry the connection to its end. False if it is refused: cut off, or nobody listens there."""
        if self._table.apart(source, node) or node not in self._backends:
            return False
        if delay := self._table.path(source, node).round_trip:
            await asyncio.sleep(delay)  # the handshake's own round trip
        try:
            onward = await asyncio.open_connection(HOST, self._backends[node], limit=self._limit)
        except OSError:
            return False
        self._table.traffic[node].accepted += 1
        await Relay(self._table, source, node, self._random.random).run(accepted, onward)
        return True


def _keep_little(listening: socket.socket) -> None:
    """Small segments and a small buffer: on loopback a sender's kernel would take megabytes that no slow link holds."""
    with contextlib.suppress(OSError, AttributeError):  # not every system lets a listener choose its segments
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
