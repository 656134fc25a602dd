"""A token bucket: the upload cap, shared by all streams of a peer; and the emulated links of a local swarm."""

from __future__ import annotations

import asyncio

from peer import clock

_BURST = 0.1


class TokenBucket:
    """Lets `rate` bytes a second pass, None for no limit. Those who wait are served in their order."""

    def __init__(self, rate: float | None, burst: float = _BURST) -> None:
        """`burst` is how many seconds' worth may pass at once after a pause."""
        assert rate is None or rate > 0
        self._rate, self._burst = rate, burst
        self._free_at = 0.0

    @property
    def slice(self) -> int | None:
        """A piece small enough that several streams share the rate evenly; None for no limit."""
        return None if self._rate is None else max(1024, int(self._rate * self._burst))

    async def take(self, num_bytes: int) -> None:
        """Return when `num_bytes` more may be sent."""
        if self._rate is None:
            return
        now = clock.monotonic()
        start = max(self._free_at, now - self._burst)
        self._free_at = start + num_bytes / self._rate
        if start > now:
            await asyncio.sleep(start - now)
