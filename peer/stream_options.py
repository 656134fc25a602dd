"""Numbers of the streams. None of them is shared between peers; the defaults suit home links and data centres alike."""

from __future__ import annotations

from dataclasses import dataclass, field

from peer.frames import FrameLimits


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """Sizes in bytes, times in seconds."""

    limits: FrameLimits = field(default_factory=FrameLimits)
    queue_bytes: int = 128 << 20
    """Most bytes that may wait for one peer."""
    upload: float | None = None
    """Bytes a second that all streams together may write."""
    ack_timeout: float = 3.0
    """A peer that acknowledges nothing for so long, while something is due, is lost."""
    keepalive: float = 5.0
    """An idle stream carries an empty frame so often."""
    dial_timeout: float = 5.0
    first_retry: float = 0.25
    last_retry: float = 5.0
    streams_per_peer: int = 2
    streams: int = 512
    """Most incoming streams, of all peers."""
    frames_per_second: int = 5000
    """A peer that sends more is read more slowly."""
    idle_timeout: float = 60.0
    """An incoming stream that brings nothing for so long is closed."""
