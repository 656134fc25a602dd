"""Peers and entry nodes as real processes in network namespaces that each test makes for itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from protocol.manifest import changed
from protocol.manifest_toml import dumps
from protocol.presets import PRESETS

ROOT = Path(__file__).parents[2]
_SPEC = util.spec_from_file_location("chaos_namespaces", Path(__file__).with_name("namespaces.py"))
assert _SPEC is not None and _SPEC.loader is not None
namespaces = util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(namespaces)


class Program:
    """One potluck command in a namespace: the JSON lines that it wrote so far, read by a thread."""

    def __init__(self, running: subprocess.Popen[str], out: Path) -> None:
        self.running, self.out = running, out
        self.events: list[dict[str, Any]] = []
        self.other: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.running.stdout is not None
        for line in self.running.stdout:
            try:
                self.events.append(json.loads(line))
            except ValueError:
                self.other.append(line)

    def event(self, name: str, holds: Callable[[dict[str, Any]], bool] = lambda event: True) -> dict[str, Any]:
        """The first such event; waits for it. The test's deadline, or the program's end, ends that."""
        while True:
            over = self.running.poll() is not None
            for event in list(self.events):
                if event["event"] == name and holds(event):
                    return event
            assert not over, f"ended before {name}: {self.notices} {self.other}"
            time.sleep(0.1)

    def close(self) -> None:
        """After its namespace is gone, and it with it."""
        self.running.wait()
        self._reader.join()
        assert self.running.stdout is not None
        self.running.stdout.close()

    @property
    def notices(self) -> list[str]:
        return [event["text"] for event in self.events if event["event"] == "notice"]

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "summary.json").read_text())
        return found

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """Of its record."""
        written = map(json.loads, (self.out / "record.jsonl").read_text().splitlines())
        return [line for line in written if line["kind"] == kind]


class Chaos:
    """An internet, and potluck's commands in it."""

    def __init__(self, internet: Any, folder: Path) -> None:
        self.internet, self.folder = internet, folder
        self.text = folder / "text.txt"
        self.text.write_text("".join(path.read_text() for path in sorted((ROOT / "docs").rglob("*.md"))) * 8)
        self.programs: list[Program] = []

    def manifest(self, *, peers: int, steps: int) -> Path:
        """A short run of the smallest model."""
        path = self.folder / "run.toml"
        fields = {"run.name": "chaos", "run.steps": steps, "run.start_peers": peers}
        schedule = {"schedule.sync_every": 10, "schedule.overlap": 3, "schedule.fragments": 4}
        path.write_text(dumps(changed(PRESETS["demo"], fields | schedule)))
        return path

    def bootstrap(self, namespace: str, *arguments: str) -> tuple[Program, str]:
        """An entry node, and the address to join through."""
        out = self.folder / namespace
        out.mkdir()
        flags = ["--json", "--data", str(self.text), "--identity", str(out / "key"), *arguments]
        node = self._start(namespace, ["bootstrap", *flags], out)
        return node, node.event("ready")["addresses"][0]

    def peer(self, namespace: str, join: Sequence[str], *arguments: str) -> Program:
        """A volunteer who knows addresses and has the text."""
        out = self.folder / f"peer-{len(self.programs)}"
        flags = ["--json", "--data", str(self.text), "--out", str(out), "--threads", "1", "--batch", "4"]
        return self._start(namespace, ["peer", *flags, *arguments, "--join", *join], out)

    def _start(self, namespace: str, arguments: Sequence[str], out: Path) -> Program:
        command = [sys.executable, "-m", "peer.cli", *arguments]
        running = self.internet.popen(
            namespace,
            command,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.programs.append(Program(running, out))
        return self.programs[-1]


@pytest.fixture
def chaos(tmp_path: Path) -> Iterator[Chaos]:
    """Skips, with the reason, where this machine has no network namespaces or nothing to masquerade with."""
    try:
        internet = namespaces.Internet()
    except namespaces.Unavailable as error:
        pytest.skip(str(error))
    try:
        made = Chaos(internet, tmp_path)
        yield made
    except namespaces.Unavailable as error:
        pytest.skip(str(error))
    finally:
        internet.close()
        for program in made.programs:
            program.close()
