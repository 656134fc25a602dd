"""The proxy's own thread and event loop, so that neither a busy console nor a report delays what is on its way."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Self, TypeVar

import uvloop

from peer.links.proxy import OwnerOf, Proxy
from peer.links.shape import LinkShape
from peer.links.table import LinkTable, Node, NodeTraffic

T = TypeVar("T")
CALL_TIMEOUT: Final = 10.0


class LinkThread:
    """Proxies for `nodes`, from its making until `close`. Every call answers at once."""

    def __init__(
        self, nodes: Sequence[Node], shapes: Mapping[Node, LinkShape], owner_of: OwnerOf, *, seed: int = 0
    ) -> None:
        self._proxy: Proxy | None = None
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="potluck-links", daemon=True)
        self._thread.start()
        try:
            self.ports = self._call(self._open(nodes, shapes, owner_of, seed))
            """The port that others dial, by node."""
        except BaseException:
            self.close()
            raise

    async def _open(
        self, nodes: Sequence[Node], shapes: Mapping[Node, LinkShape], owner_of: OwnerOf, seed: int
    ) -> dict[Node, int]:
        self._table = LinkTable(shapes)
        self._proxy = Proxy(self._table, owner_of, shaped=bool(shapes), seed=seed)
        return {node: await self._proxy.open(node) for node in nodes}

    @property
    def _opened(self) -> Proxy:
        assert self._proxy is not None
        return self._proxy

    def set_backend(self, node: Node, port: int) -> None:
        """From now on the node listens at `port`."""
        self._now(lambda: self._opened.set_backend(node, port))

    def cut(self, key: object, group_of: Callable[[Node], int]) -> None:
        """Nothing passes between groups until `heal(key)`: open connections stand still, new ones are refused."""
        self._now(lambda: self._table.cut(key, group_of))

    def heal(self, key: object) -> None:
        """Undo a cut."""
        self._now(lambda: self._table.heal(key))

    def traffic(self) -> dict[Node, NodeTraffic]:
        """What went through each node's link until now."""
        return self._now(lambda: {node: replace(one) for node, one in self._table.traffic.items()})

    def connections(self) -> int:
        """How many connections are open."""
        return self._now(lambda: self._opened.connections)

    def close(self) -> None:
        """End all connections and the thread. May be called twice."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(TimeoutError):
            self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT)
        if not self._thread.is_alive():
            self._loop.close()

    async def _close(self) -> None:
        if self._proxy:
            await self._proxy.close()
        await asyncio.get_running_loop().shutdown_default_executor()

    def _now(self, work: Callable[[], T]) -> T:
        async def run() -> T:
            return work()

        return self._call(run())

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
