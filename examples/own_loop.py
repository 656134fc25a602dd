"""potluck in somebody else's training loop: a small network learns a sine, and each peer sees only half of it.

    python examples/own_loop.py --peers 2             # both peers on this machine

or by hand, in two terminals:

    python examples/own_loop.py                       # prints its address, and waits for the other
    python examples/own_loop.py --join ADDRESS        # knows nothing but that

Everything but the lines marked with `potluck` is an ordinary PyTorch loop.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import potluck

BATCH = 64
MANIFEST = Path(__file__).with_suffix(".toml")


def curve(low: float, high: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of a sine between two angles: x and y, both (BATCH, 1)."""
    x = torch.empty(BATCH, 1).uniform_(low, high)
    return x, torch.sin(x)


def make_model() -> nn.Module:
    """Four equal blocks between two linear layers. All peers of a run start from the same parameters, to the bit."""
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)]
    model = nn.Sequential(nn.Linear(1, 64), *blocks, nn.Linear(64, 1))
    potluck.initialize(model, 1, {"0.weight": 1.0} | {f"{block}.0.weight": 0.15 for block in range(1, 5)})  # potluck
    return model


def train(number: int, peers: int, join: tuple[str, ...], out: Path) -> None:
    """One peer. The first brings the manifest; the others ask for it at the address they were given."""
    torch.manual_seed(number)
    torch.set_num_threads(1)  # the matrices are small, and there are two of us
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    # A step takes a millisecond here, so merges may wait; in a loop of real size they need not.
    settings = potluck.Settings(name=f"loop-{number}", out=out, join=join, merge_wait=1.0)  # potluck
    manifest = None if join else MANIFEST
    peer = potluck.join(model, optimizer, tokens_per_step=BATCH, manifest=manifest, settings=settings)  # potluck
    print(f"peer {number} is at {peer.addresses[0]}", flush=True)
    others = [start_other(index, peer.addresses[0]) for index in range(1, peers)]
    with peer:  # potluck
        while not peer.finished:  # potluck
            x, y = curve(3.0 * number, 3.0 * number + 3.0)
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        peer.linger()  # potluck: until both have the same outer parameters
        peer.write_outer(potluck.ModuleParameters(model, peer.layout))  # potluck: the swarm's result
    with torch.no_grad():
        x = torch.linspace(0.0, 6.0, 601)[:, None]
        y = torch.sin(x)
        print(f"peer {number}: error on the whole curve {nn.functional.mse_loss(model(x), y):.4f}", flush=True)
    for other in others:
        other.wait(60)


def start_other(number: int, address: str) -> subprocess.Popen[bytes]:
    """Another peer, in a process of its own."""
    return subprocess.Popen([sys.executable, __file__, "--join", address, "--number", str(number)])


def main() -> None:
    """Read the command line and train in a folder that is thrown away afterwards."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--peers", type=int, default=1, help="peers to start here")
    arguments.add_argument("--join", help="address of a peer of the run")
    arguments.add_argument("--number", type=int, help="0 sees the first half of the curve, 1 the second")
    given = arguments.parse_args()
    number = given.number if given.number is not None else int(given.join is not None)
    with tempfile.TemporaryDirectory() as out:
        train(number, given.peers, (given.join,) if given.join else (), Path(out))


if __name__ == "__main__":
    main()
