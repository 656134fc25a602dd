"""The report, put together from what peers leave behind: whole, killed, frozen, and cut in the middle of a line."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from peer.commands.records import Link, read_record, read_summary
from peer.commands.report import ModelShape, Outcome, assemble, model_shape, write_report
from peer.commands.report_format import (
    ChunkCounts,
    Contributor,
    FilesEntry,
    FragmentEntry,
    ModelEntry,
    Report,
    Skip,
    WindowEntry,
)
from peer.commands.report_text import report_text
from peer.commands.report_traffic import full_exchange_bytes
from protocol.presets import PRESETS

# Two fragments of two chunks each.
SHAPE = ModelShape(
    ModelEntry(1000, (FragmentEntry(0, 600, 0, ("a",)), FragmentEntry(1, 400, 12, ("b",))), chunks=4), (0, 0, 1, 1)
)
TOKENS = 512


def line(kind: str, **values: Any) -> dict[str, Any]:
    return {"kind": kind, **values}


def link(chunk: int, due: int, owner: int, contributors: tuple[int, ...], rank: int = 0) -> dict[str, Any]:
    parts = [{"peer": f"id-{peer}", "tokens": TOKENS + peer} for peer in contributors]
    return line(
        "link", chunk=chunk, fragment=chunk // 2, due=due, head=f"{chunk}-{due}-{owner}", owner=f"id-{owner}",
        rank=rank, payload_bytes=100, contributors=parts,
    )  # fmt: skip


def opened(fragment: int, due: int) -> dict[str, Any]:
    return line("opened", fragment=fragment, due=due, own_step=due)


def mixed(chunk: int, due: int) -> dict[str, Any]:
    return line("mixed", chunk=chunk, due=due, late=0, power=1)


def contributed(chunk: int, due: int) -> dict[str, Any]:
    return line("contributed", chunk=chunk, due=due, tokens=TOKENS, payload_bytes=40)


def write_peer(folder: Path, index: int, events: list[dict[str, Any]], **summary: Any) -> Path:
    path = folder / f"peer-{index}"
    path.mkdir()
    (path / "record.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (path / "summary.json").write_text(json.dumps({"peer_id": f"id-{index}", "exit": "finished", **summary}))
    return path


def whole_window(due: int, peers: tuple[int, ...]) -> list[dict[str, Any]]:
    """What each peer records of a window of fragment 0 that went well; peer 0 owns chunk 0, peer 1 chunk 1."""
    links = [link(chunk, due, owner=chunk, contributors=peers) for chunk in (0, 1)]
    return [opened(0, due), *(contributed(c, due) for c in (0, 1)), *links, *(mixed(c, due) for c in (0, 1))]


def assembled(outcomes: list[Outcome]) -> Report:
    return assemble(PRESETS["demo"], SHAPE, outcomes)


def outcome(folder: Path, index: int, exit: Any = "finished", last_step: int = 200) -> Outcome:
    return Outcome(index, folder / f"peer-{index}", f"id-{index}", exit, last_step)


def test_a_window_that_went_well(tmp_path: Path) -> None:
    for index in range(2):
        write_peer(tmp_path, index, whole_window(24, (0, 1)), inner_steps=10, traffic={"bytes_on_wire": 150})
    report = assembled([outcome(tmp_path, 0), outcome(tmp_path, 1)])
    assert report.windows == (
        WindowEntry(
            fragment=0,
            step=24,
            contributors=(Contributor(0, TOKENS, 2), Contributor(1, TOKENS + 1, 2)),
            chunks=ChunkCounts(total=2, committed=2, failed_over=0, missing=0),
            merged_by=(0, 1),
            skipped_by=(),
        ),
    )
    # Each chunk: one contribution of 40 bytes to the owner, one result of 100 bytes to the other peer.
    assert report.traffic.formula_bytes == 2 * (40 + 100)
    assert report.traffic.bytes_on_wire == 300
    assert report.traffic.overhead == pytest.approx(300 / 280)
    assert report.traffic.peak_window_bytes == 40 + 100
    assert report.traffic.data_parallel_bytes == 20 * full_exchange_bytes(1000, 2)


def test_a_killed_peer_and_a_stand_in(tmp_path: Path) -> None:
    """Peer 2 dies in the window of step 48: one chunk is closed by the next owner, the other by nobody."""
    survivor = [*whole_window(24, (0, 1, 2)), opened(0, 48), link(0, 48, owner=1, contributors=(0, 1), rank=1)]
    survivor += [mixed(0, 48), line("missed", chunk=1, due=48, reason="no owner answered")]
    for index in (0, 1):
        write_peer(tmp_path, index, survivor)
    write_peer(tmp_path, 2, [*whole_window(24, (0, 1, 2)), opened(0, 48)], exit="running")
    report = assembled([outcome(tmp_path, 0), outcome(tmp_path, 1), outcome(tmp_path, 2, "killed", 49)])
    first, second = report.windows
    assert first.merged_by == (0, 1, 2) and first.skipped_by == ()
    assert second.contributors == (Contributor(0, TOKENS, 1), Contributor(1, TOKENS + 1, 1))
    assert second.chunks == ChunkCounts(total=2, committed=1, failed_over=1, missing=1)
    assert second.merged_by == (0, 1)
    missing = (Skip(0, 1, "no owner answered"), Skip(1, 1, "no owner answered"))
    assert second.skipped_by == (*missing, Skip(2, 2, "killed")), "no chunk is missing without a reason"
    assert [peer.exit for peer in report.peers] == ["finished", "finished", "killed"]


def test_who_was_gone_is_not_in_later_windows(tmp_path: Path) -> None:
    for index in (0, 1):
        write_peer(tmp_path, index, [*whole_window(24, (0, 1)), *whole_window(72, (0, 1))])
    write_peer(tmp_path, 2, [])
    report = assembled([outcome(tmp_path, 0), outcome(tmp_path, 1), outcome(tmp_path, 2, "killed", 30)])
    assert [[skip.peer for skip in window.skipped_by] for window in report.windows] == [[2], []]


def test_every_peer_that_was_there_is_accounted_for(tmp_path: Path) -> None:
    write_peer(tmp_path, 0, [*whole_window(24, (0, 1, 2)), *whole_window(48, (0, 1, 2))])
    links = [link(chunk, 24, owner=chunk, contributors=(0, 1, 2)) for chunk in (0, 1)]
    later = [link(0, 48, owner=0, contributors=(0, 1, 2))]
    write_peer(tmp_path, 1, [opened(0, 24), *links, line("too_late", chunk=1, due=24, late=9), *later])
    write_peer(tmp_path, 2, [line("missed_whole", fragment=0, due=24, reason="outer thread behind"), opened(0, 48)])
    report = assembled([outcome(tmp_path, index) for index in range(3)])
    first, second = report.windows
    assert first.merged_by == (0,)
    assert first.skipped_by == (
        Skip(1, 1, "a newer link came before it was mixed"),
        Skip(1, 1, "came too late to mix; only the anchor moved"),
        Skip(2, 2, "outer thread behind"),
    )
    assert second.skipped_by == (Skip(1, 2, "did not open it"), Skip(2, 2, "no link came"))


def test_a_window_that_nobody_closed(tmp_path: Path) -> None:
    for index in (0, 1):
        write_peer(tmp_path, index, [opened(1, 36)])
    (window,) = assembled([outcome(tmp_path, 0), outcome(tmp_path, 1)]).windows
    assert window.chunks == ChunkCounts(total=2, committed=0, failed_over=0, missing=2)
    assert window.merged_by == () and window.contributors == ()
    assert window.skipped_by == (Skip(0, 2, "nobody closed it"), Skip(1, 2, "nobody closed it"))


def test_a_link_that_lost_counts_as_traffic_only(tmp_path: Path) -> None:
    """Two owners closed the same chunk; the second one's link is what everyone ends with."""
    lost, won = link(0, 24, owner=0, contributors=(0,)), link(0, 24, owner=1, contributors=(0, 1), rank=1)
    for index in (0, 1):
        write_peer(tmp_path, index, [opened(0, 24), lost, won, mixed(0, 24)])
    report = assembled([outcome(tmp_path, 0), outcome(tmp_path, 1)])
    (window,) = report.windows
    assert window.contributors == (Contributor(0, TOKENS, 1), Contributor(1, TOKENS + 1, 1))
    assert window.chunks.committed == 1 and window.chunks.failed_over == 1
    assert report.traffic.formula_bytes == 100 + (100 + 100)


