"""Files that a peer writes while it trains. A disk that refuses them costs lines of a file, never training.

The user hears of it once. What was lost is counted, so that no report takes a file with gaps for a whole one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_BLOCK: Final = 1 << 16
_SYSTEM = re.compile(r"I/O error: (.*?)(?: \(os error \d+\))?$")
_MODE: Final = 0o666
"""Less the user's umask, as for any file."""


class DiskTrouble:
    """Tells the user that files in `folder` cannot be written: in one line, whatever it is that the disk refuses first.

    A full disk refuses lines, summaries and snapshots alike. The trouble is over when a snapshot is on the disk again:
    one that fails after that is news. Lost lines are told once in a life. Any thread may call it.
    """

    def __init__(
        self, folder: Path, notice: Callable[[str], None], incomplete: Callable[[], None] = lambda: None
    ) -> None:
        """`incomplete` is called once, when the first line or summary is lost, whether or not the user hears of it."""
        self._folder = folder
        self._notice = notice
        self._incomplete = incomplete
        self._lock = threading.Lock()
        self._lost = self._told = False
        self.troubles = 0
        """How often something was refused."""

    def __call__(self, error: OSError) -> None:
        """A line or a summary could not be written, or what was written is gone."""
        with self._lock:
            self.troubles += 1
            first, told = not self._lost, self._told
            self._lost, self._told = True, told or first
        if first:
            self._say(self._incomplete)
        if first and not told:
            text = (
                f"Cannot write in {self._folder}: {words_of(error)}. Training goes on, but what this peer records of "
                "it has gaps; snapshots are tried again, and those before stay."
            )
            self._say(lambda: self._notice(text))

    def refused(self, text: str) -> None:
        """Something else could not be written; `text` says what, and is for the user unless he knows already."""
        with self._lock:
            self.troubles += 1
            told, self._told = self._told, True
        if not told:
            self._say(lambda: self._notice(text))

    def over(self, since: int) -> None:
        """What is large was written, with nothing refused since there were `since` troubles: the disk has room again.

        A snapshot that was being written when the disk filled up may well succeed, and says nothing of now.
        """
        with self._lock:
            self._told &= self.troubles != since

    def _say(self, words: Callable[[], None]) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody reads us any more: training finds out at its next line
            words()


def words_of(error: OSError) -> str:
    """What the system says, without numbers; safetensors quotes it."""
    text = error.strerror or str(error)
    match = _SYSTEM.search(text)
    return match[1] if match else text


def log_trouble(error: OSError) -> None:
    """For whoever has nobody to tell: every failure is a line in the log."""
    log.warning("a line could not be written: %s", error)


class LineFile:
    """Appends lines to a file, each at once and whole, and goes on when the disk does not.

    A file that somebody deletes is made again. Not for several threads at once.
    """

    def __init__(self, path: Path, trouble: Callable[[OSError], None]) -> None:
        """Opens the file now, made if missing, without what a killed process left of its last line. `trouble` hears of
        every failure, this one too."""
        self.lost = 0
        """Lines that are not in the file. A file that was deleted counts as one more."""
        self.closed = False
        self._path = path
        self._trouble = trouble
        self._descriptor: int | None = None
        self._torn = False
        self._try(self._open)

    def write(self, line: str) -> None:
        """Append a line, without its end; nothing after `close`."""
        if not self.closed and not self._try(lambda: self._append(line)):
            self.lost += 1

    def close(self) -> None:
        """No more lines. May be called twice."""
        self.closed = True
        self._let_go()

    def _try(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except OSError as error:
            self._trouble(error)
            return False
        return True

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        drop_cut_line(self._path)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
        self._torn = False

    def _append(self, line: str) -> None:
        if self._descriptor is not None and not os.fstat(self._descriptor).st_nlink:
            self._let_go()
            self.lost += 1
            self._trouble(FileNotFoundError(0, f"{self._path.name} was deleted"))
        if self._descriptor is None:
            self._open()
        assert self._descriptor is not None
        data = (b"\n" if self._torn else b"") + line.encode() + b"\n"
        written = os.write(self._descriptor, data)
        self._torn = written != len(data) and (written > 0 or self._torn)
        if written != len(data):
            raise OSError(0, "the disk is full")  # the system says so only if nothing at all was written

    def _let_go(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None


def drop_cut_line(path: Path) -> None:
    """Remove what a killed process left of its last line: a line that is not whole would spoil the next one."""
    with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - _BLOCK)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            end = start + newline + 1 if newline >= 0 else start
            if newline >= 0:
                break
        if end < size:
            file.truncate(end)


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one step, so that no reader sees half of it. OSError if that is not possible."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")  # another process may write the same file
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if error.filename is None:  # a full disk names none
            error.filename = str(path)
        raise
