"""Farewells: how a peer that has gone is told from one that does not answer.

A farewell is a 64-byte Ed25519 signature followed by a MessagePack array (`Farewell`), like a presence record and under
a domain of its own, so that neither can pass for the other. Nothing of the protocol depends on it: it is for people who
look at a run.
"""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

from protocol.errors import ProtocolError
from protocol.presence import MAX_AHEAD, MAX_NAME_LENGTH, MAX_STEP, Key, Sign
from protocol.signed import opened

VERSION = 1

_DOMAIN = b"potluck/1/farewell\x00"


class Farewell(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One peer's last words in one run. Times are Unix seconds by the issuer's clock."""

    version: int
    run: Key
    key: Key
    step: Annotated[int, msgspec.Meta(ge=0, lt=MAX_STEP)]
    """The swarm step at which it left."""
    finished: bool
    """Whether that was the end of the run."""
    issued: float
    expires: float
    name: Annotated[str, msgspec.Meta(max_length=MAX_NAME_LENGTH)] = ""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Farewell)


def encode(farewell: Farewell, sign: Sign) -> bytes:
    """The signed farewell."""
    payload = _encoder.encode(farewell)
    return sign(_DOMAIN + payload) + payload


def decode_verified(record: bytes, now: float) -> Farewell:
    """The farewell in `record`, its signature checked, alive at `now` (Unix seconds).

    Raises ProtocolError, and nothing else, for anything that an honest peer does not send, and for expired ones.
    """
    return opened(record, _decoder, lambda farewell: _check(farewell, now), domain=_DOMAIN, what="farewell")


def _check(farewell: Farewell, now: float) -> None:
    if farewell.version != VERSION:
        raise ProtocolError("farewell: unknown version")
    if not farewell.name.isprintable():
        raise ProtocolError("farewell: unprintable name")
    if not (math.isfinite(farewell.issued) and math.isfinite(farewell.expires)):
        raise ProtocolError("farewell: time is not finite")
    if not farewell.issued <= now + MAX_AHEAD or not farewell.expires <= now + MAX_AHEAD:
        raise ProtocolError("farewell: in the future")
    if farewell.expires <= now:
        raise ProtocolError("farewell: expired")
