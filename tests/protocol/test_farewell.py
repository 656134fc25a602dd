"""Farewells: signed, bounded, and never taken for a presence record, or the other way round."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootstrap.identity import Identity
from protocol import presence
from protocol.errors import ProtocolError
from protocol.farewell import VERSION, Farewell, decode_verified, encode
from protocol.presence import Presence

NOW = 1_800_000_000.0
IDENTITY = Identity.from_seed(bytes(32))
WORDS = Farewell(VERSION, bytes(32), IDENTITY.key, 120, False, NOW, NOW + 600, "ada")


def test_it_comes_back_as_it_was() -> None:
    assert decode_verified(encode(WORDS, IDENTITY.sign), NOW) == WORDS


@given(st.data())
def test_a_changed_byte_is_found(data: st.DataObject) -> None:
    record = bytearray(encode(WORDS, IDENTITY.sign))
    place = data.draw(st.integers(0, len(record) - 1))
    record[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ProtocolError):
        decode_verified(bytes(record), NOW)


@given(st.binary(max_size=2000))
def test_garbage_is_refused_in_words(record: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_verified(record, NOW)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2}, {"name": "a\x1b[2J"}, {"step": -1}, {"issued": float("nan")}, {"expires": float("inf")},
        {"issued": NOW + 4000}, {"expires": NOW + 4000}, {"expires": NOW}, {"name": "x" * 33},
    ],
)  # fmt: skip
def test_what_no_honest_peer_says(change: dict[str, object]) -> None:
    record = encode(msgspec.structs.replace(WORDS, **change), IDENTITY.sign)
    with pytest.raises(ProtocolError):
        decode_verified(record, NOW)


def test_neither_passes_for_the_other() -> None:
    here = Presence(1, bytes(32), IDENTITY.key, (), "train", False, 0, NOW, NOW + 60, "ada")
    with pytest.raises(ProtocolError):
        decode_verified(presence.encode(here, IDENTITY.sign), NOW)
    with pytest.raises(ProtocolError):
        presence.decode_verified(encode(WORDS, IDENTITY.sign), NOW)
