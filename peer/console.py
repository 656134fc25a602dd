"""What a person sees while a swarm trains: a live table, or plain lines.

A caller reports rows (the newest numbers of a peer) and events (something happened); how they look depends on where
the output goes: a terminal gets the table, as many columns of it as fit, and everything else gets lines. Rows may come
as often as the caller likes: the table is redrawn a few times a second, and plain lines come every few seconds for each
peer. (Programs read the JSON lines of `potluck peer --json`, which peer/progress.py writes.)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TextIO

from rich.console import Console as Terminal
from rich.live import Live
from rich.table import Table

from peer import clock
from peer.output import give_up, write_line
from peer.quantities import format_bytes, format_count, sparkline
from peer.screen import Column, fitting

TABLE_SECONDS = 0.25
LINE_SECONDS = 5.0
CURVE_POINTS = 16


@dataclass(frozen=True, kw_only=True)
class PeerRow:
    """The newest numbers of one peer. Loss in nats per token, windows since the start, bytes on the wire."""

    peer: str
    step: int
    loss: float | None = None
    tokens_per_second: float = 0.0
    merged: int = 0
    late: int = 0
    skipped: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    utilization: float | None = None
    """Share of the time spent training, 0 to 1."""


class Curve:
    """A loss curve of bounded length: when it is full, every other point goes, and points then come half as often."""

    def __init__(self, limit: int = CURVE_POINTS) -> None:
        self.values: list[float] = []
        self._limit = limit
        self._stride = 1
        self._next = 0

    def add(self, step: int, loss: float) -> None:
        """Note the loss of a step; steps between two points are left out."""
        if step < self._next:
            return
        self.values.append(loss)
        if len(self.values) > self._limit:
            self.values = self.values[::2]
            self._stride = max(2 * self._stride, 2 * step // self._limit)
        self._next = step + self._stride


class Console:
    """Shows rows and events; use as a context manager or call `close`.

    A live table when `stream` (default: standard output) is a terminal, and plain lines when it is not.
    """

    def __init__(self, *, stream: TextIO | None = None, now: Callable[[], float] = clock.monotonic) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._now = now
        self._rows: dict[str, PeerRow] = {}
        self._curves: dict[str, Curve] = {}
        self._shown: dict[str, tuple[float, PeerRow]] = {}  # per peer: when its last line was written, and which
        self._drawn = float("-inf")
        self._live = self._start_live() if self._stream.isatty() else None
        self._lines = self._live is None

    def update(self, row: PeerRow) -> None:
        """Take a peer's newest numbers."""
        self._rows[row.peer] = row
        if row.loss is not None:
            self._curves.setdefault(row.peer, Curve()).add(row.step, row.loss)
        if self._live:
            self._draw(self._live)
        elif self._is_due(row):
            self._write_row(row)

    def event(self, text: str) -> None:
        """Say at once that something happened, in a line of its own."""
        if self._live:
            with self._terminal():
                # Wrapped by the terminal: with a line break of ours an address could not be copied.
                self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self._write(text)

    def close(self) -> None:
        """Show the last numbers of every peer and stop; calling it again does nothing."""
        if live := self._live:
            self._draw(live, at_once=True)
            self._live = None
            with self._terminal():
                live.stop()
        elif self._lines:
            for name in sorted(self._rows):
                if self._shown[name][1] != self._rows[name]:
                    self._write_row(self._rows[name])

    def release(self) -> None:
        """Give the terminal its cursor back, at once: the process is about to end without a `close`."""
        if self._live:
            with self._terminal():
                self._live.console.show_cursor(True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start_live(self) -> Live:
        # Without rich's refresh thread: it would compete with training, and rows come often enough.
        live = Live(console=Terminal(file=self._stream), auto_refresh=False)
        live.start()
        return live

    @contextmanager
    def _terminal(self) -> Iterator[None]:
        """A terminal that has gone away, as under nohup, costs the table and nothing else."""
        try:
            yield
        except OSError as error:
            self._live = None
            give_up(self._stream, error)

    def _draw(self, live: Live, *, at_once: bool = False) -> None:
        if at_once or self._now() - self._drawn >= TABLE_SECONDS:
            self._drawn = self._now()
            with self._terminal():
                live.update(self._table(live.console.width), refresh=True)

    def _table(self, width: int) -> Table:
        curves = {name: sparkline(curve.values) for name, curve in self._curves.items()}
        return swarm_table([self._rows[name] for name in sorted(self._rows)], curves, width)

    def _is_due(self, row: PeerRow) -> bool:
        last = self._shown.get(row.peer)
        return last is None or self._now() - last[0] >= LINE_SECONDS

    def _write_row(self, row: PeerRow) -> None:
        self._shown[row.peer] = (self._now(), row)
        self._write(format_line(row))

    def _write(self, line: str) -> None:
        write_line(self._stream, line)


_COLUMNS: Final = (
    Column("peer", left=True),
    Column("step"),
    Column("loss"),
    Column("", left=True, drop=7),
    Column("tokens/s", drop=1),
    Column("merged"),
    Column("late", drop=2),
    Column("skipped", drop=3),
    Column("sent", drop=5),
    Column("received", drop=6),
    Column("utilization", drop=4),
)


def _cells(row: PeerRow, curve: str = "") -> tuple[str, ...]:
    """The row as text, a cell for each of _COLUMNS."""
    return (
        row.peer,
        str(row.step),
        "-" if row.loss is None else f"{row.loss:.3f}",
        curve,
        format_count(row.tokens_per_second),
        str(row.merged),
        str(row.late),
        str(row.skipped),
        format_bytes(row.bytes_sent),
        format_bytes(row.bytes_received),
        "-" if row.utilization is None else f"{row.utilization:.0%}",
    )


def swarm_table(rows: list[PeerRow], curves: dict[str, str], width: int) -> Table:
    """The live table, at most `width` cells wide: a line for each row, with its loss curve."""
    return fitting(_COLUMNS, [_cells(row, curves.get(row.peer, "")) for row in rows], width)


def format_line(row: PeerRow) -> str:
    """The row in one plain line."""
    _, step, loss, _, speed, merged, late, skipped, sent, received, utilization = _cells(row)
    windows = f"windows {merged} merged, {late} late, {skipped} skipped"
    traffic = f"sent {sent}, received {received}"
    return f"{row.peer}: step {step}  loss {loss}  {speed} tokens/s  {windows}  {traffic}  utilization {utilization}"
