"""Small real swarms in one process: each peer has its own p2pd and outer thread, and the test is the trainer of all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import enumerate as threads
from typing import Any

import psutil
import pytest
import torch
from torch import nn

import potluck
from peer.member import Peer
from protocol.manifest import Manifest, changed

WIDTH = 16
FIELDS: dict[str, object] = {
    "run.name": "small",
    "run.steps": 20,
    "schedule.sync_every": 6,
    "schedule.overlap": 2,
    "schedule.fragments": 2,
    "merge.late_steps": 3,
    "codec.chunk": 1024,
    "codec.block": 32,
}


@dataclass
class Replica:
    """A model, its optimizer, and its membership."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    peer: Peer
    notices: list[str]
    index: int = 0
    losses: list[float] = field(default_factory=list)

    def train(self, *, accumulate: int = 1) -> None:
        """One inner step towards a target of this replica's own, over `accumulate` small batches."""
        for _ in range(accumulate):
            batch = torch.linspace(-1, 1, 4 * WIDTH).reshape(4, WIDTH) * (self.index + 1)
            loss = (self.model(batch) - batch).square().mean()
            loss.backward()
            self.losses.append(loss.item())
        self.optimizer.step()
        self.optimizer.zero_grad()

    @property
    def address(self) -> str:
        """Where others join through this peer."""
        found: list[str] = self.peer.network.call(self.peer.network.daemon.addresses())
        return found[0]

    def digest(self) -> bytes:
        """Of the outer parameters and momentum."""
        return self.peer.write_outer(potluck.ModuleParameters(small_model(), self.peer.layout))


def small_model(seed: int = 0, width: int = WIDTH, layers: int = 4) -> nn.Module:
    """Four blocks that potluck has never heard of."""
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    potluck.initialize(model, seed)
    return model


def small_manifest(**values: object) -> Manifest:
    """The fields above and `section__key` ones."""
    return changed(Manifest(), FIELDS | {name.replace("__", "."): value for name, value in values.items()})


class Swarm:
    """Starts replicas; all of them are closed at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.replicas: list[Replica] = []

    def add(
        self,
        manifest: Manifest | None,
        *,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
        join: Sequence[str] | None = None,
        model: nn.Module | None = None,
        folder: str = "",
        **settings: Any,
    ) -> Replica:
        """One more peer; it joins through the first one, in a folder of its own, unless told otherwise."""
        model, notices, index = model or small_model(), [], len(self.replicas)
        if join is None:
            join = [self.replicas[0].address] if self.replicas else []
        steps = optimizer(model.parameters(), lr=0.05)
        name = folder or f"peer-{index}"
        settings = {"linger": 10, **settings}
        ours = potluck.Settings(name=name, out=self._folder / name, join=tuple(join), **settings)
        peer = potluck.join(model, steps, tokens_per_step=64, manifest=manifest, settings=ours, notice=notices.append)
        replica = Replica(model, steps, peer, notices, index)
        self.replicas.append(replica)
        return replica

    def run(self, steps: int = 10**6, after: Callable[[Replica], None] = lambda replica: None) -> None:
        """Train in turns until everyone has finished, or for so many inner steps each."""
        for replica in self.replicas:
            replica.peer.gather()
        for _ in range(steps):
            going = [replica for replica in self.replicas if not replica.peer.finished]
            if not going:
                return
            for replica in going:
                replica.train()
                after(replica)

    def linger(self) -> list[bool]:
        """All at once, as they would on machines of their own."""
        with ThreadPoolExecutor() as pool:
            return list(pool.map(lambda replica: replica.peer.linger(), self.replicas))

    def close(self) -> float:
        """Leave. Returns the seconds of the slowest."""
        began = time.monotonic()
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda replica: replica.peer._leave(), self.replicas))
        return time.monotonic() - began


def left_behind(before: set[psutil.Process]) -> list[Any]:
    """Processes and outer threads that are still here."""
    processes = [child for child in set(psutil.Process().children(recursive=True)) - before if child.is_running()]
    return [*processes, *(thread for thread in threads() if thread.name == "potluck-outer")]


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Swarm]:
    """A swarm that must leave nothing behind."""
    before = set(psutil.Process().children(recursive=True))
    made = Swarm(tmp_path)
    try:
        yield made
    finally:
        made.close()
    assert left_behind(before) == []


@pytest.fixture
def small() -> Callable[..., Manifest]:
    """`small(run__steps=30)`: the manifest of a run of a few seconds."""
    return small_manifest


@pytest.fixture
def blocks() -> Callable[..., nn.Module]:
    """`blocks(seed=1)`: a model that potluck has never heard of."""
    return small_model


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fails if a process or an outer thread outlives the test."""
    before = set(psutil.Process().children(recursive=True))
    yield
    assert left_behind(before) == []
