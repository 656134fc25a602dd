"""Compute utilization of real swarms over shaped links, against what `potluck plan` predicts for them.

Each run is an entry node and some peers in network namespaces of their own, with their uploads shaped by tbf; with
`--latency`, on loopback behind delaying proxies (shaped_links.py). Peers, streams, averaging and merges are real; the
accelerator is not: an inner step sleeps for `--step` seconds and moves the parameters a little, so that it is the link
that decides and not the processors. Three ways to merge:

    τ = 0, every merge awaited        nothing is hidden
    τ, every merge awaited            as in the paper, and as the planner's first line
    τ, nothing awaited                potluck's default: what comes late is mixed late or skipped

Prediction and measurement cover the same windows (a run's first round has none), with the step time as it was
measured. Without `--latency` it needs root, `ip` and `tc`.

    python benchmarks/utilization.py [--mbits 1 2 4 16] [--latency MS] [--peers 2] [--steps 72] [--overlap 2] [--json]
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from entry import ready_address
from shaped_links import Links, Namespaces, Proxies

from simulation.planner.plan import Plan, awaited, skipping
from simulation.planner.shapes import SHAPES

SYNC_EVERY, FRAGMENTS = 12, 4
AWAITED = 20.0
"""`--merge-wait` of a run in which every merge is awaited, in seconds."""
LONGEST_RUN = 240.0
BUSY = 0.85
"""Share of the processors' time from which on they, and not the link, may have decided."""


@dataclass(frozen=True)
class Row:
    """One run. Shares are means over the peers."""

    mbit: float
    overlap: int
    awaited: bool
    step_seconds: float
    measured: float
    predicted: float
    windows: int
    late_or_skipped: float
    predicted_late_or_skipped: float
    cpu: float


def write_manifest(folder: Path, peers: int, steps: int, overlap: int) -> Path:
    """The run's shared numbers."""
    from peer.data import load_corpus
    from peer.sealing import seal
    from protocol.manifest import changed
    from protocol.manifest_toml import dumps
    from protocol.presets import PRESETS

    fields = {
        "run.name": "utilization",
        "run.steps": steps,
        "run.start_peers": peers,
        "schedule.sync_every": SYNC_EVERY,
        "schedule.fragments": FRAGMENTS,
        "schedule.overlap": overlap,
        "codec.chunk": 65_536,
    }
    path = folder / "run.toml"
    path.write_text(dumps(seal(changed(PRESETS["demo"], fields), load_corpus("bible"))))
    return path


def take_part(given: argparse.Namespace) -> None:
    """One peer: steps by the clock, moves its parameters, and says where its time went."""
    import torch

    import potluck
    from peer.models import Decoder, preset

    torch.set_num_threads(1)
    model = Decoder(preset("tiny"))
    potluck.initialize(model, 0, model.initial_stds())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    folder, name = given.folder, f"peer-{given.role}"
    settings = potluck.Settings(
        name=name,
        out=folder / name,
        join=(given.join,),
        listen=given.listen,
        announce=given.announce,
        merge_wait=given.wait,
        snapshot_every=0,
    )
    with potluck.join(model, optimizer, manifest=folder / "run.toml", settings=settings, tokens_per_step=1024) as peer:
        while not peer.finished:
            time.sleep(given.step)
            with torch.no_grad():
                model.blocks[peer.own_step % 4].mlp_in.weight.mul_(1.001)
            optimizer.step()
        times, counts = peer.times, peer.record.counts(None)
        found = {
            "steps": peer.own_step,
            "total": times.total,
            "waiting": times.waiting,
            "opened": counts.opened,
            "merged": counts.merged,
        }
        (folder / f"{given.role}.json").write_text(json.dumps(found))


def processor_times() -> tuple[float, float]:
    """(busy, all) jiffies of this machine so far."""
    values = list(map(float, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]))
    return sum(values) - values[3] - values[4], sum(values)


def one_run(given: argparse.Namespace, mbit: float, overlap: int, wait: float | None) -> Row:
    """Start everything, wait for the end, compare."""
    with tempfile.TemporaryDirectory() as name:
        latency = given.latency / 1000
        links: Links = Proxies(mbit, latency, given.peers) if latency else Namespaces(mbit)
        try:
            busy, total = processor_times()
            summaries = train(links, Path(name), given, overlap, wait)
            now_busy, now_total = processor_times()
        finally:
            links.close()
    return row(given, summaries, mbit, overlap, wait, cpu=(now_busy - busy) / (now_total - total))


