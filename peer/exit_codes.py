"""What a command's exit code says (README.md). Light to import: the command line needs it at once."""

from __future__ import annotations

import signal
from typing import Final

DONE: Final = 0
FAILED: Final = 1
MISTAKE: Final = 2
"""The user's: nothing was started, or nothing was lost."""
_SIGNALLED: Final = 128
INTERRUPTED: Final = _SIGNALLED + signal.SIGINT
"""130: Ctrl-C."""
TERMINATED: Final = _SIGNALLED + signal.SIGTERM
"""143: SIGTERM."""
NO_READER: Final = _SIGNALLED + signal.SIGPIPE
"""141: whoever read our output is gone, as in `potluck swarm | head -1`."""


def after(number: int) -> int:
    """The code of a command that ended in order because of a signal, as a shell shows one that the signal killed."""
    return _SIGNALLED + number
