"""Peers that find each other through a real DHT of two to four nodes, and what hostile records do to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.utils import MSGPackSerializer
from hypothesis import given
from hypothesis import strategies as st

from bootstrap.addresses import with_peer
from bootstrap.daemon import Daemon, DaemonOptions
from bootstrap.dht import (
    GENESIS_KEY,
    MAX_MANIFESTS,
    NewestOnly,
    RecordRules,
    farewell_key,
    genesis_subkey,
    presence_key,
)
from bootstrap.identity import Identity
from bootstrap.peer_cache import PeerCache
from bootstrap.rendezvous import Rendezvous
from bootstrap.server import Genesis, serve
from protocol import farewell, presence
from protocol.errors import UserError

# hivemind finds its daemon with a function of importlib that Python 3.11 deprecates and 3.13 does not.
pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")

RUN = b"r" * 32
MANIFEST = b"a manifest"


def record(identity: Identity, *, life: float = 60.0, issued: float | None = None, **changes: Any) -> bytes:
    issued = time.time() if issued is None else issued
    fields: dict[str, Any] = {
        "version": 1,
        "run": RUN,
        "key": identity.key,
        "addresses": (),
        "role": "train",
        "owns": True,
        "from_step": 0,
        "issued": issued,
        "expires": issued + life,
    }
    return presence.encode(presence.Presence(**(fields | changes)), identity.sign)


def keys(records: list[bytes]) -> set[bytes]:
    return {presence.decode_verified(data, time.time()).key for data in records}


@contextlib.asynccontextmanager
async def member(daemon: Daemon, **options: Any) -> AsyncIterator[Rendezvous]:
    rendezvous = await Rendezvous.start(daemon, **options)
    try:
        yield rendezvous
    finally:
        await rendezvous.close()


async def until(condition: Callable[[], Any], every: float = 0.05) -> None:
    """Ask again until `condition()`, awaited, is true. The test's deadline ends it."""
    while not await condition():
        await asyncio.sleep(every)


def test_four_that_start_at_once_find_each_other(run: Any, daemons: Any) -> None:
    async def check() -> None:
        async with daemons() as some, contextlib.AsyncExitStack() as stack:
            server = await some.start()
            await stack.enter_async_context(member(server))
            behind_nat = DaemonOptions(dialable=False)
            peers = await asyncio.gather(some.start(), some.start(), some.start(behind_nat))
            join = await server.addresses()
            found = [await stack.enter_async_context(member(daemon, join=join)) for daemon in peers]
            for daemon, rendezvous in zip(peers, found, strict=True):
                rendezvous.announce(RUN, lambda daemon=daemon: record(daemon.identity))
            everyone = {daemon.key for daemon in peers}
            for rendezvous in found:
                await until(lambda rendezvous=rendezvous: _equal(rendezvous.find(RUN), everyone))
            assert await found[0].find(b"another run".ljust(32)) == []

    run(check())


async def _equal(records: Any, expected: set[bytes]) -> bool:
    return keys(await records) == expected


def test_record_is_renewed_and_changed(run: Any, daemons: Any) -> None:
    async def check() -> None:
        async with daemons() as some:
            daemon = await some.start()
            async with member(daemon) as alone:
                step = 0

                def make() -> bytes:
                    return record(daemon.identity, life=1.5, from_step=step)

                async def announced(expected: int) -> bool:
                    found = [presence.decode_verified(data, time.time()) for data in await alone.find(RUN)]
                    return [one.from_step for one in found] == [expected]

                alone.announce(RUN, make)
                await until(lambda: announced(0))
                step = 1
                await until(lambda: announced(1))
                step = 2
                alone.announce_soon()
                await until(lambda: announced(2))

    run(check())


