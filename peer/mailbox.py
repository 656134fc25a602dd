"""What passes from the outer thread to the training thread, and nothing else does.

The trainer hands over a snapshot and goes on; at a step boundary it picks up finished anchors and noticed windows.
The lock is held for the time of a few assignments, so neither thread can stop the other. A trainer that never looks
costs one anchor a chunk, not one a window.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from torch import Tensor

from protocol.schedule import Window


@dataclass(frozen=True, slots=True)
class Anchor:
    """A chunk's newest outer parameters (flat fp32, host; never changed once made).

    `links` is the number of links since the anchor before; `mix` is False where only the anchor moves.
    """

    chunk: int
    due: int
    links: int
    mix: bool
    values: Tensor


class Mailbox:
    """From the outer thread to the trainer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._anchors: dict[int, Anchor] = {}
        self._noticed: set[Window] = set()
        self._retries: list[Window] = []
        self.failure: str = ""
        """Why the network is gone, if it is."""

    def put_anchor(self, anchor: Anchor) -> None:
        """A newer anchor of the same chunk that was not picked up yet is replaced, and its links count."""
        with self._changed:
            if before := self._anchors.get(anchor.chunk):
                anchor = replace(anchor, links=before.links + anchor.links, mix=before.mix or anchor.mix)
            self._anchors[anchor.chunk] = anchor
            self._changed.notify_all()

    def notice(self, window: Window) -> None:
        """Others have reached this window."""
        with self._changed:
            self._noticed.add(window)

    def retry(self, window: Window) -> None:
        """Nobody has closed some of this window."""
        with self._changed:
            self._retries.append(window)

    def take_retries(self) -> list[Window]:
        """The windows to be tried again, since the last call."""
        with self._changed:
            retries, self._retries = self._retries, []
        return retries

    def fail(self, why: str) -> None:
        """The network is gone: training goes on alone, and waits for nothing."""
        with self._changed:
            self.failure = why
            self._changed.notify_all()

    def take(self) -> tuple[list[Anchor], list[Window]]:
        """Everything since the last call: anchors by chunk, windows in order."""
        with self._changed:
            noticed, self._noticed = self._noticed, set()
        return self.take_anchors(), sorted(noticed)

    def take_anchors(self) -> list[Anchor]:
        """The anchors since the last call, by chunk. Noticed windows stay for the next step boundary."""
        with self._changed:
            anchors, self._anchors = self._anchors, {}
        return [anchors[chunk] for chunk in sorted(anchors)]

    def wait(self, seconds: float) -> None:
        """Until an anchor is there, or the network is gone, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._anchors or self.failure, seconds)
