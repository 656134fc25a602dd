"""One run of the lab: M replicas in one process, one after another, with the network's schedule and arithmetic.

The loop is Algorithm 2 of Streaming DiLoCo (arXiv 2501.18512). In each swarm step every replica trains, then takes the
results that are τ steps old, then snapshots the fragment that is due: the order of a peer's step boundary. With one
thread, e3m0 or none both ways and the manifest's numbers this gives the same outer parameters as a swarm in lock-step,
bit for bit (tests/peer/test_lab.py). Replicas are in the order of peer ids there.

Not vectorized over replicas: torch.func's vmap over stacked parameters was measured (docs/decisions/0018).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate as running_sums
from math import prod
from statistics import fmean
from typing import Final

import torch
from torch import Tensor

from aggregation.fragments import Chunk
from aggregation.outer import merge, outer_gradient
from protocol.errors import UserError
from protocol.schedule import Window
from simulation.lab.compression import compression, draws_in_common
from simulation.lab.compression.base import Compression
from simulation.lab.history import History, similarities
from simulation.lab.methods import EVERY_STEP, exchange
from simulation.lab.methods.agreed import Agreed
from simulation.lab.methods.exchange import Contribution, Setting, average
from simulation.lab.recipe import Recipe
from simulation.lab.workload import Trainee, Workload

FP32_BITS: Final = 32
Memory = dict[tuple[int, str], dict[str, Tensor]]
"""What a compression remembers, by (fragment, parameter)."""


class Way:
    """One direction of the traffic of one replica: its compression, what it remembers, the bits so far."""

    def __init__(self, how: Compression, seed: int, share: float, *, common: int | None) -> None:
        """`share` of the values travels; the receiver knows which. Random numbers are from `seed`; with `common`, the
        run's, they begin anew in each window, so that every way of the run draws the same ones."""
        self.bits = 0.0
        self._how = how
        self._share = share
        self._memory: Memory = {}
        self._common = common
        self._generator = torch.Generator().manual_seed(seed)

    def send(
        self, window: Window, values: Tensor, parts: Sequence[tuple[str, tuple[int, ...]]], *, part: float = 1.0
    ) -> Tensor:
        """What arrives of a window's flat fragment that is compressed in these parts (name, shape).

        Its bits count for a `part` of the replicas, where not all are at this end of the way.
        """
        if self._common is not None:
            self._generator.manual_seed(_seed_of(self._common, window))
        ends = list(running_sums(prod(shape) for _, shape in parts))
        pieces = []
        for (name, shape), end in zip(parts, ends, strict=True):
            piece = values[end - prod(shape) : end].view(shape)
            memory = self._memory.setdefault((window.fragment, name), {})
            pieces.append(self._sent(piece, memory, part * self._share).reshape(-1))
        return torch.cat(pieces)

    def _sent(self, piece: Tensor, memory: dict[str, Tensor], counted: float) -> Tensor:
        """NaN where the codec refuses: the run has diverged, and is to say so instead of ending all others."""
        try:
            sent = self._how.compress(piece, memory=memory, generator=self._generator)
        except ValueError:
            return torch.full_like(piece, torch.nan)
        self.bits += sent.bits * counted
        return sent.values


def _seed_of(run: int, window: Window) -> int:
    """What all replicas draw from in one window of a run."""
    digest = hashlib.sha256(f"lab {run} {window.fragment} {window.due}".encode()).digest()
    return int.from_bytes(digest[:7])


@dataclass
class Replica:
    """One of M."""

    index: int
    trainee: Trainee
    way: Way
    samples: int = 0
    steps: int = 0
    sent: dict[int, int] = field(default_factory=dict)
    """By fragment, the samples at its last contribution."""
    counted: dict[tuple[int, int], int] = field(default_factory=dict)
    """By (fragment, chunk), the samples at its last contribution that came into a mean: the others go on weighing."""


@dataclass
class Flight:
    """A window that has opened: what was sent, and once someone merges it, which chunks have a result."""

    window: Window
    sent: dict[int, Contribution]
    waiting: set[int]
    closed: set[int] | None = None


