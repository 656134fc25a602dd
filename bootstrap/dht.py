"""The DHT node: hivemind's Kademlia, made to refuse everything but our own kinds of record.

The DHT is hostile ground. In plain hivemind anyone can overwrite a record, fill a key or, by storing a record again
with an earlier expiry, have it deleted early. Every potluck node therefore checks what it is asked to store and what it
is told (`RecordRules`), and keeps the newest record under each subkey until that one's own end (`NewestOnly`). Three
kinds exist:

    key                   subkey                 value                       expires
    presence of a run     peer key (32 bytes)    signed presence record      with the record
    farewells of a run    peer key (32 bytes)    signed farewell             with the record
    genesis               "<run name>/<run id>"  manifest, whose SHA-256     at most an hour ahead
                                                 is the run id (hex)

What remains open to attackers: many identities of their own, and node ids chosen to surround a key. So records are
hints, and peers that have met tell each other the roster.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

import msgspec
from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
from hivemind.dht.validation import DHTRecord, RecordValidatorBase

from bootstrap.daemon import Daemon
from protocol import farewell, presence
from protocol.errors import ProtocolError

GENESIS_KEY = "potluck/1/genesis"
MAX_MANIFEST_BYTES = 16 * 1024
MAX_LIFE = presence.MAX_AHEAD
"""Seconds that any record may live."""
MAX_PEERS = 2000
"""Presence records a node keeps for a run: 2 MB. hivemind cannot send a dictionary of over 4 MiB."""
MAX_MANIFESTS = 100
_RUN_NAME = re.compile(r"[a-z0-9-]{1,64}")
_VALUE_OVERHEAD = 8


def presence_key(run: bytes) -> str:
    """The DHT key that holds the presence records of a run."""
    return f"potluck/1/presence/{run.hex()}"


def farewell_key(run: bytes) -> str:
    """The DHT key that holds the farewells of a run."""
    return f"potluck/1/farewell/{run.hex()}"


def genesis_subkey(name: str, manifest: bytes) -> str:
    """The subkey under GENESIS_KEY for the manifest of a run called `name`."""
    return f"{name}/{hashlib.sha256(manifest).hexdigest()}"


class RecordRules(RecordValidatorBase):  # type: ignore[misc]
    """Accepts presence records, farewells and manifests under their proper keys, and counts what it refuses."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._genesis_id = DHTID.generate(source=GENESIS_KEY).to_bytes()
        self.refused = 0

    def validate(self, record: DHTRecord) -> bool:
        """Whether we would store this record, or believe it. Never raises."""
        try:
            if len(record.value) > MAX_MANIFEST_BYTES + _VALUE_OVERHEAD:
                raise ProtocolError("record: too large")
            value = msgspec.msgpack.decode(record.value, type=bytes)
            if record.key == self._genesis_id:
                self._check_manifest(record, value)
            else:
                self._check_signed(record, value)
        except (ProtocolError, msgspec.MsgspecError, ValueError):
            self.refused += 1
            return False
        return True

    def _check_signed(self, record: DHTRecord, value: bytes) -> None:
        found, key = self._decoded(value)
        if record.key != DHTID.generate(source=key).to_bytes():
            raise ProtocolError("record: of another run")
        if msgspec.msgpack.decode(record.subkey, type=bytes) != found.key:
            raise ProtocolError("record: under another peer's key")
        if record.expiration_time != found.expires:
            raise ProtocolError("record: another expiry than was signed")

    def _decoded(self, value: bytes) -> tuple[presence.Presence | farewell.Farewell, str]:
        """A presence record or a farewell, and the DHT key under which it belongs."""
        try:
            found = presence.decode_verified(value, self._now())
        except ProtocolError:
            left = farewell.decode_verified(value, self._now())
            return left, farewell_key(left.run)
        return found, presence_key(found.run)

    def _check_manifest(self, record: DHTRecord, value: bytes) -> None:
        subkey = msgspec.msgpack.decode(record.subkey, type=str)
        name = subkey.partition("/")[0]
        if not _RUN_NAME.fullmatch(name) or subkey != genesis_subkey(name, value):
            raise ProtocolError("record: manifest under a wrong name or hash")
        if not record.expiration_time <= self._now() + MAX_LIFE:
            raise ProtocolError("record: expires too late")


class NewestOnly(DHTLocalStorage):  # type: ignore[misc]
    """Storage in which a record is replaced only by one that lives longer, and dictionaries stay small enough to send.

    hivemind's own keeps the newer value but deletes it at the older one's expiry, so a replay evicts it.
    """

    def store_subkey(self, key: DHTID, subkey: object, value: bytes, expiration_time: float) -> bool:
        """Keep the record; False if a newer one is here or there is no room."""
        held = self.get(key)
        if held is not None and isinstance(held.value, DictionaryDHTValue):
            before = held.value.get(subkey)
            if before is not None and before.expiration_time >= expiration_time:
                return False
            room = MAX_PEERS if isinstance(subkey, bytes) else MAX_MANIFESTS
            if before is None and len(held.value) >= room:
                return False
        return bool(super().store_subkey(key, subkey, value, expiration_time))


async def create_node(daemon: Daemon, rules: RecordRules, *, serves: bool = True, rpc_timeout: float = 3.0) -> DHTNode:
    """A node on `daemon`'s p2pd that knows nobody yet. Without `serves` it only asks, and stores nothing: others would
    wait in vain for a node that they cannot dial.

    Caches are off: every question of ours is for the latest.
    """
    node = await DHTNode.create(
        p2p=daemon.p2p,
        client_mode=not (serves and daemon.options.dialable),
        record_validator=rules,
        wait_timeout=rpc_timeout,
        cache_locally=False,
        cache_nearest=0,
        cache_on_store=False,
        cache_refresh_before_expiry=0,
    )
    node.protocol.storage = NewestOnly()
    node.protocol.cache = NewestOnly(maxsize=MAX_MANIFESTS)
    return node
