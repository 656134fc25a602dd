"""One replica's membership in a swarm: the hook after each optimizer step, and everything that hangs on it.

The hook runs in the training thread: it snapshots fragments that are due and mixes anchors that have come. It never
waits for the network, except where the manifest asks for τ = 0 (at most `merge_wait`) and in lock-step.

A peer's life is in the order of this file: set-up (peer/keeping.py goes on from a snapshot), entering the swarm
(peer/entering.py), step boundaries (peer/mixing.py has the parameters), the end. Meanwhile peer/watching.py watches in
the outer thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

import torch
from torch import Tensor

from aggregation.fragments import Layout
from aggregation.outer import ChunkState, state_digest
from bootstrap.identity import peer_id
from peer import clock
from peer.assembly import Assembly
from peer.entering import Entering
from peer.issuing import Issuing
from peer.keeping import Keeping
from peer.mailbox import Mailbox
from peer.mixing import Mixing
from peer.network import CALL_TIMEOUT, Network, NetworkFailed
from peer.newcomer import Joined
from peer.outer import Outer
from peer.parameters import Parameters
from peer.sealing import chunks_of
from peer.snapshots import Kept
from peer.standing import Standing
from peer.streams import P2pdTransport
from peer.times import Times
from peer.watching import Watching
from protocol.errors import UserError
from protocol.manifest import Manifest, encode, schedule_of
from protocol.messages import FINISHED, LEAVING, sha256
from protocol.node import Node
from protocol.pace import boundary
from protocol.schedule import Window

log = logging.getLogger(__name__)

FAREWELL_SECONDS: Final = 4.0
"""Longest that leaving word in the DHT may take."""
LOCKSTEP_TIMEOUT: Final = 120.0
"""In lock-step: longest wait for one merge. A swarm that misses it has failed."""


class Peer:
    """One replica's membership in a swarm. Made by `join`; a context manager that owns the network.

    Entering it waits for the run's `start_peers`; leaving it, once the run is over, serves the others for a while.
    """

    def __init__(
        self,
        network: Network,
        manifest: Manifest,
        parameters: Parameters,
        optimizer: torch.optim.Optimizer,
        *,
        tokens_per_step: int,
        kept: Kept | None = None,
    ) -> None:
        _check_peer(tokens_per_step, manifest, parameters.layout)
        self.manifest = manifest
        self.schedule = schedule_of(manifest)
        self.network = network
        self.settings = network.settings
        self.tokens_per_step = tokens_per_step
        self.times = Times()
        self.layout: Layout = parameters.layout
        self.chunks = chunks_of(manifest, self.layout)
        self._standing = Standing()
        self._assembly = Assembly(manifest, network.identity, network.settings, self.chunks)
        self.fragment_of = self._assembly.fragment_of
        self._mailbox = Mailbox()
        self._boundary_at = 0.0
        self._issuing = Issuing(self.settings.out / "presence-issued", manifest.limits.presence_ttl)
        self._closed = False
        self.arithmetic = self._assembly.arithmetic()
        self.record = self._assembly.record(self.settings.out / "record.jsonl", network.disk)
        self._mixing = Mixing(
            manifest, parameters, self.chunks, mailbox=self._mailbox, record=self.record, times=self.times
        )
        self._keeping = Keeping(
            network, manifest, self._standing, self._mixing, self.record, optimizer=optimizer, kept=kept
        )
        try:
            node = self._assembly.node(self.arithmetic, parameters)
            self._keeping.restore(node, self.arithmetic.dump)
            self.outer = network.call(self._make_outer(node))
            self._entering = self._make_entering()
            self._watching = Watching(network, self.outer, self._standing, self._mailbox, self.schedule)
            network.call(self._start())
        except BaseException:
            self.record.close()
            raise
        self._hook = optimizer.register_step_post_hook(lambda *_: self._after_step())

    @property
    def step(self) -> int:
        """The swarm step."""
        return self._standing.step

    @property
    def own_step(self) -> int:
        """Optimizer steps taken here, all over restarts."""
        return self._standing.own_step

    @property
    def tokens(self) -> int:
        """Tokens trained on here, all over restarts."""
        return self._standing.tokens

    @property
    def seat(self) -> int:
        """Which part of the data is ours. It changes if an earlier peer turns out to have it."""
        return self._standing.seat

    @property
    def joined(self) -> Joined | None:
        """How we came into a run that was under way; None for who was there from its start."""
        return self._entering.joined

    @property
    def finished(self) -> bool:
        """Whether the run's last swarm step is reached."""
        return self.step >= self.schedule.steps

    @property
    def alone(self) -> str:
        """Why this peer trains without a swarm now; empty if it does not."""
        return self._mailbox.failure

    @property
    def peer_id(self) -> str:
        return peer_id(self.network.identity.key)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where others may join through this peer, most useful first. Each holds its peer id."""
        return tuple(self.network.call(self.network.daemon.addresses()))

    @property
    def merge_wait(self) -> float:
        """Longest that a merge may block training, in seconds: the setting, or one inner step."""
        if self.settings.lockstep:
            return LOCKSTEP_TIMEOUT
        return self.settings.merge_wait if self.settings.merge_wait is not None else self.times.step or 0.1

    # Set-up

    async def _make_outer(self, node: Node) -> Outer:
        daemon, options = self.network.daemon, self._assembly.stream_options(self.arithmetic)
        return Outer(
            node=node,
            transport=P2pdTransport(daemon, node.ledger.run, options),
            rendezvous=self.network.rendezvous,
            mailbox=self._mailbox,
            record=self.record,
            make_presence=lambda addresses, wall: self._assembly.presence(
                addresses, self._issuing.next(wall), self._standing.from_step, self._standing.seat
            ),
            sign_bytes=self.network.identity.sign,
            addresses=self.network.reachability.addresses,
        )

    def _make_entering(self) -> Entering:
        return Entering(
            self.network,
            self.outer,
            self.manifest,
            self._standing,
            self._mixing,
            mailbox=self._mailbox,
            record=self.record,
            sizes=[8 * chunk.numel + self.arithmetic.result_bytes(chunk.index) for chunk in self.chunks],
            folder=self._keeping.folder.path,
        )

    async def _start(self) -> None:
        self.network.rendezvous.publish_manifest(self.manifest.run.name, encode(self.manifest))
        await self.outer.start()
        self._watching.start()

    # Entering

    def gather(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Wait for the run's `start_peers`, if it has not begun yet; at most two minutes. Says what it waits for."""
        self._entering.gather(stop)

    def begin(self) -> None:
        """The first inner step begins now. Called on entering the context, or else by the hook."""
        self._watching.begun = True
        with suppress(NetworkFailed):
            self.network.call(self._watching.sit())
        self._boundary_at = self.times.started = clock.monotonic()

    # The hook

    def _after_step(self) -> None:
        """One step boundary."""
        now = clock.monotonic()
        if not self.times.started:
            self.begin()
        else:
            self.times.steps.append(now - self._boundary_at)
        self._standing.own_step += 1
        self._standing.tokens += self.tokens_per_step
        if not self._closed and not self.finished:
            self._boundary()
        self._boundary_at = clock.monotonic()
        self.times.hook += self._boundary_at - now

    def _boundary(self) -> None:
        bare = self.outer.bare  # read before the mail: whatever leaves it has an anchor there, or is nobody's
        noticed = self._mixing.collect()
        if self.settings.lockstep:
            noticed = []
        self._standing.step, windows = boundary(self.step, noticed, self.schedule)
        merging = self.schedule.merging(self.step)
        if self.schedule.overlap and (self.settings.lockstep or self.settings.merge_wait):
            self._await(merging)
        self._mixing.mix(self.own_step)
        if self._mixing.dress(bare):
            self.network.post(self.outer.end_joining)
        self.network.post(self.outer.set_step, self.step, self.times.step)
        for window in windows:
            self._open(window)
        for window in self._mailbox.take_retries():
            self._retry(window)
        if not self.schedule.overlap:
            self._await(windows)
            self._mixing.mix(self.own_step)
        self._keeping.take_if_due(self.outer.node)
        if self.finished:
            self.times.ended = clock.monotonic()

    def _await(self, windows: Sequence[Window]) -> None:
        self._mixing.wait(windows, self.merge_wait, lockstep=self.settings.lockstep)

    def _too_new(self, window: Window) -> str:
        """Why a newcomer does not contribute to a window yet; empty if it may."""
        if self._mixing.lacks(window.fragment):
            return "has not got the outer parameters yet"
        short = self.joined is not None and self.own_step < self.schedule.overlap
        return "has joined a moment ago" if short else ""

    def _open(self, window: Window) -> None:
        """Hand a snapshot over; skip the window if the outer thread is behind, or we are too new."""
        if reason := self._too_new(window):
            self.record.write("missed_whole", fragment=window.fragment, due=window.due, reason=reason)
            return
        if self.outer.pending[window.fragment] > 0 and not self.settings.lockstep:
            self.record.write("missed_whole", fragment=window.fragment, due=window.due, reason="outer thread behind")
            return
        self.record.opened(window, self.own_step)
        self.network.post(self.outer.open, window, self._snapshot(window), self.tokens)

    def _retry(self, window: Window) -> None:
        """Hand over a newer snapshot for chunks that nobody closed, unless the fragment's next window is here."""
        next_due = self.schedule.next_due(window.fragment, window.due)
        if self.outer.pending[window.fragment] > 0 or (next_due is not None and next_due <= self.step):
            return
        self.record.write("retried", fragment=window.fragment, due=window.due, own_step=self.own_step)
        self.network.post(self.outer.retry, window, self._snapshot(window), self.tokens)

    def _snapshot(self, window: Window) -> list[Tensor]:
        snapshot = self._mixing.snapshot(window, self.own_step)
        self.outer.pending[window.fragment] += 1
        return snapshot

    # The end

    def outer_state(self) -> list[ChunkState]:
        """The swarm's outer parameters and momentum as this peer has them, chunk by chunk."""
        return self.network.call(self.outer.state())

    def write_outer(self, target: Parameters) -> bytes:
        """Write the outer parameters into a model of the same layout; returns the digest of all outer state."""
        states = self.outer_state()
        for chunk, state in zip(self.chunks, states, strict=True):
            target.write(chunk.fragment, chunk.start, state.anchor)
        return sha256(*(state_digest(state) for state in states))

    def linger(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Finished: serve the others until they have finished with our heads, at most the setting `linger`.

        A peer that is lost may only be frozen, and is waited for while its presence record lasts. Returns whether all
        have; not if `stop()` came first, or if we may be the ones who were cut off.
        """
        if self.alone:
            return False
        self.network.post(self.outer.set_phase, FINISHED)
        seconds = self.settings.linger
        try:
            done: bool = self.network.call(self.outer.settle(seconds), seconds + CALL_TIMEOUT, stop)
        except NetworkFailed as error:
            log.info("did not linger to the end: %s", error)
            return False
        self._mixing.collect()
        self._keeping.take_last(self.outer.node)  # before `write_outer` is used on the same model
        return done

    def close(self) -> None:
        """Say goodbye and stop. Bounded in time; may be called twice. Leaves the network to its owner."""
        if self._closed:
            return
        self._closed = True
        self._hook.remove()
        self.network.post(self.outer.set_phase, LEAVING)
        self._keeping.take_last(self.outer.node)
        for work, seconds in ((self._say_farewell, FAREWELL_SECONDS), (self.outer.stop, 10.0)):
            try:
                self.network.call(work(), seconds)
            except NetworkFailed as error:
                log.warning("could not leave cleanly: %s", error)
        self._keeping.close()
        self.record.close()

    async def _say_farewell(self) -> None:
        record, expires = self._assembly.farewell(clock.wall(), self.step, finished=self.finished)
        if not self.alone:
            run, key = self.outer.node.ledger.run, self.network.identity.key
            await self.network.rendezvous.say_farewell(run, key, record, expires)

    def __enter__(self) -> Self:
        try:
            self.gather()
        except BaseException:
            self._leave()
            raise
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self.finished:
                self.linger()
        finally:
            self._leave()

    def _leave(self) -> None:
        try:
            self.close()
        finally:
            self.network.close()


def _check_peer(tokens_per_step: int, manifest: Manifest, layout: Layout) -> None:
    """UserError for what would make a peer that cannot take part."""
    if tokens_per_step < 1:
        raise UserError.field("tokens_per_step", tokens_per_step, "must be at least 1: tokens weigh contributions")
    if layout.digest().hex() != manifest.model.layout:
        raise UserError("parameters.layout: is not the layout that the manifest names")
