"""Presence records of a peer whose clock was set, within a life and over a restart."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer import clock, issuing
from peer.issuing import Issuing, issue_time
from protocol.presence import MAX_AHEAD

LIFE = 60.0


def test_normally_it_is_now(tmp_path: Path) -> None:
    times = Issuing(tmp_path / "presence-issued", LIFE)
    assert times.next(clock.wall()) == pytest.approx(time.time(), abs=2)
    later = Issuing(tmp_path / "presence-issued", LIFE)
    assert later.next(clock.wall() + 100) == pytest.approx(time.time() + 100, abs=2)


@pytest.mark.parametrize("back", [5.0, 600.0, 3500.0])
def test_a_clock_set_back_between_two_lives_makes_no_record_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, back: float
) -> None:
    path = tmp_path / "presence-issued"
    last = Issuing(path, LIFE).next(1_000_000.0)
    now = last - back
    monkeypatch.setattr(issuing.clock, "wall", lambda: now)
    times = Issuing(path, LIFE)
    first, second = times.next(now), times.next(now + 20)
    assert last < first < second
    assert second - first == pytest.approx(20), "it goes on, so that renewed records live on"
    assert first <= now + MAX_AHEAD and first + LIFE <= now + MAX_AHEAD, "accepted by a reader with that same clock"


def test_a_clock_that_was_hours_ahead_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody accepted those records, so nobody holds one that ours must be newer than."""
    path = tmp_path / "presence-issued"
    Issuing(path, LIFE).next(1_000_000.0)
    monkeypatch.setattr(issuing.clock, "wall", lambda: 900_000.0)
    assert 900_000.0 <= Issuing(path, LIFE).next(900_000.0) <= 900_000.0 + MAX_AHEAD - LIFE


@given(wall=st.floats(0, 2e9), latest=st.floats(-1e12, 1e12), life=st.floats(3, 3600))
def test_records_are_always_acceptable_and_never_older_than_accepted_ones(
    wall: float, latest: float, life: float
) -> None:
    issued = issue_time(wall, latest, life)
    assert wall <= issued and (issued == wall or issued + life <= wall + MAX_AHEAD)
    if latest + life <= wall + MAX_AHEAD - 10:
        assert issued > latest or issued == wall >= latest


@pytest.mark.parametrize("content", [b"", b"tomorrow", b"nan", b"inf", b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_no_memory(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "presence-issued"
    path.write_bytes(content)
    assert Issuing(path, LIFE).next(clock.wall()) == pytest.approx(time.time(), abs=2)
    Issuing(tmp_path / "no" / "such" / "folder", LIFE).next(clock.wall())


def test_the_clock_does_not_follow_a_computer_s_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    before = clock.wall()
    assert before == pytest.approx(time.time(), abs=1)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    assert before <= clock.wall() < before + 5
    assert clock.jump() == pytest.approx(-3600, abs=1)
