"""The state of all emulated links: who is cut off from whom now, how fast and how far everyone is, bytes counted.

Belongs to the proxy's event loop.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from peer.links.shape import LinkShape, Path, path_between
from peer.rate import TokenBucket

Node = int
"""A peer's number in the swarm, or one of the two below."""
ENTRY: Final = -1
"""The bootstrap server."""
OUTSIDE: Final = -2
"""A program that is not of the swarm, such as `potluck status`: never cut off."""

BURST_SECONDS: Final = 0.01


@dataclass
class NodeTraffic:
    """What went through a node's link: bytes of TCP's payload, and connections accepted for it."""

    up: int = 0
    down: int = 0
    accepted: int = 0
    refused: int = 0
    """Connections that were refused: cut off, or nobody listened there."""


class LinkTable:
    """Links by node. A node without a shape has this machine's own speed."""

    def __init__(self, shapes: Mapping[Node, LinkShape]) -> None:
        self._shapes = dict(shapes)
        self._up = {node: TokenBucket(shape.rate, BURST_SECONDS) for node, shape in self._shapes.items()}
        self._down = {node: TokenBucket(shape.rate, BURST_SECONDS) for node, shape in self._shapes.items()}
        self._cuts: dict[object, Callable[[Node], int]] = {}
        self._healed = asyncio.Event()
        self.traffic: defaultdict[Node, NodeTraffic] = defaultdict(NodeTraffic)

    def path(self, source: Node, target: Node) -> Path:
        """The way from `source` to `target`."""
        return path_between(self._shapes.get(source, LinkShape()), self._shapes.get(target, LinkShape()))

    def cut(self, key: object, group_of: Callable[[Node], int]) -> None:
        """From now on nothing passes between nodes of different groups, until `heal(key)`."""
        self._cuts[key] = group_of

    def heal(self, key: object) -> None:
        """Undo a cut. What it held back goes on, if no other cut is in the way."""
        self._cuts.pop(key, None)
        self._healed.set()
        self._healed = asyncio.Event()

    def apart(self, one: Node, other: Node) -> bool:
        """Whether a cut lies between two nodes."""
        if OUTSIDE in (one, other):
            return False
        return any(group_of(one) != group_of(other) for group_of in self._cuts.values())

    async def passable(self, one: Node, other: Node) -> None:
        """Wait until nothing lies between two nodes."""
        while self.apart(one, other):
            await self._healed.wait()

    async def leave(self, node: Node, num_bytes: int) -> None:
        """Wait for a place on the node's way up, and count."""
        if bucket := self._up.get(node):
            await bucket.take(num_bytes)
        self.traffic[node].up += num_bytes

    async def arrive(self, node: Node, num_bytes: int) -> None:
        """Wait for a place on the node's way down, and count."""
        if bucket := self._down.get(node):
            await bucket.take(num_bytes)
        self.traffic[node].down += num_bytes
