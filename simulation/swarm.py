"""A swarm on the virtual network: protocol/ and aggregation/ unchanged, a toy trainer, and the promises as checks.

The trainer pulls its parameters towards a point of its own: enough for deltas to be real, different and bounded.
Everything else is what a volunteer's machine runs. Each peer has a monotonic clock with an origin of its own, a wall
clock that may be wrong, and a disk. `Invariants` watches every node after every event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Final

import torch

from aggregation.arithmetic import Arithmetic
from aggregation.codecs import codec
from aggregation.outer import ChunkState, merge
from protocol.commands import Contributed, Missed, Notice, Retry, Send, Settled
from protocol.errors import ProtocolError
from protocol.ledger import Ledger
from protocol.merging import Merges, Mix
from protocol.messages import FINISHED, LEAVING, VERSION, Hello, encode
from protocol.node import Node
from protocol.pace import boundary, owns_from
from protocol.presence import Presence, decode_verified
from protocol.roster import Roster
from protocol.schedule import Schedule, Window, spread
from protocol.window import Rules
from simulation.disk import Disk, Snapshot, photograph, restore
from simulation.fetching import Fetching
from simulation.identity import RUN, CheapKeys, Identity
from simulation.invariants import Invariants
from simulation.memory import Remembered
from simulation.network import Clock, Endpoint, Network, Weather

EPOCH: Final = 1.7e9
"""Unix time at which every run begins."""
WEIGHT_CAP: Final = 4
PRESENCE_LIFE: Final = 30.0
"""Seconds that a presence record is good for; it is renewed every third of that."""
GOODBYE: Final = 0.1
"""Seconds between a peer's goodbye and its end."""


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

    def tokens_of(self, index: int) -> int:
        """Tokens of one inner step of a peer."""
        return self.tokens_a_step[index] if index < len(self.tokens_a_step) else 100


class World:
    """What all peers of a swarm stand in."""

    def __init__(self, plan: Plan, seed: int, *, recording: bool, remembering: bool) -> None:
        self.plan = plan
        self.clock = Clock()
        self.network = Network(self.clock, seed=seed, weather=plan.weather, recording=recording)
        round_seconds = plan.sync_every * plan.step_seconds
        self.invariants = Invariants(
            RUN, sync_every=plan.sync_every, weight_cap=WEIGHT_CAP, round_seconds=round_seconds
        )
        chunks = len(plan.fragment_of)
        real = Arithmetic(
            [plan.elements] * chunks,
            contribution_codec=codec(plan.contribution_codec, block=32),
            result_codec=codec(plan.result_codec, block=32),
            lr=0.4,
            momentum=0.9,
        )
        self.memory = Remembered(real)
        self.arithmetic = self.memory if remembering else real
        zero = torch.zeros(plan.elements)
        self.genesis = [ChunkState(anchor=torch.arange(plan.elements) / 64 + c, momentum=zero) for c in range(chunks)]
        self._presences: dict[bytes, Presence] = {}
        self.everyone: dict[bytes, SimulatedPeer] = {}
        """The newest life of each peer that ever was here."""
        self.population = plan.peers
        """Peers at once, at most."""

    def verified(self, record: bytes) -> Presence:
        """A fresh presence record, as a newcomer gets it from the DHT. Verified once for all."""
        if record not in self._presences:
            self._presences[record] = decode_verified(record, EPOCH + self.clock.now)
        return self._presences[record]


