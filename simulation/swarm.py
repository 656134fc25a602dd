"""A swarm on the virtual network: protocol/ and aggregation/ unchanged, a toy trainer, and the promises as checks.

The trainer pulls its parameters towards a point of its own with seeded noise: enough for deltas to be real, different
and bounded. Everything else is what a volunteer's machine runs. `Invariants` watches every node after every event.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

import torch

from aggregation.arithmetic import Arithmetic
from aggregation.codecs import codec
from aggregation.outer import ChunkState, merge
from protocol.commands import Contributed, Missed, Notice, Retry, Send, Settled
from protocol.errors import ProtocolError
from protocol.ledger import Ledger
from protocol.merging import Merges, Mix
from protocol.messages import FINISHED, encode, sha256
from protocol.node import Node
from protocol.pace import boundary
from protocol.presence import Presence
from protocol.roster import Roster
from protocol.schedule import Schedule, Window, spread
from protocol.window import Rules
from simulation.invariants import Invariants
from simulation.network import Clock, Network, Weather

RUN = sha256(b"a simulated run")


class CheapKeys:
    """Signatures that only the simulator would accept: a hash keyed by the peer's name."""

    def __init__(self, key: bytes) -> None:
        self.key = key

    def sign(self, message: bytes) -> bytes:
        return hashlib.blake2b(message, key=self.key).digest()

    def verify(self, key: bytes, message: bytes, signature: bytes) -> bool:
        return hashlib.blake2b(message, key=key).digest() == signature


@dataclass(frozen=True, slots=True)
class Plan:
    """One simulated run. Times in seconds of virtual time."""

    peers: int = 4
    steps: int = 80
    sync_every: int = 12
    overlap: int = 4
    fragments: int = 2
    chunks_a_fragment: int = 2
    elements: int = 64
    mixing: float = 0.5
    late_steps: int = 10
    contribution_codec: str = "e3m0"
    result_codec: str = "e3m0"
    step_seconds: float = 0.1
    slowness: tuple[float, ...] = ()
    tokens_a_step: tuple[int, ...] = ()
    """For each peer; 100 where none is given."""
    lockstep: bool = False
    """Window contributors are complete, and a peer waits at its merge boundary until the window has settled."""
    weather: Weather = field(default_factory=Weather)

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.sync_every, self.overlap, spread(self.fragments, self.sync_every), self.steps)

    @property
    def fragment_of(self) -> tuple[int, ...]:
        return tuple(f for f in range(self.fragments) for _ in range(self.chunks_a_fragment))


