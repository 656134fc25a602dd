"""What p2pd said last, and silence otherwise: what the daemon writes stays off the user's terminal.

A start that fails is explained by the last lines: a Go panic ends in a stack trace, so one line is not enough.
"""

from __future__ import annotations

import asyncio
import collections
import logging

from hivemind.utils.logging import use_hivemind_log_handler

_NUM_LINES = 8
READY = "Peer ID:"
"""How the line begins that p2pd writes when it can be spoken to."""


def silence_hivemind() -> None:
    """hivemind installs its own handler on standard error; let only errors through, by the ordinary way."""
    use_hivemind_log_handler("nowhere")
    logging.getLogger("hivemind").setLevel(logging.ERROR)


class LastWords:
    """Reads everything that one p2pd writes and keeps the last lines."""

    def __init__(self) -> None:
        self._lines: collections.deque[str] = collections.deque(maxlen=_NUM_LINES)
        self.ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """True when p2pd is ready, False if it ends before."""

    async def listen(self, output: asyncio.StreamReader) -> None:
        """Read to the end of the output."""
        while line := await _line(output):
            text = line.decode(errors="replace").rstrip()
            self._lines.append(text)
            if text.startswith(READY) and not self.ready.done():
                self.ready.set_result(True)
        if not self.ready.done():
            self.ready.set_result(False)

    @property
    def text(self) -> str:
        """The last lines as one sentence."""
        return "its last words: " + " | ".join(self._lines) if self._lines else "it said nothing"


async def _line(output: asyncio.StreamReader) -> bytes:
    try:
        return await output.readline()
    except ValueError:  # a line longer than the buffer: it is gone, the next one may do
        return b"(an overlong line)\n"
