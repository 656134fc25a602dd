"""Log lines about bad messages, at most one for each sender and minute, so that nobody can fill a disk."""

from __future__ import annotations

import logging

from peer import clock

log = logging.getLogger(__name__)

_EVERY = 60.0
_MAX_SENDERS = 1000


class Complaints:
    """Counts what each sender did wrong since the last line about it, and writes that line when it is time."""

    def __init__(self) -> None:
        self._silent_until: dict[str, float] = {}
        self._since: dict[str, int] = {}

    def about(self, sender: str, reason: str) -> None:
        """Note one bad message of `sender`."""
        now = clock.monotonic()
        if now < self._silent_until.get(sender, 0.0):
            self._since[sender] = self._since.get(sender, 0) + 1
            return
        if len(self._silent_until) >= _MAX_SENDERS:
            self._forget(now)
        self._silent_until[sender] = now + _EVERY
        more = self._since.pop(sender, 0)
        log.warning("dropped a bad message from %s: %s%s", sender, reason, f" ({more} more before)" if more else "")

    def _forget(self, now: float) -> None:
        """Drop the senders that are quiet; if that is not enough (many identities at once), all of them."""
        self._silent_until = {sender: until for sender, until in self._silent_until.items() if until > now}
        if len(self._silent_until) >= _MAX_SENDERS:
            self._silent_until.clear()
        self._since = {sender: count for sender, count in self._since.items() if sender in self._silent_until}
