"""Who may speak for a peer key: the signing interface of the protocol, and Ed25519 behind it.

The state machines take a `Keys`, so that the simulator can run thousands of swarms with a cheaper one.
"""

from __future__ import annotations

from typing import Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


class Keys(Protocol):
    """One peer's key, and the check of everyone's."""

    @property
    def key(self) -> bytes:
        """This peer's public key, 32 bytes."""

    def sign(self, message: bytes) -> bytes:
        """A 64-byte signature of this peer."""

    def verify(self, key: bytes, message: bytes, signature: bytes) -> bool:
        """Whether `key` signed the message. Never raises."""


class Ed25519Keys:
    """`Keys` by Ed25519 (RFC 8032); deterministic."""

    def __init__(self, seed: bytes) -> None:
        """`seed` is the 32-byte private key."""
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self._key = self._private.public_key().public_bytes_raw()

    @property
    def key(self) -> bytes:
        return self._key

    def sign(self, message: bytes) -> bytes:
        return self._private.sign(message)

    def verify(self, key: bytes, message: bytes, signature: bytes) -> bool:
        return verify(key, message, signature)


def verify(key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the Ed25519 key (32 bytes) made the signature (64 bytes) of the message. Never raises."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
