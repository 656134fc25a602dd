"""The command line: exit codes, one line for a mistake, and what flags become."""

import socket
from pathlib import Path

import pytest

from peer.cli import run
from peer.commands.options import PeerOptions, SwarmOptions
from peer.commands.reader import has_no_reader
from peer.commands.swarm import swarm_manifest
from peer.commands.swarm_plan import SwarmPlan
from peer.commands.volunteer import peer_settings
from peer.manifest_file import read_manifest
from peer.settings import cleaned_name
from protocol.manifest import Manifest
from protocol.presets import PRESETS


def mistake(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that a mistake gives."""
    assert run(list(argv)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("potluck: ")
    return line


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("swarm", "peer", "bootstrap", "init", "status"))


def test_mistakes_end_with_2_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--bogus" in mistake(capsys, "swarm", "--bogus", "3")
    assert "cook" in mistake(capsys, "cook")
    assert "--peers" in mistake(capsys, "swarm", "--peers", "many")
    assert "--peers = 0: must be at least 1" in mistake(capsys, "swarm", "--peers", "0")
    assert "schedule.overlap = 24: must be below" in mistake(capsys, "swarm", "--overlap", "24")
    assert "codec.contributions" in mistake(capsys, "swarm", "--codec", "zip")
    assert "at most 3" in mistake(capsys, "swarm", "--kill", "7@60")
    assert "would not end" in mistake(capsys, "swarm", "--lockstep", "--kill", "1@60")
    assert "cannot be read: No such file" in mistake(capsys, "swarm", "--manifest", "missing.toml")
    assert "potluck bootstrap" in mistake(capsys, "peer")
    assert "join = 'nowhere'" in mistake(capsys, "peer", "--join", "nowhere")
    assert "--manifest" in mistake(capsys, "peer", "--local-only")
    assert "with --aggregate" in mistake(capsys, "bootstrap", "--run", "demo")
    assert "give one of them" in mistake(capsys, "bootstrap", "--aggregate", "--run", "a", "--manifest", "run.toml")
    assert "must be one of demo, default, paper" in mistake(capsys, "init", "--preset", "huge")
    assert "model.name = 'huge'" in mistake(capsys, "init", "--model", "huge")


def test_init_writes_a_manifest_that_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.toml"
    assert run(["init", "--preset", "paper", "--out", str(path)]) == 0
    assert read_manifest(path) == PRESETS["paper"]
    assert "potluck bootstrap --manifest" in capsys.readouterr().out
    before = path.read_bytes()
    assert "exists already" in mistake(capsys, "init", "--out", str(path))
    assert path.read_bytes() == before


def test_init_prints_a_manifest_that_fits_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "--model", "tiny"]) == 0
    path = tmp_path / "run.toml"
    path.write_text(capsys.readouterr().out)
    manifest = read_manifest(path)
    assert (manifest.model.name, manifest.model.layers, manifest.data.sequence) == ("tiny", 4, 128)


def test_a_broken_manifest_names_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[merge]\nmixing = 2.0\n")
    line = mistake(capsys, "swarm", "--manifest", str(path))
    assert "run.toml" in line and "merge.mixing = 2.0" in line
    path.write_bytes(b"\xff\xfe")
    assert "not UTF-8" in mistake(capsys, "swarm", "--manifest", str(path))


def test_swarm_flags_become_the_manifest() -> None:
    options = SwarmOptions(
        peers=3, steps=50, sync_every=10, overlap=2, mixing=0.25, fragments=2, codec="fp32", seed=7, model="35m"
    )
    manifest = swarm_manifest(options)
    assert (manifest.run.start_peers, manifest.run.steps, manifest.run.seed) == (3, 50, 7)
    assert (manifest.schedule.sync_every, manifest.schedule.overlap, manifest.schedule.fragments) == (10, 2, 2)
    assert (manifest.codec.contributions, manifest.codec.results, manifest.merge.mixing) == ("fp32", "fp32", 0.25)
    assert (manifest.model.name, manifest.model.layers) == ("35m", 6)


def test_swarm_without_flags_is_the_demo() -> None:
    assert swarm_manifest(SwarmOptions()) == PRESETS["demo"]
    assert isinstance(PRESETS["demo"], Manifest)


def test_flags_of_a_peer_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POTLUCK_BATCH", "2")
    monkeypatch.setenv("POTLUCK_THREADS", "3")
    settings = peer_settings(PeerOptions(batch=5, upload=20.0))
    assert (settings.batch, settings.threads, settings.upload_mbit) == (5, 3, 20.0)
    assert settings.name == cleaned_name(socket.gethostname())
    assert peer_settings(PeerOptions(name="ada")).name == "ada"


def test_processes_get_what_the_swarm_was_told() -> None:
    plan = SwarmPlan(out=Path("o"), manifest=Path("m.toml"), num_peers=2, data="stdlib", lockstep=True)
    arguments = plan.peer_arguments(1, ["/ip4/127.0.0.1/tcp/1/p2p/X"])
    assert arguments[:2] == ["peer", "--json"]
    assert arguments[arguments.index("--out") + 1] == "o/peer-1"
    assert arguments[-3:] == ["--lockstep", "--join", "/ip4/127.0.0.1/tcp/1/p2p/X"]
    alone = SwarmPlan(out=Path("o"), manifest=Path("m.toml"), num_peers=1, local_only=True)
    assert "--join" not in alone.peer_arguments(0, [])


def test_a_pipe_without_a_reader_is_noticed() -> None:
    import os

    reading, writing = os.pipe()
    assert not has_no_reader(writing)
    os.close(reading)
    assert has_no_reader(writing)
    os.close(writing)
