"""`potluck plan`: its words, its JSON, its pictures, and what it says of flags that make no plan."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from peer.cli import run
from peer.commands import plan_text
from peer.commands.plan import make_plan
from peer.commands.plan_options import PlanOptions
from simulation.planner import plan

pytestmark = pytest.mark.timeout(300)  # a few seconds of processor, on machines that may be busy

ROOT = Path(__file__).parents[2]
LINK = ("--bandwidth", "50mbit", "--latency", "25ms")
SMALL = ("plan", "--model", "7e7,12", "--step-time", "1", *LINK)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run([*arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def result(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(capsys, *arguments, "--json"))
    return found


def test_a_plan_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, *SMALL, "--peers", "4")
    assert "4 fragments, H = 100, τ = 5, e3m0 both ways" in text
    for words in (
        "compute utilization",
        "an hour",
        "hidden",
        "exposed",
        "memory on the host",
        "windows merged in time",
    ):
        assert words in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_plan_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = result(capsys, *SMALL, "--upload", "10mbit", "--fragment-layers", "2", "--result-codec", "fp32")
    assert found["link"] == {"up_mbit": 10, "down_mbit": 50, "latency_seconds": 0.025}
    assert (found["fragments"], found["codec"], found["result_codec"]) == (6, "e3m0", "fp32")
    assert 0 < found["utilization"] <= 1 and "target" not in found


def test_a_target_finds_h_or_tau(capsys: pytest.CaptureFixture[str]) -> None:
    slow = (*SMALL, "--upload", "1mbit", "--target", "0.95")
    free = result(capsys, *slow)
    assert free["target"]["free"] == "sync_every" and free["target"]["value"] == free["sync_every"] > 100
    assert free["target"]["reached"] and free["utilization"] >= 0.95
    assert free["potluck"]["skipped"] <= 0.05
    hopeless = result(capsys, *slow, "--overlap", "1")  # however long the rounds, a window takes longer than that
    assert hopeless["target"]["value"] is None and not hopeless["target"]["reached"]
    assert "Results come too late" in said(capsys, *slow, "--overlap", "1")
    tau = result(capsys, *slow, "--sync-every", "1000")
    assert tau["target"]["free"] == "overlap" and tau["target"]["value"] == tau["overlap"]
    both = result(capsys, *slow, "--sync-every", "100", "--overlap", "2")
    assert both["target"]["free"] is None and not both["target"]["reached"]
    assert both["target"]["bandwidth_needed"]["up_mbit"] > 1
    assert "Target 0.95: not reached.\n" in said(capsys, *slow, "--sync-every", "100", "--overlap", "2")
    assert "cannot carry the windows in time" in said(capsys, *slow, "--sync-every", "100", "--overlap", "2")


def test_flops_make_the_step_time(capsys: pytest.CaptureFixture[str]) -> None:
    flops = ("--flops", "100tflops", "--mfu", "0.5", "--tokens-per-step", "1e5")
    found = result(capsys, "plan", "--model", "7e9,32", *LINK, *flops)
    assert found["step_seconds"] == pytest.approx(6 * 7e9 * 1e5 / 50e12)
    experts = result(capsys, "plan", "--model", "deepseek-v3", *LINK, *flops)
    assert experts["step_seconds"] == pytest.approx(6 * 35e9 * 1e5 / 50e12)
    assert result(capsys, "plan", "--model", "100b", *LINK)["step_seconds"] == 4.916


def test_the_methods(capsys: pytest.CaptureFixture[str]) -> None:
    parallel = result(capsys, *SMALL, "--method", "data-parallel")
    assert (parallel["codec"], parallel["potluck"], parallel["sync_every"]) == ("bf16", None, 1)
    diloco = result(capsys, *SMALL, "--method", "diloco")
    assert (diloco["fragments"], diloco["overlap"], diloco["potluck"]["merge_wait_seconds"]) == (1, 0, 1.0)
    assert parallel["utilization"] < diloco["utilization"]
    assert "step" in said(capsys, *SMALL, "--method", "data-parallel")


def test_the_papers_table(capsys: pytest.CaptureFixture[str]) -> None:
    found = result(capsys, "plan", "--paper", "--at", "1gbit")
    assert len(found["cells"]) == 75 and len(found["figure16"]) == 50 and len(found["at"]) == 25
    first = found["cells"][0]
    assert {key: first[key] for key in ("scale", "method", "utilization", "paper_gbits", "true_gbits")} == {
        "scale": "1B",
        "method": "data-parallel",
        "utilization": 0.5,
        "paper_gbits": 86.8,
        "true_gbits": 104.8,
    }
    text = said(capsys, "plan", "--paper", "--at", "1gbit")
    assert "86.8 104.8" in text and "Compute utilization at 1 Gbit/s" in text
    assert max(map(len, text.splitlines())) <= 80
    assert {cell["utilization"] for cell in result(capsys, "plan", "--paper", "--target", "0.9")["cells"]} == {0.9}


@pytest.mark.parametrize("figure", ["4", "7", "9", "16"])
def test_figures_as_text(capsys: pytest.CaptureFixture[str], figure: str) -> None:
    text = said(capsys, "plan", "--figure", figure)
    assert "compute utilization" in text and max(map(len, text.splitlines())) <= 80


def test_figures_as_pictures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for figure, words in (("4", "Data-Parallel"), ("14", "sequential")):
        path = tmp_path / f"{figure}.svg"
        assert f"Drawn into {path}" in said(capsys, "plan", "--figure", figure, "--plot", str(path))
        assert words in path.read_text()
    path = tmp_path / "plan.svg"
    said(capsys, *SMALL, "--plot", str(path))
    assert "streaming, τ = 5" in path.read_text() and "this link" in path.read_text()


def test_figure_14_as_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    charts = result(capsys, "plan", "--figure", "14")["charts"]
    assert [chart["title"] for chart in charts] == ["strided fragments", "sequential fragments"]
    (line,) = charts[0]["series"]
    assert line["ys"][:3] == [8, 8, None] and line["xs"][0] < line["xs"][1]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "--model: say"),
        (("--model", "5b", *LINK), "--model = '5b'"),
        (("--model", "1b"), "--bandwidth: say"),
        (("--model", "1b", "--bandwidth", "fast"), "--bandwidth = 'fast'"),
        (("--model", "1b", "--upload", "1mbit"), "--bandwidth: say"),
        (("--model", "1b", "--bandwidth", "1gbit", "--latency", "40"), "--latency = '40'"),
        (("--model", "7e9,32", *LINK), "--step-time: say"),
        (("--model", "7e9,32", *LINK, "--flops", "1e15"), "--tokens-per-step: say"),
        (("--model", "1b", *LINK, "--flops", "1e15", "--step-time", "1"), "--flops = '1e15': must not be together"),
        (("--model", "1b", *LINK, "--step-time", "nan"), "--step-time = nan"),
        (("--model", "1b", *LINK, "--peers", "1"), "--peers = 1"),
        (("--model", "1b", *LINK, "--method", "gossip"), "--method = 'gossip'"),
        (("--model", "1b", *LINK, "--method", "diloco", "--fragment-layers", "2"), "--fragment-layers = 2"),
        (("--model", "1b", *LINK, "--method", "data-parallel", "--overlap", "2"), "--overlap = 2"),
        (
            ("--model", "1b", *LINK, "--overlap", "100"),
            "--overlap = 100: must be at least 0 and below --sync-every (100)",
        ),
        (("--model", "1b", *LINK, "--sync-every", "0"), "--sync-every = 0"),
        (("--model", "1b", *LINK, "--fragment-layers", "25"), "--fragment-layers = 25: must be between 1 and 24"),
        (("--model", "1b", *LINK, "--codec", "int8"), "--codec = 'int8': must be one of e3m0, bf16, fp32"),
        (("--model", "1b", *LINK, "--target", "1"), "--target = 1.0"),
        (("--model", "1b", *LINK, "--plot", "plan.pdf"), "--plot = 'plan.pdf': must end in .svg or .png"),
        (("--model", "1b", *LINK, "--at", "1gbit"), "--at = '1gbit': is for --paper"),
        (("--model", "1b", "--paper"), "--model = '1b': must be left out"),
        (("--paper", "--at", "quick"), "--at = 'quick'"),
        (("--paper", "--bandwidth", "1gbit"), "--bandwidth = '1gbit': must be left out with --paper"),
        (("--figure", "4", "--peers", "7"), "--peers = 7: must be left out with --paper and --figure"),
        (("--model", "1b", "--bandwidth", "1e-300bit"), "--bandwidth = '1e-300bit': must be between 1bit and 1000tbit"),
        (("--model", "1b", *LINK, "--upload", "1mbit", "--download", "1mbit"), "must be left out with --upload and"),
        (
            ("--model", "1b", "--bandwidth", "1gbit", "--latency", "1e308s"),
            "--latency = '1e308s'",
        ),
        (("--model", "1b", *LINK, "--mfu", "0.5"), "--mfu = 0.5: must be left out without --flops"),
        (("--model", "1b", *LINK, "--active", "1e8"), "--active = 100000000.0: must be left out without --flops"),
        (
            ("--model", "1b", *LINK, "--flops", "1e-323", "--tokens-per-step", "1", "--mfu", "1e-6"),
            "--flops = '1e-323'",
        ),
        (("--model", "1b", *LINK, "--plot", "/tmp/no/such/x.svg"), "the folder /tmp/no/such does not exist"),
        (("--paper", "--figure", "4"), "--figure = 4: must not be together with --paper"),
        (("--paper", "--plot", "x.svg"), "--plot = 'x.svg': is not for --paper"),
        (("--figure", "5"), "--figure = 5: must be one of 4, 7, 9, 14, 16"),
        (("--figure", "14"), "--figure = 14: is a picture"),
        (("--figure", "4", "--target", "0.5"), "--target = 0.5"),
    ],
)
def test_mistakes(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], words: str) -> None:
    assert run(["plan", *flags]) == 2
    captured = capsys.readouterr()
    assert words in captured.err and captured.out == "" and captured.err.count("\n") == 1


def test_tau_may_be_above_the_default_h_when_h_is_sought() -> None:
    assert make_plan(PlanOptions(model="1b", bandwidth="1gbit", overlap=150, target=0.5)).overlap == 150


def test_it_needs_no_torch() -> None:
    program = "import sys; from peer.cli import run; code = run(sys.argv[1:]); assert 'torch' not in sys.modules"
    command = [sys.executable, "-c", f"{program}; sys.exit(code)", *SMALL]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("flags", "number"), [((), "10.7%"), (("--target", "0.9"), "10.7%"), (("paper",), "104.8"), (("figure",), "0.193")]
)
def test_a_narrow_terminal_keeps_the_first_numbers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], number: str
) -> None:
    monkeypatch.setattr("peer.commands.plan.width_of", lambda stream: 30)
    kinds = {"paper": ("--paper",), "figure": ("--figure", "4")}
    command = kinds.get(flags[0] if flags else "", ("--model", "1b", "--bandwidth", "50mbit", "--overlap", "5", *flags))
    assert run(["plan", *command]) == 0
    lines = re.sub(r"\x1b\[\d+m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 30 and any(number in line for line in lines)


def test_what_is_said_is_what_decides() -> None:
    assert plan_text.MOST_SKIPPED == plan.MOST_SKIPPED
