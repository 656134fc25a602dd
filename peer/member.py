"""One replica's membership in a swarm: the hook after each optimizer step, and everything that hangs on it.

The hook runs in the training thread: it snapshots fragments that are due and mixes anchors that have come. It never
waits for the network, except where the manifest asks for τ = 0 (at most `merge_wait`) and in lock-step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
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
from peer.issuing import Issuing
from peer.mailbox import Anchor, Mailbox
from peer.network import CALL_TIMEOUT, Network, NetworkFailed
from peer.newcomer import STALLED, Joined, Newcomer
from peer.outer import Outer
from peer.parameters import Parameters
from peer.returning import Returning, RunOver
from peer.sealing import chunks_of
from peer.settings import Settings
from peer.snapshot_files import Index, Snapshot, SnapshotFolder
from peer.snapshots import (
    Kept,
    OuterPart,
    Snapshots,
    Taken,
    newest_good,
    pack_state,
    program_version,
    restore_state,
)
from peer.streams import P2pdTransport
from peer.times import Times
from protocol.errors import UserError
from protocol.manifest import Manifest, encode, run_id, schedule_of
from protocol.manifest_toml import dumps
from protocol.merging import Merges, Mix
from protocol.messages import FINISHED, LEAVING, sha256
from protocol.node import Node
from protocol.pace import boundary, owns_from
from protocol.schedule import Window

log = logging.getLogger(__name__)

GATHER_TIMEOUT: Final = 120.0
"""Longest wait, in seconds, for the run's `start_peers` before the first step."""
FAREWELL_SECONDS: Final = 4.0
"""Longest that leaving word in the DHT may take."""
LOOK_TIMEOUT: Final = 10.0
"""Longest wait, in seconds, for news of a run under way at the addresses that we join."""
CLOCK_JUMP: Final = 5.0
LOOK_EVERY: Final = 1.0
"""Seconds."""
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
        folder = snapshot_folder(network.settings, manifest)
        self.manifest = manifest
        self.schedule = schedule_of(manifest)
        self.network = network
        self.settings = network.settings
        self.tokens_per_step = tokens_per_step
        self.step = 0
        """The swarm step."""
        self.own_step = 0
        self.seat = 0
        """Which part of the data is ours (protocol/seats.py). It changes if an earlier peer turns out to have it."""
        self.tokens = 0
        self.times = Times()
        self.layout: Layout = parameters.layout
        self.chunks = chunks_of(manifest, self.layout)
        self._assembly = Assembly(manifest, network.identity, network.settings, self.chunks)
        self.fragment_of = self._assembly.fragment_of
        self._parameters = parameters
        self._mailbox = Mailbox()
        self._anchors: dict[int, Tensor] = {}
        self._merges = Merges(
            overlap=self.schedule.overlap, late_steps=manifest.merge.late_steps, fragment_of=self.fragment_of
        )
        self._boundary_at = 0.0
        self._from_step = 0
        """The first due step for which our record counts. Renewals must not move it: for a while nobody would own."""
        self._issuing = Issuing(self.settings.out / "presence-issued", manifest.limits.presence_ttl)
        self._closed = False
        self.joined: Joined | None = None
        """How we came into a run that was under way; None for who was there from its start."""
        self._bare: frozenset[int] = frozenset()
        """Chunks of which our parameters are still the initial ones, though the swarm's are not."""
        self._started = False
        self._optimizer = optimizer
        self._kept = kept
        self._mixed: dict[int, int] = {}
        """Of each chunk the due step of the newest link that the parameters have seen."""
        self.arithmetic = self._assembly.arithmetic()
        self.record = self._assembly.record(self.settings.out / "record.jsonl", network.disk)
        self._snapshots = Snapshots(
            folder,
            interval=self.settings.snapshot_every * self.schedule.sync_every,
            layout=self.layout,
            manifest=dumps(manifest),
            notice=network.notice,
            disk=network.disk,
            written=self.record.write,
        )
        try:
            node = self._assembly.node(self.arithmetic, parameters)
            self._restore(node)
            self.outer = network.call(self._make_outer(node))
            self._returning = Returning(self.outer, network.rendezvous)
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
            make_presence=lambda addresses, wall: self._assembly.presence(
                addresses, self._issuing.next(wall), self._from_step, self.seat
            ),
            sign_bytes=self.network.identity.sign,
            addresses=self.network.reachability.addresses,
        )

    async def _start(self) -> None:
        self.network.rendezvous.publish_manifest(self.manifest.run.name, encode(self.manifest))
        await self.outer.start()
        self._watches = [
            asyncio.create_task(self._watch_daemon()),
            asyncio.create_task(self._look_around()),
            asyncio.create_task(self.network.watch_reachability(self._reachable)),
        ]

    async def _look_around(self) -> None:
        """Find a free seat when ours is taken; tell of a clock that was set, which nothing else here follows."""
        told = 0.0
        while True:
            await self._sit()
            if abs((jump := clock.jump()) - told) > CLOCK_JUMP:
                told = jump
                self.network.notice(
                    f"This computer's clock has been set by {jump:+.0f} s since the start. Training goes on; until a "
                    "restart this peer meets others only through those that it knows already."
                )
            await asyncio.sleep(LOOK_EVERY)

    async def _sit(self) -> None:
        seat = self.outer.node.roster.seat(self.seat, self._from_step) if self._started else self.seat
        if seat != self.seat:
            self.seat = seat
            self.network.rendezvous.announce_soon()

    def _reachable(self, found: Reachability) -> None:
        """Others can dial us elsewhere now, or no longer. Who owns anew does so from two windows ahead."""
        if found.addresses and not self.outer.addresses:
            self._own_from(max(self.step, self.outer.node.roster.pace()))
        self.outer.move(found.addresses)

    def _own_from(self, reached: int) -> None:
        """Own, beginning when the swarm is at this step."""
        self._from_step = owns_from(reached, self.schedule)

    async def _watch_daemon(self) -> None:
        """When p2pd dies, everything that needs it ends, training is told, and the user hears of it once."""
        why = await asyncio.shield(self.network.daemon.died)
        self._mailbox.fail(why)
        self.outer.alone()
        await self.network.rendezvous.close()
        self.network.notice(f"The network is gone, training goes on alone: {why}")

    def _restore(self, node: Node) -> None:
        """Go on from the newest good snapshot of an earlier life, if there is one."""
        folder = self._snapshots.folder
        folder.clean()
        found = newest_good(folder, self.layout, node.ledger, self.arithmetic.dump, self.network.notice)
        if found:
            snapshot, fragments = found
            for fragment, values in zip(self.layout.fragments, fragments, strict=True):
                self._parameters.write(fragment.index, 0, values)
            restore_state(snapshot, self._optimizer, self._kept, self.network.notice)
            self._resume(snapshot, node)
            self.network.notice(f"Going on from the snapshot of step {self.step} in {snapshot.path}.")
        self._snapshots.started(self.step, self.own_step, node)
        lives = self.record.begin_life(self.step, self.own_step)
        if lives > 1 and not found and self._snapshots.enabled:
            self.network.notice(
                f"No usable snapshot in {folder.path}, though this peer was in this run before. It comes in again as a "
                "newcomer does: with what the others have, if they have begun."
            )

    def _resume(self, snapshot: Snapshot, node: Node) -> None:
        index = snapshot.index
        self.step, self.own_step, self.tokens = index.step, index.own_step, index.tokens
        self._from_step, self.seat = index.from_step, index.seat
        node.resume(index.step, index.tokens, index.marks, clock.monotonic())
        for fragment, due, own_step in index.opened:
            self._merges.opened(Window(fragment, due), own_step)
        self._mixed = dict(enumerate(index.mixed))
        for chunk, seen in enumerate(index.mixed):
            due = node.ledger.chains[chunk].due
            if due > seen:  # the link was there, and not mixed yet
                links = max(1, (due - seen) // self.schedule.sync_every)
                self._keep(Anchor(chunk, due, links, True, node.ledger.tip(chunk).anchor))

    def gather(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Wait for the run's `start_peers`, if it has not begun yet; at most two minutes. Says what it waits for."""
        began = clock.monotonic()
        wanted, end, told = self.manifest.run.start_peers, began + GATHER_TIMEOUT, 0.0
        if self.own_step and not self.settings.lockstep and not self.alone:
            self._come_back(stop)
        while not stop() and not self.alone and not self.own_step:
            here = self._in_outer(self.outer.present)
            reached = self._in_outer(self.outer.furthest)
            if reached >= self.schedule.sync_every:  # a run that is under way: own from two windows ahead
                self._own_from(reached)
                self.network.post(self.network.rendezvous.announce_soon)
                self._join_in(stop, reached)
            met = clock.monotonic() > began + LOOK_TIMEOUT or self._in_outer(self.outer.met)
            if reached or (here >= wanted and met):
                self._warn_of_another(reached)
                return
            if clock.monotonic() > end:
                self.network.notice("Not all peers came; starting with those who are here.")
                return
            if clock.monotonic() > told + 5:
                told = clock.monotonic()
                self.network.notice(f"{here} of {wanted} peers are here; waiting for the others before the first step.")
            self._in_outer(lambda: asyncio.sleep(0.1))

    def _join_in(self, stop: Callable[[], bool], reached: int) -> None:
        """A run under way: begin at its step, with its outer parameters, so that our first Δ is of our own training."""
        if self.settings.lockstep:
            return
        sizes = [8 * chunk.numel + self.arithmetic.result_bytes(chunk.index) for chunk in self.chunks]
        newcomer = Newcomer(self.outer, sizes)
        seconds, look = newcomer.fetch(self.network.call, self.network.notice, lambda: stop() or bool(self.alone))
        pace = self._begin_from_outer()
        self.step = min(pace or reached, self.schedule.steps)
        size = newcomer.size(look.linked - look.bare)
        self.joined = Joined(self.step, seconds, look.read, size, look.donors)
        self.record.write("joined", **asdict(self.joined))
        self.network.post(self.outer.set_step, self.step, None)

    def _begin_from_outer(self) -> int:
        """θ ← anchor, everywhere; the swarm's pace."""
        pace: int
        states, pace, self._bare = self._in_outer(self.outer.take_over)
        for chunk, state in zip(self.chunks, states, strict=True):
            self._parameters.write(chunk.fragment, chunk.start, state.anchor)
        return pace

    def _warn_of_another(self, reached: int) -> None:
        """A newcomer that nobody can give anything to begins from the start, even if the run is over elsewhere."""
        if reached or self.settings.lockstep:
            return
        said = False
        with suppress(NetworkFailed):
            said = self._in_outer(lambda: self._returning.said_by_anyone(0.0))
        if not said:
            return
        self.network.notice(
            "Peers have finished this run lately, and nobody who has its last state is here. Training starts from the "
            "beginning, and makes another model than theirs."
        )

    def _come_back(self, stop: Callable[[], bool]) -> None:
        """Look whether the run ended while this peer was away. RunOver if it did, and nobody has its last state."""
        if self.finished:
            self.network.notice("This run has finished, and this peer has its last state: it gives it to who lacks it.")
            self._wait(lambda: self._in_outer(self.outer.met), LOOK_TIMEOUT, stop)
            return
        word = None
        with suppress(NetworkFailed):  # a DHT that does not answer must not keep us from training
            word = self._in_outer(lambda: self._returning.words(LOOK_TIMEOUT), LOOK_TIMEOUT + CALL_TIMEOUT)
        if word is None:
            return
        seconds = self.settings.linger
        if not self._in_outer(self._returning.company):
            self.network.notice(
                f"Others have finished this run, and this peer was away. Looking for one who still has its last state, "
                f"at most {seconds:g} s."
            )
        here = self._wait(lambda: self._in_outer(self._returning.company), seconds, stop)
        if not here and not stop() and not self.alone:
            raise RunOver(
                "this run has finished without this peer, and nobody who has its last state is here. Training on alone "
                f"would make another model; the state of step {self.step} stays in {self._snapshots.folder.path}. To "
                f"get the last one, start this peer again, and within {seconds:g} s one that finished."
            )
        if here and self._in_outer(lambda: self._returning.only_holders(self.schedule.steps)):
            self._take_last_state(stop)

    def _take_last_state(self, stop: Callable[[], bool]) -> None:
        """Nobody trains any more: take what they ended with, as a newcomer does, unless it is not the last."""
        self._in_outer(self.outer.begin_joining)  # repair then asks without hesitating
        has = self._wait(lambda: self._in_outer(lambda: self._returning.has_last(self.schedule)), STALLED, stop)
        self.network.post(self.outer.end_joining)
        if not has:
            return
        self._begin_from_outer()
        self._bare = frozenset()
        self.step = self.schedule.steps
        self.network.post(self.outer.set_step, self.step, None)
        self.network.notice("This peer has taken over the state in which the others have finished this run.")

    def _wait(self, condition: Callable[[], bool], seconds: float, stop: Callable[[], bool]) -> bool:
        """Until it holds, at most so long, or until stopped or cut off; whether it does."""
        end = clock.monotonic() + seconds
        while not (found := condition()) and clock.monotonic() < end and not stop() and not self.alone:
            self._in_outer(lambda: asyncio.sleep(0.1))
        return found

    def _in_outer(self, work: Callable[[], Any], timeout: float = CALL_TIMEOUT) -> Any:
        return self.network.call(work(), timeout)

    # The hook

    def begin(self) -> None:
        """The first inner step begins now. Called on entering the context, or else by the hook."""
        self._started = True
        with suppress(NetworkFailed):
            self._in_outer(self._sit)
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
        bare = self.outer.bare  # read before the mail: whatever leaves it has an anchor there, or is nobody's
        noticed = self._collect()
        if self.settings.lockstep:
            noticed = []
        self.step, windows = boundary(self.step, noticed, self.schedule)
        merging = self.schedule.merging(self.step)
        if self.schedule.overlap and (self.settings.lockstep or self.settings.merge_wait):
            self._await(merging)
        self._mix()
        self._dress(bare)
        self.network.post(self.outer.set_step, self.step, self.times.step)
        for window in windows:
            self._open(window)
        for window in self._mailbox.take_retries():
            self._retry(window)
        if not self.schedule.overlap:
            self._await(windows)
            self._mix()
        if self._snapshots.is_due(self.step):
            taken, node = self._take(), self.outer.node
            if not self.network.post(lambda: self._snapshots.put(taken, OuterPart.of(node))):
                self._snapshots.abandon()
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

    def _dress(self, bare: frozenset[int]) -> None:
        """Forget the chunks whose anchors have come since we began without them."""
        if self._bare:
            self._bare &= bare
            if not self._bare:
                self.network.post(self.outer.end_joining)

    def _too_new(self, window: Window) -> str:
        """Why a newcomer does not contribute to a window yet; empty if it may."""
        if any(self.fragment_of[chunk] == window.fragment for chunk in self._bare):
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
        """The parameters of each chunk of a window, copied; from now on it counts as on its way."""
        snapshot = self._parameters.read(window.fragment)
        self._merges.opened(window, self.own_step)
        self.outer.pending[window.fragment] += 1
        return [snapshot[chunk.start : chunk.stop] for chunk in self.chunks if chunk.fragment == window.fragment]

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
            self._mixed[mix.chunk] = mix.due
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
        if mix.chunk in self._bare:
            alpha = 0.0  # ours are the initial parameters
            self._bare -= {mix.chunk}
        self._parameters.write(chunk.fragment, chunk.start, merge(local, anchor, alpha))
        self.record.mixed(mix.chunk, mix.due, mix.late, mix.power)

    # Snapshots

    def _take(self) -> Taken:
        """Our part of a snapshot, copied at a step boundary."""
        began = clock.monotonic()
        self._snapshots.begin()
        state, optimizer, loop = pack_state(self._optimizer, self._kept, self._snapshots.say_once)
        index = Index(
            potluck=program_version(),
            run=run_id(self.manifest).hex(),
            peer=self.network.identity.key.hex(),
            step=self.step,
            own_step=self.own_step,
            tokens=self.tokens,
            from_step=self._from_step,
            seat=self.seat,
            mixed=tuple(self._mixed.get(chunk.index, 0) for chunk in self.chunks),
            opened=tuple((window.fragment, window.due, own) for window, own in self._merges.snapshots),
            marks=(),
            optimizer=optimizer,
            loop=loop,
        )
        fragments = [self._parameters.read(fragment.index) for fragment in self.layout.fragments]
        return Taken(index, fragments, state, clock.monotonic() - began)

    def _take_last(self) -> None:
        """The last snapshot begins to be written, unless the one before says the same. Bounded in time."""
        if not self._snapshots.enabled or not self.own_step or not self._snapshots.wait():
            return
        taken = self._take()

        async def put() -> None:
            self._snapshots.put(taken, OuterPart.of(self.outer.node))

        try:
            self._in_outer(put)
        except NetworkFailed as error:
            self._snapshots.abandon()
            log.warning("the last snapshot was not taken: %s", error)

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
        self._collect()
        self._take_last()  # before `write_outer` is used on the same model
        return done

    def close(self) -> None:
        """Say goodbye and stop. Bounded in time; may be called twice. Leaves the network to its owner."""
        if self._closed:
            return
        self._closed = True
        self._hook.remove()
        self.network.post(self.outer.set_phase, LEAVING)
        self._take_last()
        for work, seconds in ((self._say_farewell, FAREWELL_SECONDS), (self.outer.stop, 10.0)):
            try:
                self._in_outer(work, seconds)
            except NetworkFailed as error:
                log.warning("could not leave cleanly: %s", error)
        if not self._snapshots.wait():
            self.network.notice("The last snapshot takes too long to write; the one before it stays.")
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


def snapshot_folder(settings: Settings, manifest: Manifest) -> SnapshotFolder:
    """Where a peer of a sealed run keeps its snapshots."""
    return SnapshotFolder(settings.out / "snapshots", run=run_id(manifest), kept=settings.snapshots_kept)


def _check_peer(tokens_per_step: int, manifest: Manifest, layout: Layout) -> None:
    """UserError for what would make a peer that cannot take part."""
    if tokens_per_step < 1:
        raise UserError.field("tokens_per_step", tokens_per_step, "must be at least 1: tokens weigh contributions")
    if layout.digest().hex() != manifest.model.layout:
        raise UserError("parameters.layout: is not the layout that the manifest names")
