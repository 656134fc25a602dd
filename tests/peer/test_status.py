"""`potluck status` on a live swarm: what it shows, and that looking disturbs nobody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from peer.network import Network
from peer.settings import Settings
from peer.status import show_status
from protocol.errors import UserError
from protocol.manifest import run_id

pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")


def test_status_shows_everyone_and_disturbs_nobody(swarm: Any, small: Any, capsys: Any) -> None:
    manifest = small(run__start_peers=2, run__steps=30)
    for _ in range(2):
        swarm.add(manifest, merge_wait=5.0)
    swarm.run(steps=10)
    peers = [replica.peer for replica in swarm.replicas]
    join = (swarm.replicas[0].address,)

    assert show_status(join, as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["run"] == run_id(peers[0].manifest).hex() and found["steps"] == 30
    assert [(one["name"], one["step"], one["phase"]) for one in found["peers"]] == [
        ("peer-0", 10, "training"),
        ("peer-1", 10, "training"),
    ]
    assert {one["peer_id"] for one in found["peers"]} == {peer.peer_id for peer in peers}
    assert sum(found["heads"].values()) == 2

    assert show_status(join, as_json=False) == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("Run small", "peer-0", "peer-1", peers[0].peer_id[-8:], "training"))

    # The viewers are known, but nobody counts on them, and the rest of the run is as if they had not been.
    members = {peer.network.identity.key for peer in peers}
    for peer in peers:
        roster = peer.outer.node.roster
        assert roster.trainers() == members
        assert set(roster.owners(12)) == members
        assert set(roster.live()) < members
    swarm.run()
    assert swarm.linger() == [True, True]
    assert len({replica.digest() for replica in swarm.replicas}) == 1
    for peer in peers:
        assert peer.times.wait_max < 2.0
        assert not peer.outer.refused and not peer.outer.errors
        counts = peer.record.counts(None)
        assert counts.merged + counts.late == counts.opened


def test_who_has_left_is_told_from_who_does_not_answer(swarm: Any, small: Any, capsys: Any) -> None:
    manifest = small(run__start_peers=3, run__steps=30)
    for _ in range(3):
        swarm.add(manifest, merge_wait=5.0)
    swarm.run(steps=8)
    watcher, leaver, dead = (replica.peer for replica in swarm.replicas)
    leaver._leave()
    dead.network.daemon._process.child.kill()  # no farewell
    join = (swarm.replicas[0].address,)
    assert show_status(join, as_json=True) == 0
    found = {one["peer_id"]: one for one in json.loads(capsys.readouterr().out)["peers"]}
    assert [(found[peer.peer_id]["phase"], found[peer.peer_id]["step"]) for peer in (watcher, leaver, dead)] == [
        ("training", 8),
        ("left", 8),
        ("no answer", None),
    ]
    assert show_status(join, as_json=False) == 0
    assert "No answer within 6 s: killed, cut off" in capsys.readouterr().out


def test_a_run_that_is_over(swarm: Any, small: Any, capsys: Any, tmp_path: Path) -> None:
    entry = Network(Settings(out=tmp_path / "entry"), print)
    try:
        join = tuple(entry.call(entry.daemon.addresses()))[:1]
        replica = swarm.add(small(run__steps=10), join=join, merge_wait=5.0)
        swarm.run()
        replica.peer._leave()
        assert show_status(join, as_json=False, run="small") == 1
        shown = capsys.readouterr().out
        assert "finished and left" in shown and "Nobody is here any more." in shown and "10" in shown
        with pytest.raises(UserError, match=r"run = 'lunch': is no run here; here are: small \("):
            show_status(join, as_json=False, run="lunch")
    finally:
        entry.close()


def test_status_where_no_run_is(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.status.MANIFEST_PATIENCE", 2.0)
    entry = Network(Settings(out=tmp_path / "entry"), print)
    try:
        join = tuple(entry.call(entry.daemon.addresses()))[:1]
        assert show_status(join, as_json=False) == 1
        assert f"{join[0]} answers, but no run is published there. A run comes with" in capsys.readouterr().err
    finally:
        entry.close()


def test_status_of_nothing(capsys: Any, nothing_left: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.status.ANSWER_PATIENCE", 0.5)
    unreachable = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWBUJifCTgaxAUrcM9JysqCcS4CS8tiYH5hExbdWCAoNwb"
    assert show_status((unreachable,), as_json=False) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and f"Nobody answers at {unreachable} (asked for" in captured.err
    assert "as `potluck bootstrap` prints it now" in captured.err
