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
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Final, TypeVar

import uvloop

from bootstrap.addresses import is_loopback
from bootstrap.daemon import Daemon, DaemonError, DaemonOptions
from bootstrap.dial_back import DialBack
from bootstrap.identity import Identity, load_or_create
from bootstrap.peer_cache import PeerCache
from bootstrap.reachability import Reachability, find_out, watch
from bootstrap.rendezvous import Rendezvous
from peer import clock
from peer.disk import DiskTrouble, words_of
from peer.settings import Settings
from protocol.errors import ProtocolError, UserError
from protocol.manifest import Manifest, decode, run_id, sealed

log = logging.getLogger(__name__)
T = TypeVar("T")

START_TIMEOUT: Final = 90.0
CALL_TIMEOUT: Final = 15.0
LEAVE_TIMEOUT: Final = 4.0
"""Seconds for leaving the DHT; p2pd is stopped in any case."""
STOP_TIMEOUT: Final = 15.0
JOINED_TIMEOUT = 5.0
MANIFEST_RETRY: Final = 1.0
NO_SUCH_RUN: Final = 5.0
"""Seconds from the first other run that is seen until the one asked for is held not to exist: a DHT fills slowly."""
TELL_FIRST: Final = 3.0
TELL_EVERY: Final = 30.0
"""Seconds until a peer that finds no run says so, and between two such lines."""
_LOOK_EVERY: Final = 0.1
"""Seconds between two questions of a waiting call whether it should stop."""


HOW_A_RUN_COMES: Final = (
    "A run comes with the first peer or `potluck bootstrap` that is given a --manifest and, to join, these addresses."
)


class NetworkFailed(Exception):
    """The network could not be started, or is gone."""


class Network:
    """p2pd and the DHT on an event loop in a thread of their own. `close` ends all three."""

    def __init__(
        self,
        settings: Settings,
        notice: Callable[[str], None],
        *,
        disk: DiskTrouble | None = None,
        reachable: bool = True,
    ) -> None:
        """Starts the thread and waits until the daemon runs. UserError or NetworkFailed if it does not.

        `notice` gets sentences for the user, from this thread or the outer one; `disk` hears of files that cannot be
        written while the peer trains. `reachable`: find out whether others can dial us, which may take a few seconds.
        """
        self.settings = settings
        self.started = clock.monotonic()
        self._notice = notice
        self.disk = disk or DiskTrouble(settings.out, self.notice)
        self.identity: Identity = load_or_create(settings.out / "identity")
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="potluck-outer", daemon=True)
        self._thread.start()
        self.daemon: Daemon
        self.rendezvous: Rendezvous
        self.reachability = Reachability("unasked", ())
        self._cache = PeerCache(settings.out / "peers.json", self._cache_trouble)
        try:
            self.call(self._start(reachable), START_TIMEOUT)
        except BaseException:
            self._stop_loop()
            raise

    def notice(self, text: str) -> None:
        """A sentence for the user. Whoever shows it must not break what says it."""
        try:
            self._notice(text)
        except BrokenPipeError:
            pass  # nobody reads us any more: the training thread finds out at its next line, and stops
        except Exception:
            log.exception("could not show: %s", text)

    def _cache_trouble(self, error: OSError) -> None:
        path = self.settings.out / "peers.json"
        self.disk.refused(f"Cannot write {path}: {words_of(error)}. Training goes on.")

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def _start(self, reachable: bool) -> None:
        self.daemon = await Daemon.start(self.settings.out / "identity", daemon_options(self.settings))
        try:
            await DialBack(self.daemon, now=clock.monotonic).start()
            if reachable:
                self.reachability = await self._find_out()
                self._say_reachability()
            self.rendezvous = await Rendezvous.start(
                self.daemon,
                join=self.settings.join,
                cache=self._cache,
                serves=self.reachability.kind != "closed",
                notice=self.notice,
                now=clock.wall,
            )
        except BaseException:
            await self.daemon.close()
            raise

    async def _find_out(self) -> Reachability:
        return await find_out(self.daemon, self.settings.join, self._cache.addresses)

    def _say_reachability(self) -> None:
        if sentence := self.reachability.sentence():
            self.notice(sentence)

    async def watch_reachability(self, changed: Callable[[Reachability], None]) -> None:
        """For ever: ask again now and then, and call `changed` (in the outer thread) when the answer is another."""

        def tell(found: Reachability) -> None:
            self.reachability = found
            self._say_reachability()
            changed(found)

        await watch(self.daemon, self.reachability, self._find_out, tell)

    def call(
        self, work: Coroutine[Any, Any, T], timeout: float = CALL_TIMEOUT, stop: Callable[[], bool] = lambda: False
    ) -> T:
        """Run a coroutine in the outer thread and wait for it.

        NetworkFailed if that thread has ended, after `timeout` seconds, or soon after `stop()` is true.
        """
        if self.loop.is_closed():
            work.close()
            raise NetworkFailed("the network is closed")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        end = clock.monotonic() + timeout
        try:
            while (left := end - clock.monotonic()) > 0 and not stop():
                concurrent.futures.wait([future], min(left, _LOOK_EVERY))
                if future.done():
                    return future.result()
        except DaemonError as error:
            raise NetworkFailed(str(error)) from error
        finally:
            future.cancel()
        raise NetworkFailed("stopped" if stop() else f"the outer thread did not answer within {timeout:g} s")

    def post(self, function: Callable[..., None], *arguments: Any) -> bool:
        """Have a function called in the outer thread, soon. False if the thread has stopped."""
        try:
            self.loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            return False
        return True

    def find_manifest(self, run: str | None, stop: Callable[[], bool] = lambda: False) -> Manifest:
        """The manifest of the run that the join addresses lead to; keeps asking until it is found or `stop()`.

        `run` is a run's name, or a prefix of its id in hex. UserError if there are several to choose from, only others
        than `run`, or no address to ask at; NetworkFailed if stopped.
        """
        if not self.settings.join:
            raise UserError("join: needs an address to fetch the manifest from, or give a manifest")
        tell, only_others = clock.monotonic() + TELL_FIRST, inf
        while not stop():
            manifests = self.call(runs_at(self.rendezvous), CALL_TIMEOUT, stop)
            named = [manifest for manifest in manifests if is_named(manifest, run)]
            if len(named) == 1:
                return named[0]
            now = clock.monotonic()
            only_others = min(only_others, now + NO_SUCH_RUN) if manifests else inf
            if len(named) > 1 or now > only_others:
                what = "must name one run" if named else "is no run here"
                raise UserError.field("run", run, f"{what}; here are: {names_of(named or manifests)}")
            if now > tell:
                tell = now + TELL_EVERY
                self.notice(
                    f"No run is published at {' '.join(self.settings.join)} yet; still asking. {HOW_A_RUN_COMES}"
                )
            self.call(asyncio.sleep(MANIFEST_RETRY), CALL_TIMEOUT, stop)
        raise NetworkFailed("stopped before a manifest was found")

    def other_runs(self, ours: Manifest) -> list[Manifest]:
        """The runs at the join addresses if ours is not among them: one number that differs makes another run.

        Waits at most a few seconds for someone to answer.
        """
        with contextlib.suppress(NetworkFailed):
            self.call(self.rendezvous.joined.wait(), JOINED_TIMEOUT)
        manifests = self.call(runs_at(self.rendezvous))
        return [] if run_id(ours) in map(run_id, manifests) else manifests

    def close(self) -> None:
        """Stop DHT, daemon and thread. Bounded in time; may be called twice."""
        if self.loop.is_closed():
            return
        try:
            self.call(self._shut(), STOP_TIMEOUT)
        except NetworkFailed as error:
            log.warning("could not close the network cleanly: %s", error)
        finally:
            self._stop_loop()

    async def _shut(self) -> None:
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT):
                await self.rendezvous.close()
        except TimeoutError:
            log.debug("the DHT did not let us go in time")
        finally:
            await self.daemon.close()

    def _stop_loop(self) -> None:
        with suppress(NetworkFailed):
            self.call(_cancel_all(), LEAVE_TIMEOUT)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(STOP_TIMEOUT)
        if not self._thread.is_alive():
            self.loop.close()


