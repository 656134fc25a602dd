"""What an emulated link is like: speed, delay and loss, and what TCP makes of loss. Time and chance are arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

SEGMENT: Final = 1448
"""Bytes of a TCP segment on an Ethernet path."""
RETRANSMISSION_TIMEOUT: Final = 0.2
"""Seconds: Linux's least."""
SHORTEST_ROUND_TRIP: Final = 0.001
_DUPLICATE_ACKS = 3


@dataclass(frozen=True)
class LinkShape:
    """What lies between one node and the internet, in both directions. The default is this machine's loopback."""

    mbit: float | None = None
    """Mbit/s each way; None: as fast as it goes."""
    latency: float = 0.0
    """Seconds, one way."""
    loss: float = 0.0
    """Share of the segments that are lost, 0 to 1."""

    @property
    def rate(self) -> float | None:
        """Bytes a second; None without a limit."""
        return None if self.mbit is None else self.mbit * 125_000


@dataclass(frozen=True)
class Path:
    """One way from a node to another: first the one's link, then the other's."""

    delay: float = 0.0
    """Seconds, one way."""
    loss: float = 0.0
    rate: float | None = None
    """Bytes a second of the slower of the two links."""

    @property
    def round_trip(self) -> float:
        """Seconds there and back."""
        return 2 * self.delay


def path_between(source: LinkShape, target: LinkShape) -> Path:
    """The way through both links."""
    rates = [shape.rate for shape in (source, target) if shape.rate is not None]
    return Path(
        delay=source.latency + target.latency,
        loss=1 - (1 - source.loss) * (1 - target.loss),
        rate=min(rates, default=None),
    )


def most_under_loss(path: Path) -> float | None:
    """Bytes a second that loss leaves to one connection; None if nothing is lost.

    MSS/RTT · √(3/(2p)) for a congestion window that halves at every loss (Mathis et al., 1997).
    """
    if not path.loss:
        return None
    return SEGMENT / max(path.round_trip, SHORTEST_ROUND_TRIP) * math.sqrt(1.5 / path.loss)


def stall_by_loss(num_bytes: int, path: Path, random: Callable[[], float]) -> float:
    """Seconds by which losses among these bytes hold back what comes after them: TCP delivers in order.

    With three more segments behind it a lost one is sent again after one round trip; else after a timeout.
    """
    if not path.loss:
        return 0.0
    segments = -(-num_bytes // SEGMENT)
    if random() >= 1 - (1 - path.loss) ** segments:
        return 0.0
    behind = int(random() * segments)
    return path.round_trip if behind >= _DUPLICATE_ACKS else path.round_trip + RETRANSMISSION_TIMEOUT