def test_links_that_came_as_repairs_are_counted_apart(tmp_path: Path) -> None:
    """Peer 2 was frozen: the owner could not send it the results of its window, and another peer gave it one later."""
    both = whole_window(24, (0, 1))
    write_peer(tmp_path, 0, both)
    write_peer(tmp_path, 1, [*both, line("gave", chunk=0, due=24, head="0-24-0", to="id-2")])
    write_peer(tmp_path, 2, [link(0, 24, owner=0, contributors=(0, 1))])
    report = assembled([outcome(tmp_path, index) for index in range(3)])
    assert report.traffic.repaired_links == 1
    assert report.traffic.formula_bytes == 2 * (40 + 100)  # as if peer 2 had not been there


def test_a_record_that_is_missing_is_said(tmp_path: Path) -> None:
    for index in range(2):
        write_peer(tmp_path, index, whole_window(24, (0, 1)))
    (tmp_path / "peer-1" / "record.jsonl").unlink()
    report = assembled([outcome(tmp_path, 0), outcome(tmp_path, 1)])
    assert [peer.files for peer in report.peers] == [FilesEntry("whole", "whole"), FilesEntry("whole", "missing")]
    assert "There is no record of peer 1: what it did" in report_text(report, tmp_path)
    (window,) = report.windows
    assert window.skipped_by == (Skip(1, 2, "not in its record, which has gaps"),)
    alone = assemble(PRESETS["demo"], SHAPE, [outcome(tmp_path, 1)], in_swarm=False)
    assert alone.peers[0].files == FilesEntry("whole", None)
    assert "no record" not in report_text(alone, tmp_path)


