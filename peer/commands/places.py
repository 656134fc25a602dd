"""Places that a user names for files, tried before anything is started."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from protocol.errors import UserError


def check_report_place(path: Path, out: Path | None) -> None:
    """UserError unless a report can be written to `path`. `out` is a directory that is going to be made."""
    try:
        why = _why_no_report(path, out)
    except OSError as error:
        why = f"cannot be written: {error.strerror}"
    if why:
        raise UserError.field("--report", str(path), why)


def _why_no_report(path: Path, out: Path | None) -> str:
    """What is wrong with it, or nothing. OSError if the system says it."""
    folder = path.parent
    if path.is_dir():
        return "is a directory, must be a file"
    if out is not None and folder.resolve() == out.resolve():
        return ""  # checked as --out
    if not folder.is_dir():
        return f"{folder} is not a directory" if folder.exists() else f"there is no directory {folder}; make it first"
    # What is no file (a terminal, /dev/null) is written to as it is; a file is replaced by a new one.
    if path.exists() and not path.is_file():
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    else:
        _probe(folder)
    return ""


def usable_folder(flag: str, path: Path) -> Path:
    """The directory `path`, made if it is not there. UserError, which names the flag, if nothing can be written in it.

    A directory that was made and cannot be used is not left behind.
    """
    made = False
    try:
        made = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        _probe(path)
    except OSError as error:
        if made:
            with contextlib.suppress(OSError):
                path.rmdir()
        what = "is not a directory" if os.path.isfile(path) else "cannot be used"
        raise UserError.field(flag, str(path), f"{what}: {error.strerror}") from error
    return path


def _probe(folder: Path) -> None:
    """Make a file in `folder` and remove it. OSError if that is not possible."""
    path = folder / f".potluck-{secrets.token_hex(8)}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, b"\n")  # a full disk lets a file be made, and nothing be written
    finally:
        os.close(descriptor)
        path.unlink()
