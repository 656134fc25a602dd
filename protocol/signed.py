"""Signed records: an Ed25519 signature followed by a MessagePack array, so that anyone can pass them on unchanged.

The signature covers a domain prefix and the array's bytes exactly as sent. A domain of its own keeps one kind of
record from passing for another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import msgspec

from protocol.errors import ProtocolError
from protocol.signature import verify

SIGNATURE_BYTES: Final = 64
MAX_RECORD_BYTES: Final = 1024


class Signed(Protocol):
    """What is signed names its signer."""

    @property
    def key(self) -> bytes:
        """32 bytes, raw Ed25519 public key."""


S = TypeVar("S", bound=Signed)


def opened(
    record: bytes, decoder: msgspec.msgpack.Decoder[S], check: Callable[[S], None], *, domain: bytes, what: str
) -> S:
    """What a record says, once `check` has taken it and its signature proved right; `what` begins every complaint.

    Raises ProtocolError, and nothing else, for anything that an honest peer does not send.
    """
    if not SIGNATURE_BYTES < len(record) <= MAX_RECORD_BYTES:
        raise ProtocolError(f"{what}: wrong size")
    signature, payload = record[:SIGNATURE_BYTES], record[SIGNATURE_BYTES:]
    try:
        said = decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"{what}: malformed") from error
    check(said)
    if not verify(said.key, domain + payload, signature):
        raise ProtocolError(f"{what}: wrong signature")
    return said
