"""Messages: what is encoded comes back; whatever else arrives is a ProtocolError, and nothing but that."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import messages
from protocol.errors import ProtocolError
from protocol.messages import (
    HEADER_LIMITS,
    MAX_PARTS,
    AskHeads,
    Busy,
    Contribution,
    Heads,
    Hello,
    Link,
    LinkMessage,
    Open,
    Parent,
    Part,
    Pull,
    Records,
    StateMessage,
    Status,
    close_text,
    contribution_text,
    decode,
    encode,
    genesis_head,
    link_head,
    part_text,
    sha256,
)

BuildLink = Callable[..., Link]
BuildContribution = Callable[..., Contribution]

digests = st.binary(min_size=32, max_size=32)
signatures = st.binary(min_size=64, max_size=64)
indices = st.integers(0, (1 << 24) - 1)
steps = st.integers(0, (1 << 40) - 1)
tokens = st.integers(1, 1 << 40)
weights = st.integers(0, (1 << 62) - 1)
records = st.binary(max_size=1024)
parents = st.builds(
    Parent, head=digests, state=digests, depth=indices, due=steps, span=steps, weight=weights, cumulative=weights
)
parts = st.builds(Part, peer=digests, tokens=tokens, payload=digests, signature=signatures)
links = st.builds(
    Link,
    chunk=indices,
    due=steps,
    span=st.integers(1, (1 << 40) - 1),
    parent=digests,
    state=digests,
    depth=st.integers(1, (1 << 24) - 1),
    parts=st.lists(parts, min_size=1, max_size=4).map(tuple),
    weight=weights,
    cumulative=weights,
    result=digests,
)
any_message = st.one_of(
    st.builds(Hello, version=st.integers(-5, 300), record=records),
    st.builds(
        Contribution,
        chunk=indices,
        due=steps,
        parent=parents,
        tokens=tokens,
        payload=digests,
        peer=digests,
        signature=signatures,
    ),
    st.builds(LinkMessage, link=links, owner=digests, signature=signatures),
    st.builds(StateMessage, link=links, owner=digests, signature=signatures),
    st.builds(Open, fragment=indices, due=steps),
    st.builds(Status, step=steps, phase=st.integers(0, 2), heads=digests),
    st.just(AskHeads()),
    st.builds(Heads, heads=st.lists(st.tuples(weights, digests), max_size=5).map(tuple)),
    st.builds(Pull, chunk=indices, have=st.lists(digests, max_size=8).map(tuple)),
    st.builds(Records, records=st.lists(records, max_size=3).map(tuple)),
    st.builds(Busy, chunk=indices, wait=st.integers(0, 60_000)),
)


def some(byte: int, size: int = 32) -> bytes:
    return bytes([byte]) * size


def refused(data: bytes) -> bool:
    """Whether decoding refuses; anything but a message or a ProtocolError fails the test."""
    try:
        decode(data)
    except ProtocolError:
        return True
    return False


@given(any_message)
def test_round_trip(message: messages.AnyMessage) -> None:
    data = encode(message)
    assert decode(data) == message
    assert decode(memoryview(data)) == message
    assert encode(decode(data)) == data


@given(st.binary(max_size=200))
def test_random_bytes_give_a_message_or_a_protocol_error(data: bytes) -> None:
    refused(data)


@given(any_message, st.data())
def test_mutated_messages_give_a_message_or_a_protocol_error(message: messages.AnyMessage, data: st.DataObject) -> None:
    header = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    refused(bytes(header))


@given(any_message, st.data())
def test_truncated_messages_are_refused(message: messages.AnyMessage, data: st.DataObject) -> None:
    header = encode(message)
    assert refused(header[: data.draw(st.integers(0, len(header) - 1))])


@given(any_message, st.binary(min_size=1, max_size=20))
def test_bytes_behind_a_message_are_refused(message: messages.AnyMessage, more: bytes) -> None:
    assert refused(encode(message) + more)


@given(any_message)
def test_one_field_more_or_fewer_is_refused(message: messages.AnyMessage) -> None:
    fields = msgspec.msgpack.decode(encode(message))
    assert refused(msgspec.msgpack.encode([*fields, 0]))
    if len(fields) > 1:
        assert refused(msgspec.msgpack.encode(fields[:-1]))


@pytest.mark.parametrize(
    "wrong",
    [
        [4, "0", 12],
        [4, 0, None],
        [4, 0, 1.5],
        [4, 0, float("nan")],
        [4, 0, float("inf")],
        [4, 0, True],
        [4, -1, 12],
        [4, 0, -1],
        [4, 1 << 24, 12],
        [4, 0, 1 << 40],
        [4, 0, 1 << 63],
        [5, 0, 3, some(1)],
        [5, 0, -1, some(1)],
        [5, 0, 0, some(1, 31)],
        [5, 0, 0, some(1, 33)],
        [5, 0, 0, "x" * 32],
        [5, 0, 0, [0] * 32],
        [8, 0, [some(1)] * 9],
        [10, [some(1)] * 65],
        [10, [some(1, 1025)]],
        [1, 1, "record"],
        [0],
        [11],
        [99, 1],
        [-1, 1],
        ["4", 0, 12],
        [],
        {},
        {4: 0},
        None,
        b"",
    ],
    ids=repr,
)
def test_wrong_types_and_ranges_are_refused(wrong: object) -> None:
    assert refused(msgspec.msgpack.encode(wrong))


@pytest.mark.parametrize("count", [0, -1, (1 << 40) + 1, 1 << 62, 1.0e300])
def test_negative_zero_and_enormous_tokens_are_refused(count: float, build_contribution: BuildContribution) -> None:
    fields = msgspec.msgpack.decode(encode(build_contribution()))
    fields[4] = count
    assert refused(msgspec.msgpack.encode(fields))


def test_deep_nesting_is_refused() -> None:
    assert refused(b"\x93\x04" + b"\x91" * 1000 + b"\x00\x00")
    assert refused(b"\x92\x0a" + b"\x91" * 70_000)
    assert refused(b"\x91" * 100_000)


def test_a_claimed_length_is_not_believed() -> None:
    assert refused(b"\x92\x0a" + b"\xdd" + struct.pack(">I", 0xFFFFFFFF))
    assert refused(b"\x93\x01\x01\xc6" + struct.pack(">I", 0xFFFFFFFF))


@pytest.mark.parametrize(("tag", "limit"), sorted(HEADER_LIMITS.items()))
def test_every_tag_has_its_size_limit(tag: int, limit: int) -> None:
    data = bytes([0x92, tag]) + bytes(limit)
    with pytest.raises(ProtocolError, match="oversized"):
        decode(data)
    with pytest.raises(ProtocolError, match="malformed"):
        decode(data[:limit])


def test_the_largest_honest_messages_fit(build_link: BuildLink) -> None:
    most = tuple(Part(n.to_bytes(32, "big"), 1 << 40, some(1), some(2, 64)) for n in range(MAX_PARTS))
    big = LinkMessage(build_link(parts=most, weight=(1 << 62) - 1, cumulative=(1 << 62) - 1), some(1), some(2, 64))
    assert decode(encode(big)) == big
    assert refused(encode(LinkMessage(build_link(parts=(*most, most[0])), some(1), some(2, 64))))
    heads = Heads(tuple(((1 << 62) - 1, some(1)) for _ in range(1 << 16)))
    assert decode(encode(heads)) == heads
    full = Records(tuple(some(1, 1024) for _ in range(64)))
    assert decode(encode(full)) == full
    assert decode(encode(Hello(1, some(1, 1024)))) == Hello(1, some(1, 1024))


def test_golden_bytes(build_link: BuildLink, build_contribution: BuildContribution) -> None:
    """What is signed and hashed must never change: a change here is another protocol version."""
    run = some(0xAB)
    assert encode(Open(2, 300)).hex() == "930402cd012c"
    assert genesis_head(run, 3, some(2)).hex() == GENESIS
    assert link_head(run, build_link()).hex() == LINK
    assert sha256(contribution_text(run, build_contribution())).hex() == CONTRIBUTION
    assert close_text(some(1)) == b"potluck close 1" + some(1)


GENESIS = "41d00e732ac4fe8ecae07f7baa53753a5c02a8beac8c76d54fc368c586ec782b"
LINK = "52a82971b589a345c515d6ea65d494b1eb31bd392a7e4bae39c25e9805fc5e14"
CONTRIBUTION = "16a54a8cf8447468e32fce57d901684bf38fc6a11e4567e004f90088eaa8f309"


def test_a_head_covers_run_and_every_field(build_link: BuildLink) -> None:
    changes: list[dict[str, Any]] = [
        {"chunk": 4},
        {"due": 121},
        {"span": 119},
        {"parent": some(0)},
        {"state": some(0)},
        {"depth": 2},
        {"parts": build_link().parts[:1]},
        {"weight": 401},
        {"cumulative": 401},
        {"result": some(0)},
    ]
    heads = {link_head(some(1), build_link(**change)) for change in changes}
    assert len({*heads, link_head(some(1), build_link()), link_head(some(2), build_link())}) == len(changes) + 2


def test_a_contribution_is_signed_whole_but_for_the_signature(build_contribution: BuildContribution) -> None:
    one = build_contribution()
    assert contribution_text(some(1), one) == contribution_text(
        some(1), msgspec.structs.replace(one, signature=some(0, 64))
    )
    for name, value in {"chunk": 4, "due": 1, "tokens": 5, "payload": some(0), "peer": some(0)}.items():
        assert contribution_text(some(1), msgspec.structs.replace(one, **{name: value})) != contribution_text(
            some(1), one
        )


def test_a_link_repeats_what_its_contributors_signed(
    build_link: BuildLink, build_contribution: BuildContribution
) -> None:
    """Whoever holds only the link can check it: what the parent's head covers is not signed once more."""
    run, link = some(1), build_link(depth=7, cumulative=9000)
    part = link.parts[1]
    parent = Parent(link.parent, link.state, 6, 80, 40, 350, 8600)
    made = build_contribution(tokens=part.tokens, payload=part.payload, peer=part.peer, parent=parent)
    assert part_text(run, link, part) == contribution_text(run, made)
    for other in (build_link(due=121), build_link(parent=some(0)), build_link(state=some(0)), build_link(chunk=4)):
        assert part_text(run, other, part) != part_text(run, link, part)
    assert part_text(some(2), link, part) != part_text(run, link, part)
