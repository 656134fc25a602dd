"""Runs `potluck swarm`, or its parts one by one, as a user would, and looks for what they leave behind."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from peer.data import load_corpus
from peer.sealing import seal
from protocol.manifest import changed
from protocol.manifest_toml import dumps
from protocol.presets import PRESETS

ROOT = Path(__file__).parents[2]
DEADLINE = 240.0
RUN_DEADLINE = 600.0
"""Seconds, for what happens and for the end of a run. Neither says anything about speed."""
POTLUCK = (sys.executable, "-m", "peer.cli")


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


def until(condition: Callable[[], Any]) -> Any:
    """What the condition says when it holds."""
    end = time.monotonic() + DEADLINE
    while not (found := condition()):
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.2)
    return found


class Process:
    """A command whose JSON lines are read in the background. `folder` is a peer's `--out`."""

    def __init__(self, command: list[str], folder: Path, errors: Path) -> None:
        self.folder = folder
        self.notices: list[str] = []
        """All that it has said to its user so far."""
        self.ending: dict[str, Any] = {}
        """Its last word, when it has said it."""
        self.step = 0
        """The swarm step of its last row."""
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._errors = errors
        with errors.open("wb") as file:
            self.process = subprocess.Popen(
                command, cwd=ROOT, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=file, text=True,
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                event = json.loads(line)
                if event["event"] == "notice":
                    self.notices.append(event["text"])
                self.step = event["step"] if event["event"] == "row" else self.step
                self.ending = event if event["event"] == "end" else self.ending
                self._events.put(event)
        self._events.put({"event": "eof"})

    @property
    def errors(self) -> str:
        """What it wrote to standard error."""
        return self._errors.read_text(errors="replace")

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first event from here on that is wanted."""
        end = time.monotonic() + DEADLINE
        while (event := self._events.get(timeout=max(0.1, end - time.monotonic())))["event"] != "eof":
            if wanted(event):
                return event
        raise AssertionError(f"the process has ended: {self.notices} {self.errors}")

    def reaches(self, step: int) -> None:
        """Wait until it has trained up to this swarm step."""
        until(lambda: self.step >= step or self.process.poll() is not None)
        assert self.step >= step, f"the process has ended: {self.notices} {self.errors}"

    def says(self, words: str) -> str:
        """Wait for a sentence with these words in it; that sentence."""
        until(lambda: any(words in text for text in self.notices) or self.process.poll() is not None)
        found = [text for text in self.notices if words in text]
        assert found, f"the process has ended: {self.notices} {self.errors}"
        return found[0]

    def finishes(self) -> None:
        """Wait for its end, which must be that of its run."""
        assert self.process.wait(RUN_DEADLINE) == 0, f"{self.notices} {self.errors}"
        self._reader.join(10)

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """Of its record."""
        written = (self.folder / "record.jsonl").read_text().splitlines(keepends=True)
        parsed = [json.loads(line) for line in written if line.endswith("\n")]
        return [line for line in parsed if line["kind"] == kind]

    @property
    def summary(self) -> Any:
        """The last that it wrote."""
        return json.loads((self.folder / "summary.json").read_text())

    def kill(self) -> None:
        """It and its daemon, at once."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join(10)


class Company:
    """A bootstrap server and peers of one small run, each a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.text, self.manifest = folder / "text.txt", folder / "run.toml"
        self.address = ""
        """Of the bootstrap server."""
        self._started: list[Process] = []

    until = staticmethod(until)

    def begin(self, fields: dict[str, Any]) -> Process:
        """The bootstrap server of a run of two peers, with these fields of the manifest besides."""
        self.text.write_bytes(b"A potluck is a meal that everyone brings a dish to. " * 400)
        small = {"run.start_peers": 2, "data.sequence": 32, "codec.chunk": 16_384}
        small |= {"schedule.sync_every": 8, "schedule.overlap": 2}
        sealed = seal(changed(PRESETS["demo"], small | fields), load_corpus(str(self.text)))
        self.manifest.write_text(dumps(sealed))
        key = ["--identity", str(self._folder / "bootstrap.key"), "--listen", "/ip4/127.0.0.1/tcp/0"]
        server = self._start(POTLUCK, ["bootstrap", "--json", "--manifest", str(self.manifest), *key], self._folder)
        (self.address, *_) = server.wait_for(lambda event: event["event"] == "ready")["addresses"]
        return server

    def peer(self, name: str, *more: str, join: str = "", potluck: tuple[str, ...] = POTLUCK) -> Process:
        """A peer with a folder of its name, which joins through the bootstrap server or at another address."""
        folder = self._folder / name
        where = ["--join", join or self.address, "--name", name, "--out", str(folder)]
        common = ["--data", str(self.text), "--batch", "1", "--threads", "1"]
        return self._start(potluck, ["peer", "--json", *where, *common, *more], folder)

    def _start(self, potluck: tuple[str, ...], arguments: list[str], folder: Path) -> Process:
        errors = self._folder / f"{len(self._started)}.errors"
        self._started.append(Process([*potluck, *arguments], folder, errors))
        return self._started[-1]

    def end(self) -> None:
        """No process outlives it."""
        for process in self._started:
            process.kill()


@pytest.fixture
def company(tmp_path: Path) -> Iterator[Company]:
    """Nobody yet."""
    made = Company(tmp_path)
    yield made
    made.end()
