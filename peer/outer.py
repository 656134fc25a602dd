"""The shell around the protocol's node: frames in, frames out, timers, presence. Runs in the outer thread only.

All decisions are the node's. This part knows the transport, the clock and the DHT, turns what the node commands into
frames and mail for the trainer, and keeps the record. Each callback is a boundary: an error of ours in one of them is
logged once and counted, and the peer goes on with the next event.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from torch import Tensor

from aggregation.outer import ChunkState
from bootstrap.identity import peer_id
from bootstrap.rendezvous import Rendezvous
from peer import clock
from peer.ledger_record import LedgerRecord
from peer.mailbox import Anchor, Mailbox
from peer.record import Record
from peer.transport import Priority, Transport
from peer.window_bytes import WindowBytes
from protocol import presence
from protocol.commands import Contributed, Missed, Notice, Retry, Send, Settled
from protocol.errors import ProtocolError
from protocol.messages import VERSION, Contribution, Hello, LinkMessage, Records, StateMessage, encode
from protocol.node import Node
from protocol.presence import Presence
from protocol.schedule import Window

log = logging.getLogger(__name__)

DISCOVER_FIRST: Final = 0.5
DISCOVER_LAST: Final = 10.0
"""Seconds between two looks into the DHT: short at first, longer once peers tell each other the roster."""
RECORDS_AT_ONCE: Final = 64
NEVER: Final = 3600.0
GONE_AFTER: Final = 10.0
"""Seconds of refused dials after which a process is taken for gone: one that is started again is back before."""


class Outer:
    """One peer's protocol node on a real transport. Made and used in the event loop's thread."""

    def __init__(
        self,
        *,
        node: Node,
        transport: Transport,
        rendezvous: Rendezvous,
        mailbox: Mailbox,
        record: Record,
        make_presence: Callable[[Sequence[str], float], Presence],
        sign_bytes: Callable[[bytes], bytes],
        addresses: Sequence[str],
    ) -> None:
        self.node = node
        self.transport = transport
        self.refused: Counter[str] = Counter()
        """Bad frames and records, by reason."""
        self.errors: Counter[str] = Counter()
        """Errors of our own, by what was being done."""
        self.connected: set[bytes] = set()
        self.pending: Counter[int] = Counter()
        """Openings per fragment that the trainer has handed over and this thread has not seen yet. The trainer adds
        only where nothing is pending, so the two threads never change one at the same time."""
        self.window_bytes = WindowBytes()
        self.bare: frozenset[int] = frozenset()
        """For a newcomer: chunks that are still at genesis here and not elsewhere. The trainer reads it."""
        self.first_contribution: float | None = None
        """When, on the monotonic clock."""
        self.dht_bytes = 0
        """Presence records read from and written to the DHT: their own bytes, not libp2p's."""
        self._rendezvous = rendezvous
        self._mailbox = mailbox
        self._record = record
        self._ledger_record = LedgerRecord(node, record)
        self._make_presence = make_presence
        self._sign = sign_bytes
        self.addresses = tuple(addresses)
        """Where others are told to dial us; empty behind NAT."""
        self._roster_version = 0
        self._connecting: set[bytes] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._discovery: asyncio.Task[None] | None = None
        self._looked = False
        self._stopped = False

    async def start(self) -> None:
        """Be here: accept streams, tell the DHT, look for others."""
        await self.transport.start(self)
        self._learn([self.presence()])
        self._rendezvous.announce(self.node.ledger.run, self.presence)
        self._discovery = asyncio.create_task(self._discover())
        self._do("start", self.node.handle_timer)

    def presence(self) -> bytes:
        """A freshly signed presence record of ours. Peers that we have met get it as well."""
        data = presence.encode(self._make_presence(self.addresses, clock.wall()), self._sign)
        self.dht_bytes += len(data)
        if self.node.roster.key in self.node.roster.neighbours:
            self._learn([data])
            for peer in self.node.roster.live():
                self._send(Send(peer, Hello(VERSION, data)))
        return data

    def move(self, addresses: Sequence[str]) -> None:
        """Others can dial us at these addresses from now on, or nowhere: tell them."""
        self.addresses = tuple(addresses)
        self._rendezvous.announce_soon()

    async def _discover(self) -> None:
        """Look into the DHT for ever: it is how two swarms that do not know of each other meet."""
        pause = DISCOVER_FIRST
        while True:
            known = len(self.node.roster.neighbours)
            joined = self._rendezvous.joined.is_set()
            with self._boundary("look for others in the DHT", but=()):
                records = await self._rendezvous.find(self.node.ledger.run)
                self.dht_bytes += sum(map(len, records))
                self._learn(records)
                self._looked |= joined
            pause = DISCOVER_FIRST if len(self.node.roster.neighbours) > known else min(pause * 1.5, DISCOVER_LAST)
            await asyncio.sleep(pause)

    def _learn(self, records: Sequence[bytes]) -> None:
        for data in records:
            self._learn_one(data)

    def _learn_one(self, data: bytes) -> None:
        self._do("learn a record", lambda now: self.node.learn([data], now=now, wall=clock.wall()))

    # From the trainer (called in this thread)

    def set_step(self, step: int, step_seconds: float | None) -> None:
        """The trainer's swarm step."""
        self._do("take a step", lambda now: self.node.set_step(step, step_seconds, now))

    def open(self, window: Window, local: Sequence[Tensor], tokens: int) -> None:
        """Contribute a snapshot."""
        self.pending[window.fragment] -= 1
        self._do("open a window", lambda now: self.node.open(window, local, tokens, now))

    def retry(self, window: Window, local: Sequence[Tensor], tokens: int) -> None:
        """Contribute a newer snapshot for what nobody has closed."""
        self.pending[window.fragment] -= 1
        self._do("retry a window", lambda now: self.node.retry(window, local, tokens, now))

    def set_phase(self, phase: int) -> None:
        """Training, finished or leaving."""
        self._do("change our phase", lambda now: self.node.set_phase(phase, now))

    async def state(self) -> list[ChunkState]:
        """The outer parameters and momentum now, chunk by chunk."""
        return [self.node.ledger.tip(chunk) for chunk in range(len(self.node.ledger.chains))]

    async def settle(self, linger: float) -> bool:
        """Serve until every peer that may still come has finished with our heads, at most `linger` seconds.

        Returns whether they have; not if we may be cut off from them.
        """
        end = clock.monotonic() + linger
        while clock.monotonic() < end and not self.node.all_finished():
            await asyncio.sleep(0.1)
            self._note_the_gone()
        return self.node.agreed()

    def _note_the_gone(self) -> None:
        """A frozen machine answers no dial; one that refuses has no such process any more, and nobody to wait for."""
        now = clock.monotonic()
        since = {key: self.transport.refused_since(key) for key in self.node.roster.neighbours}
        self.node.roster.gone = {key for key, when in since.items() if when is not None and now > when + GONE_AFTER}

    async def present(self) -> int:
        """How many trainers are here, ourselves included: those with an open stream, and those that announce
        themselves but never can have one with us."""
        roster = self.node.roster
        apart = {key for key, peer in roster.neighbours.items() if roster.is_apart(key) and peer.record.role == "train"}
        return 1 + len((self.connected & (roster.trainers() - {roster.key})) | apart)

    async def furthest(self) -> int:
        """The greatest swarm step that a peer has told us."""
        others = (n.step for key, n in self.node.roster.neighbours.items() if key != self.node.roster.key)
        return max(others, default=0)

    async def met(self) -> bool:
        """Whether we have heard from everyone who can be found, or nobody answers: no run under way is missed."""
        if not self._rendezvous.asked:
            return False
        others = (peer for key, peer in self.node.roster.neighbours.items() if key != self.node.roster.key)
        nobody = not self._rendezvous.joined.is_set()
        return nobody or (self._looked and all(peer.status or peer.lost for peer in others))

    # A newcomer (peer/newcomer.py)

    async def begin_joining(self) -> None:
        """Get everything that others have."""
        self._do("begin to join", self.node.repair.begin_joining)

    def end_joining(self) -> None:
        """It is here."""
        self.node.repair.end_joining()
        self.bare = frozenset()

    async def take_over(self) -> tuple[list[ChunkState], int, frozenset[int]]:
        """The outer state now, the swarm's pace, and the chunks that are still bare.

        What was in the mail is forgotten: it is part of this state, and must not be mixed in again.
        """
        self._mailbox.take()
        return await self.state(), self.node.roster.pace(), frozenset(self.node.repair.bare())

    # From the transport

    def on_frame(self, key: bytes, header: bytes, bulk: memoryview) -> str:
        """A frame arrived (see Handler). Bad ones are counted here and complained about by the transport.

        Raises ProtocolError and nothing else: a frame that breaks us is a bad one too.
        """
        errors, data = self.errors.total(), bytes(bulk)
        try:
            self._do(
                "take a frame",
                lambda now: self.node.receive(key, header, data, now=now, wall=clock.wall()),
                raising=True,
            )
        finally:
            if key not in self.connected:
                # It can speak to us, but we cannot answer: the last words of a peer that is gone must not revive it,
                # since the transport will not report it lost again.
                self.node.roster.lose(key)
        if self.errors.total() > errors:
            raise self._refused(ProtocolError("a message that we could not handle"))
        return "window"

    def on_connected(self, key: bytes) -> None:
        """Our stream to a peer is open: introduce ourselves and pass on whom we know."""
        self.connected.add(key)
        self._do("greet a peer", lambda now: self._greet(key))

    def _greet(self, key: bytes) -> None:
        neighbours = self.node.roster.neighbours
        self._send(Send(key, Hello(VERSION, neighbours[self.node.roster.key].raw)))
        others = [n.raw for peer, n in neighbours.items() if peer not in (key, self.node.roster.key)]
        self._send(Send(key, Records(tuple(others[:RECORDS_AT_ONCE]))))
        self.node.greet(key, clock.monotonic())

    def on_lost(self, key: bytes, why: str) -> None:
        """A stream broke: the node must not count on that peer."""
        self.connected.discard(key)
        log.info("lost %s: %s", peer_id(key), why)
        self._do("lose a peer", lambda now: self.node.lost(key, now))

    # The node's commands

    def _do(self, what: str, action: Callable[[float], Any], *, raising: bool = False) -> None:
        """Let the node act, then do what it commands and set its timer.

        A ProtocolError is counted, and raised again if `raising`; any other error is logged and counted under `what`.
        """
        if self._stopped:
            return
        try:
            with self._boundary(what):
                action(clock.monotonic())
        except ProtocolError as error:
            self._refused(error)
            if raising:
                raise
        finally:
            for command in self.node.take():
                with self._boundary(f"do what the node commands ({type(command).__name__})"):
                    self._obey(command)
            if self.node.roster.version != self._roster_version:
                self._roster_version = self.node.roster.version
                with self._boundary("connect to a new peer"):
                    self._connect_to_all()
            if self.node.repair.joining:
                self.bare = frozenset(self.node.repair.bare())
            self._set_timer()

    def _refused(self, error: ProtocolError) -> ProtocolError:
        self.refused[error.reason] += 1
        return error

    @contextmanager
    def _boundary(self, what: str, *, but: type[Exception] | tuple[()] = ProtocolError) -> Iterator[None]:
        """Any error `but` these ends here: logged the first time it happens while doing this, and counted."""
        try:
            yield
        except but:
            raise
        except Exception:
            self.errors[what] += 1
            if self.errors[what] == 1:
                log.exception("could not %s; this peer goes on, and says no more about such errors", what)

    def _set_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
        wait = self.node.get_timer() - clock.monotonic()
        delay = min(max(0.0, wait), NEVER)
        if self.errors and wait <= 0:
            delay = 0.1  # whatever fails there must not take the whole processor
        self._timer = asyncio.get_running_loop().call_later(delay, self._do, "keep time", self.node.handle_timer)

    def _obey(self, command: object) -> None:
        match command:
            case Send():
                self._send(command)
            case Settled():
                self._settled(command)
            case Notice():
                self._mailbox.notice(command.window)
            case Retry():
                self._mailbox.retry(command.window)
            case Contributed():
                self.first_contribution = self.first_contribution or clock.monotonic()
                self._ledger_record.contributed(command)
            case Missed():
                self._record.write("missed", chunk=command.chunk, due=command.due, reason=command.reason)

    def _send(self, command: Send) -> None:
        priority = Priority.REPAIR if command.repair else None
        kind = "repair" if command.repair else "window"
        message = command.message
        wanted = self._still_open(message) if isinstance(message, Contribution) else None
        queued = self.transport.send(
            command.to, encode(message), command.bulk, kind=kind, priority=priority, wanted=wanted
        )
        if queued and isinstance(message, Contribution | LinkMessage) and not command.repair:
            due = message.due if isinstance(message, Contribution) else message.link.due
            self.window_bytes.add(due, len(command.bulk))
        if queued and command.repair and isinstance(message, LinkMessage | StateMessage):
            self._ledger_record.gave(command.to, message)

    def _still_open(self, message: Contribution) -> Callable[[], bool]:
        """A contribution whose window is over would only keep those behind it in the queue from coming in time."""
        chain = self.node.ledger.chains[message.chunk]
        return lambda: chain.due < message.due

    def _settled(self, command: Settled) -> None:
        self._ledger_record.settled(command.chunk)
        anchor = self.node.ledger.tip(command.chunk).anchor
        self._mailbox.put_anchor(Anchor(command.chunk, command.due, command.links, command.mix, anchor))

    def _connect_to_all(self) -> None:
        """Keep a stream to everyone in the roster but those that neither of us can dial, and to nobody else."""
        roster = self.node.roster
        apart = {key for key in roster.neighbours if roster.is_apart(key)}
        wanted = roster.neighbours.keys() - apart - {roster.key}
        for key in wanted:
            self.transport.connect(key, roster.neighbours[key].record.addresses)
        for key in self._connecting - wanted:
            self.transport.forget(key)
            self.connected.discard(key)
        for key in apart:
            roster.lose(key)  # nothing can be expected of it here; owners, which it can dial, expect it
        self._connecting = set(wanted)

    def alone(self) -> None:
        """The network is gone: stop looking for others."""
        if self._discovery:
            self._discovery.cancel()

    async def stop(self) -> None:
        """Say nothing more. Bounded in time."""
        self.alone()
        try:
            await self.transport.close(flush=1.0)
        finally:
            self._stopped = True
            if self._timer:
                self._timer.cancel()