def test_dead_bootstrap_then_alive(run: Any, daemons: Any, tmp_path: Path) -> None:
    """A peer starts alone, says so, keeps trying, and joins when the bootstrap is back."""

    async def check() -> None:
        async with daemons() as some:
            server = await some.start()
            join = await server.addresses()
            port = join[0].split("/")[4]
            await server.close()
            notices: list[str] = []
            async with member(await some.start(), join=join, notice=notices.append) as peer:
                await until(lambda: _is_true(notices))
                assert "Nobody answers" in notices[0] and join[0] in notices[0]
                assert not peer.joined.is_set()
                back = await Daemon.start(tmp_path / "identity1", DaemonOptions(listen=(f"/ip4/127.0.0.1/tcp/{port}",)))
                async with member(back):
                    await peer.joined.wait()
                assert len(notices) == 2 and notices[1].startswith("Joined through the bootstrap")
                await back.close()

    run(check())


async def _is_true(value: object) -> bool:
    return bool(value)


def test_cached_peers_replace_a_dead_bootstrap(run: Any, daemons: Any, tmp_path: Path) -> None:
    async def check() -> None:
        async with daemons() as some:
            server, one, two = await some.start(), await some.start(), await some.start()
            join = await server.addresses()
            cache = PeerCache(tmp_path / "peers.json")
            async with member(one, join=join) as first:
                async with member(server), member(two, join=join, cache=cache) as second:
                    await first.joined.wait()
                    addresses = tuple(await one.addresses())
                    first.announce(RUN, lambda: record(one.identity, addresses=addresses))
                    await until(lambda: _equal(second.find(RUN), {one.key}))
                await server.close()
                assert PeerCache(tmp_path / "peers.json").addresses == addresses
                notices: list[str] = []
                newcomer = await some.start()
                found_cache = PeerCache(tmp_path / "peers.json")
                async with member(newcomer, join=join, cache=found_cache, notice=notices.append) as third:
                    await third.joined.wait()
                    assert "bootstrap does not answer" in notices[0] and "met before" in notices[0]
                    await until(lambda: _equal(third.find(RUN), {one.key}))

    run(check())


def test_server_publishes_the_manifest(run: Any, daemons: Any, tmp_path: Path) -> None:
    async def check() -> None:
        stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(
            serve(
                tmp_path / "server",
                DaemonOptions(),
                stop=stop,
                on_ready=lambda addresses, _: ready.set_result(addresses),
                genesis=Genesis("demo", MANIFEST),
            )
        )
        async with daemons() as some, member(await some.start(), join=await ready) as peer:
            await peer.joined.wait()

            async def has_manifest() -> bool:
                return await peer.find_manifests() == {"demo": [MANIFEST]}

            await until(has_manifest)
        stop.set()
        await serving

    run(check())


def test_server_tells_of_its_daemons_death(run: Any, tmp_path: Path) -> None:
    async def check() -> None:
        import psutil

        def kill(_addresses: list[str], _pid: int) -> None:
            for child in psutil.Process().children():
                if child.name() == "p2pd":
                    child.kill()

        with pytest.raises(Exception, match="p2pd exited with code -9"):
            await serve(tmp_path / "server", DaemonOptions(), stop=asyncio.Event(), on_ready=kill)

    run(check())


def test_wrong_join_address(run: Any, daemons: Any) -> None:
    async def check() -> None:
        async with daemons() as some:
            with pytest.raises(UserError, match="join"):
                await Rendezvous.start(await some.start(), join=["example.org"])

    run(check())


