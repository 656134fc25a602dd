"""Whole swarms of real processes, small ones. None may leave a process behind: the fixture looks."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parents[2]
QUICK = ("--sync-every", "10", "--overlap", "3")

pytestmark = pytest.mark.timeout(300)


def accounted_for(window: dict[str, Any], peers: set[int]) -> bool:
    return peers <= {*window["merged_by"], *(skip["peer"] for skip in window["skipped_by"])}


def test_a_healthy_swarm_ends_with_one_outer_state(swarm: Any) -> None:
    run = swarm("--peers", "2", "--steps", "40", *QUICK)
    assert run.code == 0, run.output
    assert len(set(run.digests)) == 1 and len(run.digests) == 2
    assert run.report["windows"] and all(window["chunks"]["missing"] == 0 for window in run.report["windows"])
    assert all(window["merged_by"] == [0, 1] for window in run.report["windows"])
    assert all(len(window["contributors"]) == 2 for window in run.report["windows"])
    evaluation = run.report["evaluation"]
    assert evaluation["outer_loss_end"] < evaluation["outer_loss_start"] - 1
    assert 1 <= run.report["traffic"]["overhead"] <= 1.1
    assert "equal to the bit" in run.output


def test_without_a_swarm_nothing_is_averaged(swarm: Any) -> None:
    run = swarm("--peers", "1", "--steps", "20", "--local-only")
    assert run.code == 0, run.output
    assert run.report["windows"] == [] and run.report["traffic"]["overhead"] is None
    assert run.report["peers"][0]["inner_steps"] == 20
    evaluation = run.report["evaluation"]
    assert evaluation["outer_loss_end"] < evaluation["outer_loss_start"]


def test_a_killed_peer_leaves_the_others_in_agreement(swarm: Any) -> None:
    run = swarm("--peers", "3", "--steps", "60", "--kill", "2@25", *QUICK)
    assert run.code == 0, run.output
    assert [peer["exit"] for peer in run.report["peers"]] == ["finished", "finished", "killed"]
    assert len(set(run.digests)) == 1
    assert len(run.report["windows"][0]["contributors"]) == 3, "started at once, they are one swarm"
    for peer in run.report["peers"][:2]:
        assert peer["seconds"]["wait_max"] <= peer["seconds"]["merge_wait"]
    assert all(accounted_for(window, {0, 1}) for window in run.report["windows"])
    assert len(run.report["windows"][-1]["contributors"]) == 2


@pytest.mark.slow
def test_a_frozen_peer_catches_up(swarm: Any) -> None:
    run = swarm("--peers", "3", "--steps", "300", "--freeze", "1@60:8")
    assert run.code == 0, run.output
    assert len(set(run.digests)) == 1 and len(run.digests) == 3
    assert all(accounted_for(window, {0, 1, 2}) for window in run.report["windows"])
    for index in (0, 2):
        seconds = run.report["peers"][index]["seconds"]
        assert seconds["wait_max"] <= seconds["merge_wait"]


@pytest.mark.slow
def test_a_slow_peer_takes_part_and_holds_nobody_up(swarm: Any) -> None:
    run = swarm("--peers", "3", "--steps", "150", "--slow", "2:4")
    assert run.code == 0, run.output
    assert len(set(run.digests)) == 1
    fast = run.report["peers"][:2]
    assert all(peer["seconds"]["waiting"] <= 0.02 * peer["seconds"]["training"] for peer in fast)
    mine = [window for window in run.report["windows"] if any(c["peer"] == 2 for c in window["contributors"])]
    assert len(mine) >= 0.75 * len(run.report["windows"])


@pytest.mark.slow
def test_two_lockstep_runs_are_equal(swarm: Any) -> None:
    runs = [swarm("--peers", "2", "--steps", "40", "--lockstep", *QUICK, name=name) for name in ("one", "two")]
    assert [run.code for run in runs] == [0, 0]
    assert len({digest for run in runs for digest in run.digests}) == 1


def one_swarm(swarm: Any, name: str) -> None:
    """All peers start at once with one address; every window has them all, so there is one swarm."""
    run = swarm("--peers", "4", "--steps", "24", *QUICK, name=name)
    assert run.code == 0, run.output
    assert len(run.digests) == 4 and len(set(run.digests)) == 1
    assert len(run.report["windows"][0]["contributors"]) == 4


def test_peers_that_start_at_once_form_one_swarm(swarm: Any) -> None:
    """Once here; the swarms of three above and in test_faults.py start at once as well."""
    one_swarm(swarm, "run")


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_twenty_of_twenty_starts_form_one_swarm(swarm: Any) -> None:
    for attempt in range(20):
        one_swarm(swarm, f"attempt-{attempt}")


def start(out: Path) -> "subprocess.Popen[str]":
    """A swarm in the background, once its peers train."""
    command = [sys.executable, "-m", "peer.cli", "swarm", "--out", str(out), "--data", "stdlib"]
    command += ["--peers", "2", "--steps", "100000"]
    running = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    for line in running.stdout:
        if "peer 0: step" in line:
            return running
    raise AssertionError(running.communicate()[1])


def children_of(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupted_swarm_reports_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    running = start(tmp_path)
    children = children_of(running)
    assert len(children) >= 6  # bootstrap and two peers, each with its daemon
    running.send_signal(number)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 128 + number
    assert "Traceback" not in errors
    assert not any(child.is_running() for child in children)
    assert [peer["exit"] for peer in json.loads((tmp_path / "report.json").read_text())["peers"]] == ["failed"] * 2


def test_the_children_of_a_killed_swarm_end_by_themselves(tmp_path: Path) -> None:
    running = start(tmp_path)
    children = children_of(running)
    running.kill()
    running.communicate()
    _, alive = psutil.wait_procs(children, timeout=60)
    for process in alive:
        os.kill(process.pid, signal.SIGKILL)
    assert not alive