class Run:
    """One recipe, one seed. `advance` takes one swarm step; `finish` evaluates."""

    def __init__(self, recipe: Recipe, workload: Workload, seed: int, *, evaluate_every: int = 0) -> None:
        """With `evaluate_every`, the outer parameters are evaluated that often. UserError for what cannot be run."""
        self.recipe = recipe
        self.step = 0
        self.history = History()
        self._workload = workload
        self._evaluate_every = evaluate_every
        self._layout = workload.layout(recipe)
        up, self._down = self._ways(recipe, seed)
        together = recipe.exchange == EVERY_STEP
        seats = [tuple(range(recipe.replicas))] if together else [(index,) for index in range(recipe.replicas)]
        self._replicas = [
            Replica(index, workload.trainee(recipe, seed, given), up(index)) for index, given in enumerate(seats)
        ]
        self._fragments = range(len(self._layout.fragments))
        chunks = self._chunks()
        self._chunks_of = [[chunk for chunk in chunks if chunk.fragment == index] for index in self._fragments]
        initial = [self._replicas[0].trainee.read(index) for index in self._fragments]
        self.passed_on = 0.0
        """Bits that a replica sent besides its contributions, on average."""
        setting = Setting(recipe, initial, self._chunks_of, self._receive, self._pass_on, seed)
        self.exchange = None if together else exchange(setting)
        self._short, self._schedule = recipe.schedules()
        self._flights: list[Flight] = []
        self._chance = random.Random(f"lab {seed}")
        self._trained: Sequence[int] = self._fragments

    def _ways(self, recipe: Recipe, seed: int) -> tuple[Callable[[int], Way], Way]:
        try:
            up, down = compression(recipe.up), compression(recipe.down)
        except ValueError as error:
            raise UserError(str(error)) from error
        share = recipe.share if "subsets" in recipe.exchange else 1.0
        common = [seed if draws_in_common(how) else None for how in (recipe.up, recipe.down)]
        return (
            lambda index: Way(up, seed * 1000 + index + 1, share, common=common[0]),
            Way(down, seed * 1000, share, common=common[1]),
        )

    def _chunks(self) -> tuple[Chunk, ...]:
        block = self.recipe.block
        largest = max(fragment.numel for fragment in self._layout.fragments)
        return self._layout.chunks(self.recipe.chunk or -(-largest // block) * block, block)

    def run(self) -> History:
        """All steps, and with `Recipe.settle` what has not been exchanged by then."""
        while self.step < self.recipe.steps:
            self.advance()
        return self.finish()

    def advance(self) -> None:
        """One swarm step."""
        self.step += 1
        sent = [replica.way.bits for replica in self._replicas]
        self._freeze()
        self._train()
        if self.exchange:
            self._merge()
            self._open()
            self._merge()  # with τ = 0, what has just opened
        peak = max(replica.way.bits - before for replica, before in zip(self._replicas, sent, strict=True))
        self.history.peak_bits = max(self.history.peak_bits, peak)
        if self._evaluate_every and self.step % self._evaluate_every == 0:
            self.history.outer.append((self.step, self._evaluate(self.outer())))

    def finish(self) -> History:
        """Evaluate what there is now. Call it once."""
        replicas = [[replica.trainee.read(index) for index in self._fragments] for replica in self._replicas]
        mean = [average(values) for values in zip(*replicas, strict=True)]
        history = self.history
        history.first, history.average = self._evaluate(replicas[0]), self._evaluate(mean)
        if self.exchange and self.recipe.settle:
            self._settle()
        history.loss = self._evaluate(self.outer())
        history.bits_up = fmean(replica.way.bits for replica in self._replicas) + self.passed_on
        gathered = (self.recipe.replicas - 1) * history.bits_up
        history.bits_down = gathered if self.recipe.gather else self._down.bits
        history.steps_taken = [replica.steps for replica in self._replicas]
        history.digest = self.exchange.digest() if isinstance(self.exchange, Agreed) else ""
        return history

    def _settle(self) -> None:
        """One more window for each fragment, merged at once; and where results come late, those that are under way."""
        assert self.exchange
        for _ in range(1 + self.exchange.delay):
            for index in self._fragments:
                flight = self._started(Window(index, self.step))
                for replica in self._replicas:
                    self._merge_one(flight, replica)

    def outer(self) -> list[Tensor]:
        """The outer parameters, flat, by fragment."""
        if not self.exchange:
            return [self._replicas[0].trainee.read(index) for index in self._fragments]
        return [self.exchange.outer(index) for index in self._fragments]

    def _evaluate(self, parameters: Sequence[Tensor]) -> float:
        return self._workload.evaluate(self.recipe, parameters)

    # Training

    def _freeze(self) -> None:
        """FedPart: of all fragments only the one that is due next trains. The others stand still from here on."""
        if not self.recipe.freezing:
            return
        due = {index: self._schedule.next_due(index, self.step - 1) for index in self._fragments}
        coming = {step: index for index, step in due.items() if step is not None}
        trained = [coming[min(coming)]] if coming else list(self._fragments)
        if trained != self._trained:
            self._trained = trained
            for replica in self._replicas:
                replica.trainee.train_only(trained)

    def _train(self) -> None:
        losses = []
        for replica in self._replicas:
            if self.recipe.inner_steps(replica.index, self.step) and not self._stands_still(replica.index):
                losses.append(replica.trainee.train(self.step - 1))
                replica.samples += self.recipe.batch
                replica.steps += 1
                if not self.exchange and self.recipe.replicas > 1:
                    replica.way.bits += FP32_BITS * self._layout.numel
                    self._down.bits += FP32_BITS * self._layout.numel
        previous = self.history.train[-1] if self.history.train else float("nan")
        self.history.train.append(fmean(losses) if losses else previous)

    def _is_away(self, replica: int) -> bool:
        return any(a.replica == replica and a.first <= self.step <= a.last for a in self.recipe.away)

    def _stands_still(self, replica: int) -> bool:
        return any(a.replica == replica and a.first <= self.step <= a.last and not a.trains for a in self.recipe.away)

    # Windows

    def _opening(self) -> Iterator[Window]:
        schedule = self._short if self.step <= self.recipe.short_steps else self._schedule
        yield from schedule.opening(self.step)

    def _open(self) -> None:
        self._flights.extend(map(self._started, self._opening()))

    def _started(self, window: Window) -> Flight:
        """What everyone who can sends in a window."""
        sent = {replica.index: made for replica in self._replicas if (made := self._contribution(replica, window))}
        self._note(window, sent)
        return Flight(window, sent, {replica.index for replica in self._replicas})

    def _contribution(self, replica: Replica, window: Window) -> Contribution | None:
        """Δ, sent. None of a replica that is away, diverged, or has not trained since its last."""
        assert self.exchange
        fragment = window.fragment
        if self._is_away(replica.index) or replica.samples == replica.sent.get(fragment, 0):
            return None
        replica.sent[fragment] = replica.samples
        delta = outer_gradient(self.exchange.base(replica.index, fragment), replica.trainee.read(fragment))
        if not bool(delta.isfinite().all()):
            return None  # as a peer does
        values = replica.way.send(window, delta, self._parts(fragment))
        if not bool(values.isfinite().all()):
            return None
        chunks = range(len(self._chunks_of[fragment]))
        arrived = tuple(self._happens(1 - self.recipe.drop) for _ in chunks)
        tokens = tuple(replica.samples - replica.counted.get((fragment, chunk), 0) for chunk in chunks)
        return Contribution(tokens, replica.samples, values, delta, arrived)

    def _parts(self, fragment: int) -> list[tuple[str, tuple[int, ...]]]:
        whole = self._layout.fragments[fragment]
        if self.recipe.per_tensor:
            return [(name, self._layout.shapes[name]) for name in whole.names]
        return [("", (whole.numel,))]

    def _receive(self, window: Window, mean: Tensor, receivers: int) -> Tensor:
        return self._down.send(window, mean, self._parts(window.fragment), part=receivers / len(self._replicas))

    def _pass_on(self, fragment: int, senders: int) -> None:
        bits = FP32_BITS * self._layout.fragments[fragment].numel * senders / len(self._replicas)
        self._down.bits += bits
        self.passed_on += bits

    def _happens(self, chance: float) -> bool:
        return chance >= 1 or self._chance.random() < chance

    def _note(self, window: Window, sent: dict[int, Contribution]) -> None:
        """Norms and cosines of what was sent."""
        if not sent:
            return
        deltas = [contribution.exact for contribution in sent.values()]
        norms = fmean(float(delta.norm()) for delta in deltas), float(average(deltas).norm())
        self.history.norms.append((window.due, window.fragment, *norms))
        for layer, cosine in similarities(self._layout, window.fragment, deltas).items():
            self.history.cosine.setdefault(layer, []).append((window.due, cosine))

    def _merge(self) -> None:
        """Each replica merges the windows that it sent τ steps ago."""
        for flight in self._flights:
            here = [i for i in sorted(flight.waiting) if flight.window.due + self.recipe.overlap_of(i) == self.step]
            for index in here:
                self._merge_one(flight, self._replicas[index])
        self._flights = [flight for flight in self._flights if flight.waiting]

    def _closed(self, window: Window, sent: dict[int, Contribution]) -> set[int]:
        """The chunks that have a result. What did not arrive there still counts for its sender's next contribution."""
        assert self.exchange
        closed = self.exchange.close(window, sent)
        for replica, contribution in sent.items():
            for chunk in closed:
                if contribution.arrived[chunk]:
                    self._replicas[replica].counted[window.fragment, chunk] = contribution.samples
        return closed

    def _merge_one(self, flight: Flight, replica: Replica) -> None:
        assert self.exchange
        flight.waiting.remove(replica.index)
        fragment = flight.window.fragment
        if flight.closed is None:
            flight.closed = self._closed(flight.window, flight.sent)
        if self._is_away(replica.index) or not flight.closed:
            return
        local = replica.trainee.read(fragment)
        target = self.exchange.target(replica.index, fragment, local)
        for index, chunk in enumerate(self._chunks_of[fragment]):
            if index in flight.closed and self._happens(1 - self.recipe.skip):
                part = slice(chunk.start, chunk.stop)
                mixed = merge(local[part], target[part], self.recipe.alpha(self.step))
                replica.trainee.write(fragment, chunk.start, mixed)
