"""The lab's entries by name."""

from __future__ import annotations

from protocol.errors import UserError
from simulation.lab.entries.entry import Case, Entry, Finding, Outcomes, Scale
from simulation.lab.entries.paper import PAPER
from simulation.lab.entries.questions import QUESTIONS

__all__ = ["ENTRIES", "Case", "Entry", "Finding", "Outcomes", "Scale", "entry"]

ENTRIES: dict[str, Entry] = {entry.name: entry for entry in (*PAPER, *QUESTIONS)}


def entry(name: str) -> Entry:
    """The entry of that name; UserError for a name that is none."""
    if name not in ENTRIES:
        raise UserError.field("NAME", name, f"must be all, list, swarm, or one of {', '.join(ENTRIES)}")
    return ENTRIES[name]
