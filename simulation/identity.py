"""Who simulated peers are: real Ed25519 keys and signed presence records, and cheap signatures for all the rest."""

from __future__ import annotations

import hashlib

from protocol import presence
from protocol.messages import sha256
from protocol.presence import Presence
from protocol.signature import Ed25519Keys

RUN = sha256(b"a simulated run")


class CheapKeys:
    """Signatures that only the simulator would accept: a hash keyed by the peer's name."""

    def __init__(self, key: bytes) -> None:
        self.key = key

    def sign(self, message: bytes) -> bytes:
        return hashlib.blake2b(message, key=self.key).digest()

    def verify(self, key: bytes, message: bytes, signature: bytes) -> bool:
        return hashlib.blake2b(message, key=key).digest() == signature


class Identity:
    """One peer's key. Presence records are checked by Ed25519, so they are signed by it here too."""

    def __init__(self, name: str) -> None:
        self._signer = Ed25519Keys(sha256(name.encode()))
        self.key = self._signer.key

    def record(self, wall: float, life: float, from_step: int = 0) -> bytes:
        """A signed presence record, issued at `wall` (Unix seconds, its own clock's), good for `life` seconds."""
        record = Presence(
            presence.VERSION, RUN, self.key, ("/ip4/192.0.2.1/tcp/1",), "train", True, from_step, wall, wall + life
        )
        return presence.encode(record, self._signer.sign)
