"""One peer's part in the protocol: frames, openings and time in; frames, settled chunks and notes out.

The node does no I/O and reads no clock: `now` is any monotonic clock's seconds, `wall` is Unix time (presence records
only). After every call the caller takes `take()`'s commands and calls `handle_timer` at `get_timer()`. It runs the same
over libp2p (peer/) and over the simulator's links.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import msgspec

from protocol.errors import ProtocolError
from protocol.ledger import Adoption, Arithmetic, Ledger
from protocol.messages import (
    FINISHED,
    TRAINING,
    VERSION,
    AskHeads,
    Contribution,
    Heads,
    Hello,
    LinkMessage,
    Message,
    Open,
    Pull,
    Records,
    StateMessage,
    Status,
    contribution_text,
    decode,
    sha256,
)
from protocol.pace import furthest
from protocol.presence import decode_verified
from protocol.repair import Repair
from protocol.roster import Roster
from protocol.schedule import Schedule, Window
from protocol.signature import Keys
from protocol.window import PATIENCE_FLOOR, Close, Contributed, Missed, Rules, Send, Windows

BEAT: Final = 1.0
"""Seconds between two Status messages."""
CLOSED: Final = "closed before we came"
"""Why a contribution was not sent: the window has its link already."""
REMEMBERED: Final = 8
"""Contributions per chunk whose token counts are kept."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Command: the chunk's anchor moved; hand the newest one to the trainer.

    `mix` is False for a link that only replaced its sibling: the anchor moves, the parameters do not.
    """

    chunk: int
    due: int
    links: int
    mix: bool


@dataclass(frozen=True, slots=True)
class Notice:
    """Command: the trainer should open this window at its next step boundary."""

    window: Window


Command = Send | Contributed | Settled | Notice | Missed
"""What `take` returns. (`Close` never leaves the node.)"""


class Node:
    """The protocol's state machines of one peer, joined."""

    def __init__(
        self,
        *,
        ledger: Ledger[Any],
        arithmetic: Arithmetic[Any],
        roster: Roster,
        schedule: Schedule,
        rules: Rules,
        keys: Keys,
        random: Callable[[], float],
    ) -> None:
        """`random` gives floats in [0, 1): it only spreads repairs in time."""
        self.ledger = ledger
        self.roster = roster
        self.step = 0
        self.phase = TRAINING
        self._arithmetic = arithmetic
        self._schedule = schedule
        self.fragment_of = rules.fragment_of
        self._keys = keys
        self._commands: list[object] = []
        emit = self._commands.append
        self.windows = Windows(rules=rules, ledger=ledger, roster=roster, emit=emit)
        self.repair = Repair(ledger=ledger, roster=roster, windows=self.windows, random=random, emit=emit)
        self._beat = 0.0
        self._sent: dict[int, list[tuple[bytes, int]]] = {}
        self._marks: dict[int, int] = {}
        self._earlier = 0
        """Tokens when this life of the peer began: 0, or those of the snapshot that it was restored from."""
        self._opened: dict[int, int] = {}
        self._noticed: set[Window] = set()
        self._told: dict[int, int] = {}

    # Over a restart

    def marks(self) -> list[int]:
        """Of each chunk the tokens at the snapshot of our last contribution that a link names."""
        return [self._marks.get(chunk, 0) for chunk in range(len(self.fragment_of))]

    def resume(self, step: int, tokens: int, marks: Sequence[int]) -> None:
        """Go on after swarm step `step` and so many `tokens`, with an earlier life's `marks`. Before anything else."""
        self.step, self._earlier = step, tokens
        self._marks = dict(enumerate(marks))

    # What the trainer does

    def set_step(self, step: int, step_seconds: float | None, now: float) -> None:
        """The trainer's swarm step, and its usual seconds a step: patience is what τ hides."""
        self.step = step
        if step_seconds is not None and self.windows.patience < inf:
            self.windows.patience = max(PATIENCE_FLOOR, self._schedule.overlap * step_seconds)
        self._say_ourselves()
        self._emit_notices()

    def set_phase(self, phase: int, now: float) -> None:
        """Training, finished or leaving; everyone hears it."""
        self.phase = phase
        self._say_ourselves()
        self._beat = now

    def open(self, window: Window, local: Sequence[object], tokens: int, now: float) -> None:
        """Contribute to a window. `local` holds the parameters of each chunk of the fragment, in chunk order;
        `tokens` are all those trained on by the snapshot, since the start of this peer."""
        chunks = self.chunks_of(window.fragment)
        assert len(local) == len(chunks)
        self._opened[window.fragment] = max(window.due, self._opened.get(window.fragment, 0))
        self._tell_status()
        ranking = self.roster.ranked(chunks, window.due)
        too_late: set[bytes] = set()
        for chunk, values in zip(chunks, local, strict=True):
            reason = self._contribute(chunk, window.due, values, tokens, ranking[chunk], now)
            if reason:
                self._commands.append(Missed(chunk, window.due, reason))
            if reason == CLOSED:
                too_late.update(ranking[chunk][:1])
        # Their owners must hear that we came, or they would close without us for ever.
        self._commands += [Send(owner, Open(window.fragment, window.due)) for owner in sorted(too_late)]
        self._run(now)

    def _contribute(
        self, chunk: int, due: int, local: object, tokens: int, owners: tuple[bytes, ...], now: float
    ) -> str:
        """Send one chunk's contribution; returns why not, or nothing."""
        if self.ledger.chains[chunk].due >= due:
            return CLOSED
        if self._is_far(due):
            return "we are far ahead of the swarm"
        fresh = tokens - self._marks.get(chunk, 0)
        if fresh <= 0:
            return "nothing trained"
        tip = self.ledger.tip(chunk)
        try:
            payload = self._arithmetic.contribution(chunk, tip, local)
        except ValueError:
            return "our parameters are not finite"
        unsigned = Contribution(
            chunk=chunk,
            due=due,
            parent=self.ledger.parent(chunk, tip),
            tokens=fresh,
            payload=sha256(payload),
            peer=self._keys.key,
            signature=bytes(64),
        )
        signature = self._keys.sign(contribution_text(self.ledger.run, unsigned))
        signed = msgspec.structs.replace(unsigned, signature=signature)
        self._sent.setdefault(chunk, []).append((signed.payload, tokens))
        del self._sent[chunk][:-REMEMBERED]
        self.windows.contribute(signed, payload, owners, now)
        return ""

    def chunks_of(self, fragment: int) -> list[int]:
        """The chunks of a fragment, in order."""
        return [chunk for chunk, owner in enumerate(self.fragment_of) if owner == fragment]

    # What the network does

    def receive(self, peer: bytes, header: bytes | memoryview, bulk: bytes, *, now: float, wall: float) -> None:
        """A frame of a peer. ProtocolError if it is a bad one: then nothing has changed."""
        self.handle_timer(now)
        message = decode(header)
        self.roster.seen(peer)
        self._dispatch(peer, message, bulk, now, wall)
        self._run(now)

    def _dispatch(self, peer: bytes, message: Message, bulk: bytes, now: float, wall: float) -> None:
        if bulk and not isinstance(message, Contribution | LinkMessage | StateMessage):
            raise ProtocolError("bulk bytes where none belong")
        match message:
            case Contribution():
                self._take_contribution(message, bulk, now)
            case LinkMessage():
                window = self._near(self._window_of(message.link.chunk, message.link.due))
                self._check_owner(peer, message)
                self._adopt(peer, message, bulk, now)
                self._notice(window)
            case StateMessage():
                self._check_owner(peer, message)
                self._take_state(message, bulk, now)
            case Open():
                window = self._near(Window(message.fragment, message.due))
                for chunk in self.chunks_of(window.fragment):
                    self.windows.came_late(peer, chunk, window.due, now)
                self._notice(window)
            case Status():
                self.roster.say(peer, message)
                self.repair.heard_status(peer, now)
                self._emit_notices()
            case AskHeads():
                self._check_known(peer)
                self.repair.serve_heads(peer)
            case Heads():
                self.repair.heard_heads(peer, message, now)
            case Pull():
                self._check_known(peer)
                self.repair.serve(peer, message, self._arithmetic.dump)
            case Hello():
                if message.version != VERSION:
                    raise ProtocolError("another version of the protocol")
                self._learn([message.record], peer, now, wall)
            case Records():
                self._learn(message.records, None, now, wall)

    def _check_known(self, peer: bytes) -> None:
        """An answer can be large, and no stream leads to a stranger."""
        if peer not in self.roster.neighbours:
            raise ProtocolError("request of an unknown peer")

    def _take_contribution(self, message: Contribution, bulk: bytes, now: float) -> None:
        window = self._near(self._window_of(message.chunk, message.due))
        if message.peer not in self.roster.neighbours:
            raise ProtocolError("contribution of an unknown peer")
        if sha256(bulk) != message.payload:
            raise ProtocolError("contribution and payload do not match")
        if not self._keys.verify(message.peer, contribution_text(self.ledger.run, message), message.signature):
            raise ProtocolError("bad signature of a contribution")
        try:
            self._arithmetic.check_contribution(message.chunk, bulk)
        except ValueError as error:
            raise ProtocolError("bad payload of a contribution") from error
        self.windows.receive(message, bulk, now)
        self._notice(window)

    def _check_owner(self, source: bytes, message: LinkMessage | StateMessage) -> None:
        """Anyone can make a key and sign: only who is known as an owner closes windows. Of what we ask for, others too:
        an owner's links outlive its presence record."""
        owner = self.roster.neighbours.get(message.owner)
        if not (owner and owner.record.owns) and not self.repair.asked(source, message.link.chunk):
            raise ProtocolError("a link of a peer that owns nothing")

    def _adopt(self, source: bytes, message: LinkMessage, payload: bytes, now: float) -> None:
        """Take a link from a peer (or our own) and do what follows from what it turned out to be."""
        chunk = message.link.chunk
        chain = self.ledger.chains[chunk] if chunk < len(self.ledger.chains) else None
        depth = chain.newest.message.link.depth if chain and chain.newest else 0
        adoption = self.ledger.adopt(message, payload)
        have = (chain.head, chain.base_head) if chain and adoption is Adoption.MISSING else ()
        if adoption in (Adoption.MISSING, Adoption.WRONG_STATE):
            donor = source if source != self._keys.key else self._another(message)
            if donor:
                self.repair.want(donor, chunk, have, now)
        elif adoption is not Adoption.OLD:
            links = max(1, self.ledger.known_parent(chunk)[0] - depth)
            self._after_adoption(chunk, links, adoption is Adoption.EXTENDED, now)

    def _another(self, message: LinkMessage) -> bytes | None:
        peers = [part.peer for part in message.link.parts if part.peer != self._keys.key]
        return next((peer for peer in peers if not self.roster.is_lost(peer)), None)

    def _take_state(self, message: StateMessage, bulk: bytes, now: float) -> None:
        self._near(self._window_of(message.link.chunk, message.link.due))
        depth = self.ledger.known_parent(message.link.chunk)[0]
        if self.ledger.adopt_state(message, bulk):
            links = max(0, self.ledger.known_parent(message.link.chunk)[0] - depth)
            self._after_adoption(message.link.chunk, links, links > 0, now)

    def _after_adoption(self, chunk: int, links: int, mix: bool, now: float) -> None:
        for entry in self.ledger.recent(chunk, REMEMBERED):
            for part in entry.message.link.parts:
                if part.peer == self._keys.key:
                    totals = [total for payload, total in self._sent.get(chunk, ()) if payload == part.payload]
                    # One that is not ours any more was sent by an earlier life, from no more than it had trained.
                    self._marks[chunk] = max([self._marks.get(chunk, 0), *(totals or [self._earlier])])
        self.windows.adopted(chunk)
        self.repair.adopted(chunk, now)
        due = self.ledger.chains[chunk].due
        self._commands.append(Settled(chunk=chunk, due=due, links=links, mix=mix))

    def _learn(self, records: Sequence[bytes], speaker: bytes | None, now: float, wall: float) -> None:
        """Records from the DHT or from peers; newly met peers are made known to the others."""
        fresh = []
        problem = None
        for data in records:
            try:
                record = decode_verified(data, now=wall)
            except ProtocolError as error:  # one that has just expired must not take the others with it
                problem = error
                continue
            if record.run != self.ledger.run:
                raise ProtocolError("presence record of another run")
            is_new = record.key not in self.roster.neighbours
            if self.roster.learn(record, now=now, wall=wall, raw=data) and is_new:
                fresh.append(data)
        if problem and len(records) == 1:
            raise problem
        if fresh:
            for peer in self.roster.live():
                if peer != speaker:
                    self._commands.append(Send(peer, Records(tuple(fresh[:64]))))

    def learn(self, records: Sequence[bytes], *, now: float, wall: float) -> None:
        """Presence records from the DHT, or our own. ProtocolError for a bad one."""
        self._learn(records, None, now, wall)

    def lost(self, peer: bytes, now: float) -> None:
        """The stream to a peer closed, or it did not acknowledge in time."""
        self.handle_timer(now)
        self.roster.lose(peer)
        self.windows.lost(peer, now)
        self._run(now)

    # Pace

    def _window_of(self, chunk: int, due: int) -> Window:
        if chunk >= len(self.fragment_of):
            raise ProtocolError("unknown chunk")
        window = Window(self.fragment_of[chunk], due)
        if not self._schedule.is_due(window):
            raise ProtocolError("a due step that the schedule does not have")
        return window

    def _near(self, window: Window) -> Window:
        """The window, unless no peer of this pace can have reached it: one bad clock must not drag, or end, a chunk."""
        if not self._schedule.is_due(window):
            raise ProtocolError("a due step that the schedule does not have")
        if self._is_far(window.due):
            raise ProtocolError("a window far ahead of the swarm")
        return window

    def _is_far(self, due: int) -> bool:
        """Whether a due step is more than two rounds ahead of the pace. Our own step may be the wrong one."""
        return due > self.roster.pace() + 2 * self._schedule.sync_every

    def _notice(self, window: Window) -> None:
        """Remember a window that others have reached. They are at most two rounds ahead, so these are few."""
        if window.due > self._reached(window.fragment) and self.phase == TRAINING:
            self._noticed.add(window)
            self._emit_notices()

    def _reached(self, fragment: int) -> int:
        return max(self._opened.get(fragment, 0), self._told.get(fragment, 0))

    def _emit_notices(self) -> None:
        limit = furthest(self.roster.pace(), self._schedule)
        for window in sorted(self._noticed):
            if window.due <= limit:
                self._noticed.discard(window)
                if window.due > self._reached(window.fragment):
                    self._told[window.fragment] = window.due
                    self._commands.append(Notice(window))

    # Time

    def get_timer(self) -> float:
        """When `handle_timer` must be called next."""
        return min(self._beat, self.windows.timer, self.repair.timer)

    def handle_timer(self, now: float) -> None:
        """Everything whose time has come."""
        self.windows.handle_timer(now)
        self.repair.handle_timer(now)
        if now >= self._beat:
            self._beat = now + BEAT
            self.roster.forget_expired(now)
            self._tell_status()
        self._run(now)

    def _say_ourselves(self) -> None:
        self.roster.say(self._keys.key, self._status())

    def _status(self) -> Status:
        # Until our last windows have settled we count as a contributor, and nobody may take our heads for final ones.
        settling = self.phase == FINISHED and self.windows.unsettled
        return Status(step=self.step, phase=TRAINING if settling else self.phase, heads=self.ledger.digest())

    def greet(self, peer: bytes) -> None:
        """A stream to this peer has opened: tell it where we are."""
        self.roster.seen(peer)
        self._commands.append(Send(peer, self._status()))

    def _tell_status(self) -> None:
        self._say_ourselves()
        for peer in self.roster.live():
            self._commands.append(Send(peer, self._status()))

    def all_finished(self) -> bool:
        """Whether we and every live peer have finished with our heads: nothing is left to serve."""
        if self.windows.unsettled:
            return False
        heads = self.ledger.digest()
        neighbours = (self.roster.neighbours[peer] for peer in self.roster.live())
        statuses = [neighbour.status for neighbour in neighbours if neighbour.record.role != "serve"]
        return all(status and status.phase >= FINISHED and status.heads == heads for status in statuses)

    def take(self) -> list[Command]:
        """The commands since the last call, in order."""
        commands = [command for command in self._commands if isinstance(command, Command)]
        self._commands.clear()
        return commands

    def _run(self, now: float) -> None:
        """Do what concerns only ourselves: links we closed, frames to ourselves."""
        index = 0
        while index < len(self._commands):
            command = self._commands[index]
            own = isinstance(command, Send) and command.to == self._keys.key
            if not own and not isinstance(command, Close):
                index += 1
                continue
            del self._commands[index]
            with suppress(ProtocolError):  # what others would refuse of us we refuse too
                if isinstance(command, Close):
                    self._adopt(self._keys.key, command.message, command.payload, now)
                    peers = {*self.roster.live(), *command.also} - {self._keys.key}
                    self._commands += [Send(peer, command.message, command.payload) for peer in sorted(peers)]
                elif isinstance(command, Send):
                    self._dispatch(self._keys.key, command.message, command.bulk, now, 0.0)
