"""How peers of a run find each other through the DHT, and find it again when it was lost.

A `Rendezvous` keeps this node in the DHT (it asks the bootstrap addresses again for ever, and the cached peers when
none of those answers, so that swarms that started apart grow together), announces our presence every third of its life,
and reads the presence of others. What it finds are hints.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from hivemind.dht.node import DHTNode
from hivemind.p2p import PeerID

from bootstrap.addresses import dialable, join_address, with_peer
from bootstrap.daemon import Daemon, Unreachable
from bootstrap.dht import GENESIS_KEY, RecordRules, create_node, farewell_key, genesis_subkey, presence_key
from bootstrap.identity import peer_id
from bootstrap.peer_cache import PeerCache
from protocol import farewell, presence
from protocol.errors import ProtocolError
from protocol.farewell import Farewell
from protocol.presence import Presence

log = logging.getLogger(__name__)
T = TypeVar("T")

DHT_TIMEOUT = 10.0
"""Seconds for one store or get; with some of the nodes frozen the first ones take six."""
DIAL_TIMEOUT = 5.0
FAREWELL_TIMEOUT = 2.0
"""Seconds that a peer which leaves has for saying so."""
REJOIN_EVERY = 15.0
MANIFEST_LIFE = 300.0
_FIRST_RETRY = 0.5
_LAST_RETRY = 15.0

_BOOTSTRAP = "Joined through the bootstrap at {}."
_CACHED = "The bootstrap does not answer at {}. Joined through peers met before; still trying the bootstrap."
_NOBODY = "Nobody answers: neither the bootstrap at {} nor a peer met before. Trying until someone does."

Notice = Callable[[str], None]


class Rendezvous:
    """Our place in the DHT. Made by `start`; use `close` before closing the daemon."""

    def __init__(
        self,
        daemon: Daemon,
        node: DHTNode,
        rules: RecordRules,
        *,
        join: Sequence[str] = (),
        cache: PeerCache | None = None,
        notice: Notice = log.info,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.joined = asyncio.Event()
        """Set while at least one of the peers that we asked answers, and always if we were given none to ask."""
        self._daemon, self._node, self._rules = daemon, node, rules
        self._join = tuple(address for address in join if join_address(address)[0] != daemon.key)
        self._through = ""
        self._met: frozenset[str] = frozenset()
        """Of the addresses asked last, those that answered."""
        self._cache = cache
        self._notice = notice
        self._now = now
        self._announce_now = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def start(
        cls,
        daemon: Daemon,
        *,
        join: Sequence[str] = (),
        cache: PeerCache | None = None,
        serves: bool = True,
        notice: Notice = log.info,
        now: Callable[[], float] = time.time,
    ) -> Rendezvous:
        """Start a DHT node on `daemon` and join through any of the `join` addresses (UserError if one is malformed).

        Returns at once; `joined` says when someone answered. `serves`: whether others may store records with us, which
        needs that they can dial us. `notice` gets sentences for the user. `now` is Unix time.
        """
        for address in join:
            join_address(address)
        rules = RecordRules(now)
        async with asyncio.timeout(DHT_TIMEOUT):
            node = await create_node(daemon, rules, serves=serves)
        rendezvous = cls(daemon, node, rules, join=join, cache=cache, notice=notice, now=now)
        rendezvous._spawn(rendezvous._stay_joined(), "stay joined")
        return rendezvous

    @property
    def garbage(self) -> int:
        """How many records have been refused: others' bad stores, and bad answers to us."""
        return self._rules.refused

    @property
    def asked(self) -> bool:
        """Whether all the addresses given have been tried; `joined` says whether one answered."""
        return bool(self._through)

    def announce(self, run: bytes, make_record: Callable[[], bytes]) -> None:
        """From now on keep a presence record of ours in the DHT, renewed every third of its life.

        `make_record` is called for each renewal and returns a freshly signed record of run id `run`.
        """
        self._spawn(self._keep_announcing(run, make_record), "announce our presence")

    def announce_soon(self) -> None:
        """Renew the presence record now: something in it has changed."""
        self._announce_now.set()

    async def find(self, run: bytes) -> list[bytes]:
        """The live, verified presence records of a run, ours included. Empty if the DHT does not answer in time."""
        found = await self._get(presence_key(run))
        met: dict[bytes, Presence] = {}
        for record in found.values():
            with contextlib.suppress(ProtocolError):  # checked when it came in; it may have expired since
                met[record] = presence.decode_verified(record, self._now())
        self._remember(met.values())
        return list(met)

    async def say_farewell(self, run: bytes, key: bytes, record: bytes, expires: float) -> None:
        """Leave word that we have gone, for people who look at the run. Bounded in time; nothing depends on it."""
        if self.joined.is_set():
            stored = self._node.store(farewell_key(run), record, expires, subkey=key)
            await self._within(FAREWELL_TIMEOUT, stored, "say farewell")

    async def find_farewells(self, run: bytes) -> list[Farewell]:
        """The verified last words of those who have left a run lately."""
        found = []
        for record in (await self._get(farewell_key(run))).values():
            with contextlib.suppress(ProtocolError):
                found.append(farewell.decode_verified(record, self._now()))
        return found

    def publish_manifest(self, name: str, manifest: bytes) -> None:
        """From now on keep `manifest` (at most 16 KiB) in the DHT under the run's name and the manifest's hash."""
        self._spawn(self._keep_publishing(name, manifest), "publish the manifest")

    async def find_manifests(self) -> dict[str, list[bytes]]:
        """Manifests by run name, those of one name in order of their hash. Each has the hash it was stored under."""
        manifests: dict[str, list[bytes]] = {}
        for subkey, manifest in sorted((await self._get(GENESIS_KEY)).items()):
            manifests.setdefault(subkey.partition("/")[0], []).append(manifest)
        return manifests

    async def close(self) -> None:
        """Leave the DHT. Bounded in time."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=DIAL_TIMEOUT)
        if self._daemon.died.done():
            return  # hivemind would wait for its answer
        await self._within(DIAL_TIMEOUT, self._node.shutdown(), "leave the DHT")

    def _spawn(self, work: Coroutine[Any, Any, None], what: str) -> None:
        async def guarded() -> None:
            try:
                await work
            except Exception:
                log.exception("stopped trying to %s", what)

        self._tasks.append(asyncio.create_task(guarded(), name=what))

    async def _within(self, timeout: float, request: Awaitable[T], what: str) -> T | None:
        """The DHT's answer, or None. hivemind's calls have no deadline and raise whatever a remote's answer causes."""
        try:
            async with asyncio.timeout(timeout):
                return await request
        except Exception as error:
            log.debug("could not %s: %r", what, error, exc_info=True)
            return None

    # Joining

    async def _stay_joined(self) -> None:
        retry = _FIRST_RETRY
        while True:
            if await self._join_once():
                retry, pause = _FIRST_RETRY, REJOIN_EVERY
            else:
                retry, pause = min(2 * retry, _LAST_RETRY), retry
            await asyncio.sleep(pause)

    async def _join_once(self) -> bool:
        """Ask every bootstrap address, and if none answers the cached peers. False if nobody answered."""
        through, met = _BOOTSTRAP, await self._meet_any(self._join)
        if not met and self._cache:
            met = await self._meet_any(self._cache.addresses)
            through = _CACHED if self._join else _BOOTSTRAP
        if not met and self._join:
            through = _NOBODY
        if through != self._through:
            await self._now_joined(through)
        elif met - self._met:
            await self._look_around()  # this one may know others: how swarms that started apart come together
        self._met = met
        return through != _NOBODY

    async def _now_joined(self, through: str) -> None:
        before = self._through
        if through == _NOBODY:
            self.joined.clear()
        else:
            await self._look_around()
        self._through = through  # not before: in between it would say that we have asked, and nobody answered
        if before or through != _BOOTSTRAP:
            self._notice(through.format(", ".join(self._join)))

    async def _look_around(self) -> None:
        await self._within(DIAL_TIMEOUT, self._node.find_nearest_nodes([self._node.node_id]), "look around")
        self.joined.set()
        # Those we know now did not get the record that we stored before.
        self._announce_now.set()

    async def _meet_any(self, addresses: Sequence[str]) -> frozenset[str]:
        """Those of the addresses that answer."""
        met = await asyncio.gather(*map(self._meet, addresses))
        return frozenset(address for address, answers in zip(addresses, met, strict=True) if answers)

    async def _meet(self, address: str) -> bool:
        key, part = join_address(address)
        try:
            await self._daemon.connect(key, [part], DIAL_TIMEOUT)
        except Unreachable as error:
            log.debug("%s", error)
            return False
        ping = self._node.protocol.call_ping(PeerID.from_base58(peer_id(key)), validate=False, strict=False)
        return await self._within(DIAL_TIMEOUT, ping, f"ping {address}") is not None

    # Records

    async def _keep_announcing(self, run: bytes, make_record: Callable[[], bytes]) -> None:
        retry = _FIRST_RETRY
        while True:
            # A record stored while alone stays with us, and would be renewed only at a third of its life.
            await self.joined.wait()
            self._announce_now.clear()
            record = make_record()
            ours = presence.decode_verified(record, self._now())
            if await self._store(presence_key(run), ours.key, record, ours.expires):
                retry, pause = _FIRST_RETRY, (ours.expires - ours.issued) / 3
            else:
                retry, pause = min(2 * retry, _LAST_RETRY), retry
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._announce_now.wait(), pause)

    async def _keep_publishing(self, name: str, manifest: bytes) -> None:
        retry = _FIRST_RETRY
        while True:
            await self.joined.wait()
            expires = self._now() + MANIFEST_LIFE
            if await self._store(GENESIS_KEY, genesis_subkey(name, manifest), manifest, expires):
                retry, pause = _FIRST_RETRY, MANIFEST_LIFE / 3
            else:
                retry, pause = min(2 * retry, _LAST_RETRY), retry
            await asyncio.sleep(pause)

    async def _store(self, key: str, subkey: str | bytes, value: bytes, expires: float) -> bool:
        stored = self._node.store(key, value, expires, subkey=subkey)
        return bool(await self._within(DHT_TIMEOUT, stored, f"store {subkey!r}"))

    async def _get(self, key: str) -> dict[Any, bytes]:
        found = await self._within(DHT_TIMEOUT, self._node.get(key, latest=True), f"look up {key}")
        if found is None or not isinstance(found.value, dict):
            return {}
        return {subkey: entry.value for subkey, entry in found.value.items()}

    def _remember(self, met: Iterable[Presence]) -> None:
        """Keep the addresses of dialable peers for the day when the bootstrap is down."""
        if self._cache is None:
            return
        self._cache.remember(
            with_peer(part, peer.key)
            for peer in met
            if peer.owns and peer.key != self._daemon.key
            for part in dialable(peer.addresses)
        )