def test_garbage_in_the_dht_does_no_harm(run: Any, daemons: Any) -> None:
    """A node of plain hivemind attacks an announced record in every way that worked there."""

    async def check() -> None:
        async with daemons() as some:
            victim, evil = await some.start(), await some.start()
            async with member(victim) as rendezvous:
                older = record(victim.identity, life=2.0)
                newer = record(victim.identity)
                honest = [newer]
                rendezvous.announce(RUN, lambda: newer)
                await until(lambda: _equal(rendezvous.find(RUN), {victim.key}))
                rendezvous.publish_manifest("demo", MANIFEST)
                attacker = await DHTNode.create(p2p=evil.p2p)
                await evil.connect(victim.key, await victim.addresses())
                assert await attacker.protocol.call_ping(victim.p2p.peer_id) is not None
                key, far = presence_key(RUN), time.time() + 3e9
                stores = [
                    (key, older, _expires(older), victim.key),  # a replay, to have the newer one deleted early
                    (key, newer, _expires(newer) - 30, victim.key),  # the same with another expiry
                    (key, newer, far, victim.key),
                    (key, record(evil.identity), _expires(newer), victim.key),
                    (key, record(evil.identity, run=b"x" * 32), far, evil.key),
                    (key, os.urandom(300), far, victim.key),
                    (key, os.urandom(100_000), far, b"x" * 32),
                    (key, {"not": "bytes"}, far, 7),
                    (GENESIS_KEY, b"another manifest", time.time() + 60, genesis_subkey("demo", MANIFEST)),
                    (GENESIS_KEY, MANIFEST, far, genesis_subkey("demo", MANIFEST)),
                    (GENESIS_KEY, os.urandom(20_000), time.time() + 60, "demo/x"),
                    ("anything", "at all", far, None),
                    (key, "instead of the dictionary", far, None),
                ]
                for where, value, expires, subkey in stores:
                    done = await attacker.store(where, value, expires, subkey=subkey, exclude_self=True)
                    assert not done, f"accepted {value!r} under {subkey!r}"
                assert rendezvous.garbage >= len(stores) - 1
                # The replay's expiry passes; the newest record must still be there.
                await asyncio.sleep(max(0.0, _expires(older) + 0.1 - time.time()))
                assert await rendezvous.find(RUN) == honest
                assert await rendezvous.find_manifests() == {"demo": [MANIFEST]}
                await attacker.shutdown()

    run(check())


def _expires(data: bytes) -> float:
    return presence.decode_verified(data, time.time()).expires


def test_a_lying_node_is_not_believed(run: Any, daemons: Any) -> None:
    """A node of plain hivemind that answers with garbage, beside an honest one."""

    async def check() -> None:
        async with daemons() as some:
            honest, liar, asker = [await some.start() for _ in range(3)]
            node = await DHTNode.create(p2p=liar.p2p)
            async with member(honest) as first, member(asker, join=await honest.addresses()) as second:
                first.announce(RUN, lambda: record(honest.identity))
                await second.joined.wait()
                await until(lambda: _equal(second.find(RUN), {honest.key}))
                key_id = DHTID.generate(source=presence_key(RUN))
                lies = DictionaryDHTValue()
                lies.store(honest.key, MSGPackSerializer.dumps(os.urandom(200)), time.time() + 3000)
                node.protocol.storage.store(key_id, lies, time.time() + 3000)
                before = second.garbage
                await asker.connect(liar.key, await liar.addresses())
                assert await second._node.protocol.call_ping(liar.p2p.peer_id) is not None

                async def asked_the_liar() -> bool:
                    assert keys(await second.find(RUN)) == {honest.key}
                    return second.garbage > before

                await until(asked_the_liar)  # hivemind takes a pinged node into its table in a task of its own
            await node.shutdown()

    run(check())


def test_last_words_stay_when_a_peer_has_gone(run: Any, daemons: Any) -> None:
    async def check() -> None:
        async with daemons() as some:
            server, leaver = await some.start(), await some.start()
            async with member(server) as stays:
                now = time.time()
                words = farewell.Farewell(1, RUN, leaver.key, 120, True, now, now + 600, "ada")
                async with member(leaver, join=await server.addresses()) as leaves:
                    await leaves.joined.wait()
                    data = farewell.encode(words, leaver.identity.sign)
                    await leaves.say_farewell(RUN, leaver.key, data, words.expires)
                await leaver.close()
                assert await stays.find_farewells(RUN) == [words]
                assert await stays.find_farewells(b"another run".ljust(32)) == [] and await stays.find(RUN) == []

    run(check())


