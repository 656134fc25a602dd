"""What the documents show runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import potluck

ROOT = Path(__file__).parents[1]
ERROR = re.compile(r"^peer (\d): error on the whole curve ([0-9.]+)$", re.MULTILINE)


def test_own_loop_with_two_peers() -> None:
    command = [sys.executable, "examples/own_loop.py", "--peers", "2"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    errors = dict(ERROR.findall(done.stdout))
    assert errors.keys() == {"0", "1"}, done.stdout
    assert errors["0"] == errors["1"], "both end with the swarm's parameters"
    assert float(errors["0"]) < 0.2, "each has learnt of the half that it never saw"
    assert done.stderr == ""


@pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")
def test_the_first_lines_of_the_api_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = dict(re.findall(r"^```(python|toml)\n(.*?)^```", (ROOT / "docs" / "api.md").read_text(), re.M | re.S))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(blocks["toml"])
    names: dict[str, object] = {}
    exec(compile(blocks["python"], "docs/api.md", "exec"), names)
    peer = names["peer"]
    assert isinstance(peer, potluck.Peer) and peer.finished and peer.own_step == 40
    assert isinstance(names["digest"], bytes) and len(names["digest"]) == 32
    assert peer.record.counts().opened > 0


def test_the_api_page_names_what_there_is() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    assert all(name in page for name in potluck.__all__)
    attributes = re.findall(r"^\| ((?:`[a-z_]+(?:\([a-z]*\))?`(?:, )?)+) \|", page.split("## `Peer`")[1], re.MULTILINE)
    named = {name for cell in attributes for name in re.findall(r"`([a-z_]+)", cell)}
    made_at_start = {"step", "own_step", "tokens", "joined", "seat", "layout", "times", "record"}
    assert named >= made_at_start | {"finished", "alone", "addresses", "linger", "write_outer"}
    assert all(hasattr(potluck.Peer, name) for name in named - made_at_start)
