"""The clocks of peer/: the only module there that reads them, so that everything else can be given a time."""

from __future__ import annotations

import time


def monotonic() -> float:
    """Seconds on a clock that never goes back; only differences mean something."""
    return time.monotonic()


def wall() -> float:
    """Seconds since 1970 UTC; it may jump when the computer's clock is set."""
    return time.time()
