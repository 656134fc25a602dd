"""What befalls a computer while it trains: a full disk, one that may only be read, a deleted folder, a clock that is
set, and for everyone a bootstrap server that is gone for good. One clear line each, and training goes on: all end with
equal states.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STEERED = Path(__file__).with_name("steered.py")
FLOOR = 0.15
"""Seconds of an inner step."""
SMALL = {"model.layers": 2, "schedule.fragments": 2}


def computer(jump: float = 0.0) -> tuple[str, ...]:
    """`potluck` on a computer that takes its time, and whose clock SIGUSR1 sets."""
    return (sys.executable, str(STEERED), str(FLOOR), str(jump))


def agree(peers: list[Any]) -> None:
    """Wait for the end of the run: every peer finished it, and their outer states are equal to the bit."""
    for peer in peers:
        peer.finishes()
    assert [peer.ending["exit"] for peer in peers] == ["finished"] * len(peers)
    assert len({peer.ending["outer_digest"] for peer in peers}) == 1 and peers[0].ending["outer_digest"]


def quiet(peers: list[Any]) -> bool:
    """Whether they wrote nothing to standard error, but for a daemon that a loaded machine started late."""
    lines = [line for peer in peers for line in peer.errors.splitlines()]
    return all(line.startswith("p2pd did not start") for line in lines)


def root_only(command: list[str]) -> None:
    """Run a command that may do what only root may, and skip the test if it may not."""
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip(f"needs root and the right to mount: {' '.join(command[:3])}")


@contextlib.contextmanager
def mounted(path: Path, *what: str) -> Iterator[Path]:
    path.mkdir()
    root_only(["mount", *what, str(path)])
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 32 MiB, on which a peer called `one` has its folder: room for some snapshots."""
    with mounted(tmp_path / "one", "-t", "tmpfs", "-o", "size=32m", "tmpfs") as path:
        yield path


@pytest.fixture
def frail_disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A disk that an error makes read-only, as Linux does with a failing one; and what makes the error."""
    image = tmp_path / "image"
    image.touch()
    os.truncate(image, 64 << 20)
    if not shutil.which("mkfs.ext4"):
        pytest.skip("needs mkfs.ext4, to make a file system that turns read-only")
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    with mounted(tmp_path / "one", "-o", "loop,errors=remount-ro", str(image)) as path:
        device = os.stat(path).st_dev
        name = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve().name
        trigger = Path("/sys/fs/ext4") / name / "trigger_fs_error"
        if not name.startswith("loop") or not trigger.exists():
            pytest.skip("needs a kernel that lets a test make a file system fail")
        yield path, lambda: trigger.write_text("a test\n") and None


def fill(path: Path) -> None:
    """Write until the disk takes nothing more."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass


def two_peers(company: Any, *more: str) -> list[Any]:
    manifest = ["--manifest", str(company.manifest)]
    return [company.peer(name, *manifest, *more, potluck=computer()) for name in ("one", "two")]


def test_a_full_disk(company: Any, small_disk: Path) -> None:
    company.begin(SMALL | {"run.steps": 240})
    peers = one, two = two_peers(company, "--snapshots-kept", "2")
    one.reaches(8)
    company.until(lambda: one.lines("snapshot"))
    ballast = small_disk / "somebody-else-s"
    fill(ballast)
    line = one.says("Training goes on")
    one.reaches(one.step + 40)  # five rounds, and as many snapshots that are not written
    ballast.unlink()
    freed = one.step
    agree(peers)
    assert str(small_disk) in line and ("No space left on device" in line or "the disk is full" in line)
    told = [text for text in one.notices if "Training goes on" in text]
    # What a snapshot leaves that was under way when the disk filled up may be room for another: then it fills up twice.
    assert told[0] == line and len(told) <= 2 and all(str(small_disk) in text for text in told)
    assert quiet(peers)
    kept = sorted(int(path.name) for path in (small_disk / "snapshots").iterdir())
    assert len(kept) == 2 and kept[0] > freed, "snapshots go on"
    assert one.summary["record_lost"] > 0 == two.summary["record_lost"]


