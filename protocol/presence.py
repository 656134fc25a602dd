"""Presence records: how a peer says that it is here, where it can be dialled and what it does.

A record is a 64-byte Ed25519 signature followed by a MessagePack array (`Presence`). The signature covers a domain
prefix and the array's bytes exactly as sent, so a record can be passed on by anyone, unchanged. Records are hints that
expire. Of two records of one peer, the one issued later counts (`supersedes`), whatever the order of their arrival.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Literal

import msgspec

from protocol.errors import ProtocolError
from protocol.seats import MAX_SEATS
from protocol.signed import MAX_RECORD_BYTES, opened

VERSION = 1
KEY_BYTES = 32
MAX_ADDRESSES = 8
MAX_ADDRESS_LENGTH = 128
MAX_NAME_LENGTH = 32
MAX_AHEAD = 3600.0
"""Seconds that a record may be issued, or may expire, after the reader's `now`."""
MAX_STEP = 2**53

_DOMAIN = b"potluck/1/presence\x00"

Sign = Callable[[bytes], bytes]
"""From a message to its 64-byte Ed25519 signature: the private key stays with its holder."""
Role = Literal["train", "own", "serve"]
Key = Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
Address = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ADDRESS_LENGTH)]


class Presence(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One peer's presence in one run. Times are Unix seconds by the issuer's clock."""

    version: int
    run: Key
    """The run id: the manifest's SHA-256."""
    key: Key
    """The peer key: 32 bytes, raw Ed25519 public key."""
    addresses: Annotated[tuple[Address, ...], msgspec.Meta(max_length=MAX_ADDRESSES)]
    """libp2p multiaddresses at which the peer listens, most useful first. Empty behind NAT."""
    role: Role
    owns: bool
    """Whether others can dial it, so that it may own chunks."""
    from_step: Annotated[int, msgspec.Meta(ge=0, lt=MAX_STEP)]
    """First due swarm step for which this record counts."""
    issued: float
    expires: float
    name: Annotated[str, msgspec.Meta(max_length=MAX_NAME_LENGTH)] = ""
    """What the volunteer calls the machine. Shown to people, never compared."""
    seat: Annotated[int, msgspec.Meta(ge=0, lt=MAX_SEATS)] = 0
    """Which part of the data it reads (protocol/seats.py)."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Presence)


def encode(presence: Presence, sign: Sign) -> bytes:
    """The signed record, at most MAX_RECORD_BYTES. ValueError if a field is out of its limits."""
    payload = _encoder.encode(presence)
    record = sign(_DOMAIN + payload) + payload
    if len(record) > MAX_RECORD_BYTES:
        raise ValueError(f"presence record of {len(record)} bytes: at most {MAX_RECORD_BYTES}; give fewer addresses")
    try:
        _check(_decoder.decode(payload))
    except (msgspec.MsgspecError, ProtocolError) as error:
        raise ValueError(f"presence: {error}") from error
    return record


def decode_verified(record: bytes, now: float) -> Presence:
    """The presence in `record`, its signature checked, alive at `now` (Unix seconds).

    Raises ProtocolError, and nothing else, for anything that an honest peer does not send, and for expired records.
    """

    def check(presence: Presence) -> None:
        _check(presence)
        _check_times(presence, now)

    return opened(record, _decoder, check, domain=_DOMAIN, what="presence")


def supersedes(new: Presence, held: Presence | None) -> bool:
    """Whether `new` replaces `held`, of the same peer: issued later. A replay of an older record changes nothing."""
    return held is None or new.issued > held.issued


def _check(presence: Presence) -> None:
    if presence.version != VERSION:
        raise ProtocolError("presence: unknown version")
    if not all(address.isascii() and address.isprintable() and address[0] == "/" for address in presence.addresses):
        raise ProtocolError("presence: malformed address")
    # A name reaches other people's terminals: no escape sequences.
    if not presence.name.isprintable():
        raise ProtocolError("presence: unprintable name")
    if not (math.isfinite(presence.issued) and math.isfinite(presence.expires)):
        raise ProtocolError("presence: time is not finite")
    if presence.expires <= presence.issued:
        raise ProtocolError("presence: expires before it is issued")


def _check_times(presence: Presence, now: float) -> None:
    if presence.issued > now + MAX_AHEAD:
        raise ProtocolError("presence: issued in the future")
    if presence.expires > now + MAX_AHEAD:
        raise ProtocolError("presence: expires too late")
    if presence.expires <= now:
        raise ProtocolError("presence: expired")
