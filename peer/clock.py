"""The clocks of peer/: the only module there that reads them, so that everything else can be given a time."""

from __future__ import annotations

import time
from typing import Final

# Linux's monotonic clock stands still while a laptop sleeps, and this one does not; macOS has only one, which does not.
_AWAKE_OR_NOT: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_START: Final = time.time() - time.clock_gettime(_AWAKE_OR_NOT)


def monotonic() -> float:
    """Seconds on a clock that never goes back; only differences mean something."""
    return time.monotonic()


def wall() -> float:
    """Seconds since 1970 UTC as this computer knew it when the process started, and steady since.

    Presence records are compared and expire by it, so it must not follow a clock that is set while we run.
    """
    return _START + time.clock_gettime(_AWAKE_OR_NOT)


def jump() -> float:
    """By how many seconds the computer's clock has been set forward (or back, if negative) since the start."""
    return time.time() - wall()
