"""A peer of several lives in the report: one entry, and which windows it was there for."""

import json
from pathlib import Path
from typing import Any

from peer.commands.records import clear
from peer.commands.report import Life, ModelShape, Outcome, assemble
from peer.commands.report_format import FaultEntry, FragmentEntry, LinkEntry, ModelEntry, Report, Skip
from peer.commands.report_text import report_text
from protocol.presets import PRESETS

SHAPE = ModelShape(ModelEntry(600, (FragmentEntry(0, 600, 0, ("a",)),), chunks=1), (0,))


def summary(folder: Path, **values: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "summary.json").write_text(json.dumps({"peer_id": "id-1", "exit": "finished", **values}))


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
    summary(folder / "peer-0", peer_id="id-0")
    if exit == "finished" and not (folder / "peer-1" / "summary.json").exists():
        summary(folder / "peer-1")
    outcomes = [
        Outcome(0, folder / "peer-0", "id-0", "finished", 60),
        Outcome(1, folder / "peer-1", "id-1", exit, lives[-1].last_step, lives),
    ]
    return assemble(PRESETS["demo"], SHAPE, outcomes)


def test_one_entry_of_what_the_peer_itself_added_up(tmp_path: Path) -> None:
    """The parent knows of every life; a peer only of those that wrote a summary."""
    record(tmp_path / "peer-1", window(10))
    summary(tmp_path / "peer-1", lives=1, inner_steps=50, bytes_sent=15, evaluation={"outer_loss_start": 5.6})
    report = assembled(tmp_path, (Life(0, 30), Life(40, 60)))
    peer = report.peers[1]
    assert (peer.lives, peer.exit, peer.inner_steps, peer.bytes_sent) == (2, "finished", 50, 15)
    assert report.evaluation.outer_loss_start == 5.6
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


def test_a_newcomer_s_later_life_is_not_its_first(tmp_path: Path) -> None:
    """Killed after step 22, and without a snapshot back as a newcomer at 40: it was there at 10 and 20 all the same."""
    life: list[dict[str, Any]] = [{"kind": "life", "number": n, "step": 0, "own_step": 0} for n in (1, 2)]
    joined = {"kind": "joined", "from_step": 40}
    record(tmp_path / "peer-1", [life[0], *window(10), life[1], joined, *window(50)])
    report = assembled(tmp_path, (Life(0, 22), Life(40, 60)))
    assert [entry.merged_by for entry in report.windows] == [(0, 1), (0,), (0,), (0,), (0, 1)]
    assert [entry.skipped_by for entry in report.windows] == [(), (Skip(1, 1, "killed and started again"),), (), (), ()]


def test_a_newcomer_without_a_word_of_its_parent_s(tmp_path: Path) -> None:
    joined = {"kind": "joined", "from_step": 30}
    record(tmp_path / "peer-1", [{"kind": "life", "number": 1, "step": 30, "own_step": 0}, joined, *window(50)])
    report = assembled(tmp_path, (Life(0, 60),))
    assert [len(entry.skipped_by) for entry in report.windows] == [0, 0, 0, 1, 0]


def test_an_earlier_swarm_is_cleared_away_but_for_the_identity(tmp_path: Path) -> None:
    record(tmp_path, window(10))
    summary(tmp_path)
    (tmp_path / "identity").write_bytes(b"key")
    (tmp_path / "snapshots" / "24").mkdir(parents=True)
    clear(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["identity"]
    clear(tmp_path)


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
