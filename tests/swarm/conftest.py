"""Runs `potluck swarm` as a user would, and looks for what it leaves behind."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Run:
    """What a swarm left: its exit code, its report and its output."""

    code: int
    report: dict[str, Any]
    output: str

    @property
    def digests(self) -> list[str]:
        """Of the outer parameters of every peer that finished."""
        return [peer["outer_digest"] for peer in self.report["peers"] if peer["exit"] == "finished"]


def processes_of(folder: Path) -> list[str]:
    """Command lines of living processes that name the folder: bootstrap, peers, and the daemon of each."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = " ".join(process.info["cmdline"] or [])
        if str(folder) in words and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(words)
    return found


@pytest.fixture
def swarm(tmp_path: Path) -> Callable[..., Run]:
    """`swarm("--peers", "2", …)` runs it to its end, and fails if any process outlives it."""

    def run(*arguments: str, name: str = "run", timeout: float = 280.0) -> Run:
        out = tmp_path / name
        command = [sys.executable, "-m", "peer.cli", "swarm", "--out", str(out), "--data", "stdlib", *arguments]
        done = subprocess.run(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False
        )
        output = done.stdout + done.stderr
        assert processes_of(out) == [], output
        assert (out / "report.json").exists(), output
        return Run(done.returncode, json.loads((out / "report.json").read_text()), output)

    return run
