"""Joining a run at its middle: time to the first contribution, bytes against a state's, and what donors wait for it.

A bootstrap server and four peers train the demo on this machine. When they have reached the middle of the run, a fifth
starts with an address and nothing else. On few cores its own training takes cycles of the others, so what counts for
the donors is the time that their training was blocked, not their speed.

    python benchmarks/join.py [--peers 4] [--steps 400] [--runs 1] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from entry import ready_address

PATIENCE = 600.0
"""Seconds in which anything waited for must happen."""


def spawn(*arguments: str) -> subprocess.Popen[str]:
    """`potluck` with these arguments, in a session of its own."""
    root = str(Path(__file__).resolve().parent.parent)
    return subprocess.Popen(
        [sys.executable, "-m", "peer.cli", *arguments],
        text=True,
        cwd=root,
        stdout=subprocess.PIPE if arguments[0] == "bootstrap" else subprocess.DEVNULL,
        start_new_session=True,
    )


def until(condition: Any, what: str) -> Any:
    """What a condition gives as soon as that is anything."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise SystemExit(f"gave up waiting for {what}")


def record(folder: Path, kind: str) -> list[dict[str, Any]]:
    """A peer's events of one kind so far."""
    path = folder / "record.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    parsed = [json.loads(line) for line in lines if line.endswith("\n")]
    return [line for line in parsed if line["kind"] == kind]


def seconds(folder: Path) -> dict[str, float]:
    """Where a peer's time went so far, from its summary."""
    found: dict[str, float] = json.loads((folder / "summary.json").read_text())["seconds"]
    return found


def reached(folder: Path) -> int:
    """The last window that a peer has opened."""
    return max((line["due"] for line in record(folder, "opened")), default=0)


def one_run(folder: Path, peers: int, steps: int) -> dict[str, Any]:
    """Start everything, join at the middle, wait for the end, and measure."""
    from peer.data import load_corpus
    from peer.sealing import seal
    from protocol.manifest import changed
    from protocol.manifest_toml import dumps
    from protocol.presets import PRESETS

    fields = {"run.start_peers": peers, "run.steps": steps, "codec.chunk": 65_536}
    manifest = folder / "run.toml"
    manifest.write_text(dumps(seal(changed(PRESETS["demo"], fields), load_corpus("bible"))))
    key = ["--identity", str(folder / "key"), "--listen", "/ip4/127.0.0.1/tcp/0"]
    processes = [spawn("bootstrap", "--json", "--manifest", str(manifest), *key)]
    try:
        address = ready_address(processes[0])
        for index in range(peers):
            processes.append(peer(folder / f"peer-{index}", address, "--manifest", str(manifest)))
        donors = [folder / f"peer-{index}" for index in range(peers)]
        until(lambda: all(reached(donor) >= steps // 2 for donor in donors), "the middle of the run")
        return measure(folder, donors, lambda: processes.append(peer(folder / "late", address)))
    finally:
        for process in reversed(processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            process.wait(60)


def peer(folder: Path, address: str, *more: str) -> subprocess.Popen[str]:
    """One peer of the demo."""
    return spawn("peer", "--json", "--join", address, "--threads", "1", "--out", str(folder), "--linger", "60", *more)


def measure(folder: Path, donors: list[Path], start: Any) -> dict[str, Any]:
    """Start the newcomer and follow it to its end."""
    late, before, began = folder / "late", [seconds(donor) for donor in donors], time.monotonic()
    start()
    until(lambda: record(late, "contributed"), "the newcomer's first contribution")
    contributed = time.monotonic() - began
    time.sleep(2.5)  # a summary is written every two seconds
    after = [seconds(donor) for donor in donors]
    until(lambda: summary(late)["exit"] != "running", "the newcomer's end")
    until(lambda: all(summary(donor)["exit"] != "running" for donor in donors), "the end of the run")
    (joined,) = record(late, "joined")
    shares = [
        (new["waiting"] - old["waiting"]) / max(1e-9, new["training"] - old["training"])
        for old, new in zip(before, after, strict=True)
    ]
    return {
        "from_step": joined["from_step"],
        "seconds_from_start": contributed,
        "seconds_from_network": summary(late)["joined"]["seconds"],
        "fetch_seconds": joined["fetch_seconds"],
        "bytes": joined["bytes"],
        "state_bytes": joined["state_bytes"],
        "ratio": joined["bytes"] / joined["state_bytes"],
        "donors": joined["donors"],
        "waiting_share": max(shares),
        "one_outer_state": len({summary(one)["outer_digest"] for one in (late, *donors)}) == 1,
    }


def summary(folder: Path) -> dict[str, Any]:
    """A peer's account of itself so far."""
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    for _ in range(given.runs):
        with tempfile.TemporaryDirectory() as folder:
            found = one_run(Path(folder), given.peers, given.steps)
        if given.json:
            print(json.dumps(found))
            continue
        print(f"joined at step {found['from_step']}, {found['donors']} donors")
        print(f"first contribution after {found['seconds_from_start']:.1f} s (imports included), ", end="")
        print(f"{found['seconds_from_network']:.1f} s of these in the swarm, {found['fetch_seconds']:.2f} s fetching")
        print(f"bytes taken / state's: {found['bytes']:,} / {found['state_bytes']:,} = {found['ratio']:.3f} (≤ 1.1)")
        print(f"donors' waiting: {found['waiting_share']:.2%} of training (≤ 2%)")
        print(f"one outer state at the end: {found['one_outer_state']}")


if __name__ == "__main__":
    main()
