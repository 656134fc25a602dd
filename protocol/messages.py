"""The messages of a run and their one encoding (docs/protocol.md, section 3).

A frame is a MessagePack header, made of exactly one of the structs below, and bulk bytes beside it. Decoding checks
the size, the schema and the ranges of the fields; whether the contents make sense (chunk, due step, signature,
payload) is checked where they are used. Decoding any bytes at all either gives a message or raises ProtocolError.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Final

import msgspec

from protocol.errors import ProtocolError

VERSION: Final = 1

Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
PeerKey = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Signature = Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]
Index = Annotated[int, msgspec.Meta(ge=0, lt=1 << 24)]
Step = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
Weight = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Record = Annotated[bytes, msgspec.Meta(max_length=1024)]

MAX_PARTS: Final = 256
"""Contributors that one link may name."""
MAX_HAVE: Final = 8
"""Heads that a request may name as known."""
TOKENS_A_STEP: Final = 1 << 22
"""Tokens that one contribution may claim for each swarm step since its parent's due step: what it holds beyond that
does not count. A claim cannot be checked, and the first links, or a lone contributor's, have no others to compare."""


def most_tokens(span: int) -> int:
    """The most that a contribution may claim, `span` swarm steps after its parent."""
    return TOKENS_A_STEP * span


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of everything on the wire: an array, its tag first, no field more or fewer."""


class Parent(Message, frozen=True):
    """The tip that a contribution was measured from. Contributions are grouped by it."""

    head: Digest
    state: Digest
    depth: Index
    due: Step
    span: Step
    weight: Weight
    cumulative: Weight


class Part(Message, frozen=True):
    """One contribution as a link names it; the signature is the contributor's, over the Contribution's fields."""

    peer: PeerKey
    tokens: Tokens
    payload: Digest
    signature: Signature


class Link(Message, frozen=True):
    """One step of a chunk's ledger. `state` digests the anchor and momentum it was measured from.

    `span` is the number of swarm steps since the parent's due step: what its contributors trained in.
    """

    chunk: Index
    due: Step
    span: Annotated[int, msgspec.Meta(ge=1, lt=1 << 40)]
    parent: Digest
    state: Digest
    depth: Annotated[int, msgspec.Meta(ge=1, lt=1 << 24)]
    parts: Annotated[tuple[Part, ...], msgspec.Meta(min_length=1, max_length=MAX_PARTS)]
    weight: Weight
    cumulative: Weight
    result: Digest


class Hello(Message, frozen=True, tag=1):
    version: int
    record: Record


class Contribution(Message, frozen=True, tag=2):
    """A peer's packed outer gradient of one chunk (bulk)."""

    chunk: Index
    due: Step
    parent: Parent
    tokens: Tokens
    payload: Digest
    peer: PeerKey
    signature: Signature


class LinkMessage(Message, frozen=True, tag=3):
    """A link and its packed mean (bulk), closed and signed by `owner`."""

    link: Link
    owner: PeerKey
    signature: Signature


class Open(Message, frozen=True, tag=4):
    """An owner has a chunk's window of this fragment open and nothing from the receiver yet."""

    fragment: Index
    due: Step


class Status(Message, frozen=True, tag=5):
    step: Step
    phase: Annotated[int, msgspec.Meta(ge=0, le=2)]
    heads: Digest


class AskHeads(Message, frozen=True, tag=6):
    pass


class Heads(Message, frozen=True, tag=7):
    """(cumulative weight, head) of every chunk, in chunk order."""

    heads: Annotated[tuple[tuple[Weight, Digest], ...], msgspec.Meta(max_length=1 << 16)]


class Pull(Message, frozen=True, tag=8):
    """Send me the links of `chunk` after one of the heads in `have`, or the whole state."""

    chunk: Index
    have: Annotated[tuple[Digest, ...], msgspec.Meta(max_length=MAX_HAVE)]


class StateMessage(Message, frozen=True, tag=9):
    """The sender's newest link of a chunk; bulk is the state below it, then the link's packed mean."""

    link: Link
    owner: PeerKey
    signature: Signature


MAX_RECORDS: Final = 64


class Records(Message, frozen=True, tag=10):
    records: Annotated[tuple[Record, ...], msgspec.Meta(max_length=MAX_RECORDS)]


MAX_BUSY: Final = 60_000
"""Milliseconds."""


class Busy(Message, frozen=True, tag=11):
    """I am giving away as much as I may: ask another for this chunk, or me in `wait` milliseconds."""

    chunk: Index
    wait: Annotated[int, msgspec.Meta(ge=0, le=MAX_BUSY)]


AnyMessage = (
    Hello | Contribution | LinkMessage | Open | Status | AskHeads | Heads | Pull | StateMessage | Records | Busy
)

TRAINING, FINISHED, LEAVING = 0, 1, 2
"""Values of Status.phase."""

HEADER_LIMITS: Final[dict[int, int]] = {
    1: 2 << 10, 2: 1 << 10, 3: 64 << 10, 4: 1 << 10, 5: 1 << 10,
    6: 1 << 10, 7: 4 << 20, 8: 1 << 10, 9: 64 << 10, 10: 72 << 10,
    11: 1 << 10,
}  # fmt: skip
"""Bytes of header allowed per tag."""

MAX_HEADER: Final = max(HEADER_LIMITS.values())

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage, strict=True)


def encode(message: Message) -> bytes:
    """The header's bytes."""
    return _encoder.encode(message)


def decode(header: bytes | memoryview) -> AnyMessage:
    """The message in a header; ProtocolError for anything that is not exactly one.

    The tag is read first (a small array, then a small integer), so that a message's own size limit holds before
    anything of it is built.
    """
    if len(header) < 2 or not 0x91 <= header[0] <= 0x9F:
        raise ProtocolError("not a message")
    limit = HEADER_LIMITS.get(header[1])
    if limit is None:
        raise ProtocolError("unknown message tag")
    if len(header) > limit:
        raise ProtocolError("oversized message")
    try:
        return _decoder.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("malformed message") from error


def sha256(*parts: bytes | memoryview) -> bytes:
    """SHA-256 of the concatenation."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def genesis_head(run: bytes, chunk: int, state: bytes) -> bytes:
    """The head of a chunk that has no link: it covers manifest, chunk and initial state."""
    return sha256(b"potluck genesis 1", run, chunk.to_bytes(4, "little"), state)


def link_head(run: bytes, link: Link) -> bytes:
    """The hash of a link: a function of its contributions only, not of who closed it."""
    return sha256(b"potluck link 1", run, encode(link))


def contribution_text(run: bytes, contribution: Contribution) -> bytes:
    """What a contributor signs: everything that a link repeats of it, so that whoever gets the link can check it.

    Of the parent that is head and state digest: depth, due step and weights follow from the head, which covers them.
    """
    parent = Parent(contribution.parent.head, contribution.parent.state, 0, 0, 0, 0, 0)
    unsigned = msgspec.structs.replace(contribution, parent=parent, signature=bytes(64))
    return b"potluck contribution 1" + run + encode(unsigned)


def part_text(run: bytes, link: Link, part: Part) -> bytes:
    """What the contributor of one part of a link has signed: the same text."""
    parent = Parent(link.parent, link.state, 0, 0, 0, 0, 0)
    contribution = Contribution(link.chunk, link.due, parent, part.tokens, part.payload, part.peer, bytes(64))
    return contribution_text(run, contribution)


def close_text(head: bytes) -> bytes:
    """What an owner signs."""
    return b"potluck close 1" + head
