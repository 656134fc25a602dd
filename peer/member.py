"""One replica's membership in a swarm: the hook after each optimizer step, and everything that hangs on it.

The hook runs in the training thread: it snapshots fragments that are due and mixes anchors that have come. It never
waits for the network, except where the manifest asks for τ = 0 (at most `merge_wait`) and in lock-step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

import torch
from torch import Tensor

from aggregation.fragments import Layout
from aggregation.outer import ChunkState, merge, state_digest
from bootstrap.identity import peer_id
from bootstrap.reachability import Reachability
from peer import clock
from peer.assembly import Assembly
from peer.mailbox import Anchor, Mailbox
from peer.network import CALL_TIMEOUT, Network, NetworkFailed
from peer.outer import Outer
from peer.parameters import Parameters
from peer.record import Record
from peer.sealing import chunks_of
from peer.streams import P2pdTransport
from peer.times import Times
from protocol.errors import UserError
from protocol.manifest import Manifest, encode, schedule_of
from protocol.merging import Merges, Mix
from protocol.messages import FINISHED, LEAVING, sha256
from protocol.node import Node
from protocol.pace import boundary
from protocol.schedule import Window

log = logging.getLogger(__name__)

GATHER_TIMEOUT: Final = 120.0
"""Longest wait, in seconds, for the run's `start_peers` before the first step."""
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
    ) -> None:
        _check_peer(tokens_per_step, manifest, parameters.layout)
        self.manifest = manifest
        self.schedule = schedule_of(manifest)
        self.network = network
        self.settings = network.settings
        self.tokens_per_step = tokens_per_step
        self.step = 0
        """The swarm step."""
        self.own_step = 0
        self.tokens = 0
        self.times = Times()
        self.layout: Layout = parameters.layout
        self.chunks = chunks_of(manifest, self.layout)
        self.fragment_of = tuple(chunk.fragment for chunk in self.chunks)
        self._parameters = parameters
        self._mailbox = Mailbox()
        self._anchors: dict[int, Tensor] = {}
        self._merges = Merges(
            overlap=self.schedule.overlap, late_steps=manifest.merge.late_steps, fragment_of=self.fragment_of
        )
        self._boundary_at = 0.0
        self._from_step = 0
        """The first due step for which our record counts. Renewals must not move it: for a while nobody would own."""
        self._closed = False
        self._assembly = Assembly(manifest, network.identity, network.settings, self.chunks)
        self.arithmetic = self._assembly.arithmetic()
        self.record = Record(
            self.settings.out / "record.jsonl",
            fragment_of=self.fragment_of,
            overlap=self.schedule.overlap,
            late_steps=manifest.merge.late_steps,
        )
        try:
            self.outer = network.call(self._make_outer(self._assembly.node(self.arithmetic, parameters)))
            network.call(self._start())
        except BaseException:
            self.record.close()
            raise
        self._hook = optimizer.register_step_post_hook(lambda *_: self._after_step())

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
            make_presence=lambda addresses, wall: self._assembly.presence(addresses, wall, self._from_step),
            sign_bytes=self.network.identity.sign,
            addresses=self.network.reachability.addresses,
        )

    async def _start(self) -> None:
        self.network.rendezvous.publish_manifest(self.manifest.run.name, encode(self.manifest))
        await self.outer.start()
        self._watches = [
            asyncio.create_task(self._watch_daemon()),
            asyncio.create_task(self.network.watch_reachability(self._reachable)),
        ]

    def _reachable(self, found: Reachability) -> None:
        """Others can dial us elsewhere now, or no longer. Who owns anew does so from two windows ahead."""
        if found.addresses and not self.outer.addresses:
            self._own_from(max(self.step, self.outer.node.roster.pace()))
        self.outer.move(found.addresses)

    def _own_from(self, reached: int) -> None:
        """Own from two windows after this swarm step, so that everyone ranks the owners alike by then."""
        self._from_step = reached + 2 * -(-self.schedule.sync_every // len(self.schedule.offsets))

    async def _watch_daemon(self) -> None:
        """When p2pd dies, everything that needs it ends, training is told, and the user hears of it once."""
        why = await asyncio.shield(self.network.daemon.died)
        self._mailbox.fail(why)
        self.outer.alone()
        await self.network.rendezvous.close()
        self.network.notice(f"The network is gone, training goes on alone: {why}")

    def gather(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Wait for the run's `start_peers`, if it has not begun yet; at most two minutes. Says what it waits for."""
        wanted, end, told = self.manifest.run.start_peers, clock.monotonic() + GATHER_TIMEOUT, 0.0
        while not stop() and not self.alone and not self.own_step:
            here = self._in_outer(self.outer.present)
            reached = self._in_outer(self.outer.furthest)
            if reached >= self.schedule.sync_every:  # a run that is under way: own from two windows ahead
                self._own_from(reached)
                self.network.post(self.network.rendezvous.announce_soon)
            if reached or here >= wanted:
                return
            if clock.monotonic() > end:
                self.network.notice("Not all peers came; starting with those who are here.")
                return
            if clock.monotonic() > told + 5:
                told = clock.monotonic()
                self.network.notice(f"{here} of {wanted} peers are here; waiting for the others before the first step.")
            self._in_outer(lambda: asyncio.sleep(0.1))

    def _in_outer(self, work: Callable[[], Any], timeout: float = CALL_TIMEOUT) -> Any:
        return self.network.call(work(), timeout)

    # The hook

    def begin(self) -> None:
        """The first inner step begins now. Called on entering the context, or else by the hook."""
        self._boundary_at = self.times.started = clock.monotonic()

    def _after_step(self) -> None:
        """One step boundary."""
        now = clock.monotonic()
        if not self.times.started:
            self.begin()
        else:
            self.times.steps.append(now - self._boundary_at)
        self.own_step += 1
        self.tokens += self.tokens_per_step
        if not self._closed and not self.finished:
            self._boundary()
        self._boundary_at = clock.monotonic()
        self.times.hook += self._boundary_at - now

    def _boundary(self) -> None:
        noticed = self._collect()
        if self.settings.lockstep:
            noticed = []
        self.step, windows = boundary(self.step, noticed, self.schedule)
        merging = self.schedule.merging(self.step)
        if self.schedule.overlap and (self.settings.lockstep or self.settings.merge_wait):
            self._await(merging)
        self._mix()
        self.network.post(self.outer.set_step, self.step, self.times.step)
        for window in windows:
            self._open(window)
        if not self.schedule.overlap:
            self._await(windows)
            self._mix()
        if self.finished:
            self.times.ended = clock.monotonic()

    def _collect(self) -> list[Window]:
        """Take the mail; returns the windows that others have reached before us."""
        began = clock.monotonic()
        anchors, noticed = self._mailbox.take()
        self.times.waited(clock.monotonic() - began)
        for anchor in anchors:
            self._keep(anchor)
        return noticed

    def _keep(self, anchor: Anchor) -> None:
        self._anchors[anchor.chunk] = anchor.values
        self._merges.settled(anchor.chunk, anchor.due, anchor.links, anchor.mix)

    def _open(self, window: Window) -> None:
        """Hand a snapshot over; skip the window if the outer thread is behind."""
        if self.outer.pending[window.fragment] > 0 and not self.settings.lockstep:
            self.record.write("missed_whole", fragment=window.fragment, due=window.due, reason="outer thread behind")
            return
        snapshot = self._parameters.read(window.fragment)
        chunks = [chunk for chunk in self.chunks if chunk.fragment == window.fragment]
        self._merges.opened(window, self.own_step)
        self.record.opened(window, self.own_step)
        self.outer.pending[window.fragment] += 1
        local = [snapshot[chunk.start : chunk.stop] for chunk in chunks]
        self.network.post(self.outer.open, window, local, self.tokens)

    def _await(self, windows: Sequence[Window]) -> None:
        """Wait until these windows have settled, at most `merge_wait` for all. In lock-step more is an error."""
        limit, began = self.merge_wait, clock.monotonic()
        for window in windows:
            while self._merges.waiting(window) and not self.alone and (left := began + limit - clock.monotonic()) > 0:
                self._mailbox.wait(left)
                for anchor in self._mailbox.take_anchors():
                    self._keep(anchor)
            if self.settings.lockstep and self._merges.waiting(window):
                raise NetworkFailed(f"lock-step: fragment {window.fragment} of step {window.due} did not settle")
        if windows:
            self.times.allowed = max(self.times.allowed, limit)
            self.times.waited(clock.monotonic() - began)

    def _mix(self) -> None:
        for mix in self._merges.take(self.own_step):
            if isinstance(mix, Mix):
                self._mix_chunk(mix)
            else:
                self._anchors.pop(mix.chunk)
                self.record.write("too_late", chunk=mix.chunk, due=mix.due, late=mix.late)

    def _mix_chunk(self, mix: Mix) -> None:
        chunk = self.chunks[mix.chunk]
        anchor = self._anchors.pop(mix.chunk)
        local = self._parameters.view(chunk.fragment, chunk.start, chunk.stop)
        alpha = self.manifest.merge.mixing**mix.power
        if not bool(local.isfinite().all()):
            log.warning("chunk %d of our parameters was not finite: it is the swarm's now", mix.chunk)
            alpha = 0.0
        self._parameters.write(chunk.fragment, chunk.start, merge(local, anchor, alpha))
        self.record.mixed(mix.chunk, mix.due, mix.late, mix.power)

    # The end

    def outer_state(self) -> list[ChunkState]:
        """The swarm's outer parameters and momentum as this peer has them, chunk by chunk."""
        states: list[ChunkState] = self._in_outer(self.outer.state)
        return states

    def write_outer(self, target: Parameters) -> bytes:
        """Write the outer parameters into a model of the same layout; returns the digest of all outer state."""
        states = self.outer_state()
        for chunk, state in zip(self.chunks, states, strict=True):
            target.write(chunk.fragment, chunk.start, state.anchor)
        return sha256(*(state_digest(state) for state in states))

    def linger(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Finished: serve the others until they have finished with our heads, at most the setting `linger`.

        Returns whether they have; not if `stop()` came first.
        """
        self.network.post(self.outer.set_phase, FINISHED)
        seconds = self.settings.linger
        try:
            done: bool = self.network.call(self.outer.settle(seconds), seconds + CALL_TIMEOUT, stop)
        except NetworkFailed as error:
            log.info("did not linger to the end: %s", error)
            return False
        self._collect()
        return done

    def close(self) -> None:
        """Say goodbye and stop. Bounded in time; may be called twice. Leaves the network to its owner."""
        if self._closed:
            return
        self._closed = True
        self._hook.remove()
        try:
            self.network.post(self.outer.set_phase, LEAVING)
            self._in_outer(self.outer.stop, 10.0)
        except NetworkFailed as error:
            log.warning("could not leave cleanly: %s", error)
        self.record.close()

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
