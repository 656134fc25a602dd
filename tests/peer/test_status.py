"""`potluck status` on a live swarm: what it shows, and that looking disturbs nobody."""

from __future__ import annotations

import json
from typing import Any

import pytest

from peer.status import show_status
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


def test_status_of_nothing(capsys: Any, nothing_left: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.status.ANSWER_PATIENCE", 0.5)
    unreachable = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWBUJifCTgaxAUrcM9JysqCcS4CS8tiYH5hExbdWCAoNwb"
    assert show_status((unreachable,), as_json=False) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and f"Nobody answers at {unreachable} (asked for" in captured.err
    assert "as `potluck bootstrap` prints it now" in captured.err
