"""Ed25519 behind the protocol's signing interface."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.signature import Ed25519Keys, verify

KEYS = Ed25519Keys(bytes(32))


def test_rfc_8032_test_1() -> None:
    keys = Ed25519Keys(bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))
    assert keys.key.hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert keys.sign(b"").hex().startswith("e5564300c360ac729086e2cc806e828a")


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_a_signature_is_of_one_message_and_one_key(message: bytes, other: bytes) -> None:
    signature = KEYS.sign(message)
    assert signature == KEYS.sign(message) and len(signature) == 64
    assert KEYS.verify(KEYS.key, message, signature)
    assert KEYS.verify(KEYS.key, other, signature) == (message == other)
    assert not verify(Ed25519Keys(b"\1" * 32).key, message, signature)


@given(st.binary(max_size=80), st.binary(max_size=80), st.binary(max_size=80))
def test_verifying_anything_never_raises(key: bytes, message: bytes, signature: bytes) -> None:
    assert not verify(key, message, signature)


def test_a_flipped_bit_anywhere_is_noticed() -> None:
    signature = KEYS.sign(b"message")
    for index in range(0, 512, 7):
        flipped = bytearray(signature)
        flipped[index // 8] ^= 1 << index % 8
        assert not verify(KEYS.key, b"message", bytes(flipped))