def daemon_options(settings: Settings) -> DaemonOptions:
    """Where to listen: as the settings say, or, if that is `auto`, wherever the addresses we join through can reach."""
    listen = settings.listen
    if listen == "auto":
        listen = "/ip4/127.0.0.1/tcp/0" if all(map(is_loopback, settings.join)) else "/ip4/0.0.0.0/tcp/0"
    return DaemonOptions(listen=(listen,), announce=(settings.announce,) if settings.announce else ())


async def _cancel_all() -> None:
    """End what still runs in this loop; hivemind leaves tasks behind."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=LEAVE_TIMEOUT / 2)


async def runs_at(rendezvous: Rendezvous, run: str | None = None) -> list[Manifest]:
    """The runs that are published where `rendezvous` has joined; with `run` those that it names."""
    found = await rendezvous.find_manifests()
    return matching([data for group in found.values() for data in group], run)


def matching(encoded: Sequence[bytes], run: str | None) -> list[Manifest]:
    """The different sealed manifests among `encoded` that `run` names; all of them if it is None or empty.

    Garbage is left out. One manifest may be stored under many names, by anyone.
    """
    found: dict[bytes, Manifest] = {}
    for data in encoded:
        with suppress(ProtocolError):
            manifest = decode(data)
            if sealed(manifest) and is_named(manifest, run):
                found[run_id(manifest)] = manifest
    return list(found.values())


def is_named(manifest: Manifest, run: str | None) -> bool:
    """Whether `run` is the run's name or the beginning of its id; nothing names every run."""
    return not run or run == manifest.run.name or run_id(manifest).hex().startswith(run.lower())


def names_of(manifests: Sequence[Manifest]) -> str:
    """Runs as people tell them apart."""
    return ", ".join(f"{manifest.run.name} ({run_id(manifest).hex()[:12]})" for manifest in manifests)
