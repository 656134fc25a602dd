"""A peer of several lives in the report: one entry, its sums, and which windows it was there for."""

import json
from pathlib import Path
from typing import Any

import pytest

from peer.commands.records import EARLIER, clear, read_record, read_summaries, set_aside
from peer.commands.report import Life, ModelShape, Outcome, assemble
from peer.commands.report_format import FaultEntry, FragmentEntry, LinkEntry, ModelEntry, Report, Skip
from peer.commands.report_text import report_text
from protocol.presets import PRESETS

SHAPE = ModelShape(ModelEntry(600, (FragmentEntry(0, 600, 0, ("a",)),), chunks=1), (0,))


def summary(folder: Path, name: str, **values: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps({"peer_id": "id-1", **values}))


def window(due: int) -> list[dict[str, Any]]:
    link = {"kind": "link", "chunk": 0, "fragment": 0, "due": due, "head": f"h{due}", "owner": "id-0", "rank": 0}
    link |= {"payload_bytes": 100, "contributors": [{"peer": "id-0", "tokens": 5}]}
    opened = {"kind": "opened", "fragment": 0, "due": due, "own_step": due}
    return [opened, link, {"kind": "mixed", "chunk": 0, "due": due, "late": 0, "power": 1}]


def record(folder: Path, events: list[dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "record.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def assembled(folder: Path, lives: tuple[Life, ...], exit: Any = "finished") -> Report:
    """Peer 0 was there for windows 10 to 50; peer 1 as `lives` say."""
    record(folder / "peer-0", [event for due in (10, 20, 30, 40, 50) for event in window(due)])
    summary(folder / "peer-0", "summary.json", peer_id="id-0", exit="finished")
    outcomes = [
        Outcome(0, folder / "peer-0", "id-0", "finished", 60),
        Outcome(1, folder / "peer-1", "id-1", exit, lives[-1].last_step, lives),
    ]
    return assemble(PRESETS["demo"], SHAPE, outcomes)


def test_sums_and_ends(tmp_path: Path) -> None:
    first: dict[str, Any] = {"inner_steps": 30, "tokens": 300, "train_loss_first": 5.5, "train_loss_last": 4.0}
    first |= {"windows": {"opened": 3, "merged": 2, "late": 1}, "bytes_sent": 10, "exit": "running"}
    first |= {"seconds": {"total": 10.0, "training": 9.0, "waiting": 1.0, "wait_max": 0.5, "merge_wait": 0.6}}
    first |= {"traffic": {"payload_bytes": 7, "peak_window_bytes": 4}, "evaluation": {"outer_loss_start": 5.6}}
    last: dict[str, Any] = {"inner_steps": 20, "tokens": 200, "train_loss_first": 4.5, "train_loss_last": 3.0}
    last |= {"windows": {"opened": 2, "merged": 2}, "bytes_sent": 5, "exit": "finished", "outer_digest": "ab"}
    last |= {"seconds": {"total": 10.0, "training": 10.0, "wait_max": 0.1, "merge_wait": 0.2}}
    last |= {
        "traffic": {"payload_bytes": 3, "dht_bytes": 2},
        "evaluation": {"outer_loss_start": 4, "outer_loss_end": 3},
    }
    summary(tmp_path / "peer-1", "summary.json", **first)
    set_aside(tmp_path / "peer-1", 1)
    assert read_summaries(tmp_path / "peer-1")[0].inner_steps == 30
    summary(tmp_path / "peer-1", "summary.json", **last)
    report = assembled(tmp_path, (Life(0, 30), Life(40, 60)))
    peer = report.peers[1]
    assert (peer.lives, peer.exit, peer.outer_digest) == (2, "finished", "ab")
    assert (peer.inner_steps, peer.tokens, peer.bytes_sent) == (50, 500, 15)
    assert (peer.train_loss_first, peer.train_loss_last) == (5.5, 3.0)
    assert (peer.windows.opened, peer.windows.merged, peer.windows.late) == (5, 4, 1)
    assert (peer.seconds.total, peer.seconds.wait_max, peer.seconds.merge_wait) == (20.0, 0.5, 0.6)
    assert peer.utilization == pytest.approx(19 / 20)
    assert (report.traffic.payload_bytes, report.traffic.dht_bytes) == (10, 2)
    assert (report.evaluation.outer_loss_start, report.evaluation.outer_loss_end) == (5.6, 3)
    assert report.peers[0].lives == 1


def test_windows_between_two_lives_are_nobody_s_miss(tmp_path: Path) -> None:
    """Killed after step 22 with the window of 20 open, back at 38: gone at 30, and there again from 40."""
    record(tmp_path / "peer-1", [*window(10), window(20)[0], *window(50)])
    report = assembled(tmp_path, (Life(0, 22), Life(38, 60)))
    assert [entry.merged_by for entry in report.windows] == [(0, 1), (0,), (0,), (0,), (0, 1)]
    assert report.windows[1].skipped_by == (Skip(1, 1, "killed and started again"),)
    assert report.windows[2].skipped_by == ()
    assert report.windows[3].skipped_by == (Skip(1, 1, "did not open it"),)


def test_who_came_late_was_not_there_before(tmp_path: Path) -> None:
    record(tmp_path / "peer-1", window(50))
    report = assembled(tmp_path, (Life(45, 60),))
    assert [len(entry.skipped_by) for entry in report.windows] == [0] * 5
    assert report.evaluation.outer_loss_start is None


def test_who_never_made_a_step_was_never_there(tmp_path: Path) -> None:
    report = assembled(tmp_path, (Life(0, 15), Life(None, 0)), "killed")
    assert [entry.skipped_by for entry in report.windows] == [(Skip(1, 1, "killed"),), (), (), (), ()]
    assert report.peers[1].lives == 2 and report.peers[1].exit == "killed"


def test_who_left_is_in_no_later_window(tmp_path: Path) -> None:
    record(tmp_path / "peer-1", window(10))
    report = assembled(tmp_path, (Life(0, 25),), "left")
    assert [entry.skipped_by for entry in report.windows] == [(), (Skip(1, 1, "left"),), (), (), ()]


def test_a_cut_line_does_not_spoil_the_next_life_s_first(tmp_path: Path) -> None:
    folder = tmp_path / "peer-1"
    record(folder, window(10))
    path = folder / "record.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    set_aside(folder, 1)
    with path.open("a") as file:
        file.write(json.dumps(window(50)[0]) + "\n")
    assert len(read_record(folder)) == 3
    set_aside(folder, 2)
    assert len(read_record(folder)) == 3


def test_lives_are_read_in_order_and_cleared(tmp_path: Path) -> None:
    for life in (10, 2, 1):
        summary(tmp_path, EARLIER.format(life), inner_steps=life)
    assert [one.inner_steps for one in read_summaries(tmp_path)] == [1, 2, 10]
    clear(tmp_path)
    assert read_summaries(tmp_path) == [] and list(tmp_path.iterdir()) == []
    set_aside(tmp_path, 1)


def fault(kind: Any, peer: int | None = 1, at: float | None = 12.34, ended: float | None = None) -> FaultEntry:
    groups = ((0, 1), (2, 3)) if peer is None else None
    return FaultEntry(kind=kind, peer=peer, groups=groups, step=60, at_step=61, at=at, ended=ended)


def test_a_line_for_every_fault(tmp_path: Path) -> None:
    faults = (
        fault("kill"),
        fault("leave"),
        fault("freeze", ended=20.34),
        fault("freeze"),
        fault("restart", ended=20.34),
        fault("restart"),
        fault("join", ended=20.34),
        fault("partition", None, ended=20.34),
        fault("partition", None, at=None),
    )
    links = (LinkEntry(peer=None, mbit=None, latency=0, loss=0, bytes_up=1, bytes_down=2, accepted=3, refused=4),)
    report = assemble(PRESETS["demo"], SHAPE, [], faults, links)
    assert report.links == links
    lines = report_text(report, tmp_path).splitlines()
    assert [line for line in lines if "step 6" in line] == [
        "Peer 1 was killed at step 61, 12.3 s after the start.",
        "Peer 1 was told to leave at step 61, 12.3 s after the start.",
        "Peer 1 was frozen at step 61, 12.3 s after the start, for 8.0 s.",
        "Peer 1 was frozen at step 61, 12.3 s after the start, until the end.",
        "Peer 1 was killed at step 61, 12.3 s after the start; started again, it made its first step 8.0 s after that.",
        "Peer 1 was killed at step 61, 12.3 s after the start; started again, it never made a step.",
        "Peer 1 was started at step 61, 12.3 s after the start; it made its first step 8.0 s after that.",
        "Peers 0, 1 | 2, 3 were cut off from each other at step 61, 12.3 s after the start, for 8.0 s.",
        "--partition at step 60 never happened.",
    ]
