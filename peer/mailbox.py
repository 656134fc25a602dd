"""What passes between the training thread and the outer thread, and nothing else does.

The trainer hands over a snapshot and goes on; at a step boundary it picks up finished anchors and noticed windows.
The locks are held for the time of an append, so neither thread can stop the other.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from torch import Tensor

from protocol.schedule import Window


@dataclass(frozen=True, slots=True)
class Anchor:
    """A chunk's newest outer parameters (flat fp32, host; never changed once made)."""

    chunk: int
    due: int
    links: int
    mix: bool
    values: Tensor


class Mailbox:
    """From the outer thread to the trainer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._anchors: list[Anchor] = []
        self._noticed: list[Window] = []
        self.failure: str = ""
        """Why the outer thread stopped, if it did."""

    def put_anchor(self, anchor: Anchor) -> None:
        with self._changed:
            self._anchors.append(anchor)
            self._changed.notify_all()

    def notice(self, window: Window) -> None:
        with self._changed:
            self._noticed.append(window)

    def fail(self, why: str) -> None:
        """The outer thread is gone: training goes on alone, and waits for nothing."""
        with self._changed:
            self.failure = why
            self._changed.notify_all()

    def take(self) -> tuple[list[Anchor], list[Window]]:
        """Everything since the last call."""
        with self._changed:
            anchors, noticed = self._anchors, self._noticed
            self._anchors, self._noticed = [], []
        return anchors, noticed

    def wait(self, seconds: float) -> None:
        """Until an anchor is there, or the outer thread is gone, or the time is over."""
        with self._changed:
            if not self._anchors and not self.failure:
                self._changed.wait(seconds)
