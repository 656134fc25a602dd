"""`potluck peer` as a process: it trains without a bootstrap, refuses what does not fit, and ends when told to."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from peer.cli import run
from peer.data import load_corpus
from peer.sealing import seal
from peer.snapshot_files import Index, SnapshotFolder
from peer.trainer import Reading, check_text
from protocol.errors import UserError
from protocol.manifest import Manifest, changed
from protocol.manifest_toml import dumps
from protocol.presets import PRESETS

pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")

ROOT = Path(__file__).parents[2]
UNREACHABLE = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWBUJifCTgaxAUrcM9JysqCcS4CS8tiYH5hExbdWCAoNwb"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes(b"A potluck is a meal that everyone brings a dish to. " * 400)
    return path


@pytest.fixture(scope="module")
def manifest(text: Path) -> Manifest:
    wanted = changed(PRESETS["demo"], {"run.start_peers": 1, "run.steps": 100_000, "data.sequence": 32})
    return seal(wanted, load_corpus(str(text)))


def arguments(folder: Path, text: Path, manifest: Manifest, *more: str) -> list[str]:
    path = folder / "given.toml"
    path.write_text(dumps(manifest))
    where = ["--join", UNREACHABLE, "--manifest", str(path), "--data", str(text), "--out", str(folder / "out")]
    return ["peer", *where, "--batch", "1", "--threads", "1", "--linger", "20", "--json", *more]


class Running:
    """A `potluck peer` that trains."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "peer.cli", *command],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.events: list[dict[str, Any]] = []
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == "row":
                break
        self.events = [event for event in self.events if event["event"] in ("start", "notice")]
        self.children = psutil.Process(self.process.pid).children(recursive=True)
        words = " ".join(word for child in self.children for word in child.cmdline())
        self.sockets = [Path(path) for path in re.findall(r"/unix(/tmp/hivemind-[^/\s]*)", words)]
        assert self.children and self.sockets and all(path.exists() for path in self.sockets)

    def end(self, number: signal.Signals) -> tuple[float, str]:
        """Send a signal; returns the seconds until the end, and what was written to stderr."""
        began = time.monotonic()
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=30)
        return time.monotonic() - began, errors


@pytest.fixture
def running(tmp_path: Path, text: Path, manifest: Manifest) -> Iterator[Running]:
    peer = Running(arguments(tmp_path, text, manifest))
    try:
        yield peer
    finally:
        peer.process.kill()
        peer.process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_peer_soon_and_leaves_nothing(running: Running, number: signal.Signals, tmp_path: Path) -> None:
    seconds, errors = running.end(number)
    assert running.process.returncode == 128 + number
    assert seconds < 12
    assert "Traceback" not in errors
    assert not any(child.is_running() for child in running.children)
    assert not any(path.exists() for path in running.sockets)
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["exit"] == "failed"


def test_a_second_ctrl_c_ends_a_peer_at_once(running: Running) -> None:
    for child in running.children:
        child.suspend()  # so that the goodbye takes its time
    running.process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        running.process.wait(1.0)
    seconds, errors = running.end(signal.SIGINT)
    assert running.process.returncode == 130 and "Traceback" not in errors
    assert seconds < 2
    for child in running.children:
        child.resume()
    _, alive = psutil.wait_procs(running.children, timeout=20)
    assert not alive


def test_ctrl_c_ends_a_peer_that_has_found_no_run_yet(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "peer.cli", "peer", "--join", UNREACHABLE, "--out", str(tmp_path), "--json"]
    waiting = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert waiting.stdout is not None
        assert any("No run is published" in json.loads(line)["text"] for line in waiting.stdout)
        waiting.send_signal(signal.SIGINT)
        _, errors = waiting.communicate(timeout=30)
        assert (waiting.returncode, errors) == (130, "")
    finally:
        waiting.kill()


