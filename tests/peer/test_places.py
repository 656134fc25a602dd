"""Places for files are tried before anything is started, and a mistake leaves nothing behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from peer.cli import run
from peer.commands.places import check_report_place, usable_folder
from protocol.errors import UserError

READ_ONLY = Path("/sys")
"""Here nobody can make a file, not even root."""
needs_read_only = pytest.mark.skipif(not READ_ONLY.is_dir(), reason="this system has no /sys")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory, which must be as empty afterwards."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert os.listdir(tmp_path) == []


def mistake(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert run(list(argv)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def test_a_report_that_cannot_be_written_stops_a_swarm_before_its_start(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = here / "nowhere" / "report.json"
    line = mistake(capsys, "swarm", "--report", str(missing))
    assert line == f"potluck: --report = '{missing}': there is no directory {missing.parent}; make it first"
    assert "is a directory, must be a file" in mistake(capsys, "swarm", "--report", str(here))
    assert "is not a directory" in mistake(capsys, "swarm", "--report", f"{__file__}/report.json")
    assert "cannot be written: File name too long" in mistake(capsys, "swarm", "--report", "x" * 300)


@needs_read_only
def test_a_read_only_directory_is_no_place(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = READ_ONLY / "report.json"
    assert f"--report = '{report}': cannot be written: " in mistake(capsys, "swarm", "--report", str(report))
    for out in (READ_ONLY, READ_ONLY / "new"):
        assert f"--out = '{out}': cannot be used: " in mistake(capsys, "swarm", "--data", "stdlib", "--out", str(out))


@needs_read_only
def test_a_peer_s_directory_is_tried_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWBUJifCTgaxAUrcM9JysqCcS4CS8tiYH5hExbdWCAoNwb"
    assert f"--out = '{READ_ONLY}': cannot be used" in mistake(
        capsys, "peer", "--join", address, "--out", str(READ_ONLY)
    )
    where = tmp_path / "out"
    assert "data = '/nope': is neither a file" in mistake(
        capsys, "peer", "--join", address, "--data", "/nope", "--out", str(where)
    )
    assert not where.exists()


def test_text_that_is_not_there_leaves_no_directory(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "data = '/nope': is neither a file nor a directory" in mistake(capsys, "swarm", "--data", "/nope")
    assert "data = '': must be 'bible', 'stdlib', or" in mistake(capsys, "swarm", "--data", "")
    assert "data = '': must be" in mistake(capsys, "swarm", "--data", "", "--out", "new")


def test_a_place_that_can_be_used_is_left_as_it_was(tmp_path: Path) -> None:
    existing = tmp_path / "report.json"
    existing.write_text("an older one")
    check_report_place(existing, None)
    check_report_place(tmp_path / "out" / "report.json", tmp_path / "out")  # a directory that is going to be made
    check_report_place(Path(os.devnull), None)
    assert existing.read_text() == "an older one" and os.listdir(tmp_path) == ["report.json"]
    assert usable_folder("--out", tmp_path / "deep" / "out") == tmp_path / "deep" / "out"
    assert os.listdir(tmp_path / "deep" / "out") == []
    with pytest.raises(UserError, match="is not a directory"):
        usable_folder("--out", existing)
