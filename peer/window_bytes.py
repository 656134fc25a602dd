"""How many bytes windows cost this peer, for the report."""

from __future__ import annotations

from collections import Counter
from typing import Final

WINDOWS_COUNTED: Final = 256
"""Newest due steps whose bytes are kept apart."""


class WindowBytes:
    """Payload bytes that we sent: in all, and the most for one due step."""

    def __init__(self) -> None:
        self.total = 0
        self.peak = 0
        self._by_due: Counter[int] = Counter()

    def add(self, due: int, num_bytes: int) -> None:
        """Count a payload."""
        self.total += num_bytes
        self._by_due[due] += num_bytes
        self.peak = max(self.peak, self._by_due[due])
        if len(self._by_due) > WINDOWS_COUNTED:
            del self._by_due[min(self._by_due)]
