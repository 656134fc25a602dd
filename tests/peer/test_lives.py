"""One account of several lives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from peer.lives import earlier_lives, together


def summary(**values: Any) -> dict[str, Any]:
    return {
        "run": "ab", "exit": "running", "inner_steps": 10, "tokens": 100, "bytes_sent": 5, "bytes_received": 7,
        "train_loss_first": 5.0, "train_loss_last": 4.0, "utilization": 0.5,
        "windows": {"opened": 3, "merged": 1, "late": 1, "skipped": 1},
        "seconds": {"total": 10.0, "training": 5.0, "waiting": 5.0, "wait_max": 2.0, "merge_wait": None, "hook": 1.0},
        "evaluation": {"outer_loss_start": 5.5, "outer_loss_end": None},
        "traffic": {"payload_bytes": 1, "bytes_on_wire": 2, "repair_bytes": 3, "dht_bytes": 4, "peak_window_bytes": 9},
    } | values  # fmt: skip


def test_a_first_life_is_itself() -> None:
    assert together({}, summary()) == summary(lives=1)


def test_what_is_spent_adds_up_and_what_is_reached_is_the_last_life_s() -> None:
    first = together({}, summary())
    second = summary(exit="finished", inner_steps=30, tokens=300, train_loss_first=4.2, train_loss_last=3.0)
    second["evaluation"] = {"outer_loss_start": 4.4, "outer_loss_end": 3.1}
    second["seconds"] = {**second["seconds"], "total": 30.0, "training": 30.0, "waiting": 0.0, "wait_max": 1.0}
    whole = together(first, second)
    assert (whole["lives"], whole["exit"], whole["inner_steps"], whole["tokens"]) == (2, "finished", 30, 300)
    assert (whole["train_loss_first"], whole["train_loss_last"]) == (5.0, 3.0)
    assert whole["evaluation"] == {"outer_loss_start": 5.5, "outer_loss_end": 3.1}
    assert (whole["bytes_sent"], whole["bytes_received"]) == (10, 14)
    assert whole["windows"] == {"opened": 6, "merged": 2, "late": 2, "skipped": 2}
    assert whole["seconds"] | {"total": 40.0, "training": 35.0, "waiting": 5.0, "wait_max": 2.0} == whole["seconds"]
    assert whole["utilization"] == 35 / 40
    assert whole["traffic"] == {
        "payload_bytes": 2, "bytes_on_wire": 4, "repair_bytes": 6, "dht_bytes": 8, "peak_window_bytes": 9,
    }  # fmt: skip
    assert second["bytes_sent"] == 5 and second["windows"]["opened"] == 3, "the life's own numbers are not touched"
    assert together(whole, summary())["lives"] == 3


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"run": "other"}', b'{"run": null}'])
def test_what_is_not_this_run_s_does_not_count(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "summary.json").write_bytes(content)
    assert earlier_lives(tmp_path / "summary.json", "ab") == {}
    assert earlier_lives(tmp_path / "missing.json", "ab") == {}


def test_a_summary_of_an_older_version_is_taken_as_far_as_it_goes(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(json.dumps({"run": "ab", "bytes_sent": 5, "seconds": None}))
    before = earlier_lives(tmp_path / "summary.json", "ab")
    whole = together(before, summary())
    assert whole["bytes_sent"] == 10 and whole["seconds"]["total"] == 10.0 and whole["lives"] == 1