def train(
    links: Links, folder: Path, given: argparse.Namespace, overlap: int, wait: float | None
) -> list[dict[str, Any]]:
    """What the peers say of themselves after a run."""
    manifest = write_manifest(folder, given.peers, given.steps, overlap)
    entry = ("bootstrap", "--json", "--manifest", str(manifest), "--identity", str(folder / "key"))
    address = ready_address(links.start_entry("-m", "peer.cli", *entry))
    peers = []
    for index in range(given.peers):
        role = ["--role", str(index), "--folder", str(folder), "--join", address, "--step", str(given.step)]
        role += [] if wait is None else ["--wait", str(wait)]
        peers.append(links.start_peer(index, str(Path(__file__).resolve()), *role))
    for index, peer in enumerate(peers):
        if peer.wait(LONGEST_RUN):
            raise SystemExit(f"peer {index} failed: see its stderr above")
    return [json.loads((folder / f"{index}.json").read_text()) for index in range(given.peers)]


def row(
    given: argparse.Namespace, found: list[dict[str, Any]], mbit: float, overlap: int, wait: float | None, *, cpu: float
) -> Row:
    """Measured beside predicted."""
    total, waited, windows, merged = (
        sum(one[key] for one in found) for key in ("total", "waiting", "opened", "merged")
    )
    training = total - waited
    step = training / sum(one["steps"] for one in found)
    plan = Plan(
        shape=SHAPES["tiny"],
        method="streaming",
        step_seconds=step,
        up=mbit * 1e6,
        down=mbit * 1e6,
        latency=given.latency / 1000,
        peers=given.peers,
        sync_every=SYNC_EVERY,
        overlap=overlap,
        fragment_layers=1,
        merge_wait=wait,
    )
    rounds = awaited(plan) if wait == AWAITED else skipping(plan)
    waits = float(rounds.exposed[0]) / FRAGMENTS * windows
    return Row(
        mbit=mbit,
        overlap=overlap,
        awaited=wait == AWAITED,
        step_seconds=step,
        measured=training / total,
        predicted=training / (training + waits),
        windows=windows // len(found),
        late_or_skipped=1 - merged / max(1, windows),
        predicted_late_or_skipped=1 - float(rounds.in_time[0]),
        cpu=cpu,
    )


def words(one: Row) -> str:
    """A line of the table."""
    merges = "awaited" if one.awaited else "not awaited"
    difference = f"{100 * (one.measured - one.predicted):+5.1f}"
    note = "  processors busy" if one.cpu > BUSY else ""
    return (
        f"{one.mbit:6g}  {one.overlap:2}  {merges:<11}  {one.step_seconds:5.3f}  {one.measured:8.1%}  "
        f"{one.predicted:9.1%}  {difference}  {one.late_or_skipped:5.0%}  {one.predicted_late_or_skipped:9.0%}  "
        f"{one.cpu:4.0%}{note}"
    )


def end(*_: object) -> None:
    """On SIGTERM: let the links be removed, and nothing disturb that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


def main() -> None:
    """All runs, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbits", type=float, nargs="+", default=[1, 2, 4, 16])
    parser.add_argument("--latency", type=float, default=0.0, help="milliseconds between two peers, one way")
    parser.add_argument("--peers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=72)
    parser.add_argument("--overlap", type=int, default=2)
    parser.add_argument("--step", type=float, default=0.25, help="seconds of an inner step")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--role", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--join", help=argparse.SUPPRESS)
    parser.add_argument("--listen", help=argparse.SUPPRESS)
    parser.add_argument("--announce", help=argparse.SUPPRESS)
    parser.add_argument("--wait", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role is not None:
        take_part(given)
        return
    signal.signal(signal.SIGTERM, end)
    if not given.json:
        print("Mbit/s   τ  merges        step  measured  predicted  diff.  late  predicted   CPU", flush=True)
    ways = ((0, AWAITED), (given.overlap, AWAITED), (given.overlap, None))
    for mbit in given.mbits:
        for overlap, wait in ways:
            one = one_run(given, mbit, overlap, wait)
            print(json.dumps(asdict(one)) if given.json else words(one), flush=True)


if __name__ == "__main__":
    main()
