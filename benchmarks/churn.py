"""What churn costs: the loss at the end with a quarter of the peers dying and returning throughout, and without.

For each seed two swarms of real processes, `potluck swarm`, on this machine: a quiet one, and one in which every
`--every` steps a quarter of the peers, drawn by the seed, is killed with SIGKILL and started again `--gone` seconds
later with the directory that it had. The last 60 steps are quiet, so that the last to come back can take part.

    python benchmarks/churn.py [--peers 4] [--steps 400] [--seeds 0 1 2] [--every 60] [--gone 5] [--slow 3]

All peers of both are slowed down `--slow` times. A process on a busy laptop starts in ten seconds: without that, sixty
of the small model's steps, and such a swarm never has more than three quarters of its peers.
Prints a table, and exits with 1 if the mean loss with churn is more than 2% above, or if any swarm ends with two
versions of the outer parameters. Takes minutes for each swarm.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

ROOT = Path(__file__).parent.parent
MOST = 1.02
QUIET = 60
"""Steps at the end without a fault: a process takes some 40 of the others' to start."""


@dataclass(frozen=True)
class Ending:
    """One swarm, from its report."""

    loss: float
    lives: int
    """Processes of peers, over all of them."""
    windows: int
    missing: int
    """Chunks that no link was made for."""
    equal: bool
    """Whether all peers that finished have the same outer parameters, and all finished."""
    seconds: float


def churn(peers: int, steps: int, every: int, gone: float, seed: int) -> list[str]:
    """The flags of the faults: each time another quarter, never one that is still away by the draw before."""
    chance, flags, last = Random(seed), [], set[int]()
    quarter = max(1, peers // 4)
    for step in range(every // 2, steps - QUIET, every):
        last = set(chance.sample([peer for peer in range(peers) if peer not in last], quarter))
        flags += [flag for peer in sorted(last) for flag in ("--restart", f"{peer}@{step}:{gone:g}")]
    return flags


def run(folder: Path, arguments: list[str], timeout: float) -> Ending:
    """One swarm, to its end."""
    command = [sys.executable, "-m", "peer.cli", "swarm", "--out", str(folder), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    try:
        report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    except FileNotFoundError:
        raise SystemExit(f"no report:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}") from None
    return ending(report)


def ending(report: dict[str, Any]) -> Ending:
    """What a report says."""
    peers = report["peers"]
    digests = {peer["outer_digest"] for peer in peers}
    return Ending(
        loss=report["evaluation"]["outer_loss_end"] or float("nan"),
        lives=sum(peer["lives"] for peer in peers),
        windows=len(report["windows"]),
        missing=sum(window["chunks"]["missing"] for window in report["windows"]),
        equal=len(digests) == 1 and None not in digests,
        seconds=max(peer["seconds"]["total"] for peer in peers),
    )


def main() -> None:
    """All pairs, and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--every", type=int, default=60)
    parser.add_argument("--gone", type=float, default=5.0)
    parser.add_argument("--slow", type=float, default=3.0)
    parser.add_argument("--data", default="bible")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one swarm")
    given = parser.parse_args()
    pairs = []
    print(
        f"{'seed':>4}  {'':5}  {'loss':>6}  {'lives':>5}  {'windows':>7}  {'missing':>7}  {'equal':>5}  {'seconds':>7}"
    )
    for seed in given.seeds:
        common = ["--peers", given.peers, "--steps", given.steps, "--seed", seed, "--data", given.data]
        common += [flag for peer in range(given.peers) for flag in ("--slow", f"{peer}:{given.slow:g}")]
        faults = churn(given.peers, given.steps, given.every, given.gone, seed)
        pair = []
        for kind, flags in (("quiet", []), ("churn", faults)):
            with tempfile.TemporaryDirectory() as folder:
                pair.append(run(Path(folder), [*map(str, common), *flags], given.timeout))
            say(seed, kind, pair[-1])
        pairs.append(pair)
    raise SystemExit(conclusion(pairs))


def say(seed: int, kind: str, one: Ending) -> None:
    """One line of the table."""
    equal = "yes" if one.equal else "NO"
    words = f"{seed:>4}  {kind:5}  {one.loss:6.3f}  {one.lives:>5}  {one.windows:>7}  {one.missing:>7}  {equal:>5}"
    print(f"{words}  {one.seconds:7.0f}", flush=True)


def conclusion(pairs: list[list[Ending]]) -> int:
    """The ratio of the mean losses, and the exit code."""
    quiet, churned = (fmean(pair[index].loss for pair in pairs) for index in (0, 1))
    print(
        f"mean loss {quiet:.3f} without churn, {churned:.3f} with it: {churned / quiet:.3f} (at most {MOST} is wanted)"
    )
    whole = all(one.equal for pair in pairs for one in pair)
    if not whole:
        print("THE OUTER PARAMETERS DIFFER, or a peer did not finish")
    return 0 if whole and churned <= MOST * quiet else 1


if __name__ == "__main__":
    main()
