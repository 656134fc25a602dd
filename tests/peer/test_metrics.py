import json
import math
from pathlib import Path

import pytest

from peer.metrics import MetricsLog


def lines(path: Path) -> list[dict[str, float | None]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_line_is_there_as_soon_as_it_is_written(tmp_path: Path):
    path = tmp_path / "peer" / "metrics.jsonl"
    with MetricsLog(path, now=lambda: 1712.5) as log:
        log.write(1, {"train/loss": 5.5, "train/tokens_per_second": 20_000})
        assert lines(path) == [{"step": 1, "time": 1712.5, "train/loss": 5.5, "train/tokens_per_second": 20_000}]
        log.write(2, {"val/loss": 5.25})
    assert lines(path)[1] == {"step": 2, "time": 1712.5, "val/loss": 5.25}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_becomes_null(tmp_path: Path, value: float):
    with MetricsLog(tmp_path / "metrics.jsonl", now=lambda: 0.0) as log:
        log.write(1, {"train/loss": value})
    assert lines(tmp_path / "metrics.jsonl") == [{"step": 1, "time": 0.0, "train/loss": None}]


def test_a_second_run_appends_after_the_last_whole_line(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2):
        with MetricsLog(path, now=lambda: 0.0) as log:
            log.write(step, {})
    assert [line["step"] for line in lines(path)] == [1, 2]
    with path.open("a") as file:
        file.write('{"step": 3, "ti')
    with MetricsLog(path, now=lambda: 0.0) as log:
        log.write(4, {})
    assert [line["step"] for line in lines(path)] == [1, 2, 4], "a line that was cut is no line"


def test_the_default_clock_is_the_wall_clock(tmp_path: Path):
    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        log.write(1, {})
    assert (lines(tmp_path / "metrics.jsonl")[0]["time"] or 0) > 1.7e9
