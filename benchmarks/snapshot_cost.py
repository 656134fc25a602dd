"""What a snapshot costs training: the time for which the training thread copies, and what happens behind it.

Prints, for models of several sizes, the time of the copy (in which training stands) and of the write (in the
background), the snapshot's bytes, and the steps a second of a training loop with and without a snapshot being written
all the time.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path

import torch
from torch import nn

from aggregation.fragments import partition
from peer.parameters import ModuleParameters
from peer.snapshot_files import Index, SnapshotFolder
from peer.snapshots import OuterPart, Snapshots, Taken, pack_state

SIZES = (0.5, 4.0, 35.0)
"""Millions of parameters."""


def model_of(millions: float) -> nn.Module:
    """Eight square layers with so many parameters together."""
    width = int((millions * 1e6 / 8) ** 0.5)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(8)))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    """One inner step."""
    (model(batch) - batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def measure(millions: float, folder: Path, seconds: float) -> tuple[float, float, float, float, float]:
    """(seconds of a copy, of a write, bytes, steps a second without, and with snapshots all the time)."""
    model = model_of(millions)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    parameters = ModuleParameters(model, partition(model, fragments=2))
    batch = torch.randn(64, model[0].in_features)
    written: list[dict[str, float]] = []
    snapshots = Snapshots(
        SnapshotFolder(folder, run=bytes(32), kept=2), interval=1, layout=parameters.layout, manifest="",
        notice=print, written=lambda _, **values: written.append(values),
    )  # fmt: skip
    step(model, optimizer, batch)

    def take(number: int) -> None:
        began = time.monotonic()
        snapshots.begin()
        state, packed, _ = pack_state(optimizer, None, print)
        fragments = [parameters.read(fragment.index) for fragment in parameters.layout.fragments]
        index = Index(
            potluck="", run="", peer="", step=number, own_step=number, tokens=0, from_step=0, seat=0, mixed=(),
            opened=(), marks=(), optimizer=packed, loop=None,
        )  # fmt: skip
        snapshots.put(Taken(index, fragments, state, time.monotonic() - began), OuterPart({}, ()))

    def pace(snapshotting: bool) -> float:
        end, count = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            step(model, optimizer, batch)
            count += 1
            if snapshotting and snapshots.is_due(len(written) + 1):
                take(len(written) + 1)
        return count / seconds

    without = pace(False)
    with_them = pace(True)
    assert snapshots.wait(60)
    copies = sorted(values["copy_seconds"] for values in written)
    writes = sorted(values["write_seconds"] for values in written)
    return copies[len(copies) // 2], writes[len(writes) // 2], written[-1]["bytes"], without, with_them


def main() -> None:
    """Print the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=float, default=5.0, help="for each of the two measurements of a size")
    seconds = arguments.parse_args().seconds
    torch.set_num_threads(1)
    print("million parameters   copy ms   write ms   MB   steps/s without   with one always being written")
    for millions in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            copy, write, size, without, with_them = measure(millions, Path(folder), seconds)
        row = f"{millions:18.1f} {1e3 * copy:9.1f} {1e3 * write:10.0f} {size / 1e6:4.0f}"
        print(f"{row} {without:17.1f} {with_them:14.1f}", flush=True)
    assert threading.active_count() == 1


if __name__ == "__main__":
    main()
