"""What a peer says of itself: its summary, whole and valid at any time, and its rows."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from peer.metrics import MetricsLog
from peer.progress import Progress, _few_rounds
from peer.sealing import layout_of, seal
from peer.settings import Settings
from peer.training import StepResult
from protocol.manifest import changed
from protocol.presets import PRESETS

pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")

FIELDS = {
    "lives", "run",
    "peer_id", "exit", "inner_steps", "tokens", "train_loss_first", "train_loss_last", "windows", "bytes_sent",
    "bytes_received", "seconds", "utilization", "outer_digest", "record_lost", "joined", "evaluation", "traffic",
    "model",
}  # fmt: skip


def strict(text: str) -> Any:
    """JSON without the words that JSON does not have."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


class Loop:
    """The swarm side of a `--local-only` loop."""

    own_step = 0
    finished = False


def step(loss: float) -> StepResult:
    return StepResult(loss=loss, grad_norm=1.0, tokens=64, skipped=not math.isfinite(loss))


def test_a_summary_without_a_swarm(tmp_path: Path, small: Any, blocks: Any, capsys: Any) -> None:
    model = blocks()
    manifest = seal(small(), None, model)
    loop = Loop()
    with Progress(Settings(out=tmp_path, json=True)) as progress, MetricsLog(tmp_path / "metrics.jsonl") as metrics:
        progress.begin(manifest, layout_of(manifest, model), None, math.nan)
        for loss in (math.nan, 3.0, 2.5, math.inf):
            loop.own_step += 1
            progress.step(loop, step(loss), metrics)
        progress.notice("hello")
        progress.end(2.0, math.nan, None, finished=True)
    found = strict((tmp_path / "summary.json").read_text())
    assert found.keys() == FIELDS
    assert found["exit"] == "finished"
    assert (found["train_loss_first"], found["train_loss_last"], found["tokens"]) == (3.0, 2.5, 256)
    assert found["evaluation"] == {"outer_loss_start": None, "outer_loss_end": None, "local_loss_end": 2.0}
    assert found["windows"] == {"opened": 0, "merged": 0, "late": 0, "skipped": 0}
    assert found["outer_digest"] is None and found["joined"] is None and found["seconds"]["merge_wait"] is None
    lines = [strict(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == ["start", "row", "notice", "end"]
    assert lines[1]["loss"] is None


def test_a_summary_in_a_swarm(swarm: Any, small: Any, capsys: Any) -> None:
    replica = swarm.add(small(run__steps=14), merge_wait=5.0)
    peer = replica.peer
    folder = peer.settings.out
    with Progress(Settings(out=folder)) as progress, MetricsLog(folder / "metrics.jsonl") as metrics:
        progress.begin(peer.manifest, peer.layout, peer, 3.0)
        running = strict((folder / "summary.json").read_text())
        assert (running["exit"], running["inner_steps"]) == ("running", 0)
        while not peer.finished:
            replica.train()
            progress.step(peer, step(2.0), metrics)
        progress.end(2.0, 1.9, bytes(32), finished=True)
    found = strict((folder / "summary.json").read_text())
    assert found.keys() == FIELDS
    assert (found["peer_id"], found["inner_steps"]) == (peer.peer_id, 14)
    windows = found["windows"]
    assert windows["opened"] == windows["merged"] + windows["late"] + windows["skipped"] > 0
    seconds = found["seconds"]
    assert seconds["total"] == pytest.approx(seconds["training"] + seconds["waiting"])
    assert 0 <= seconds["wait_max"] <= seconds["waiting"] and seconds["merge_wait"] == 5.0
    assert found["utilization"] == pytest.approx(seconds["training"] / seconds["total"])
    assert found["outer_digest"] == "00" * 32
    assert found["traffic"]["dht_bytes"] > 0
    shapes = [(f["index"], f["offset"]) for f in found["model"]["fragments"]]
    assert shapes == [(0, 0), (1, 3)]
    assert "Held-out loss 3.000 at the start, 2.000 now" in " ".join(capsys.readouterr().out.split())


def test_a_run_that_breaks_off_is_a_failed_one(tmp_path: Path, small: Any, blocks: Any, capsys: Any) -> None:
    model = blocks()
    manifest = seal(small(), None, model)
    with pytest.raises(ZeroDivisionError), Progress(Settings(out=tmp_path, json=True)) as progress:
        progress.begin(manifest, layout_of(manifest, model), None, 3.0)
        raise ZeroDivisionError
    assert strict((tmp_path / "summary.json").read_text())["exit"] == "failed"


@pytest.mark.parametrize(
    ("steps", "rounds", "said"),
    [(50, 100, "averaged never"), (120, 100, "averaged once"), (250, 100, "2 times"), (400, 100, "")],
)
def test_a_run_hardly_longer_than_a_round_is_told(steps: int, rounds: int, said: str) -> None:
    manifest = changed(PRESETS["demo"], {"run.steps": steps, "schedule.sync_every": rounds})
    (words,) = [*_few_rounds(manifest)] or [""]
    assert said in words and bool(words) == bool(said)