class SimulatedPeer:
    """A node, its toy trainer and its bridge to it, on the virtual network."""

    def __init__(self, index: int, plan: Plan, network: Network, keys: Sequence[bytes], invariants: Invariants) -> None:
        self.index, self.plan, self.network, self.key = index, plan, network, keys[index]
        self.invariants = invariants
        self.own_step = 0
        self.step = 0
        self.noticed: list[Window] = []
        self.retries: list[Window] = []
        self.missed: list[Missed] = []
        self.refused = 0
        self.mixes: list[Mix] = []
        self.crashed = False
        self._then: Callable[[], None] | None = None
        chunks = len(plan.fragment_of)
        self.arithmetic = Arithmetic(
            [plan.elements] * chunks,
            contribution_codec=codec(plan.contribution_codec, block=32),
            result_codec=codec(plan.result_codec, block=32),
            lr=0.4,
            momentum=0.9,
        )
        zero = torch.zeros(plan.elements)
        genesis = [ChunkState(anchor=torch.arange(plan.elements) / 64 + c, momentum=zero) for c in range(chunks)]
        ledger = Ledger(run=RUN, genesis=genesis, arithmetic=self.arithmetic, keys=CheapKeys(self.key), weight_cap=4)
        self.node = Node(
            ledger=ledger,
            arithmetic=self.arithmetic,
            roster=self._roster(keys),
            schedule=plan.schedule,
            rules=Rules(plan.sync_every, 4, plan.fragment_of, plan.peers if plan.lockstep else 0),
            keys=CheapKeys(self.key),
            random=network.random,
        )
        self.merges = Merges(overlap=plan.overlap, late_steps=plan.late_steps, fragment_of=plan.fragment_of)
        self.theta = [state.anchor.clone() for state in genesis]
        self.anchors = [state.anchor for state in genesis]
        self._timer = inf
        network.join(
            self.key,
            self._deliver,
            lost=lambda peer: self._do(lambda now: self.node.lost(peer, now)),
            met=lambda peer: self._do(lambda now: self.node.greet(peer, now)),
        )

    def _roster(self, keys: Sequence[bytes]) -> Roster:
        roster = Roster(run=RUN, key=self.key)
        for key in keys:
            record = Presence(1, RUN, key, (), "train", True, 0, 0.0, 1e9)
            roster.learn(record, now=0.0, wall=0.0)
        return roster

    # Training

    @property
    def seconds(self) -> float:
        """Of one step of this peer."""
        slowness = self.plan.slowness
        return self.plan.step_seconds * (slowness[self.index] if self.index < len(slowness) else 1.0)

    @property
    def orders(self) -> list[tuple[int, bytes]]:
        """Of every chunk's tip: (cumulative weight, head)."""
        return [chain.order for chain in self.node.ledger.chains]

    def start(self) -> None:
        self.network.clock.at(self.network.clock.now + self.seconds, self._train)
        self._do(lambda now: self.node.set_step(self.step, self.seconds, now))

    @property
    def tokens_a_step(self) -> int:
        """Of this peer."""
        tokens = self.plan.tokens_a_step
        return tokens[self.index] if self.index < len(tokens) else 100

    def _train(self) -> None:
        """One inner step and its boundary; the next step starts at once, whatever the network does."""
        if self.crashed:
            return
        if self.network.is_silent(self.key):
            self.invariants.frozen(self.key, self.network.clock.now)
            self.network.clock.at(self.network.clock.now + 0.05, self._train)
            return
        self.invariants.stepped(self.key, self.network.clock.now, None if self.plan.lockstep else self.seconds)
        self.own_step += 1
        for chunk, values in enumerate(self.theta):
            pull = torch.sub(values, float(self.index + chunk))
            self.theta[chunk] = torch.sub(values, torch.mul(pull, 0.05))
        if self.plan.overlap == 0:
            self._boundary()
        else:
            self._when_settled(self._boundary)

    def _boundary(self) -> None:
        self._mix()
        # In lock-step everyone gets everywhere by its own steps.
        noticed = [] if self.plan.lockstep else self.noticed
        self.step, windows = boundary(self.step, noticed, self.plan.schedule)
        self.noticed.clear()
        self._do(lambda now: self.node.set_step(self.step, self.seconds, now))
        for window in windows:
            self.merges.opened(window, self.own_step)
            local = [self.theta[chunk] for chunk in self.node.chunks_of(window.fragment)]
            tokens = self.own_step * self.tokens_a_step
            self._do(lambda now, w=window, v=local, t=tokens: self.node.open(w, v, t, now))  # type: ignore[misc]
        if self.retries:
            self._retry(self.retries.pop(0))
        if self.plan.overlap == 0:
            self._when_settled(self._next_step)
        else:
            self._next_step()

    def _retry(self, window: Window) -> None:
        self.merges.opened(window, self.own_step)
        local = [self.theta[chunk] for chunk in self.node.chunks_of(window.fragment)]
        tokens = self.own_step * self.tokens_a_step
        self._do(lambda now: self.node.retry(window, local, tokens, now))

    def _next_step(self) -> None:
        if self.plan.overlap == 0:
            self._mix()
        if self.step < self.plan.steps:
            wobble = 1 + 0.2 * (self.network.random() - 0.5)
            self.network.clock.at(self.network.clock.now + self.seconds * wobble, self._train)
        else:
            self._do(lambda now: self.node.set_phase(FINISHED, now))

    def _when_settled(self, then: Callable[[], None]) -> None:
        """Go on at once; in lock-step when the windows that merge at this step have settled."""
        merging = self.plan.schedule.merging(self.own_step) if self.plan.lockstep else ()
        if any(self.merges.waiting(window) for window in merging):
            self._then = then
        else:
            then()

    def _resume(self) -> None:
        if (then := self._then) is not None:
            self._then = None
            self._when_settled(then)

    def _mix(self) -> None:
        for mix in self.merges.take(self.own_step):
            if isinstance(mix, Mix):
                self.mixes.append(mix)
                alpha = self.plan.mixing**mix.power
                self.theta[mix.chunk] = merge(self.theta[mix.chunk], self.anchors[mix.chunk], alpha)

    # The network

    def _deliver(self, source: bytes, header: bytes, bulk: bytes) -> None:
        def receive(now: float) -> None:
            try:
                self.node.receive(source, header, bulk, now=now, wall=now)
            except ProtocolError as error:
                self.refused += 1
                self.network.note("refused", self.key, error.reason)

        self._do(receive)

    def _do(self, action: Callable[[float], None]) -> None:
        """Give the node something, do what it commands, and set its timer."""
        if self.crashed or self.network.is_silent(self.key):
            return
        action(self.network.clock.now)
        for command in self.node.take():
            match command:
                case Contributed():
                    self.invariants.contributed(command)
                case Send():
                    self.network.send(self.key, command.to, encode(command.message), command.bulk)
                case Settled():
                    self.invariants.adopted(self.node.ledger, self.arithmetic, command.chunk)
                    self.anchors[command.chunk] = self.node.ledger.tip(command.chunk).anchor
                    self.merges.settled(command.chunk, command.due, command.links, command.mix)
                    self.network.note("settled", self.key, command.chunk, command.due)
                case Notice():
                    self.noticed.append(command.window)
                case Retry():
                    self.retries.append(command.window)
                case Missed():
                    self.missed.append(command)
                    self.network.note("missed", self.key, command.chunk, command.due, command.reason)
        self.invariants.bounded(self.node)
        if self._then is not None:
            self.network.clock.at(self.network.clock.now, self._resume)
        timer = self.node.get_timer()
        if timer != self._timer:
            self._timer = timer
            self.network.clock.at(timer, lambda: self._wake(timer))

    def _wake(self, timer: float) -> None:
        if self.network.is_silent(self.key):
            self.network.clock.at(self.network.clock.now + 0.05, lambda: self._wake(timer))
        elif timer == self._timer and not self.crashed:
            self._timer = inf
            self._do(self.node.handle_timer)