class SimulatedPeer:
    """One life of a peer: a node, its toy trainer and its bridge to it, on the virtual network."""

    def __init__(self, index: int, world: World, identity: Identity, disk: Disk | None = None) -> None:
        self.index, self.plan, self.identity, self.key = index, world.plan, identity, identity.key
        self._world = world
        self.network, self.invariants, self.arithmetic = world.network, world.invariants, world.arithmetic
        self.disk = disk or Disk()
        self.own_step = 0
        self.step = 0
        self.slowdown = 1.0
        """On top of the plan's slowness."""
        self.skew = 0.0
        """Seconds that the wall clock is ahead."""
        self.from_step = 0
        """The first due step for which our presence record counts."""
        self.noticed: list[Window] = []
        self.retries: list[Window] = []
        self.missed: list[Missed] = []
        self.refused = 0
        self.mixes: list[Mix] = []
        self.crashed = False
        self.joined = False
        """Whether this peer came to a run under way, with nothing of its own."""
        self.bare: set[int] = set()
        """Of such a peer: chunks whose outer parameters have not come yet."""
        self._origin = 1e5 * self.network.random()
        self._then: Callable[[], None] | None = None
        self._may_wait = 0.0
        """Seconds of the step under way that may pass in waiting for a merge."""
        plan = self.plan
        ledger = Ledger(
            run=RUN, genesis=world.genesis, arithmetic=self.arithmetic, keys=CheapKeys(self.key), weight_cap=WEIGHT_CAP
        )
        self.node = Node(
            ledger=ledger,
            arithmetic=self.arithmetic,
            roster=Roster(run=RUN, key=self.key),
            schedule=plan.schedule,
            rules=Rules(plan.sync_every, WEIGHT_CAP, plan.fragment_of, plan.peers if plan.lockstep else 0),
            keys=CheapKeys(self.key),
            random=self.network.random,
        )
        self.merges = Merges(overlap=plan.overlap, late_steps=plan.late_steps, fragment_of=plan.fragment_of)
        self.anchors = [state.anchor for state in world.genesis]
        self.theta = torch.stack(self.anchors)  # (chunks, elements)
        self._points = torch.arange(len(plan.fragment_of)).reshape(-1, 1) + float(index)
        self._timer = inf

    def wake_up(self, snapshot: Snapshot) -> None:
        """Go on where an earlier life stopped."""
        restore(snapshot, self.node.ledger)
        self.step, self.theta = snapshot.step, snapshot.theta.clone()
        self.anchors = [self.node.ledger.tip(chunk).anchor for chunk in range(len(self.anchors))]

    def come_in(self, pace: int, bare: set[int]) -> None:
        """A newcomer begins to train: from the swarm's outer parameters and at its pace, if there is one yet."""
        if pace >= self.plan.sync_every:
            self.joined, self.bare, self.step = True, set(bare), pace
            self.anchors = [self.node.ledger.tip(chunk).anchor for chunk in range(len(self.anchors))]
            self.theta = torch.stack(self.anchors)
            self.merges = Merges(
                overlap=self.plan.overlap, late_steps=self.plan.late_steps, fragment_of=self.plan.fragment_of
            )
        self.noticed.clear()
        self.invariants.awake(self.key, self.now)
        self.start()

    def enter(self, records: Sequence[bytes], *, dialling: bool) -> None:
        """Be on the network, knowing these presence records (our own is made here)."""
        self._world.everyone[self.key] = self
        self.record = self._new_record()
        for data in (self.record, *records):
            self.node.roster.learn(self._world.verified(data), now=self.now, wall=self.wall, raw=data)
        end = Endpoint(
            self._deliver,
            lost=lambda peer: self._do(lambda now: self.node.lost(peer, now)),
            met=self._met,
            woke=lambda: self.invariants.awake(self.key, self.now),
        )
        self.network.join(self.key, end, dialling=dialling)
        self.network.clock.after(PRESENCE_LIFE / 3, self._renew)

    # Clocks and presence

    @property
    def now(self) -> float:
        """This peer's monotonic clock."""
        return self._origin + self.network.clock.now

    @property
    def wall(self) -> float:
        """This peer's idea of Unix time."""
        return EPOCH + self.skew + self.network.clock.now

    def _new_record(self) -> bytes:
        return self.identity.record(self.wall, PRESENCE_LIFE, self.from_step)

    def _renew(self) -> None:
        if self.crashed:
            return
        self.network.clock.after(PRESENCE_LIFE / 3, self._renew)
        if self.network.is_silent(self.key):
            return
        self.record = self._new_record()
        self._do(lambda now: self.node.learn([self.record], now=now, wall=self.wall))
        for peer in self.node.roster.live():
            self.network.send(self.key, peer, encode(Hello(VERSION, self.record)), b"")
        self._publish()

    def _publish(self) -> None:
        """As the DHT does: our record comes to all to whom somebody has a way from us."""
        here = [peer for peer in self._world.everyone.values() if not peer.crashed and peer is not self]
        near = [peer for peer in here if not self.network.is_down(self.key, peer.key)]
        for peer in here:
            if peer not in near and any(not self.network.is_down(one.key, peer.key) for one in near):
                peer.find(self.record)

    def find(self, record: bytes) -> None:
        """A presence record out of the DHT. One that our clock takes for expired is none."""
        with suppress(ProtocolError):
            self._do(lambda now: self.node.learn([record], now=now, wall=self.wall))

    def _met(self, peer: bytes) -> None:
        self.network.send(self.key, peer, encode(Hello(VERSION, self.record)), b"")
        self._do(lambda now: self.node.greet(peer, now))

    # Training

    @property
    def seconds(self) -> float:
        """Of one step of this peer."""
        slowness = self.plan.slowness
        usual = self.plan.step_seconds * (slowness[self.index] if self.index < len(slowness) else 1.0)
        return usual * self.slowdown

    @property
    def merge_wait(self) -> float:
        """Seconds that a merge may wait: one step, and only where nothing overlaps (decision 0005)."""
        return self.seconds if self.plan.overlap == 0 else 0.0

    @property
    def orders(self) -> list[tuple[int, bytes]]:
        """Of every chunk's tip: (cumulative weight, head)."""
        return [chain.order for chain in self.node.ledger.chains]

    def start(self) -> None:
        self._do(lambda now: self.node.set_step(self.step, self.seconds, now))
        self._after_a_step(self.seconds)

    def _after_a_step(self, seconds: float) -> None:
        if self.step >= self.plan.steps:
            self._do(lambda now: self.node.set_phase(FINISHED, now))
            return
        allowed = None if self.plan.lockstep else seconds + self._may_wait
        self._may_wait = 0.0
        self.network.clock.after(seconds, lambda: self.network.awake(self.key, lambda: self._train(allowed)))

    def _train(self, allowed: float | None) -> None:
        """One inner step and its boundary; the next step starts at once, whatever the network does."""
        if self.crashed:
            return
        self.invariants.stepped(self.key, self.now, allowed)
        self.own_step += 1
        pull = torch.sub(self.theta, self._points)
        self.theta = torch.sub(self.theta, torch.mul(pull, 0.05))
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
            if self._is_too_new(window):
                continue
            self.merges.opened(window, self.own_step)
            local = [self.theta[chunk] for chunk in self.node.chunks_of(window.fragment)]
            tokens = self.own_step * self.plan.tokens_of(self.index)
            self._do(lambda now, w=window, v=local, t=tokens: self.node.open(w, v, t, now))  # type: ignore[misc]
        if self.retries:
            self._retry(self.retries.pop(0))
        if self.own_step % self.plan.sync_every == 0:
            self.disk.save(photograph(self.step, self.theta, self.node.ledger), self.network.clock.now)
        if self.plan.overlap == 0 and windows:
            self._when_settled(self._next_step)
        else:
            self._next_step()

    def _is_too_new(self, window: Window) -> bool:
        """A newcomer contributes nothing in its first τ steps, nor from parameters that are the initial ones."""
        bare = not self.bare.isdisjoint(self.node.chunks_of(window.fragment))
        return bare or (self.joined and self.own_step < self.plan.overlap)

    def _retry(self, window: Window) -> None:
        self.merges.opened(window, self.own_step)
        local = [self.theta[chunk] for chunk in self.node.chunks_of(window.fragment)]
        tokens = self.own_step * self.plan.tokens_of(self.index)
        self._do(lambda now: self.node.retry(window, local, tokens, now))

    def _next_step(self) -> None:
        if self.plan.overlap == 0:
            self._mix()
        wobble = 1 + 0.2 * (self.network.random() - 0.5)
        self._after_a_step(self.seconds * wobble)

    def _when_settled(self, then: Callable[[], None]) -> None:
        """Go on at once; in lock-step when the windows that merge at this step have settled, and where nothing overlaps
        after `merge_wait` at the latest."""
        if not self._is_unsettled():
            then()
            return
        self._then = then
        if not self.plan.lockstep:
            self._may_wait = self.merge_wait
            self.network.clock.after(self.merge_wait, lambda: self._give_up(then))

    def _is_unsettled(self) -> bool:
        if not self.plan.lockstep and self.plan.overlap > 0:
            return False
        merging = self.plan.schedule.merging(self.own_step if self.plan.lockstep else self.step)
        return any(self.merges.waiting(window) for window in merging)

    def _give_up(self, then: Callable[[], None]) -> None:
        if self._then is then and not self.crashed:
            self._then = None
            self.network.awake(self.key, then)

    def _resume(self) -> None:
        if (then := self._then) is not None and not self.crashed and not self._is_unsettled():
            self._then = None
            then()

    def _mix(self) -> None:
        for mix in self.merges.take(self.own_step):
            if isinstance(mix, Mix):
                self.mixes.append(mix)
                alpha = 0.0 if mix.chunk in self.bare else self.plan.mixing**mix.power
                self._dress(mix.chunk)
                self.theta[mix.chunk] = merge(self.theta[mix.chunk], self.anchors[mix.chunk], alpha)

    def _dress(self, chunk: int) -> None:
        """The first anchor of a bare chunk has come."""
        if chunk in self.bare:
            self.bare.discard(chunk)
            if not self.bare:
                self.node.repair.end_joining()

    # The network

    def _deliver(self, source: bytes, header: bytes, bulk: bytes) -> None:
        def receive(now: float) -> None:
            try:
                self.node.receive(source, header, bulk, now=now, wall=self.wall)
            except ProtocolError as error:
                self.refused += 1
                self.network.note("refused", self.key, error.reason)
            if self.network.is_down(self.key, source):  # as in peer/: it speaks to us, but we cannot answer
                self.node.roster.lose(source)

        self._do(receive)

    def _do(self, action: Callable[[float], None]) -> None:
        """Give the node something, do what it commands, and set its timer."""
        if self.crashed or self.network.is_silent(self.key):
            return
        action(self.now)
        for command in self.node.take():
            match command:
                case Contributed():
                    self.invariants.contributed(command)
                case Send():
                    self.network.send(self.key, command.to, encode(command.message), command.bulk)
                    self.invariants.on_the_way(self.network.in_flight, self._world.population)
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
        self.invariants.bounded(self.node, self.key, self.now)
        if self._then is not None:
            self.network.clock.at(self.network.clock.now, self._resume)
        timer = self.node.get_timer()
        if timer != self._timer:
            self._timer = timer
            self.network.clock.at(timer - self._origin, lambda: self._wake(timer))

    def _wake(self, timer: float) -> None:
        if self.network.is_silent(self.key):
            self.network.awake(self.key, lambda: self._wake(timer))
        elif timer == self._timer and not self.crashed:
            self._timer = inf
            self._do(lambda now: self.node.handle_timer(max(now, timer)))  # the sum of two floats may fall short


