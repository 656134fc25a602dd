"""A newcomer to a run under way, all real processes: one of its two donors is killed while it gives."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from peer.data import load_corpus
from peer.sealing import seal
from protocol.manifest import changed
from protocol.manifest_toml import dumps
from protocol.presets import PRESETS

ROOT = Path(__file__).parents[2]
DEADLINE = 240.0

pytestmark = pytest.mark.timeout(300)


class Process:
    """`potluck` with these arguments, whose JSON lines are read in the background."""

    def __init__(self, *arguments: str) -> None:
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "peer.cli", *arguments], cwd=ROOT, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self.events.put(json.loads(line))
        self.events.put({"event": "eof"})

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first event from here on that is wanted."""
        end = time.monotonic() + DEADLINE
        while (event := self.events.get(timeout=max(0.1, end - time.monotonic())))["event"] != "eof":
            if wanted(event):
                return event
        raise AssertionError("the process has ended")

    def kill(self) -> None:
        """It and its daemon, at once."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join(10)


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    """Starts processes; none outlives the test."""
    started: list[Process] = []

    def start_one(*arguments: str) -> Process:
        started.append(Process(*arguments))
        return started[-1]

    yield start_one
    for process in started:
        process.kill()


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    written = (folder / "record.jsonl").read_text().splitlines(keepends=True)
    parsed = [json.loads(line) for line in written if line.endswith("\n")]
    return [line for line in parsed if line["kind"] == kind]


def until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + DEADLINE
    while not (found := condition()):
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.2)
    return found


def test_a_donor_is_killed_while_it_gives_and_the_newcomer_gets_in(tmp_path: Path, start: Any) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"A potluck is a meal that everyone brings a dish to. " * 400)
    fields = {"run.start_peers": 2, "run.steps": 1_000_000, "data.sequence": 32, "codec.chunk": 16_384}
    fields |= {"schedule.sync_every": 8, "schedule.overlap": 2}
    manifest = tmp_path / "run.toml"
    manifest.write_text(dumps(seal(changed(PRESETS["demo"], fields), load_corpus(str(text)))))
    key = ["--identity", str(tmp_path / "bootstrap.key"), "--listen", "/ip4/127.0.0.1/tcp/0"]
    server = start("bootstrap", "--json", "--manifest", str(manifest), *key)
    (address, *_) = server.wait_for(lambda event: event["event"] == "ready")["addresses"]

    def peer(name: str, *more: str) -> Process:
        common = ["--data", str(text), "--batch", "1", "--threads", "1", "--out", str(tmp_path / name)]
        started: Process = start("peer", "--json", "--join", address, "--name", name, *common, *more)
        return started

    old = [peer(name, "--manifest", str(manifest), "--give", "4", "--slowdown", "3") for name in ("one", "two")]
    for donor in old:
        donor.wait_for(lambda event: event["event"] == "row" and event["step"] >= 20)
    newcomer = peer("late")  # knows an address, and where the text is
    newcomer.wait_for(lambda event: event["event"] == "notice" and "from 2 peers" in event["text"])
    old[1].kill()
    begun = newcomer.wait_for(lambda event: event["event"] == "row")
    (joined,) = lines(tmp_path / "late", "joined")
    assert begun["step"] > joined["from_step"] >= 20 and begun["inner_step"] >= 1
    assert joined["donors"] == 2

    (first, *_) = until(lambda: lines(tmp_path / "late", "contributed"))
    assert first["due"] > joined["from_step"]
    name = summary(tmp_path / "late")["peer_id"]
    named = until(lambda: [line for line in lines(tmp_path / "one", "link") if names(line, name)])
    head = {(line["chunk"], line["due"]): line["head"] for line in named}
    both = until(lambda: [line for line in lines(tmp_path / "late", "link") if (line["chunk"], line["due"]) in head])
    assert all(line["head"] == head[line["chunk"], line["due"]] for line in both[-1:]), "equal heads are equal states"
    until(lambda: summary(tmp_path / "late")["joined"]["seconds"])
    ours = summary(tmp_path / "late")["joined"]
    assert ours["from_step"] == joined["from_step"] and ours["seconds"] > ours["fetch_seconds"] > 0


def summary(folder: Path) -> Any:
    return json.loads((folder / "summary.json").read_text())


def names(link: dict[str, Any], peer_id: str) -> bool:
    return any(part["peer"] == peer_id for part in link["contributors"])
