"""What fits a screen. A table leaves out, column by column, what a narrow terminal has no room for; sentences are
broken between words. Where the output is no terminal, nothing is left out or broken.
"""

from __future__ import annotations

import io
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

_GAP: Final = 2
"""Cells between two columns."""
_ENDLESS: Final = 10_000
_SHORTEST: Final = 6
"""Cells that a column keeps when it is cut."""


@dataclass(frozen=True)
class Column:
    """A heading, on which side its cells stand, and when it goes: the highest `drop` first, 0 never."""

    heading: str
    drop: int = 0
    left: bool = False


def fitting(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> Table:
    """A table of `rows`, a cell for each column, in at most `width` cells (None: as many as it takes).

    Columns are dropped until the rest fits. If even those that always stay do not, the first one's cells are cut.
    """
    width = width or _ENDLESS
    kept = _kept(columns, rows, width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index in kept:
        justify = "left" if columns[index].left else "right"
        table.add_column(columns[index].heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    widths = _widths(columns, rows)
    room = max(_SHORTEST, width - _total(widths, kept) + widths[0])
    for row in rows:
        table.add_row(*(Text(_cut(row[index], room) if index == 0 else row[index]) for index in kept))
    return table


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(cell_len, [column.heading, *(row[i] for row in rows)])) for i, column in enumerate(columns)]


def _total(widths: Sequence[int], kept: Sequence[int]) -> int:
    return sum(widths[index] for index in kept) + _GAP * (len(kept) - 1)


def _kept(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    widths, kept = _widths(columns, rows), list(range(len(columns)))
    while _total(widths, kept) > width and (left := [index for index in kept if columns[index].drop]):
        kept.remove(max(left, key=lambda index: columns[index].drop))
    return kept


def _cut(text: str, room: int) -> str:
    return text if cell_len(text) <= room else set_cell_size(text, room - 1) + "…"


def rendered(table: Table, width: int | None) -> str:
    """The table as text, without blanks at the ends of its lines; with colours only where `width` says: a terminal."""
    with io.StringIO() as text:
        color = "auto" if width else None
        terminal = Console(file=text, width=width or _ENDLESS, color_system=color, force_terminal=width is not None)  # type: ignore[arg-type]
        terminal.print(table)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def broken(text: str, width: int | None) -> str:
    """The lines of `text`, broken between words where they are longer than `width`; None breaks nothing."""
    if width is None:
        return text
    lines = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        rest = textwrap.wrap(
            line, max(width, _SHORTEST), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        lines += rest or [""]
    return "\n".join(lines)


def width_of(stream: TextIO) -> int | None:
    """Cells in a line of the terminal that `stream` is; None if it is not one."""
    return shutil.get_terminal_size().columns if stream.isatty() else None
