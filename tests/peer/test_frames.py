"""The wire format: whatever is sent comes out whole and in order, however it is cut; whatever else is refused."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.backlog import Backlog, Outgoing
from peer.frames import (
    ACK_BYTES,
    PREFIX_BYTES,
    Ack,
    AckReader,
    FrameLimits,
    FrameReader,
    encode_ack,
    frame_bytes,
    frame_prefix,
)
from peer.transport import Priority
from protocol.errors import ProtocolError

LIMITS = FrameLimits(header=200, bulk=1000)
Parts = list[tuple[bytes, bytes]]

frames = st.lists(st.tuples(st.binary(max_size=200), st.binary(max_size=1000)), max_size=6)


def encoded(parts: Parts) -> bytes:
    return b"".join(frame_prefix(n, header, bulk) + header + bulk for n, (header, bulk) in enumerate(parts, 1))


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    bounds = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:stop] for start, stop in itertools.pairwise(bounds)]


@given(frames, st.lists(st.integers(0, 10_000), max_size=8))
def test_frames_come_out_as_they_went_in(parts: Parts, cuts: list[int]) -> None:
    reader, data = FrameReader(LIMITS), encoded(parts)
    out = [frame for piece in pieces(data, cuts) for frame in reader.feed(piece)]
    assert [(frame.header, bytes(frame.bulk)) for frame in out] == parts
    assert [frame.sequence for frame in out] == list(range(1, len(parts) + 1))
    assert sum(frame.size for frame in out) == reader.received == len(data)
    assert [frame.size for frame in out] == [frame_bytes(*part) for part in parts]


@given(frames.filter(bool), st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_is_noticed_and_nothing_after_it_is_given(parts: Parts, position: int, change: int) -> None:
    data = bytearray(encoded(parts))
    position %= len(data)
    data[position] ^= change
    reader, out = FrameReader(LIMITS), []
    try:
        for byte in range(len(data)):
            out += reader.feed(data[byte : byte + 1])
    except ProtocolError:
        pass
    else:
        # A length that grew asks for more bytes than there are; the stream's end then shows it.
        assert len(out) < len(parts)
    assert [(frame.header, bytes(frame.bulk)) for frame in out] == parts[: len(out)]


@given(st.binary(max_size=4000))
def test_garbage_is_a_protocol_error(data: bytes) -> None:
    reader = FrameReader(LIMITS)
    try:
        assert reader.feed(data) == []
        assert len(data) < PREFIX_BYTES + LIMITS.header + LIMITS.bulk
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    ("header", "bulk", "sequence", "reason"),
    [
        (bytes(201), b"", 1, "header too long"),
        (b"", bytes(1001), 1, "bulk too long"),
        (b"h", b"b", 2, "out of sequence"),
        (b"h", b"b", 0, "out of sequence"),
    ],
)
def test_limits_are_checked_on_the_prefix_alone(header: bytes, bulk: bytes, sequence: int, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        FrameReader(LIMITS).feed(frame_prefix(sequence, header, bulk))


def test_a_repeated_frame_is_refused() -> None:
    reader, data = FrameReader(LIMITS), encoded([(b"h", b"b")])
    assert len(reader.feed(data)) == 1
    with pytest.raises(ProtocolError, match="out of sequence"):
        reader.feed(data)


def test_bulk_survives_the_buffer() -> None:
    reader = FrameReader(LIMITS)
    (first,) = reader.feed(encoded([(b"h", b"first")]))
    reader.feed(frame_prefix(2, b"h", b"other") + b"hother")
    assert bytes(first.bulk) == b"first"


counts = st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)), max_size=6)


@given(counts, st.lists(st.integers(0, 1000), max_size=6))
def test_newest_acknowledgement(numbers: list[tuple[int, int]], cuts: list[int]) -> None:
    sequences, received = sorted(n for n, _ in numbers), sorted(n for _, n in numbers)
    acks = [Ack(*pair) for pair in zip(sequences, received, strict=True)]
    reader, seen = AckReader(), None
    for piece in pieces(b"".join(map(encode_ack, acks)), cuts):
        seen = reader.feed(piece, sent=Ack(2**40, 2**40)) or seen
    assert seen == (acks[-1] if acks else None)


@pytest.mark.parametrize(
    ("acks", "reason"),
    [
        ([Ack(2, 20), Ack(1, 20)], "goes back"),
        ([Ack(2, 20), Ack(2, 19)], "goes back"),
        ([Ack(6, 50)], "not sent"),
        ([Ack(5, 51)], "not sent"),
    ],
)
def test_false_acknowledgements(acks: list[Ack], reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        AckReader().feed(b"".join(map(encode_ack, acks)), sent=Ack(5, 50))


def test_garbage_acknowledgement() -> None:
    with pytest.raises(ProtocolError, match="wrong hash"):
        AckReader().feed(bytes(ACK_BYTES), sent=Ack(0, 0))


def test_small_frames_overtake_bulk_and_repair_waits() -> None:
    backlog = Backlog(1000)
    sent = [
        (Outgoing(b"repair", bytes(10), "x"), Priority.REPAIR),
        (Outgoing(b"bulk1", bytes(10), "x"), None),
        (Outgoing(b"bulk2", bytes(10), "x"), None),
        (Outgoing(b"small", b"", "x"), None),
    ]
    for frame, priority in sent:
        assert backlog.put(frame, frame.usual_priority if priority is None else priority)

    async def drain() -> list[bytes]:
        return [(await backlog.get()).header for _ in sent]

    assert asyncio.run(drain()) == [b"small", b"bulk1", b"bulk2", b"repair"]
    assert backlog.num_bytes == 0


def test_backlog_limit() -> None:
    backlog = Backlog(100)
    assert backlog.put(Outgoing(b"h", bytes(500), "x"), Priority.BULK), "one frame always fits"
    assert not backlog.put(Outgoing(b"h", b"", "x"), Priority.SMALL)
    backlog.clear()
    assert backlog.put(Outgoing(b"h", b"", "x"), Priority.SMALL)
