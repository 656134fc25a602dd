"""What is shown fits the terminal: at every width, no line is longer, and what is most needed stays."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console as Terminal

from peer.commands.records import Evaluation, Seconds, WindowCounts
from peer.commands.report_format import (
    ChunkCounts,
    FilesEntry,
    ModelEntry,
    PeerEntry,
    Report,
    Skip,
    TrafficEntry,
    WindowEntry,
)
from peer.commands.report_text import report_text
from peer.console import PeerRow, swarm_table
from peer.screen import Column, broken, fitting, rendered

WIDTHS = (60, 80, 100, 160)
COLUMNS = (Column("name", left=True), Column("most"), Column("some", drop=1), Column("least", drop=2))


def row(name: str) -> PeerRow:
    return PeerRow(
        peer=name, step=123_456, loss=12.345, tokens_per_second=123_456.0, merged=1234, late=123, skipped=123,
        bytes_sent=123_456_789, bytes_received=123_456_789, utilization=1.0,
    )  # fmt: skip


def entry(index: int) -> PeerEntry:
    return PeerEntry(
        index=index, peer_id=f"id-{index}", exit="finished", lives=1, inner_steps=100_000, tokens=10**9,
        train_loss_first=5.6, train_loss_last=2.3, windows=WindowCounts(1000, 900, 90, 10),
        bytes_sent=10**9, bytes_received=10**9, seconds=Seconds(1000.0, 990.0, 10.0, 1.0),
        utilization=0.99, outer_digest="ab" * 32, files=FilesEntry("whole", "incomplete"),
    )  # fmt: skip


def report() -> Report:
    window = WindowEntry(
        fragment=0, step=24, contributors=(), chunks=ChunkCounts(total=4, committed=2, failed_over=1, missing=2),
        merged_by=(0,), skipped_by=(Skip(1, 2, "nobody closed it"),),
    )  # fmt: skip
    traffic = TrafficEntry(
        payload_bytes=10**9, bytes_on_wire=10**9, formula_bytes=10**9, overhead=1.0, repaired_links=3,
        repair_bytes=10**6, dht_bytes=1000, data_parallel_bytes=10**12,
        reduction=1000.0, peak_window_bytes=10**6, peak_reduction=100.0,
    )  # fmt: skip
    return Report(
        run="ab" * 32, manifest={}, model=ModelEntry(1000, (), 4), peers=tuple(map(entry, range(4))),
        windows=(window,), evaluation=Evaluation(5.6, 2.0), traffic=traffic, faults=(), links=(),
    )  # fmt: skip


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["peer 0", "a-volunteer-with-a-very-long-name"[:32], "ポットラックポットラックポット"])
def test_the_live_table_fits(width: int, name: str) -> None:
    screen = io.StringIO()
    Terminal(file=screen, width=width).print(swarm_table([row(name), row("b")], {"b": "█" * 16}, width))
    heading, first, second = screen.getvalue().splitlines()  # nothing wraps: a line for each peer
    assert max(map(cell_len, (heading, first, second))) <= width
    assert all(word in heading for word in ("peer", "step", "loss", "merged"))
    assert all(word in first for word in ("123456", "12.345", "1234"))
    assert ("█" in second) == (width == 160)
    if len(name) == 6:
        assert ("received" in heading) == (width >= 100) and ("tokens/s" in heading)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_report_fits(width: int) -> None:
    lines = report_text(report(), Path("runs/swarm-001/report.json"), width).splitlines()
    assert any("\x1b" in line for line in lines) and not any(line.isspace() for line in lines)
    lines = [re.sub(r"\x1b\[\d*m", "", line) for line in lines]
    assert max(map(cell_len, lines)) <= width
    assert len([line for line in lines if "finished" in line and "2.300" in line]) == 4  # one line a peer
    assert ("abababababab" in lines[1]) == (width >= 80)
    text = " ".join(lines)
    assert "peers that finished are equal to the bit" in text and "has gaps" in text


def test_where_there_is_no_terminal_nothing_is_left_out_or_broken() -> None:
    lines = report_text(report(), Path("runs/swarm-001/report.json")).splitlines()
    assert all(word in lines[0] for word in ("received", "utilization", "digest"))
    assert max(map(len, lines)) > 160 and "\x1b" not in "".join(lines)


def test_columns_go_in_their_order_and_then_the_first_is_cut() -> None:
    rows = [("a long name", "1", "22", "333")]
    shown = [rendered(fitting(COLUMNS, rows, width), None).splitlines() for width in (40, 28, 20, 12)]
    assert [lines[0].split() for lines in shown] == [
        ["name", "most", "some", "least"],
        ["name", "most", "some", "least"][:3],
        ["name", "most"],
        ["name", "most"],
    ]
    assert "…" in shown[3][1] and len(shown[3][1]) <= 12
    assert all("…" not in lines[1] for lines in shown[:3])


def test_sentences_are_broken_between_words_and_words_are_not() -> None:
    text = "  one two three four\n\n/a/path/that/is/longer/than/a/line end"
    assert broken(text, 14).splitlines() == [
        "  one two",
        "  three four",
        "",
        "/a/path/that/is/longer/than/a/line",
        "end",
    ]
    assert broken(text, None) == text
