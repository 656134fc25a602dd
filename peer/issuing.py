"""When our presence records say that they were issued: later than all before, in this life and in earlier ones.

The record issued last counts, whatever the order of arrival, and others keep one until it expires. So a peer that comes
back with a clock that was set back must not issue "older" records: it goes on from the newest time it ever used. Others
refuse records from further ahead than `MAX_AHEAD`; beyond that ours were refused anyway, and we follow the clock again.
"""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from pathlib import Path
from typing import Final

from peer import clock
from peer.disk import write_atomically
from protocol.presence import MAX_AHEAD

log = logging.getLogger(__name__)

_NEXT: Final = 0.001
_SLACK: Final = 5.0
"""Seconds that a reader's clock may be behind ours."""


def issue_time(wall: float, latest: float, life: float) -> float:
    """When to say that a record of `life` seconds is issued: now, or just after the `latest` one (Unix seconds)."""
    accepted = wall + MAX_AHEAD - life - _SLACK
    return max(wall, min(latest + _NEXT, accepted))


class Issuing:
    """The newest issue time, kept in a file over restarts. A file that cannot be used only costs that memory."""

    def __init__(self, path: Path, life: float) -> None:
        """`life` of a record, in seconds."""
        self._path = path
        self._life = life
        latest = 0.0
        with suppress(OSError, ValueError):
            latest = float(path.read_text())
        latest = latest if math.isfinite(latest) else 0.0
        self._ahead = max(0.0, issue_time(clock.wall(), latest, life) - clock.wall())
        """Seconds that our records' time is ahead of the clock: time goes on from the latest, it does not stand."""

    def next(self, wall: float) -> float:
        """The time for the next record; `wall` is now."""
        issued = wall + self._ahead
        try:
            write_atomically(self._path, repr(issued))  # a full disk leaves the one before
        except OSError as error:
            log.debug("%s: %s", self._path, error)
        return issued
