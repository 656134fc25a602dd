"""Standard streams that are closed, broken or full: no traceback, and an exit code that says what happened."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from peer.output import write_line

ROOT = Path(__file__).parents[2]
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash, in which $POTLUCK is the command."""
    environment = os.environ | {"POTLUCK": f"{sys.executable} -m peer.cli"}
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("$POTLUCK init >&-", 0),
        ("$POTLUCK init <&- >&- 2>&-", 0),
        ("$POTLUCK init --preset huge 2>&-", 2),
        ("$POTLUCK --help >&-", 0),
        ("$POTLUCK init --preset huge 2>/dev/full", 2),
    ],
)
def test_closed_streams_are_nowhere(command: str, code: int) -> None:
    done = shell(command)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_what_is_written_to_a_closed_stream_does_not_land_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    assert shell(f"$POTLUCK init --out {path} >&- 2>&-").returncode == 0
    assert "Wrote" not in path.read_text()


def test_a_reader_that_is_gone_ends_the_command_quietly() -> None:
    done = shell("$POTLUCK init | (exec <&-; sleep 0.1; true); echo ${PIPESTATUS[0]}")
    assert (done.stdout, done.stderr) == ("141\n", "")


@needs_full
def test_a_full_disk_behind_the_output_is_one_line() -> None:
    done = shell("$POTLUCK init > /dev/full")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("potluck: ") and "No space left on device" in line


@needs_full
def test_progress_that_cannot_be_written_is_said_once_and_costs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with FULL.open("w") as stream:
        for _ in range(3):
            write_line(stream, "a step")
    assert capsys.readouterr().err.splitlines() == [
        "potluck: cannot write the output, going on without it: No space left on device"
    ]


def test_a_pipe_without_a_reader_is_told_to_whoever_writes() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        with pytest.raises(BrokenPipeError):
            write_line(stream, "a step")
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)


def test_a_terminal_without_our_letters_gets_question_marks() -> None:
    plan = ["plan", "--model", "1b", "--bandwidth", "50mbit", "--sync-every", "100", "--target", "0.9"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(
        [sys.executable, "-m", "peer.cli", *plan], capture_output=True, env=environment, timeout=60, check=False
    )
    assert ended.returncode == 0 and b"Target 0.9" in ended.stdout and b"Traceback" not in ended.stderr
