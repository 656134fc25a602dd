"""Commands that work in several processes end them all, at once and without a word too many."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
SIMULATE = ("simulate", "--seeds", "100000", "--peers", "2")
LAB = ("lab", "table3", "--steps", "1000000", "--data", "stdlib")
"""Each of its runs takes hours."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("command", "number", "code"),
    [(SIMULATE, signal.SIGINT, 130), (SIMULATE, signal.SIGTERM, 143), (LAB, signal.SIGINT, 130)],
    ids=["simulate-ctrl-c", "simulate-sigterm", "lab-ctrl-c"],
)
def test_a_signal_ends_it_in_order(command: Sequence[str], number: signal.Signals, code: int, tmp_path: Path) -> None:
    """To the whole group, as a terminal does: no traceback, and no process left."""
    where = ["--out", str(tmp_path)] if "lab" in command else []
    arguments = [sys.executable, "-m", "peer.cli", *command, *where, "--jobs", "2"]
    # A shell's background job, in which these tests may run, hands on that Ctrl-C is to be ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(arguments, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    signal.signal(signal.SIGINT, before)
    own = psutil.Process(process.pid)
    while len(workers := own.children()) < 3 and process.poll() is None:  # two, and Python's tracker of resources
        time.sleep(0.05)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, words = process.communicate(timeout=240)
    assert process.returncode == code, words
    assert "Traceback" not in words and "Warning" not in words
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive
