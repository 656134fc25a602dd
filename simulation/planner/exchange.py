"""What one window costs on the wire: bytes and seconds of potluck's own exchange among M peers, and of an all-reduce.

A window of a fragment with n chunks, of which the busiest owner has k: every peer sends the chunks that it does not own
to their owners (contributions), and every owner sends the mean of its chunks to the M − 1 others (results). Sizes are
those of the messages of docs/protocol.md section 3, framed, and with the acknowledgement that each frame costs; what
TCP/IP and libp2p's own framing and encryption add is in `PAYLOAD_SHARE`. Tests hold it against the real messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from protocol.messages import Contribution, Link, LinkMessage, Parent, Part, encode
from simulation.planner.graph import Floats

FRAME: Final = 32 + 20
"""Bytes of a frame's prefix, and of its acknowledgement (peer/frames.py)."""
PAYLOAD_SHARE: Final = 0.95
"""Of a link's bits, those that are our frames: 1,448 of 1,514 bytes of a full Ethernet frame, less libp2p's part."""
BALANCE: Final = 1.1
"""See protocol/roster.py."""
MOST_PARTS: Final = 256
"""Contributors that a link may name."""
PACKED: Final[Mapping[str, Callable[[float, int], float]]] = {
    "e3m0": lambda numel, block: numel / 2 + math.ceil(numel / block),
    "bf16": lambda numel, block: numel * 2,
    "fp32": lambda numel, block: numel * 4,
}
"""Bytes of so many values, by codec. potluck has e3m0 and fp32; bf16 is what others send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """One peer's link. Bandwidths are bytes a second of our frames, float64 (B,); latency is one way, in seconds."""

    up: Floats
    down: Floats
    latency: float

    @classmethod
    def of(cls, up_bits: Floats, down_bits: Floats, latency: float, share: float = PAYLOAD_SHARE) -> Wire:
        """From bits a second as a provider states them."""
        return cls(up=up_bits * share / 8, down=down_bits * share / 8, latency=latency)


@dataclass(frozen=True, slots=True)
class Transfer:
    """How long a window takes. Float64 (B,), seconds."""

    occupied: Floats
    """Until the busiest link has carried everything and takes the next window."""
    taken: Floats
    """Until every peer has every result. Never less than `occupied`."""


@dataclass(frozen=True, kw_only=True)
class Owners:
    """potluck's exchange: owners average, everyone contributes, all M peers own and have links alike."""

    peers: int
    codec: str = "e3m0"
    result_codec: str = "e3m0"
    block: int = 256
    chunk: int = 65_536

    def chunks(self, numel: float) -> int:
        """Chunks of a fragment of so many values."""
        return max(1, math.ceil(numel / self.chunk))

    def contribution(self, numel: float) -> float:
        """Bytes of one contribution of so many values."""
        return PACKED[self.codec](numel, self.block) + self._headers[0]

    def result(self, numel: float) -> float:
        """Bytes of one link and its mean."""
        return PACKED[self.result_codec](numel, self.block) + self._headers[1]

    def sent(self, numel: float) -> float:
        """Bytes that one peer sends, and receives, on average for a window of a fragment of so many values."""
        chunks = self.chunks(numel)
        each = numel / chunks
        return chunks * (self.contribution(each) + self.result(each)) * (self.peers - 1) / self.peers

    def busiest(self, chunks: int) -> float:
        """Chunks of the owner that has most, on average over windows.

        The greatest of M shares that fall by chance, at most what bounded load allows: ⌈1.1 · chunks / M⌉.
        """
        share = chunks / self.peers
        deviation = math.sqrt(share * (1 - 1 / self.peers))
        greatest = share + 0.68 * math.sqrt(2 * math.log(self.peers)) * deviation
        return min(max(greatest, math.ceil(share)), math.ceil(BALANCE * share), chunks)

    def transfer(self, numel: float, wire: Wire) -> Transfer:
        """Seconds of a window of a fragment of so many values.

        Results of the first chunks travel while the last contributions still come; the last result cannot leave
        before the last contribution is there.
        """
        chunks, others = self.chunks(numel), self.peers - 1
        contribution, result = self.contribution(numel / chunks), self.result(numel / chunks)
        most = self.busiest(chunks)
        least = max(0.0, 2 * chunks / self.peers - most)
        sent = max((chunks - own) * contribution + others * own * result for own in (most, least))
        received = max(others * own * contribution + (chunks - own) * result for own in (most, least))
        occupied = np.maximum(sent / wire.up, received / wire.down)
        contributed = np.maximum((chunks - least) * contribution / wire.up, others * most * contribution / wire.down)
        last = contributed + wire.latency + np.maximum(others * result / wire.up, result / wire.down)
        return Transfer(occupied, np.maximum(occupied, last) + wire.latency)

    @cached_property
    def _headers(self) -> tuple[int, int]:
        """Bytes of a contribution and of a link message without bulk, frames and acknowledgements included."""
        digest, signature, tokens = bytes(32), bytes(64), 1 << 20
        parent = Parent(digest, digest, 1000, 1 << 16, 100, tokens, tokens << 10)
        contribution = Contribution(1000, 1 << 16, parent, tokens, digest, digest, signature)
        parts = (Part(digest, tokens, digest, signature),) * min(self.peers, MOST_PARTS)
        link = Link(1000, 1 << 16, 100, digest, digest, 1000, parts, tokens << 4, tokens << 14, digest)
        return len(encode(contribution)) + FRAME, len(encode(LinkMessage(link, digest, signature))) + FRAME


def ring_factor(peers: int) -> float:
    """What a ring all-reduce sends for each byte of the whole: 2·(M − 1)/M."""
    return 2 * (peers - 1) / peers