class Swarm:
    """All peers of a plan, started within a second of each other."""

    def __init__(self, plan: Plan, seed: int, *, recording: bool = True, remembering: bool = True) -> None:
        """`recording` keeps an event log; `remembering` does equal sums once (simulation/memory.py)."""
        self.plan = plan
        self.seed = seed
        self.world = World(plan, seed, recording=recording, remembering=remembering)
        self.clock, self.network, self.invariants = self.world.clock, self.world.network, self.world.invariants
        identities = [Identity(f"peer {index} of {seed}") for index in range(plan.peers)]
        identities.sort(key=lambda identity: identity.key)
        self.peers = [SimulatedPeer(index, self.world, identity) for index, identity in enumerate(identities)]
        self._lives = 0
        records = [identity.record(EPOCH, PRESENCE_LIFE) for identity in identities]
        for peer in self.peers:
            peer.enter(records, dialling=False)
        for peer in self.peers:
            self.clock.at(self.network.random() * plan.step_seconds, peer.start)

    @property
    def keys(self) -> list[bytes]:
        """Of the peers as they are now, by index."""
        return [peer.key for peer in self.peers]

    @property
    def live(self) -> list[SimulatedPeer]:
        return [peer for peer in self.peers if not peer.crashed]

    def crash(self, index: int) -> None:
        """Kill one peer."""
        if not self.peers[index].crashed:
            self.peers[index].crashed = True
            self.network.crash(self.peers[index].key)

    def start_again(self, index: int, *, with_disk: bool) -> None:
        """A killed peer is back: as itself with its newest snapshot, or, with nothing left, as a newcomer that fetches
        what the others have first."""
        old = self.peers[index]
        assert old.crashed
        self._lives += 1
        identity = old.identity if with_disk else Identity(f"peer {index} of {self.seed}, life {self._lives}")
        peer = SimulatedPeer(index, self.world, identity, old.disk if with_disk else None)
        peer.skew, peer.slowdown = old.skew, old.slowdown
        snapshot = peer.disk.newest(self.clock.now)
        if snapshot:
            peer.wake_up(snapshot)
        pace = max((other.step for other in self.live), default=0)
        peer.from_step = old.from_step if with_disk else owns_from(pace, self.plan.schedule)
        self.network.note("start-again", peer.key, snapshot.step if snapshot else 0)
        records = [other.record for other in self.live]
        self.peers[index] = peer
        self.invariants.awake(peer.key, peer.now)
        peer.enter(records, dialling=True)
        if snapshot:
            peer.start()
        else:
            Fetching(peer)

    def leave(self, index: int) -> None:
        """One peer says goodbye and goes."""
        peer = self.peers[index]
        peer._do(lambda now: peer.node.set_phase(LEAVING, now))
        peer._do(peer.node.handle_timer)
        self.clock.after(GOODBYE, lambda: self.crash(index) if self.peers[index] is peer else None)

    def freeze(self, index: int, seconds: float, *, keeps: bool = False) -> None:
        """One process stands still. What was due meanwhile comes when it wakes."""
        if not self.peers[index].crashed:
            self.network.freeze(self.peers[index].key, seconds, keeps=keeps)

    def slow_down(self, index: int, factor: float) -> None:
        """Every step of a peer takes so many times as long from its next one on; 1 undoes it."""
        peer = self.peers[index]
        peer.slowdown = factor
        self.invariants.awake(peer.key, peer.now)

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
