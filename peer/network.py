"""The outer thread's place in the world: one event loop, p2pd, the DHT, and a way to call into them with a deadline.

Training stays in the main thread. Everything that waits for the network runs here, and every call from outside has a
deadline.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from bootstrap.daemon import Daemon, DaemonOptions
from bootstrap.identity import Identity, load_or_create
from bootstrap.peer_cache import PeerCache
from bootstrap.rendezvous import Rendezvous
from peer import clock
from peer.settings import Settings
from protocol.errors import ProtocolError, UserError
from protocol.manifest import Manifest, decode, run_id

log = logging.getLogger(__name__)
T = TypeVar("T")

START_TIMEOUT = 90.0
CALL_TIMEOUT = 15.0
STOP_TIMEOUT = 12.0
MANIFEST_RETRY = 1.0


class NetworkFailed(Exception):
    """The network could not be started, or is gone."""


class Network:
    """p2pd and the DHT on an event loop in a thread of their own. Use as a context manager, or call `close`."""

    def __init__(self, settings: Settings, notice: Callable[[str], None]) -> None:
        """Starts the thread and waits until the daemon runs. UserError or NetworkFailed if it does not."""
        self.settings = settings
        self.notice = notice
        self.identity: Identity = load_or_create(settings.out / "identity")
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="potluck-outer", daemon=True)
        self._thread.start()
        self.daemon: Daemon
        self.rendezvous: Rendezvous
        try:
            self.call(self._start(), START_TIMEOUT)
        except BaseException:
            self._stop_loop()
            raise

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def _start(self) -> None:
        options = DaemonOptions(listen=(self.settings.listen,))
        self.daemon = await Daemon.start(self.settings.out / "identity", options)
        cache = PeerCache(self.settings.out / "peers.json")
        self.rendezvous = await Rendezvous.start(
            self.daemon, join=self.settings.join, cache=cache, notice=self.notice, now=clock.wall
        )

    def call(self, work: Coroutine[Any, Any, T], timeout: float = CALL_TIMEOUT) -> T:
        """Run a coroutine in the outer thread and wait for it. NetworkFailed after `timeout` seconds."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout)
        except concurrent.futures.TimeoutError as error:
            future.cancel()
            raise NetworkFailed(f"the outer thread did not answer within {timeout:g} s") from error

    def post(self, function: Callable[..., None], *arguments: Any) -> bool:
        """Have a function called in the outer thread, soon. False if the thread has stopped."""
        try:
            self.loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            return False
        return True

    def find_manifest(self, run: str | None, stop: Callable[[], bool] = lambda: False) -> Manifest:
        """The manifest of the run that the join addresses lead to; keeps asking until it is found or `stop()`.

        `run` is a run's name, or a prefix of its id in hex. UserError if there are several to choose from.
        """
        told = clock.monotonic()
        while not stop():
            found = self.call(self.rendezvous.find_manifests(), CALL_TIMEOUT)
            manifests = _matching([data for group in found.values() for data in group], run)
            if len(manifests) == 1:
                return manifests[0]
            if len(manifests) > 1:
                names = ", ".join(f"{m.run.name} ({run_id(m).hex()[:12]})" for m in manifests)
                raise UserError.field("run", run, f"must name one run; here are: {names}")
            if clock.monotonic() > told + 10:
                told = clock.monotonic()
                self.notice("No manifest found at the addresses joined yet. Still asking; --manifest starts a run.")
            self.call(asyncio.sleep(MANIFEST_RETRY))
        raise NetworkFailed("stopped before a manifest was found")

    def close(self) -> None:
        """Stop DHT, daemon and thread. Bounded in time; may be called twice."""
        if self.loop.is_closed():
            return
        with contextlib.suppress(NetworkFailed):
            self.call(self._shut(), STOP_TIMEOUT)
        self._stop_loop()

    async def _shut(self) -> None:
        await self.rendezvous.close()
        await self.daemon.close()

    def _stop_loop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(STOP_TIMEOUT)
        if not self._thread.is_alive():
            self.loop.close()


def _matching(encoded: list[bytes], run: str | None) -> list[Manifest]:
    """The valid manifests among `encoded` that `run` names; all of them if it is None. Garbage is left out."""
    manifests = []
    for data in encoded:
        with contextlib.suppress(ProtocolError):
            manifest = decode(data)
            if run in (None, manifest.run.name) or (run and run_id(manifest).hex().startswith(run.lower())):
                manifests.append(manifest)
    return manifests
