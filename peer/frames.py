"""The bytes on a stream between two peers. Pure: bytes in, frames out.

A stream carries frames one way and acknowledgements the other. All integers are little endian and unsigned.

    frame   4  length of the header           ack   8  sequence number of the last frame taken, 0 before the first
            4  length of the bulk                   8  bytes of frames received so far on this stream
            8  sequence number, from 1              4  first bytes of the SHA-256 of the 16 bytes above
           16  first bytes of the SHA-256 of
               the 16 bytes above, header, bulk
               header, then bulk

Streams through p2pd may end anywhere without an error, so lengths and hashes are mandatory. An acknowledgement tells
of bytes too, so that a large frame on a slow link is not mistaken for a dead peer.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from protocol.errors import ProtocolError

_LENGTHS = struct.Struct("<IIQ")
_ACK = struct.Struct("<QQ")
_HASH_BYTES = 16
_ACK_HASH_BYTES = 4
PREFIX_BYTES = _LENGTHS.size + _HASH_BYTES
ACK_BYTES = _ACK.size + _ACK_HASH_BYTES

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True)
class FrameLimits:
    """The longest header and bulk, in bytes, that a reader accepts."""

    header: int = 4 << 20
    bulk: int = 64 << 20


@dataclass(frozen=True)
class Frame:
    """One frame as it was received. `size` is what it took on the stream, in bytes."""

    sequence: int
    header: bytes
    bulk: memoryview
    size: int


@dataclass(frozen=True)
class Ack:
    """What the receiver has: all frames up to `sequence`, and `received` bytes."""

    sequence: int
    received: int


def frame_bytes(header: Bytes, bulk: Bytes) -> int:
    """The size on the stream of a frame, in bytes."""
    return PREFIX_BYTES + len(header) + len(bulk)


def frame_prefix(sequence: int, header: Bytes, bulk: Bytes) -> bytes:
    """What goes before the header and the bulk: lengths, sequence number, hash."""
    lengths = _LENGTHS.pack(len(header), len(bulk), sequence)
    return lengths + _digest(lengths, header, bulk)


def encode_ack(ack: Ack) -> bytes:
    """The ACK_BYTES bytes of an acknowledgement."""
    numbers = _ACK.pack(ack.sequence, ack.received)
    return numbers + hashlib.sha256(numbers).digest()[:_ACK_HASH_BYTES]


class FrameReader:
    """Takes a stream's bytes in any pieces and gives its frames, in order.

    Holds at most one frame's bytes beyond the piece just fed. After a ProtocolError the stream is of no more use.
    """

    def __init__(self, limits: FrameLimits) -> None:
        self._limits = limits
        self._buffer = bytearray()
        self._needed = PREFIX_BYTES
        self._sequence = 0
        self.received = 0
        """All bytes fed so far."""

    def feed(self, data: Bytes) -> list[Frame]:
        """The frames that `data` completes. ProtocolError for a wrong hash, number or length."""
        self.received += len(data)
        self._buffer += data
        frames: list[Frame] = []
        while len(self._buffer) >= self._needed:
            frame = self._take()
            if frame is not None:
                frames.append(frame)
        return frames

    def _take(self) -> Frame | None:
        """The next frame; or None, when only its prefix has come and `_needed` is now the size of the whole."""
        header_length, bulk_length, sequence = _LENGTHS.unpack_from(self._buffer)
        size = PREFIX_BYTES + header_length + bulk_length
        if len(self._buffer) < size:
            self._check_prefix(header_length, bulk_length, sequence)
            self._needed = size
            return None
        self._check_prefix(header_length, bulk_length, sequence)
        with memoryview(self._buffer) as view:
            header = bytes(view[PREFIX_BYTES : PREFIX_BYTES + header_length])
            bulk = bytes(view[PREFIX_BYTES + header_length : size])
            if view[_LENGTHS.size : PREFIX_BYTES] != _digest(view[: _LENGTHS.size], header, bulk):
                raise ProtocolError("frame: wrong hash")
        del self._buffer[:size]
        self._needed = PREFIX_BYTES
        self._sequence = sequence
        return Frame(sequence, header, memoryview(bulk), size)

    def _check_prefix(self, header_length: int, bulk_length: int, sequence: int) -> None:
        if header_length > self._limits.header:
            raise ProtocolError("frame: header too long")
        if bulk_length > self._limits.bulk:
            raise ProtocolError("frame: bulk too long")
        if sequence != self._sequence + 1:
            raise ProtocolError("frame: out of sequence")


class AckReader:
    """Takes the reverse direction's bytes in any pieces and gives the newest acknowledgement."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._last = Ack(0, 0)

    def feed(self, data: Bytes, *, sent: Ack) -> Ack | None:
        """The newest acknowledgement that `data` completes, if any. `sent` is what has been written so far.

        ProtocolError for a wrong hash, for one that goes back, and for one of what was never sent.
        """
        self._buffer += data
        newest = None
        while len(self._buffer) >= ACK_BYTES:
            newest = self._take(sent)
        return newest

    def _take(self, sent: Ack) -> Ack:
        ack = Ack(*_ACK.unpack_from(self._buffer))
        if encode_ack(ack) != self._buffer[:ACK_BYTES]:
            raise ProtocolError("ack: wrong hash")
        if ack.sequence < self._last.sequence or ack.received < self._last.received:
            raise ProtocolError("ack: goes back")
        if ack.sequence > sent.sequence or ack.received > sent.received:
            raise ProtocolError("ack: of what was not sent")
        del self._buffer[:ACK_BYTES]
        self._last = ack
        return ack


def _digest(lengths: Bytes, header: Bytes, bulk: Bytes) -> bytes:
    digest = hashlib.sha256(lengths)
    digest.update(header)
    digest.update(bulk)
    return digest.digest()[:_HASH_BYTES]