class Swarm:
    """All peers of a plan, started within a second of each other."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan = plan
        self.clock = Clock()
        self.network = Network(self.clock, seed=seed, weather=plan.weather)
        self.keys = sorted(sha256(f"peer {index} of {seed}".encode()) for index in range(plan.peers))
        self.invariants = Invariants(RUN)
        self.peers = [
            SimulatedPeer(index, plan, self.network, self.keys, self.invariants) for index in range(plan.peers)
        ]
        for peer in self.peers:
            self.clock.at(self.network.random() * plan.step_seconds, peer.start)

    @property
    def live(self) -> list[SimulatedPeer]:
        return [peer for peer in self.peers if not peer.crashed]

    def crash(self, index: int) -> None:
        """Kill one peer for good."""
        if not self.peers[index].crashed:
            self.peers[index].crashed = True
            self.network.crash(self.keys[index])

    def heads(self) -> set[bytes]:
        """The digests of all heads of the live peers: one if they agree."""
        return {peer.node.ledger.digest() for peer in self.live}

    def corrupt(self, index: int, chunk: int) -> None:
        """Flip one value of a live peer's anchor, as a bad bit in its memory would."""
        chain = self.peers[index].node.ledger.chains[chunk]
        anchor = chain.base.anchor.clone()
        anchor[0] += 1.0
        chain.base = ChunkState(anchor=anchor, momentum=chain.base.momentum)
        self.network.note("corrupt", self.keys[index], chunk)
