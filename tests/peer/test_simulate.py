"""`potluck simulate`: its flags, its words, its JSON and its exit codes."""

from __future__ import annotations

import json

import pytest

from peer.cli import run
from peer.commands.simulate import parse_kinds, parse_peers
from protocol import window
from protocol.errors import UserError
from simulation.events import KINDS

QUICK = ("simulate", "--jobs", "1", "--peers", "3", "--seeds", "2")


def test_seeds_that_break_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*QUICK, "--from", "5"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("2 seeds, ") and "no promise was broken" in captured.out
    assert "2 of 2 seeds" in captured.err


def test_json_is_one_object_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*QUICK, "--json", "--faults", "crash,loss"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"seeds": 2, "violations": []}
    assert captured.err == ""


@pytest.mark.timeout(300)
def test_two_processes_find_what_one_finds(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["simulate", "--peers", "2..3", "--seeds", "7"]
    assert run([*flags, "--jobs", "2"]) == 0
    assert run([*flags, "--jobs", "1"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second


@pytest.mark.timeout(300)
def test_a_violation_is_exit_code_1_and_says_how_to_see_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "is_enough", lambda *_: True)
    flags = ["simulate", "--jobs", "1", "--peers", "4", "--faults", "partition"]
    assert run([*flags, "--seeds", "3", "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["seeds"] == 3
    violation = next(one for one in result["violations"] if one["invariant"] == "enough-of-us")
    assert {"seed", "invariant", "events"} <= violation.keys()
    assert all(event["kind"] == "partition" and event["others"] for event in violation["events"])
    assert run([*flags, "--seeds", "1", "--from", str(violation["seed"])]) == 1
    text = capsys.readouterr().out
    assert "enough-of-us" in text and "partition" in text
    assert f"--from {violation['seed']} --seeds 1" in text


def test_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    def mistake(*flags: str) -> str:
        assert run(["simulate", *flags]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        (line,) = captured.err.splitlines()
        return line

    assert "--seeds = 0: must be at least 1" in mistake("--seeds", "0")
    assert "--from = -1: must be at least 0" in mistake("--from", "-1")
    assert "--jobs = 0: must be between 1" in mistake("--jobs", "0")
    for wrong in ("1", "12..2", "2..", "..4", "a..b", "2..400", "2...4", ""):
        assert "must be a number or a range like 2..12" in mistake("--peers", wrong), wrong
    assert "'flood' must be all, or some of crash" in mistake("--faults", "crash,flood")
    assert "--faults" in mistake("--faults", "")


def test_ranges_and_kinds() -> None:
    assert parse_peers("2..12") == (2, 12)
    assert parse_peers("5") == (5, 5)
    assert parse_kinds("all") == tuple(KINDS)
    assert parse_kinds("partition, crash") == ("crash", "partition")
    with pytest.raises(UserError):
        parse_kinds("all,crash,none")
