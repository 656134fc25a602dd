"""Presence records: what an honest peer writes is read back; whatever else arrives is a ProtocolError."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import presence
from protocol.errors import ProtocolError
from protocol.presence import Presence, decode_verified, encode, supersedes
from protocol.signature import Ed25519Keys

NOW = 1_800_000_000.0
KEYS = Ed25519Keys(b"\x01" * 32)


def record(**changes: Any) -> Presence:
    fields: dict[str, Any] = {
        "version": 1,
        "run": b"r" * 32,
        "key": KEYS.key,
        "addresses": ("/ip4/192.0.2.7/tcp/4001",),
        "role": "train",
        "owns": True,
        "from_step": 7,
        "issued": NOW,
        "expires": NOW + 60,
        "name": "laptop",
    }
    return Presence(**(fields | changes))


def signed_anyway(found: Presence) -> bytes:
    """A validly signed record of fields that `encode` refuses."""
    payload = msgspec.msgpack.encode(found)
    return KEYS.sign(b"potluck/1/presence\x00" + payload) + payload


def test_round_trip() -> None:
    data = encode(record(), KEYS.sign)
    assert len(data) < 250
    assert decode_verified(data, NOW + 1) == record()


def test_largest_record_of_full_addresses_fits() -> None:
    addresses = tuple(f"/ip4/203.0.113.{i}/tcp/40001/p2p/{'1' * 52}" for i in range(8))
    data = encode(record(addresses=addresses, name="ü" * 32), KEYS.sign)
    assert len(data) <= presence.MAX_RECORD_BYTES
    assert decode_verified(data, NOW).addresses == addresses


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"run": b"short"},
        {"key": b"k" * 31},
        {"addresses": ("/ip4/1.2.3.4/tcp/1",) * 9},
        {"addresses": ("/" + "a" * 128,)},
        {"addresses": ("ip4/1.2.3.4",)},
        {"addresses": ("/ip4/1.2.3.4\x1b[2J",)},
        {"role": "king"},
        {"from_step": -1},
        {"from_step": 2**60},
        {"name": "n" * 33},
        {"name": "\x1b[31mred"},
        {"issued": math.nan},
        {"expires": math.inf},
        {"expires": NOW - 1},
    ],
    ids=str,
)
def test_bad_fields_are_refused_both_ways(changes: dict[str, Any]) -> None:
    bad = record(**changes)
    with pytest.raises(ValueError, match="presence"):
        encode(bad, KEYS.sign)
    with pytest.raises(ProtocolError, match="presence"):
        decode_verified(signed_anyway(bad), NOW)


def test_too_large_a_record_is_refused() -> None:
    with pytest.raises(ValueError, match="fewer addresses"):
        encode(record(addresses=("/" + "a" * 127,) * 8), KEYS.sign)


@pytest.mark.parametrize(
    ("now", "reason"),
    [(NOW + 60, "expired"), (NOW - 3601, "future"), (NOW - 3550, "expires too late")],
)
def test_a_record_lives_only_in_its_time(now: float, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode_verified(encode(record(), KEYS.sign), now)


def test_a_record_of_a_hundred_years_is_refused() -> None:
    with pytest.raises(ProtocolError, match="expires too late"):
        decode_verified(encode(record(expires=NOW + 3e9), KEYS.sign), NOW)


def test_nobody_signs_for_another() -> None:
    other = Ed25519Keys(b"\x02" * 32)
    with pytest.raises(ProtocolError, match="signature"):
        decode_verified(encode(record(), other.sign), NOW)


def test_later_issue_wins_and_replays_do_nothing() -> None:
    older, newer = record(), record(issued=NOW + 20, expires=NOW + 80)
    assert supersedes(older, None)
    assert supersedes(newer, older)
    assert not supersedes(older, newer)
    assert not supersedes(newer, newer)


@given(st.integers(0, 400), st.integers(1, 255))
def test_any_changed_byte_is_noticed(position: int, change: int) -> None:
    data = bytearray(encode(record(), KEYS.sign))
    data[position % len(data)] ^= change
    with pytest.raises(ProtocolError):
        decode_verified(bytes(data), NOW)


@given(st.binary(max_size=1200))
def test_garbage_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_verified(data, NOW)


@given(st.recursive(st.none() | st.integers() | st.text() | st.binary(), lambda inner: st.lists(inner, max_size=11)))
def test_well_formed_messagepack_of_another_shape_is_a_protocol_error(value: object) -> None:
    try:
        payload = msgspec.msgpack.encode(value)
    except OverflowError:
        return
    with pytest.raises(ProtocolError):
        decode_verified(KEYS.sign(b"potluck/1/presence\x00" + payload) + payload, NOW)


def test_deep_nesting_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        decode_verified(bytes(64) + b"\x91" * 900, NOW)


def test_the_struct_is_frozen() -> None:
    assert not dataclasses.is_dataclass(Presence)
    with pytest.raises(AttributeError):
        record().name = "other"  # type: ignore[misc]
