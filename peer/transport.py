"""What the rest of peer/ needs of a transport: named peers, frames in and out, and the news of lost peers.

`peer/streams.py` implements it over libp2p; faster or emulated ones can take its place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol


class Priority(IntEnum):
    """Which of the frames that wait for one peer goes next. Within a class they keep their order."""

    SMALL = 0
    BULK = 1
    REPAIR = 2


class Handler(Protocol):
    """Who gets the frames. Everything is called in the event loop's thread and must return quickly."""

    def on_frame(self, key: bytes, header: bytes, bulk: memoryview) -> str:
        """A whole, intact frame of peer `key`. Returns the kind under which its bytes are counted.

        The frame is acknowledged when this returns. ProtocolError for a message that no honest peer sends: the frame is
        dropped and counted, and the stream goes on.
        """
        ...

    def on_connected(self, key: bytes) -> None:
        """Our stream to peer `key` is open, and its other end has answered."""
        ...

    def on_lost(self, key: bytes, why: str) -> None:
        """Our stream to `key` is closed, or cannot be opened. What waited or was not acknowledged is gone.

        Called once until the next `on_connected`. Attempts to reach the peer go on until `forget`.
        """
        ...


@dataclass
class Traffic:
    """Bytes on streams since the start: prefixes, headers, bulk and acknowledgements, by kind and by peer."""

    written: Counter[str] = field(default_factory=Counter)
    read: Counter[str] = field(default_factory=Counter)
    written_by_peer: Counter[bytes] = field(default_factory=Counter)
    read_by_peer: Counter[bytes] = field(default_factory=Counter)
    bad: Counter[bytes] = field(default_factory=Counter)
    """Frames and acknowledgements refused, by peer."""

    def wrote(self, key: bytes, kind: str, num_bytes: int) -> None:
        """Count bytes handed to a stream to `key`."""
        self.written[kind] += num_bytes
        self.written_by_peer[key] += num_bytes

    def received(self, key: bytes, kind: str, num_bytes: int) -> None:
        """Count bytes taken from a stream with `key`."""
        self.read[kind] += num_bytes
        self.read_by_peer[key] += num_bytes


class Transport(ABC):
    """Frames to and from named peers. A peer's name is its 32-byte key, which the transport has authenticated."""

    traffic: Traffic

    @abstractmethod
    async def start(self, handler: Handler) -> None:
        """Accept streams from now on, and tell `handler` of everything."""

    @abstractmethod
    def connect(self, key: bytes, addresses: Sequence[str]) -> None:
        """Keep a stream to `key` open from now on, dialling `addresses` (may be empty) with growing pauses.

        Called again, it only replaces the addresses.
        """

    @abstractmethod
    def forget(self, key: bytes) -> None:
        """Close our stream to `key` and stop trying. No `on_lost` follows."""

    @abstractmethod
    def send(
        self,
        key: bytes,
        header: bytes,
        bulk: bytes | memoryview = b"",
        *,
        kind: str,
        priority: Priority | None = None,
        wanted: Callable[[], bool] | None = None,
    ) -> bool:
        """Queue a frame for `key`. Never waits.

        True if it was queued, which is no promise: see `on_lost`. False if `key` is not being connected to, is lost at
        the moment, or has too many bytes waiting. `kind` is the name under which the bytes are counted; `priority` is
        SMALL or BULK by the frame's size if not given. `bulk` must not change until it is sent. `wanted` is asked when
        the frame's turn comes: if it says no, the frame is dropped.
        """

    @abstractmethod
    def queued(self, key: bytes) -> int:
        """Bytes of frames for `key` that are not yet handed to its stream."""

    def refused_since(self, key: bytes) -> float | None:
        """Since when (monotonic clock) the machine of `key` has refused every dial: no process listens there any more.
        None if it does not, or if that cannot be told."""
        return None

    @abstractmethod
    async def close(self, flush: float = 0.0) -> None:
        """Close everything, after up to `flush` seconds in which what is queued may still go out. Bounded in time."""
