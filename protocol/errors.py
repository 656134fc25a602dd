"""The two kinds of failure that callers tell apart: the user's mistake and a remote peer's fault."""

from __future__ import annotations

from typing import Self


class UserError(ValueError):
    """A mistake in what the user gave: the command line, a manifest, a file. Ends a command with exit code 2."""

    @classmethod
    def field(cls, name: str, value: object, right: str) -> Self:
        """Name the field, the value given and what would be right.

        `UserError.field("schedule.overlap", 120, "must be below sync_every (100)")` reads
        "schedule.overlap = 120: must be below sync_every (100)".
        """
        shown = repr(value)
        return cls(f"{name} = {shown if len(shown) <= 100 else shown[:97] + '...'}: {right}")


class ProtocolError(Exception):
    """A remote's fault: bytes or a message that no honest peer of this version sends. The message is dropped."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        """What was wrong, in a few words, without the offending bytes: it goes into counters and log lines."""
