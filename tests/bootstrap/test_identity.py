"""Identity files and peer ids. That p2pd reads the same peer id from the file is tested in test_daemon.py."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootstrap.identity import Identity, key_of, load_or_create, peer_id, verify
from protocol.errors import ProtocolError, UserError


def test_created_once_with_mode_600(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "identity"
    first = load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_or_create(path) == first
    assert [entry.name for entry in path.parent.iterdir()] == ["identity"]


def test_the_private_key_is_not_shown(tmp_path: Path) -> None:
    assert load_or_create(tmp_path / "identity").private.hex() not in repr(load_or_create(tmp_path / "identity"))
    assert "private" not in repr(Identity.from_seed(b"s" * 32))


def test_sign_and_verify() -> None:
    identity = Identity.from_seed(b"s" * 32)
    signature = identity.sign(b"message")
    assert len(signature) == 64
    assert verify(identity.key, b"message", signature)
    assert not verify(identity.key, b"other", signature)
    assert not verify(b"k" * 32, b"message", signature)
    assert not verify(b"short", b"message", b"short")


def test_peer_id_of_a_known_key() -> None:
    """The example of the libp2p peer-ids specification's test vectors, Ed25519."""
    private = bytes.fromhex(
        "080112407e0830617c4a7de83925dfb2694556b12936c477a0e1feb2e148ec9da60fee7d"
        "1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e"
    )
    identity = Identity.from_seed(private[4:36])
    assert identity.key == private[36:]
    assert identity.peer_id.startswith("12D3KooW")


@given(st.binary(min_size=32, max_size=32))
def test_peer_id_and_key_convert_into_each_other(key: bytes) -> None:
    assert key_of(peer_id(key)) == key


@pytest.mark.parametrize(
    "bad", ["", "0OIl", "Qm" + "1" * 44, "1" * 1000, b"", b"\x12\x20" + bytes(32), peer_id(b"k" * 32) + "x", "ü"]
)
def test_other_peer_ids_are_refused(bad: str | bytes) -> None:
    with pytest.raises(ProtocolError, match="peer id"):
        key_of(bad)


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x08\x01\x12\x40" + bytes(64), b"\x08\x01\x12\x40" + bytes(99)])
def test_damaged_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "identity"
    path.touch(mode=0o600)
    path.write_bytes(content)
    with pytest.raises(UserError, match=str(path)):
        load_or_create(path)
    assert path.read_bytes() == content


def test_file_that_others_can_read(tmp_path: Path) -> None:
    path = tmp_path / "identity"
    load_or_create(path)
    path.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        load_or_create(path)


def test_path_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="identity file"):
        load_or_create(tmp_path)
