"""Charts of what was computed, as SVG or PNG files. matplotlib, the extra `plots`, is imported only when one is drawn.

A chart is data (`Chart`, `Series`), so that a command can print the same numbers as text or JSON. The same charts give
the same SVG bytes with the same matplotlib: no date, and ids from a fixed salt. No window is opened, and no state of
matplotlib's outside the figure is left changed.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from protocol.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES: Final = (".svg", ".png")
WIDTH, HEIGHT = 5.0, 4.0
"""Inches of one chart."""


@dataclass(frozen=True, slots=True)
class Series:
    """One curve: a point for each of `xs`, and around it `spread` (half the height of the band), if there is one."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    spread: Sequence[float] | None = None
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves over one pair of axes. `note` is a line of small print below."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    note: str = ""


def check_plot(path: Path) -> None:
    """UserError for `--plot` if no chart could be saved at `path`. Call it before long work."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError.field("--plot", str(path), "must end in .svg or .png")
    if path.is_dir():
        raise UserError.field("--plot", str(path), "is a directory, must be a file")
    if not path.parent.is_dir():
        raise UserError.field("--plot", str(path), f"the folder {path.parent} does not exist")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        right = "needs the package matplotlib: install potluck with its extra 'plots'"
        raise UserError.field("--plot", str(path), right) from error


def save_charts(path: Path, charts: Sequence[Chart]) -> None:
    """Draw `charts` side by side into the file `path`. UserError as of `check_plot`, and if it cannot be written; a
    file that was there before is then as it was."""
    check_plot(path)
    import matplotlib
    from matplotlib.figure import Figure

    kind = path.suffix.lower().removeprefix(".")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a matplotlibrc of the user's would change the bytes
        matplotlib.rcParams.update(
            {"svg.hashsalt": "potluck", "svg.fonttype": "none", "font.size": 9.0, "figure.dpi": 120.0}
        )
        figure = Figure(figsize=(WIDTH * len(charts), HEIGHT), layout="constrained")
        for column, chart in enumerate(charts, start=1):
            _draw(figure.add_subplot(1, len(charts), column), chart)
        drawn = io.BytesIO()
        figure.savefig(drawn, format=kind, metadata={"Date": None} if kind == "svg" else None)
    try:
        _replace(path, drawn.getvalue())
    except OSError as error:
        raise UserError.field("--plot", str(path), f"cannot be written: {error.strerror}") from error


def _replace(path: Path, content: bytes) -> None:
    """In one step. What is no file (/dev/null) is written to as it is."""
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _draw(axes: Axes, chart: Chart) -> None:
    for series in chart.series:
        line, *_ = axes.plot(series.xs, series.ys, "--" if series.dashed else "-", label=series.label, linewidth=1.6)
        if series.spread is not None:
            pairs = list(zip(series.ys, series.spread, strict=True))
            low, high = [y - half for y, half in pairs], [y + half for y, half in pairs]
            axes.fill_between(series.xs, low, high, alpha=0.2, color=line.get_color(), linewidth=0)
    if chart.log_x:
        axes.set_xscale("log")
    axes.set_title(chart.title)
    axes.set_xlabel(f"{chart.x_label}\n{chart.note}" if chart.note else chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.grid(alpha=0.3)
    if chart.series:
        axes.legend(fontsize="small")
