"""What `potluck plan` prints for people, from the same object that --json writes. At most 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from peer.quantities import format_bytes, format_count
from peer.screen import Column, broken, fitting, rendered
from peer.units import format_bandwidth, format_seconds

WIDTH: Final = 80
MOST_SKIPPED: Final = 0.05
"""As the planner's own, which decides whether a target is reached (tests/peer/test_plan.py compares them)."""
FAR_OVERLAP: Final = 10
"""τ up to which the paper sees next to no loss (its Figure 8)."""
POINTS: Final = 8
"""Columns of a figure's table."""


def _room(width: int | None) -> int:
    """Cells of a line, in a terminal of `width`."""
    return min(width or WIDTH, WIDTH)


def plan_text(found: Mapping[str, Any], width: int | None) -> str:
    """A plan."""
    columns = (Column("", left=True), Column(""), Column("", left=True, drop=1))
    table = fitting(columns, list(_rows(found)), _room(width))
    table.show_header = False
    parts = [broken("\n".join(_setting(found)), _room(width)), "", rendered(table, width)]
    if (potluck := found["potluck"]) and potluck["skipped"] > MOST_SKIPPED:
        parts += ["", broken(_too_slow(found), _room(width))]
    if target := found.get("target"):
        parts += ["", broken("\n".join(_target(found, target)), _room(width))]
    return "\n".join(parts)


def _setting(found: Mapping[str, Any]) -> Iterator[str]:
    model, link = found["model"], found["link"]
    active = "" if model["active_parameters"] == model["parameters"] else (
        f", {format_count(model['active_parameters'])} of them active"
    )  # fmt: skip
    yield (
        f"{model['name']}: {format_count(model['parameters'])} parameters{active}, in {model['layers']} layers; an "
        f"inner step takes {format_seconds(found['step_seconds'])}."
    )
    yield (
        f"{found['peers']} peers, each with {format_bandwidth(link['up_mbit'] * 1e6)} up and "
        f"{format_bandwidth(link['down_mbit'] * 1e6)} down, {format_seconds(link['latency_seconds'])} one way."
    )
    if found["method"] == "data-parallel":
        yield f"data-parallel: a ring all-reduce of all gradients in {found['codec']} at every step."
        return
    back = "both ways" if found["codec"] == found["result_codec"] else f"and {found['result_codec']} back"
    count = found["fragments"]
    yield (
        f"{found['method']}: {count} fragment{'s' if count > 1 else ''}, H = {found['sync_every']}, "
        f"τ = {found['overlap']}, {found['codec']} {back}."
    )


def _too_slow(found: Mapping[str, Any]) -> str:
    return (
        f"This link cannot carry the windows in time: {found['potluck']['skipped']:.0%} of them would be skipped. A "
        "greater τ, smaller fragments, fewer bits or a faster link would help, and a greater H if it is never free."
    )


