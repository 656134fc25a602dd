"""Faults of a local swarm, on real processes and connections: what the report says of them, and that everyone agrees
at the end. Steps and seconds leave room for a slow machine; nothing here depends on how fast it is.
"""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)

Swarm = Callable[..., Any]


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that cost little but, slowed down, still take a while: the processor is for those who start."""
    monkeypatch.setenv("POTLUCK_BATCH", "1")


def flags(peers: int, steps: int, *others: str) -> list[str]:
    slow = [flag for peer in range(peers) for flag in ("--slow", f"{peer}:6")]
    quick = ["--sync-every", "10", "--overlap", "3"]
    return ["--peers", str(peers), "--steps", str(steps), *quick, *slow, *others]


def contributed(run: Any, peer: int) -> list[int]:
    """Due steps of the windows that name the peer."""
    return [w["step"] for w in run.report["windows"] if any(c["peer"] == peer for c in w["contributors"])]


def all_agree(run: Any, peers: int) -> None:
    assert run.code == 0, run.output
    assert len(run.digests) == peers and len(set(run.digests)) == 1, run.output
    for window in run.report["windows"]:
        named = {*window["merged_by"], *(skip["peer"] for skip in window["skipped_by"])}
        assert named or not window["chunks"]["missing"]


def test_a_swarm_with_a_join_a_restart_and_a_partition(swarm: Swarm) -> None:
    """The short set; the slow ones below look at each fault more closely."""
    run = swarm(*flags(3, 150, "--join", "2@12", "--restart", "1@40:1", "--partition", "0,1|2@90:5"))
    all_agree(run, 3)
    assert {fault["kind"]: fault["at"] is not None for fault in run.report["faults"]} == dict.fromkeys(
        ("join", "restart", "partition"), True
    )
    assert [peer["lives"] for peer in run.report["peers"]] == [1, 2, 1]
    assert "Going on from the snapshot of step" in run.output
    assert [link["peer"] for link in run.report["links"]] == [None, 0, 1, 2]
    assert contributed(run, 2) and set(run.report["windows"][-1]["merged_by"]) == {0, 1, 2}


@pytest.mark.slow
def test_a_peer_joins_a_run_under_way(swarm: Swarm) -> None:
    run = swarm(*flags(2, 150, "--join", "1@12"))
    all_agree(run, 2)
    (fault,) = run.report["faults"]
    assert fault["kind"] == "join" and fault["at_step"] >= 12
    assert 0 < fault["at"] < fault["ended"]
    assert [peer["lives"] for peer in run.report["peers"]] == [1, 1]
    assert "Peer 1 was started at step" in run.output
    early = [window for window in run.report["windows"] if window["step"] <= 12]
    assert early and all(window["merged_by"] == [0] and window["skipped_by"] == [] for window in early)
    assert contributed(run, 1)


@pytest.mark.slow
def test_a_killed_peer_comes_back_as_the_same(swarm: Swarm) -> None:
    run = swarm(*flags(2, 150, "--restart", "1@25:1"))
    all_agree(run, 2)
    (fault,) = run.report["faults"]
    assert fault["kind"] == "restart" and fault["step"] == 25 and fault["ended"] >= fault["at"] + 1
    peer = run.report["peers"][1]
    assert (peer["lives"], peer["exit"]) == (2, "finished")
    before, after = 25, [step for step in contributed(run, 1) if step > 25]
    assert min(contributed(run, 1)) < before and after
    assert peer["inner_steps"] > before
    assert "Going on from the snapshot of step" in run.output


@pytest.mark.slow
def test_a_swarm_in_two_halves_is_one_again(swarm: Swarm) -> None:
    run = swarm(*flags(3, 100, "--partition", "0,1|2@25:6"))
    all_agree(run, 3)
    (fault,) = run.report["faults"]
    assert fault["groups"] == [[0, 1], [2]] and fault["ended"] - fault["at"] >= 6
    assert [link["peer"] for link in run.report["links"]] == [None, 0, 1, 2]
    # All that peers wrote to streams went through the proxies, and so did what libp2p and the DHT add.
    carried = sum(link["bytes_up"] for link in run.report["links"])
    assert carried >= run.report["traffic"]["bytes_on_wire"]
    assert set(run.report["windows"][-1]["merged_by"]) == {0, 1, 2}


@pytest.mark.slow
def test_a_peer_that_is_told_to_leave_says_goodbye(swarm: Swarm) -> None:
    run = swarm(*flags(3, 80, "--leave", "2@30"))
    all_agree(run, 2)
    assert [peer["exit"] for peer in run.report["peers"]] == ["finished", "finished", "left"]
    assert run.report["faults"][0]["kind"] == "leave"


@pytest.mark.slow
def test_many_faults_at_once(swarm: Swarm) -> None:
    hurt = ["--kill", "3@90", "--restart", "1@30:2", "--restart", "1@110", "--freeze", "0@50:3"]
    run = swarm(*flags(5, 250, *hurt, "--join", "4@20", "--partition", "0,3|1,2@70:5"))
    all_agree(run, 4)
    assert [peer["lives"] for peer in run.report["peers"]] == [1, 3, 1, 1, 1]
    assert all(fault["at"] is not None for fault in run.report["faults"])


@pytest.mark.slow
def test_a_swarm_on_slow_links(swarm: Swarm) -> None:
    run = swarm(*flags(3, 100, "--bandwidth", "all:20", "--latency", "all:20", "--loss", "2:0.5"))
    all_agree(run, 3)
    shapes = [(link["mbit"], link["latency"], link["loss"]) for link in run.report["links"]]
    assert shapes == [(None, 0.0, 0.0), (20.0, 0.02, 0.0), (20.0, 0.02, 0.0), (20.0, 0.02, 0.005)]


@pytest.mark.slow
def test_a_partition_longer_than_libp2p_waits(swarm: Swarm) -> None:
    """After 38 s libp2p itself gives up the connections; the halves find each other again by dialling."""
    run = swarm(*flags(4, 800, "--partition", "0,1|2,3@25:50"), timeout=290)
    all_agree(run, 4)


def test_what_cannot_be_is_refused_before_anything_starts(tmp_path: Any) -> None:
    from peer.cli import MISTAKE, run

    out = tmp_path / "run"
    base = ["swarm", "--peers", "2", "--steps", "40", "--data", "stdlib", "--out", str(out)]
    for wrong in (
        ["--join", "2@10"],
        ["--join", "0@10", "--join", "1@10"],
        ["--restart", "1@41"],
        ["--partition", "0,1@5:3"],
        ["--latency", "0"],
        ["--lockstep", "--join", "1@5"],
        ["--lockstep", "--partition", "0|1@5:3"],
    ):
        assert run([*base, *wrong]) == MISTAKE, wrong
    assert not out.exists()
