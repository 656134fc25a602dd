"""How a local swarm ends when somebody is in its way: a mistake, a signal at the last moment, a reader that is gone."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parents[2]
SWARM = [sys.executable, "-m", "peer.cli", "swarm", "--data", "stdlib"]
ALONE = ["--local-only", "--peers", "1"]

pytestmark = pytest.mark.timeout(200)


def processes_of(folder: Path) -> list[int]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = " ".join(process.info["cmdline"] or [])
        if str(folder) in words and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


def report_of(folder: Path) -> Any:
    return json.loads((folder / "report.json").read_text())


@pytest.mark.parametrize("who", [pytest.param("peer-1", marks=pytest.mark.slow), "bootstrap"])
def test_a_mistake_that_a_child_finds_is_the_user_s(tmp_path: Path, who: str) -> None:
    identity = tmp_path / who / "identity"
    identity.parent.mkdir()
    identity.write_bytes(b"garbage")
    identity.chmod(0o600)
    command = [*SWARM, "--peers", "2", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    name = "peer 1" if who == "peer-1" else "The bootstrap server"
    assert line.startswith(f"potluck: {name}: identity file {identity}: not an Ed25519 private key")
    assert processes_of(tmp_path) == []


@pytest.mark.slow
def test_a_signal_that_comes_when_the_peers_have_finished_spoils_nothing(tmp_path: Path) -> None:
    command = [*SWARM, "--peers", "2", "--steps", "20", "--sync-every", "10", "--overlap", "3", "--out", str(tmp_path)]
    running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while running.poll() is None and not all(map(finished, (tmp_path / "peer-0", tmp_path / "peer-1"))):
            time.sleep(0.01)
        running.send_signal(signal.SIGTERM)
        output, errors = running.communicate(timeout=60)
    finally:
        running.kill()
    assert [peer["exit"] for peer in report_of(tmp_path)["peers"]] == ["finished"] * 2, output + errors
    assert running.returncode == 0 and errors == ""
    assert processes_of(tmp_path) == []


def finished(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / "summary.json").read_text())["exit"] == "finished")
    except FileNotFoundError:
        return False


def test_a_reader_that_is_gone_ends_a_swarm_and_its_report_is_written(tmp_path: Path) -> None:
    words = " ".join([*SWARM, *ALONE, "--steps", "100000", "--out", str(tmp_path)])
    command = f"{words} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert done.stdout.splitlines()[-1] == "141" and done.stderr == ""
    assert report_of(tmp_path)["peers"][0]["exit"] == "failed"
    assert processes_of(tmp_path) == []


@pytest.mark.slow
def test_closed_output_costs_nothing(tmp_path: Path) -> None:
    words = " ".join([*SWARM, *ALONE, "--steps", "10", "--out", str(tmp_path)])
    done = subprocess.run(
        ["bash", "-c", f"{words} <&- >&- 2>&-"], cwd=ROOT, capture_output=True, timeout=150, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert report_of(tmp_path)["peers"][0]["exit"] == "finished"


@pytest.mark.slow
def test_nothing_wraps_on_a_terminal_of_80_columns(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [*SWARM, *ALONE, "--steps", "30", "--out", "o"]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    running = subprocess.Popen(
        command, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs,
        env=environment | {"TERM": "xterm", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:  # Linux: the terminal is gone with its last process
        pass
    finally:
        os.close(ours)
    assert running.wait(30) == 0, shown
    text = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", shown.decode())
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", text)]
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("peer") and "loss" in line for line in lines), "the live table"
    assert "█" not in text and "The report is in o/report.json." in lines