@pytest.mark.slow
def test_a_deleted_folder_is_one_notice_and_training_goes_on(running: Running, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "out")
    assert running.process.stdout is not None
    seen: list[dict[str, Any]] = []
    for line in running.process.stdout:  # one notice, and rows after it
        seen.append(json.loads(line))
        at = [index for index, event in enumerate(seen) if event["event"] == "incomplete"]
        if at and len(seen) > at[0] + 20:
            break
    notices = [event["text"] for event in seen if event["event"] == "notice" and "Cannot write" in event["text"]]
    assert len(notices) == 1 and "Training goes on" in notices[0]
    assert seen[-1]["event"] == "row"
    running.end(signal.SIGTERM)
    assert running.process.returncode == 143
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["record_lost"] > 0


@pytest.mark.slow
def test_a_full_disk_costs_lines_and_not_the_run(tmp_path: Path, text: Path, manifest: Manifest) -> None:
    """The system's limit on a file's size stands in for the disk."""
    short = changed(manifest, {"run.steps": 80, "schedule.sync_every": 8, "schedule.overlap": 2})
    words = [sys.executable, "-m", "peer.cli", *arguments(tmp_path, text, short)]
    command = ["bash", "-c", 'ulimit -f 16; exec "$@"', "bash", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert len([event for event in events if event["event"] == "incomplete"]) == 1
    assert events[-1]["event"] == "end" and events[-1]["exit"] == "finished"
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert found["exit"] == "finished" and found["record_lost"] > 0
    assert (tmp_path / "out" / "record.jsonl").stat().st_size == 16 * 1024


def test_a_killed_peer_takes_its_daemon_with_it(running: Running, tmp_path: Path) -> None:
    running.end(signal.SIGKILL)
    _, alive = psutil.wait_procs(running.children, timeout=20)
    assert not alive
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["exit"] == "running"


def newest(folder: Path) -> int:
    """Step of the newest snapshot; -1 for none."""
    names = [path.name for path in (folder / "out" / "snapshots").glob("*") if path.name.isdigit()]
    return max(map(int, names), default=-1)


def lives(folder: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (folder / "out" / "record.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "life"]


def test_a_killed_peer_comes_back_as_itself(tmp_path: Path, text: Path, manifest: Manifest) -> None:
    """On the same port, at once: its former p2pd may still be there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        listen = f"/ip4/127.0.0.1/tcp/{probe.getsockname()[1]}"
    short = changed(manifest, {"schedule.sync_every": 6, "schedule.overlap": 2})
    command = arguments(tmp_path, text, short, "--listen", listen)
    first = Running(command)
    try:
        end = time.monotonic() + 40
        while newest(tmp_path) < 0 and time.monotonic() < end:
            time.sleep(0.02)
        reached = newest(tmp_path)
        assert reached > 0
    finally:
        first.process.kill()
        first.process.communicate()
    second = Running(command)
    try:
        seconds, errors = second.end(signal.SIGTERM)
    finally:
        second.process.kill()
        second.process.communicate()
    assert "Traceback" not in errors and seconds < 30
    names = [event["peer_id"] for peer in (first, second) for event in peer.events if event["event"] == "start"]
    assert len(names) == 2 and names[0] == names[1]
    before, after = lives(tmp_path)
    assert (before["number"], after["number"]) == (1, 2) and after["step"] >= reached
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert found["lives"] == 2 and found["inner_steps"] > after["own_step"]
    assert found["tokens"] == 32 * found["inner_steps"]
    assert newest(tmp_path) >= found["inner_steps"], "it left in order, so nothing is lost"


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_fifty_kills_at_random_moments_never_spoil_anything(tmp_path: Path, text: Path, manifest: Manifest) -> None:
    """With a snapshot every few steps, many of them hit one that is being written."""
    chance = random.Random(1)
    short = changed(manifest, {"schedule.sync_every": 4, "schedule.overlap": 1})
    command = arguments(tmp_path, text, short)
    before, identities, passed_over = 0, set[str](), 0
    for kill in range(50):
        peer = Running(command)
        try:
            time.sleep(chance.uniform(0.0, 3.0))
        finally:
            peer.process.kill()
            _, errors = peer.process.communicate()
        assert "Traceback" not in errors, errors
        identities.add(next(event["peer_id"] for event in peer.events if event["event"] == "start"))
        passed_over += sum("passed over" in str(event) for event in peer.events)
        life = lives(tmp_path)[-1]
        assert life["number"] == kill + 1 and life["step"] >= before, "what was on the disk is where it goes on"
        before = newest(tmp_path) if newest(tmp_path) >= 0 else before
    assert len(identities) == 1 and passed_over == 0
    assert before > 100


def test_another_run_s_folder_is_the_users_mistake(
    tmp_path: Path, text: Path, manifest: Manifest, capfd: Any, nothing_left: None
) -> None:
    other = {"step": 6, "own_step": 6, "tokens": 1, "from_step": 0, "seat": 0, "mixed": (), "opened": (), "marks": ()}
    index = Index(potluck="1", run="ab" * 32, peer="cd" * 32, optimizer=None, loop=None, **other)  # type: ignore[arg-type]
    folder = SnapshotFolder(tmp_path / "out" / "snapshots", run=bytes(32), kept=1)
    folder.write({"parameters": {}, "outer": {}, "optimizer": {}}, "", index)
    assert run(arguments(tmp_path, text, manifest)) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("potluck: out = ") and "holds snapshots of another run (abababababab)" in line
    assert not (tmp_path / "out" / "manifest.toml").exists()


def test_a_place_in_the_data_outlives_another_batch_size() -> None:
    reading = Reading(8)
    assert [reading.next(1) for _ in range(3)] == [0, 1, 2]
    later = Reading(5)
    later.load_state_dict(reading.state_dict())
    assert later.next(1) == 5, "samples 25 to 29: the 24 before were read"
    same = Reading(8)
    same.load_state_dict(reading.state_dict())
    assert same.next(1) == 3
    assert [same.next(2), same.next(2)] == [0, 1], "another seat is another part of the data"


def test_a_peer_alone_trains_to_the_end(tmp_path: Path, text: Path, manifest: Manifest, capfd: Any) -> None:
    short = changed(manifest, {"run.steps": 30, "schedule.sync_every": 8, "schedule.overlap": 2})
    assert run(arguments(tmp_path, text, short)) == 0
    events = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert any("Nobody answers" in event["text"] for event in events if event["event"] == "notice")
    assert events[-1]["event"] == "end" and events[-1]["exit"] == "finished"
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (found["exit"], found["inner_steps"], found["tokens"]) == ("finished", 30, 30 * 32)
    assert len(found["outer_digest"]) == 64
    assert found["evaluation"]["outer_loss_end"] < found["evaluation"]["outer_loss_start"]
    losses = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert "val/loss" in losses[0] and "val/loss" in losses[-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.initial": "0" * 64}, "model.initial: the model starts from other parameters"),
        ({"model.layout": "0" * 64}, "model.layout: the model has other parameters or fragments"),
        ({"data.validation": "0" * 64}, "000000000000 in the run); point --data at the same text.txt"),
        ({"data.sequence": 4096}, "data.sequence = 4096: must be at most the context of the model"),
        ({"model.name": "custom"}, "potluck.join"),
    ],
)
def test_what_does_not_fit_the_run_is_the_users_mistake(
    tmp_path: Path, text: Path, manifest: Manifest, capfd: Any, change: dict[str, object], message: str,
    nothing_left: None,
) -> None:  # fmt: skip
    assert run(arguments(tmp_path, text, changed(manifest, change))) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("potluck: ") and message in line


def test_a_strangers_manifest_does_not_choose_a_file_here() -> None:
    strange = changed(PRESETS["demo"], {"data.name": "passwords"})
    near, far = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWx", "/ip4/192.0.2.1/tcp/1/p2p/12D3KooWx"
    with pytest.raises(UserError, match="--data"):
        check_text(strange, None, (near,), fetched=True)
    check_text(strange, None, (near,), fetched=False)
    check_text(strange, "here.txt", (near,), fetched=True)
    check_text(PRESETS["demo"], None, (far,), fetched=True)


def test_the_standard_library_is_a_text_for_one_machine() -> None:
    near, far = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWx", "/ip4/192.0.2.1/tcp/1/p2p/12D3KooWx"
    check_text(PRESETS["demo"], "stdlib", (near,), fetched=True)
    with pytest.raises(UserError, match="one machine"):
        check_text(PRESETS["demo"], "stdlib", (far,), fetched=True)