def test_a_farewell_is_kept_in_its_place_only() -> None:
    identity, now = Identity.from_seed(bytes(32)), time.time()
    words = farewell.Farewell(1, RUN, identity.key, 120, True, now, now + 600, "ada")
    rules = RecordRules(time.time)
    key, value = MSGPackSerializer.dumps(identity.key), MSGPackSerializer.dumps(farewell.encode(words, identity.sign))

    def kept(where: str, subkey: bytes = key, value: bytes = value, expires: float = words.expires) -> bool:
        return rules.validate(DHTRecord(DHTID.generate(source=where).to_bytes(), subkey, value, expires))

    assert kept(farewell_key(RUN))
    assert not kept(presence_key(RUN)) and not kept(farewell_key(bytes(32)))
    assert not kept(farewell_key(RUN), subkey=MSGPackSerializer.dumps(bytes(32)))
    assert not kept(farewell_key(RUN), expires=words.expires + 1)
    here = MSGPackSerializer.dumps(record(identity, issued=now, life=600))
    assert not kept(farewell_key(RUN), value=here, expires=now + 600) and kept(presence_key(RUN), value=here)


def test_storage_keeps_the_newest_and_stays_small() -> None:
    storage, key = NewestOnly(), DHTID.generate(source="k")
    now = time.time()
    assert storage.store_subkey(key, b"peer", b"new", now + 60)
    assert not storage.store_subkey(key, b"peer", b"old", now + 30)
    assert not storage.store_subkey(key, b"peer", b"other", now + 60)
    assert storage.store_subkey(key, b"peer", b"newer", now + 90)
    held = storage.get(key).value
    assert held.get(b"peer").value == b"newer"
    assert len(held.expiration_heap) == 2, "the older expiry must not have been queued"
    genesis = DHTID.generate(source="g")
    assert all(storage.store_subkey(genesis, f"run/{i}", b"m", now + 60) for i in range(MAX_MANIFESTS))
    assert not storage.store_subkey(genesis, "run/more", b"m", now + 60)
    assert storage.store_subkey(genesis, "run/0", b"m", now + 70)


@given(st.binary(max_size=64), st.binary(max_size=64), st.binary(max_size=400), st.floats())
def test_rules_refuse_garbage_and_never_raise(key: bytes, subkey: bytes, value: bytes, expires: float) -> None:
    rules = RecordRules(time.time)
    genesis = DHTID.generate(source=GENESIS_KEY).to_bytes()
    for where in (key, genesis):
        assert not rules.validate(DHTRecord(where, subkey, value, expires))
    packed = MSGPackSerializer.dumps(value)
    named = MSGPackSerializer.dumps("demo/x")
    assert not rules.validate(DHTRecord(genesis, named, packed, expires))
    assert rules.refused == 3


def test_cached_peers_file(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "peers.json"
    cache = PeerCache(path)
    assert cache.addresses == ()
    addresses = [with_peer(f"/ip4/192.0.2.7/tcp/{port}", bytes([port]) * 32) for port in range(1, 101)]
    cache.remember(addresses[:2])
    cache.remember(addresses[1:3])
    expected = (addresses[1], addresses[2], addresses[0])
    assert cache.addresses == PeerCache(path).addresses == expected
    cache.remember(addresses)
    assert len(PeerCache(path).addresses) == 64
    assert [entry.name for entry in path.parent.iterdir()] == ["peers.json"]


def test_cached_peers_that_cannot_be_written_are_told_of_and_remembered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "folder").write_text("in the way")
    addresses = [with_peer(f"/ip4/192.0.2.7/tcp/{port}", bytes([port]) * 32) for port in range(1, 4)]
    troubles: list[OSError] = []
    told, untold = PeerCache(tmp_path / "folder" / "a", troubles.append), PeerCache(tmp_path / "folder" / "b")
    for known in (1, 2, 3):
        told.remember(addresses[:known])
        untold.remember(addresses[:known])
    assert set(told.addresses) == set(untold.addresses) == set(addresses)
    assert len(troubles) == 3
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if line.startswith("cannot write")]) == 1, "not one for every newcomer"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"peers": 7}', '{"peers": [7, "x", null]}', "[" * 60_000])
def test_damaged_cached_peers_count_as_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "peers.json"
    path.write_text(content)
    assert PeerCache(path).addresses == ()