def test_a_disk_that_may_only_be_read(company: Any, frail_disk: Any) -> None:
    folder, fail = frail_disk
    company.begin(SMALL | {"run.steps": 160})
    peers = one, two = two_peers(company)
    one.reaches(8)
    company.until(lambda: one.lines("snapshot"))
    fail()
    line = one.says("Training goes on")
    agree(peers)
    assert str(folder) in line and "Read-only file system" in line
    assert [text for text in one.notices if "Training goes on" in text] == [line]
    assert quiet(peers)
    newest = max(link["due"] for link in two.lines("link"))
    last = [link for link in two.lines("link") if link["due"] > newest - 8]
    assert all(len(link["contributors"]) == 2 for link in last), "the one that cannot write takes part to the end"


def test_deleted_snapshots(company: Any) -> None:
    company.begin(SMALL | {"run.steps": 400})
    manifest = ["--manifest", str(company.manifest), "--snapshot-every", "4"]
    peers = one, _ = [company.peer(name, *manifest, potluck=computer()) for name in ("one", "two")]
    one.reaches(1)
    first = company.until(lambda: one.lines("snapshot"))
    shutil.rmtree(one.folder / "snapshots")
    company.until(lambda: len(one.lines("snapshot")) > len(first))  # the folder is made again
    shutil.rmtree(one.folder / "snapshots")
    one.kill()
    assert [text for text in one.notices if "napshot" in text] == []
    peers[0] = one = company.peer("one", *manifest, potluck=computer())
    line = one.says("No usable snapshot")
    one.wait_for(lambda event: event["event"] == "row")
    (joined,) = one.lines("joined")
    agree(peers)
    assert line.startswith(f"No usable snapshot in {one.folder / 'snapshots'}")
    assert [text for text in one.notices if "usable snapshot" in text or "Training goes on" in text] == [line]
    assert joined["from_step"] >= 32, "what the others have"
    assert one.summary["lives"] == 2 and quiet(peers)


def test_a_clock_that_is_set(company: Any) -> None:
    """By an hour, forwards here and backwards there, in the middle of a run of three."""
    company.begin(SMALL | {"run.steps": 500, "run.start_peers": 3, "limits.presence_ttl": 20.0})
    manifest = ["--manifest", str(company.manifest)]
    jumps = {"ahead": 3600.0, "behind": -3600.0, "right": 0.0}
    peers = [company.peer(name, *manifest, potluck=computer(jump)) for name, jump in jumps.items()]
    ahead, behind, right = peers
    for peer in peers:
        peer.reaches(20)
    ahead.process.send_signal(signal.SIGUSR1)
    behind.process.send_signal(signal.SIGUSR1)
    lines = [peer.says("clock has been set") for peer in (ahead, behind)]
    agree(peers)
    assert "by +3600 s" in lines[0] and "by -3600 s" in lines[1]
    assert all("Training goes on" in line for line in lines)
    said = [[text for text in peer.notices if "Training goes on" in text] for peer in peers]
    assert said == [lines[:1], lines[1:], []]
    assert quiet(peers)
    everyone = {peer.summary["peer_id"] for peer in peers}
    late = [link for link in right.lines("link") if link["due"] > 480]
    assert {part["peer"] for link in late for part in link["contributors"]} == everyone, "all still take part"


def test_a_bootstrap_server_that_is_gone_for_good(company: Any) -> None:
    server = company.begin(SMALL | {"run.steps": 600})
    peers = one, _ = two_peers(company)
    address = one.wait_for(lambda event: event["event"] == "start")["addresses"][0]
    for peer in peers:
        peer.reaches(20)
    server.kill()
    lines = [peer.says("The bootstrap does not answer") for peer in peers]
    late = company.peer("late", join=address, potluck=computer())  # it knows this address, and where the text is
    late.reaches(50)
    (joined,) = late.lines("joined")
    agree([*peers, late])
    assert all(company.address in line for line in lines)
    said = [[text for text in peer.notices if "does not answer" in text] for peer in peers]
    assert said == [[line] for line in lines]
    assert joined["from_step"] >= 20
    name = late.summary["peer_id"]
    assert [link for link in one.lines("link") if any(part["peer"] == name for part in link["contributors"])]
    assert quiet([*peers, late])
