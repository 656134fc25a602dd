"""What p2pd said last, and silence otherwise: hivemind's logging, kept off the user's terminal.

hivemind installs its own handler on standard error and reports only the daemon's last line when a start fails, which
for a Go panic is the tail of a stack trace. Here the last lines are kept, and only errors are passed on.
"""

from __future__ import annotations

import collections
import logging
from typing import ClassVar

from hivemind.utils.logging import use_hivemind_log_handler

_NUM_LINES = 8
_DAEMON_LOGGER = "hivemind.p2p.p2p_daemon"


class LastWords(logging.Handler):
    """Keeps the last lines that any p2pd of this process wrote."""

    _lines: ClassVar[collections.deque[str]] = collections.deque(maxlen=_NUM_LINES)
    _installed: ClassVar[bool] = False

    @classmethod
    def listen(cls) -> None:
        """Start keeping lines, and let only errors of hivemind through. Later calls do nothing."""
        if cls._installed:
            return
        cls._installed = True
        use_hivemind_log_handler("nowhere")
        logging.getLogger("hivemind").setLevel(logging.ERROR)
        daemon = logging.getLogger(_DAEMON_LOGGER)
        daemon.setLevel(logging.DEBUG)
        daemon.propagate = False
        daemon.addHandler(cls())

    @classmethod
    def forget(cls) -> None:
        """Drop the lines of an earlier start."""
        cls._lines.clear()

    @classmethod
    def text(cls) -> str:
        """The last lines as one sentence."""
        return "its last words: " + " | ".join(cls._lines) if cls._lines else "it said nothing"

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line; pass errors on to hivemind's logger."""
        self._lines.append(record.getMessage())
        if record.levelno >= logging.ERROR:
            logging.getLogger("hivemind").handle(record)
