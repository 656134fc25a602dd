"""A peer's identity: an Ed25519 key pair in the file format that the libp2p daemon reads.

The file is libp2p's PrivateKey protobuf: key type 1 (Ed25519), 64 bytes of data, the 32-byte seed and then the 32-byte
public key. The peer id is the base58 of an identity multihash over the PublicKey protobuf, so it holds the whole key
and the two convert into each other (libp2p peer-ids specification).
"""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

import base58
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.errors import ProtocolError, UserError
from protocol.signature import verify

__all__ = ["Identity", "key_of", "load_or_create", "peer_id", "verify"]

KEY_BYTES = 32
_PRIVATE_PREFIX = bytes([0x08, 0x01, 0x12, 0x40])
_PEER_ID_PREFIX = bytes([0x00, 0x24, 0x08, 0x01, 0x12, 0x20])
_FILE_BYTES = len(_PRIVATE_PREFIX) + 2 * KEY_BYTES
_MAX_BASE58_LENGTH = 128


@dataclass(frozen=True)
class Identity:
    """A key pair: `private` is the 32-byte seed, `key` the 32-byte public key that names the peer."""

    private: bytes = field(repr=False)
    key: bytes

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """The identity whose private key is `seed` (32 bytes)."""
        return cls(private=seed, key=Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        """The 64-byte Ed25519 signature of `message`."""
        return Ed25519PrivateKey.from_private_bytes(self.private).sign(message)

    @property
    def peer_id(self) -> str:
        """The libp2p peer id, base58."""
        return peer_id(self.key)


def peer_id(key: bytes) -> str:
    """The libp2p peer id (base58, `12D3KooW…`) of peer key `key` (32 bytes)."""
    assert len(key) == KEY_BYTES
    return base58.b58encode(_PEER_ID_PREFIX + key).decode()


def key_of(peer_id: str | bytes) -> bytes:
    """The peer key (32 bytes) in a libp2p peer id, base58 or raw. ProtocolError for one that is not Ed25519."""
    if isinstance(peer_id, str):
        # Decoding base58 is quadratic in the length.
        if len(peer_id) > _MAX_BASE58_LENGTH:
            raise ProtocolError("peer id: too long")
        try:
            peer_id = base58.b58decode(peer_id)
        except ValueError as error:
            raise ProtocolError("peer id: not base58") from error
    if len(peer_id) != len(_PEER_ID_PREFIX) + KEY_BYTES or not peer_id.startswith(_PEER_ID_PREFIX):
        raise ProtocolError("peer id: not of an Ed25519 key")
    return peer_id[len(_PEER_ID_PREFIX) :]


def load_or_create(path: Path) -> Identity:
    """The identity in `path`, made first (mode 600) if the file does not exist.

    UserError if the file is damaged, others can read it, or its folder cannot be used.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            return _load(path)
        _create(path)
        return _load(path)
    except OSError as error:
        raise UserError(f"identity file {path}: {error.strerror}") from error


def _load(path: Path) -> Identity:
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        data = file.read(_FILE_BYTES + 1)
    if mode & 0o077:
        raise UserError(f"identity file {path}: others can read it (mode {mode & 0o777:o}); run: chmod 600 {path}")
    seed = data[len(_PRIVATE_PREFIX) : -KEY_BYTES]
    if len(data) != _FILE_BYTES or not data.startswith(_PRIVATE_PREFIX):
        raise UserError(
            f"identity file {path}: not an Ed25519 private key in libp2p's format; "
            "move it away, and a new identity will be made"
        )
    identity = Identity.from_seed(seed)
    if identity.key != data[-KEY_BYTES:]:
        raise UserError(f"identity file {path}: damaged, its two halves do not belong together; restore a copy")
    return identity


def _create(path: Path) -> None:
    """Write a new identity under a temporary name and link it into place, so that no reader sees half a file.

    Two processes may race here: the first link wins, and the other loads the winner's file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    identity = Identity.from_seed(secrets.token_bytes(KEY_BYTES))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_PRIVATE_PREFIX + identity.private + identity.key)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()
