"""Whether what a peer left behind is whole: a report must never take a record with gaps for the whole story."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from peer.commands.records import Recorded, Summary
from peer.commands.report_format import Exit, FilesEntry, PeerEntry, RecordState

GAPS: Final = ("incomplete", "missing")
_IN_ORDER: Final = ("finished", "left")
"""Ends of peers that had the time for a last summary."""


def files_entry(exit: Exit, summary: Summary | None, record: Recorded, *, refused: bool, in_swarm: bool) -> FilesEntry:
    """What there is of one peer's files. `refused`: it said that its disk did not take all of them."""
    over = summary is not None and summary.exit != "running"
    state: RecordState = "whole"
    if record.missing:
        state = "missing"
    # A peer that ended in order and whose last summary could not be written may have lost lines of its record as well.
    elif refused or record.unreadable or (summary and summary.record_lost) or (exit in _IN_ORDER and not over):
        state = "incomplete"
    return FilesEntry(
        summary="missing" if summary is None else "whole" if over else "old",
        record=state if in_swarm else None,
    )


def about_files(peers: Sequence[PeerEntry]) -> Iterator[str]:
    """A line for each kind of thing that is missing."""
    incomplete = [peer.index for peer in peers if peer.files.record == "incomplete"]
    missing = [peer.index for peer in peers if peer.files.record == "missing"]
    # One that was killed leaves its summary of the moment; one that ended in order should have left a last one.
    old = [peer.index for peer in peers if peer.files.summary != "whole" and peer.exit in _IN_ORDER]
    if incomplete:
        yield f"The record of {_peers(incomplete)} has gaps: windows may show less than really happened there."
    if missing:
        yield f"There is no record of {_peers(missing)}: what it did in the windows is not known."
    if old:
        yield f"There is no final summary of {_peers(old)}: its numbers are from before its end, or zero."


def _peers(indices: Sequence[int]) -> str:
    *some, last = map(str, indices)
    return f"peers {', '.join(some)} and {last}" if some else f"peer {last}"
