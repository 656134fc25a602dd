"""Standard output and error, whatever became of them: closed from the start, a pipe without a reader, a full disk.

A reader that is gone ends a command: nobody waits for what it would say. Any other trouble costs the output and never
the work: it is told once, and from then on the output goes nowhere.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TextIO


def open_standard_streams() -> None:
    """Give closed standard streams (`>&-`) a place to write to: nowhere.

    Without this, Python has None for them, and the next file or socket that is opened becomes our standard output.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            _to_nowhere(descriptor)
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that has no τ gets a question mark, not a traceback


def write_line(stream: TextIO, line: str) -> None:
    """A line on `stream`, at once. BrokenPipeError if its reader is gone."""
    try:
        stream.write(line + "\n")
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        give_up(stream, error)


def give_up(stream: TextIO, error: OSError) -> None:
    """Say that `stream` cannot be written to; what is written to it from now on goes nowhere."""
    discard(stream)
    complain(f"cannot write the output, going on without it: {error.strerror or error}")


def discard(stream: TextIO) -> None:
    """Let what is still in the stream's buffer, and all that follows, go nowhere."""
    with contextlib.suppress(OSError, ValueError):  # no descriptor: not a real file
        _to_nowhere(stream.fileno())


def complain(text: str) -> None:
    """A line of ours on standard error, if anybody can have it."""
    try:
        print(f"potluck: {text}", file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def _to_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