def _rows(found: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    a_round, sizes, needs = found["round"], found["bytes"], found["memory"]
    each = "step" if found["method"] == "data-parallel" else "round"
    yield "compute utilization", f"{found['utilization']:.1%}", "if every merge is awaited"
    if potluck := found["potluck"]:
        wait = potluck["merge_wait_seconds"]
        waits = f"which waits at most {format_seconds(wait)}" if wait else "which does not wait for merges"
        yield "  with potluck,", f"{potluck['utilization']:.1%}", waits
        yield "  windows merged in time", f"{potluck['in_time']:.1%}", ""
        yield "  merged late", f"{potluck['late']:.1%}", ""
        yield "  skipped", f"{potluck['skipped']:.1%}", ""
    yield f"a {each}", format_seconds(a_round["seconds"]), ""
    yield "  exchange", format_seconds(a_round["exchange_seconds"]), "from opening to the last result, summed"
    yield "  of it hidden", format_seconds(a_round["hidden_seconds"]), "behind training"
    yield "  exposed", format_seconds(a_round["exposed_seconds"]), "training waits, if merges are awaited"
    yield "sent, and received, by a peer", format_bytes(sizes["sent_per_hour"]), "an hour"
    yield "", format_bytes(sizes["sent_per_round"]), f"a {each}"
    if potluck:
        yield "", format_bytes(sizes["largest_window"]), "for the largest window"
    yield "memory on the device", format_bytes(needs["device"]), "without activations"
    yield "memory on the host", format_bytes(needs["host"]), ""


def _target(found: Mapping[str, Any], target: Mapping[str, Any]) -> Iterator[str]:
    wanted, name = f"{target['utilization']:.4g}", {"sync_every": "H", "overlap": "τ"}.get(target["free"] or "")
    if name and target["value"] is not None:
        with_overlap = f" with τ = {found['overlap']}" if name == "H" else ""
        smallest = f"the smallest {name} that reaches it{with_overlap} is {target['value']}"
        yield f"Target {wanted}: {smallest}; the plan above has it."
        if found["overlap"] > FAR_OVERLAP:
            yield f"τ above {FAR_OVERLAP} costs some of the loss (the paper's Figure 8)."
    elif name:
        yield f"Target {wanted}: no {name} reaches it on this link.{_why(found)}"
    else:
        yield f"Target {wanted}: {'reached' if target['reached'] else 'not reached'}."
    if needed := target["bandwidth_needed"]:
        up, down = (format_bandwidth(needed[f"{way}_mbit"] * 1e6) for way in ("up", "down"))
        yield f"With H = {found['sync_every']} and τ = {found['overlap']} it takes {up} up and {down} down."
    else:
        yield "Not even a million times the bandwidth reaches it."


def _why(found: Mapping[str, Any]) -> str:
    """What to change, where it is not the training that waits."""
    if not found["potluck"] or not found["potluck"]["skipped"]:
        return ""
    skipped = f"{found['potluck']['skipped']:.0%}"
    return f" Results come too late to be merged ({skipped}): a greater --overlap, or smaller fragments."


def _dropping(headings: Iterable[str]) -> list[Column]:
    """Columns of numbers: where not all have room, the last go first."""
    return [Column(heading, drop=index) for index, heading in enumerate(headings)]


def paper_text(found: Mapping[str, Any], width: int | None) -> str:
    """Table 4, Figure 16, and what was asked at one bandwidth."""
    notes = "Gbit/s for a compute utilization: first what the paper prints, the last point of its grid that is too "
    notes += "little; then the first that is enough. Table 4, and below it the models of Figure 16."
    parts = [broken(notes, _room(width)), *_cells_text([*found["cells"], *found["figure16"]], width)]
    if rows := found.get("at"):
        title = f"Compute utilization at {format_bandwidth(rows[0]['gbits'] * 1e9)}:"
        columns = (Column("", left=True), *_dropping(dict.fromkeys(row["method"] for row in rows)))
        table = _grouped(rows, "scale", lambda row: f"{row['utilization']:.1%}")
        parts += ["", title, rendered(fitting(columns, table, _room(width)), width)]
    return "\n".join(parts)


def _cells_text(cells: Sequence[Mapping[str, Any]], width: int | None) -> Iterator[str]:
    """A table a scale."""
    headings = [f"{utilization:.4g}" for utilization in dict.fromkeys(cell["utilization"] for cell in cells)]
    for scale in dict.fromkeys(cell["scale"] for cell in cells):
        rows = _grouped([cell for cell in cells if cell["scale"] == scale], "method", _thresholds)
        # Names of one width, so that the tables stand below each other.
        columns = (Column(f"{scale:<13}", left=True), *_dropping(f"{heading:>11}" for heading in headings))
        yield "\n" + rendered(fitting(columns, rows, _room(width)), width)


def _thresholds(cell: Mapping[str, Any]) -> str:
    values = (cell["paper_gbits"], cell["true_gbits"])
    return " ".join("-" if value is None else f"{value:g}" for value in values)


def _grouped(
    found: Sequence[Mapping[str, Any]], key: str, text: Callable[[Mapping[str, Any]], str]
) -> list[tuple[str, ...]]:
    """A row for each value of `key`, with the texts of all that have it."""
    rows: dict[str, list[str]] = {}
    for one in found:
        rows.setdefault(one[key], []).append(text(one))
    return [(name, *texts) for name, texts in rows.items()]


def charts_text(found: Mapping[str, Any], width: int | None) -> str:
    """A figure's curves at some of their points."""
    return "\n\n".join(_chart_text(chart, width) for chart in found["charts"])


def _chart_text(chart: Mapping[str, Any], width: int | None) -> str:
    xs = chart["series"][0]["xs"]
    picked = sorted({round(index * (len(xs) - 1) / (POINTS - 1)) for index in range(POINTS)})
    columns = (Column(chart["x"], left=True), *_dropping(f"{xs[index]:g}" for index in picked))
    rows = [(line["label"], *(f"{line['ys'][index]:.3f}" for index in picked)) for line in chart["series"]]
    title = f"{chart['title']}: {chart['y']}" + (f" ({chart['note']})" if chart["note"] else "")
    return f"{broken(title, _room(width))}\n{rendered(fitting(columns, rows, _room(width)), width)}"
