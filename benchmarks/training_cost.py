"""What a busy swarm costs the training beside it: tokens/s with and without, in pairs.

The peer under test trains on core 0 with one thread, and everything of its own (outer thread, p2pd) shares that core.
A bootstrap server and three scripted contributors, which do not train, keep the swarm busy from core 1. The baseline
is the same loop in a process that never imports potluck's public face or hivemind. Runs alternate, baseline and
swarm, so that a machine whose speed drifts does not decide.

    python benchmarks/training_cost.py [--pairs 3] [--steps 300] [--json]

Needs two cores and Linux (processor affinity). Prints tokens/s of both, and the ratio of each pair.
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
from statistics import median

from entry import ready_address

WARM_UP = 20
BATCH, SEQUENCE = 8, 128


def manifest_file(folder: Path, steps: int) -> Path:
    """A sealed manifest for four peers with the default schedule (H = 100, τ = 5) and the tiny model."""
    from peer.data import load_corpus
    from peer.sealing import seal
    from protocol.manifest import Manifest, changed
    from protocol.manifest_toml import dumps

    values = {
        "model.name": "tiny",
        "run.name": "cost",
        "run.start_peers": 4,
        "run.steps": steps,
        "data.sequence": SEQUENCE,
        "training.warmup": 20,
    }
    path = folder / "manifest.toml"
    path.write_text(dumps(seal(changed(Manifest(), values), load_corpus("bible"))))
    return path


def train(steps: int, swarm: object = None, ready: object = None) -> float:
    """The loop of both sides: tokens a second after the warm-up. `swarm` makes a peer out of model and optimizer."""
    import torch

    from aggregation.initial import initialize
    from peer.data import Batches, load_corpus
    from peer.models import Decoder, preset
    from peer.training import InnerConfig, make_optimizer, train_step

    torch.set_num_threads(1)
    model = Decoder(preset("tiny"))
    initialize(model, 0, model.initial_stds())
    config = InnerConfig(total_steps=steps)
    optimizer = make_optimizer(model, config)
    batches = Batches(load_corpus("bible"), seed=0, seat=0, batch=BATCH, sequence=SEQUENCE)
    peer = swarm(model, optimizer) if callable(swarm) else None
    began = done = 0.0
    for step in range(steps):
        if step == WARM_UP:
            began = time.perf_counter()
        train_step(model, optimizer, batches.at(step), config, step)
        done += 1
        if peer is not None and peer.finished:
            break
    rate = (done - WARM_UP) * BATCH * SEQUENCE / (time.perf_counter() - began)
    if peer is not None:
        counts = peer.record.counts(None)
        said = {"windows": counts.opened, "merged": counts.merged, "late": counts.late, "hook": peer.times.hook}
        print(json.dumps(said), file=sys.stderr)
        peer.linger()
        peer.close()
        peer.network.close()
    return rate


def under_test(folder: Path, join: str, steps: int) -> float:
    """The same loop as a peer of the swarm."""
    import potluck

    def swarm(model: object, optimizer: object) -> object:
        settings = potluck.Settings(name="under-test", out=folder / "under-test", join=(join,))
        peer = potluck.join(
            model, optimizer, manifest=folder / "manifest.toml", settings=settings, tokens_per_step=BATCH * SEQUENCE
        )
        peer.gather()
        return peer

    return train(steps, swarm)


def contribute(folder: Path, join: str, index: int, step_seconds: float) -> None:
    """A scripted contributor: steps by the clock, moves its parameters a little, takes part in all windows."""
    import torch

    import potluck
    from peer.models import Decoder, preset

    torch.set_num_threads(1)
    model = Decoder(preset("tiny"))
    potluck.initialize(model, 0, model.initial_stds())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    settings = potluck.Settings(name=f"scripted-{index}", out=folder / f"scripted-{index}", join=(join,))
    manifest = folder / "manifest.toml"
    with potluck.join(model, optimizer, manifest=manifest, settings=settings, tokens_per_step=1024) as peer:
        peer.gather()
        while not peer.finished:
            time.sleep(step_seconds)
            if peer.own_step % 10 == 0:
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.mul_(1.001)
            optimizer.step()


def spawn(core: int, *arguments: str) -> subprocess.Popen[str]:
    """This script again, on one core."""
    command = [sys.executable, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        ["taskset", "-c", str(core), *command],
        text=True,
        env=environment,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


def one_pair(folder: Path, steps: int) -> tuple[float, float]:
    """Baseline, then swarm; tokens/s of each."""
    folder.mkdir()
    manifest_file(folder, steps)
    baseline = spawn(0, __file__, "--role", "baseline", "--steps", str(steps))
    alone = float(baseline.communicate(timeout=600)[0])
    step_seconds = BATCH * SEQUENCE / alone
    server = ["-m", "peer.cli", "bootstrap", "--json", "--listen", "/ip4/127.0.0.1/tcp/0"]
    server += ["--manifest", str(folder / "manifest.toml"), "--identity", str(folder / "bootstrap.key")]
    processes = [spawn(1, *server)]
    try:
        join = ready_address(processes[0])
        common = ["--folder", str(folder), "--join", join, "--steps", str(steps)]
        for index in range(3):
            role = ["--role", "contributor", "--index", str(index), "--step-seconds", str(step_seconds)]
            processes.append(spawn(1, __file__, *role, *common))
        tested = spawn(0, __file__, "--role", "under-test", *common)
        processes.append(tested)
        together = float(tested.communicate(timeout=900)[0])
        for process in processes[1:]:
            process.wait(60)
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            process.wait(30)
    return alone, together


def main() -> None:
    """Run the pairs, or one role of one run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--join", help=argparse.SUPPRESS)
    parser.add_argument("--index", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--step-seconds", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    match given.role:
        case "baseline":
            print(train(given.steps))
        case "under-test":
            print(under_test(given.folder, given.join, given.steps))
        case "contributor":
            contribute(given.folder, given.join, given.index, given.step_seconds)
        case _:
            compare(given.pairs, given.steps, given.json)


def compare(pairs: int, steps: int, as_json: bool) -> None:
    """All pairs, and the median of their ratios."""
    with tempfile.TemporaryDirectory() as folder:
        rates = [one_pair(Path(folder) / str(index), steps) for index in range(pairs)]
    ratios = [together / alone for alone, together in rates]
    if as_json:
        print(json.dumps({"pairs": rates, "ratios": ratios, "median": median(ratios)}))
        return
    for alone, together in rates:
        print(f"alone {alone:9.0f} tokens/s   in the swarm {together:9.0f} tokens/s   ratio {together / alone:.3f}")
    print(f"median ratio {median(ratios):.3f} (at least 0.98 is wanted)")


if __name__ == "__main__":
    main()