def test_a_record_with_gaps_is_said_however_they_are_known(tmp_path: Path) -> None:
    write_peer(tmp_path, 0, whole_window(24, (0,)), record_lost=3)
    write_peer(tmp_path, 1, [])  # its parent was told that the disk is full
    folder = write_peer(tmp_path, 2, [])
    (folder / "record.jsonl").write_text('{"kind":"li\n{"kind":"mixed","chunk":0,"due":24}\n')
    write_peer(tmp_path, 3, [], exit="running")  # finished, and could not even write its last summary
    write_peer(tmp_path, 4, [], exit="running")
    ends: list[Any] = ["finished", "killed", "failed", "finished", "killed"]
    outcomes = [outcome(tmp_path, index, end) for index, end in enumerate(ends)]
    outcomes[1] = replace(outcomes[1], incomplete=True)
    report = assembled(outcomes)
    assert [peer.files.record for peer in report.peers] == ["incomplete"] * 4 + ["whole"]
    assert [peer.files.summary for peer in report.peers] == ["whole", "whole", "whole", "old", "old"]
    text = report_text(report, tmp_path)
    assert "The record of peers 0, 1, 2 and 3 has gaps" in text and "no final summary of peer 3:" in text


def test_a_report_may_go_to_what_is_no_file(tmp_path: Path) -> None:
    write_report(assembled([]), Path("/dev/null"))
    assert Path("/dev/null").is_char_device()
    (tmp_path / "real").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "real" / "report.json")
    write_report(assembled([]), tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink() and (tmp_path / "real" / "report.json").is_file()


def test_who_was_cut_off_merged_its_own_branch(tmp_path: Path) -> None:
    write_peer(tmp_path, 0, [opened(0, 24), *(link(c, 24, 0, (0, 1)) for c in (0, 1)), mixed(0, 24), mixed(1, 24)])
    write_peer(tmp_path, 1, [opened(0, 24), *(link(c, 24, 0, (0, 1)) for c in (0, 1)), mixed(0, 24), mixed(1, 24)])
    write_peer(tmp_path, 2, [opened(0, 24), *(link(c, 24, 2, (2,)) for c in (0, 1)), mixed(0, 24), mixed(1, 24)])
    (window,) = assembled([outcome(tmp_path, index) for index in range(3)]).windows
    assert window.merged_by == (0, 1)
    assert window.skipped_by == (Skip(2, 2, "mixed a link of its own branch, which lost"),)


def test_a_cut_last_line_is_left_out(tmp_path: Path) -> None:
    folder = write_peer(tmp_path, 0, whole_window(24, (0, 1)))
    record = folder / "record.jsonl"
    whole = read_record(folder)
    record.write_bytes(record.read_bytes()[:-9])
    cut = read_record(folder)
    assert cut.events == whole.events[:-1] and not cut.unreadable and not cut.missing


def test_lines_of_another_version_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    events = [line("dreamt", of="sheep"), {**link(0, 24, 0, (0,)), "colour": "blue"}]
    folder = write_peer(tmp_path, 0, events)
    found = read_record(folder)
    (event,) = found.events
    assert isinstance(event, Link) and found.unreadable == 1
    assert "line 1 is ignored" in caplog.text


def test_a_peer_that_left_nothing(tmp_path: Path) -> None:
    report = assembled([outcome(tmp_path, 0, "failed", 0)])
    assert read_summary(tmp_path / "peer-0") is None
    assert report.peers[0].peer_id == "id-0" and report.peers[0].inner_steps == 0
    assert report.windows == () and report.traffic.overhead is None and report.traffic.reduction is None
    assert report.evaluation.outer_loss_end is None


def test_nobody_started() -> None:
    report = assembled([])
    assert report.peers == () and report.traffic.data_parallel_bytes == 0


def test_the_written_report_is_whole_json(tmp_path: Path) -> None:
    evaluation = {"outer_loss_start": 5.5, "outer_loss_end": 2.5}
    for index in range(2):
        write_peer(tmp_path, index, whole_window(24, (0, 1)), evaluation=evaluation, outer_digest="ab" * 32)
    report = assembled([outcome(tmp_path, 0), outcome(tmp_path, 1)])
    path = tmp_path / "deep" / "report.json"
    write_report(report, path)
    assert msgspec.json.decode(path.read_bytes(), type=Report) == report
    assert [entry.name for entry in path.parent.iterdir()] == ["report.json"]
    top = json.loads(path.read_text())
    sections = ["report", "run", "manifest", "model", "peers", "faults", "links", "windows", "evaluation", "traffic"]
    assert list(top) == sections
    assert top["report"] == 1 and top["evaluation"] == evaluation
    text = report_text(report, path)
    assert "equal to the bit" in text and "1 windows, 1 of them merged whole" in text


def test_a_difference_of_the_outer_parameters_is_said(tmp_path: Path) -> None:
    for index in range(2):
        write_peer(tmp_path, index, [], outer_digest=str(index) * 64)
    report = assembled([outcome(tmp_path, 0), outcome(tmp_path, 1)])
    assert "THE OUTER PARAMETERS DIFFER" in report_text(report, tmp_path)


def test_the_shape_of_the_demo_s_model() -> None:
    shape = model_shape(PRESETS["demo"])
    assert sum(fragment.parameters for fragment in shape.entry.fragments) == shape.entry.parameters
    assert len(shape.fragment_of) == shape.entry.chunks
    assert sorted(set(shape.fragment_of)) == [fragment.index for fragment in shape.entry.fragments]
    assert [fragment.offset for fragment in shape.entry.fragments] == [0, 1, 3, 4]
