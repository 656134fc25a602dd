"""One peer's part in the protocol: frames, openings and time in; frames, settled chunks and notes out.

The node does no I/O and reads no clock: `now` is any monotonic clock's seconds, `wall` is Unix time (presence records
only). After every call the caller takes `take()`'s commands and calls `handle_timer` at `get_timer()`. It runs the same
over libp2p (peer/) and over the simulator's links.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Final

from protocol.commands import START_AGAIN, Close, Contributed, Missed, Notice, Retry, Send, Settled
from protocol.contributing import Contributor, Refused
from protocol.errors import ProtocolError
from protocol.introducing import Introductions
from protocol.ledger import Adoption, Ledger
from protocol.messages import (
    FINISHED,
    TRAINING,
    VERSION,
    AskHeads,
    Busy,
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
from protocol.pace import Pace
from protocol.repair import Repair
from protocol.retrying import Retries
from protocol.roster import Roster
from protocol.schedule import Schedule, Window
from protocol.sending import PATIENCE_FLOOR
from protocol.signature import Keys
from protocol.states import Arithmetic
from protocol.window import Rules, Windows

BEAT: Final = 1.0
"""Seconds between two Status messages."""
CLOSED: Final = "closed before we came"
"""Why a contribution was not sent: the window has its link already."""


Command = Send | Contributed | Settled | Notice | Retry | Missed
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
        self.introductions = Introductions(roster=roster, emit=emit)
        self.pace = Pace(roster=roster, schedule=schedule, emit=emit)
        self.retries = Retries(ledger=ledger, windows=self.windows, rules=rules, schedule=schedule, emit=emit)
        self.contributor = Contributor(ledger=ledger, arithmetic=arithmetic, keys=keys)
        self._beat = 0.0

    # Over a restart

    def marks(self) -> list[int]:
        """Of each chunk the tokens at the snapshot of our last contribution that a link names."""
        return [self.contributor.marks.get(chunk, 0) for chunk in range(len(self.fragment_of))]

    def companions(self) -> set[bytes]:
        """Everyone else whom the newest link of some chunk names."""
        newest = [chain.newest for chain in self.ledger.chains if chain.newest]
        return {part.peer for entry in newest for part in entry.message.link.parts} - {self._keys.key}

    def resume(self, step: int, tokens: int, marks: Sequence[int], now: float) -> None:
        """Go on after swarm step `step` and so many `tokens`, with an earlier life's `marks`. Before anything else.

        Those whom our links name are missing until we meet them: we may be the ones who were cut off.
        """
        self.step = step
        self.contributor.resume(tokens, marks)
        self.roster.vanished.update(dict.fromkeys(self.companions(), now))

    # What the trainer does

    def set_step(self, step: int, step_seconds: float | None, now: float) -> None:
        """The trainer's swarm step, and its usual seconds a step: patience is what τ hides."""
        self.step = step
        if step_seconds is not None and self.windows.patience < inf:
            self.windows.patience = max(PATIENCE_FLOOR, self._schedule.overlap * step_seconds)
            usual = self.pace.seconds_a_step()
            # An owner that is slow must not keep a link from those who could still merge it in time.
            slow = usual is not None and 2 * usual < step_seconds
            self.windows.hidden = max(PATIENCE_FLOOR, self._schedule.overlap * usual) if usual and slow else inf
        self._say_ourselves()
        self.pace.release()

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
        self.pace.open(window)
        self._tell_status()
        ranking = self.roster.ranked(chunks, window.due)
        too_late: set[bytes] = set()
        values = dict(zip(chunks, local, strict=True))
        for chunk in self.contributor.order(chunks):
            reason = self._contribute(chunk, window.due, values[chunk], tokens, ranking[chunk], now)
            if reason:
                self.windows.miss(chunk, window.due, reason)
            if reason == CLOSED:
                too_late.update(ranking[chunk][:1])
        # Their owners must hear that we came, or they would close without us for ever.
        self._commands += [Send(owner, Open(window.fragment, window.due)) for owner in sorted(too_late)]
        self.retries.opened(window, now)
        self._run(now)

    def retry(self, window: Window, local: Sequence[object], tokens: int, now: float) -> None:
        """Contribute once more, as `open` does, for those chunks of an older window that nobody has closed."""
        chunks = self.chunks_of(window.fragment)
        assert len(local) == len(chunks)
        ranking, missing = self.roster.ranked(chunks, window.due), self.retries.missing(window)
        for chunk, values in zip(chunks, local, strict=True):
            if chunk in missing:
                self._contribute(chunk, window.due, values, tokens, ranking[chunk], now)
        self._run(now)

    def _contribute(
        self, chunk: int, due: int, local: object, tokens: int, owners: tuple[bytes, ...], now: float
    ) -> str:
        """Send one chunk's contribution; returns why not, or nothing."""
        if self.ledger.chains[chunk].due >= due:
            return CLOSED
        if self.pace.is_far(due):
            return "we are far ahead of the swarm"
        try:
            contribution, payload = self.contributor.make(chunk, due, local, tokens)
        except Refused as refused:
            if refused.start_again:
                self._commands.append(Settled(chunk=chunk, due=0, links=START_AGAIN, mix=True))
            return str(refused)
        self.windows.sending.contribute(contribution, payload, owners, now)
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
                self._take_contribution(peer, message, bulk, now)
            case LinkMessage():
                window = self._window_of(message.link.chunk, message.link.due)
                self._check_owner(peer, message)
                adoption = self._adopt(peer, message, bulk, now)
                self.repair.heard_from(peer, message.link.chunk, placed=adoption.is_placed, whole=False, now=now)
                self._notice(window)
            case StateMessage():
                self._check_owner(peer, message)
                self._take_state(message, bulk, now)
                self.repair.heard_from(peer, message.link.chunk, placed=True, whole=True, now=now)
            case Open():
                window = self.pace.near(Window(message.fragment, message.due))
                for chunk in self.chunks_of(window.fragment):
                    self.windows.came_late(peer, chunk, window.due, now)
                self._notice(window)
            case Status():
                stays = not self.roster.is_lost(peer)
                self.roster.say(peer, message)
                if stays and self.roster.is_lost(peer):  # it is leaving: what it owns moves at once
                    self.windows.lost(peer, now)
                self.repair.heard_status(peer, now)
                self.pace.watch(now)
                self.pace.release()
            case AskHeads():
                self._check_known(peer)
                self.repair.serve_heads(peer)
            case Heads():
                self.repair.heard_heads(peer, message, now)
            case Pull():
                self._check_known(peer)
                self.repair.serve(peer, message, self._arithmetic.dump, now)
            case Busy():
                self.repair.heard_busy(peer, message, now)
            case Hello():
                if message.version != VERSION:
                    raise ProtocolError("another version of the protocol")
                self.introductions.learn([message.record], peer, now=now, wall=wall)
            case Records():
                self.introductions.learn(message.records, None, now=now, wall=wall)

    def _check_known(self, peer: bytes) -> None:
        """An answer can be large, and no stream leads to a stranger."""
        if peer not in self.roster.neighbours:
            raise ProtocolError("request of an unknown peer")

    def _take_contribution(self, source: bytes, message: Contribution, bulk: bytes, now: float) -> None:
        window = self._window_of(message.chunk, message.due)
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
        self.windows.receive(message, bulk, now, None if source == message.peer else source)
        self._notice(window)

    def _check_owner(self, source: bytes, message: LinkMessage | StateMessage) -> None:
        """Anyone can make a key and sign: only who is known as an owner closes windows. Of what we ask for, others too:
        an owner's links outlive its presence record."""
        owner = self.roster.neighbours.get(message.owner)
        if not (owner and owner.record.owns) and not self.repair.asked(source, message.link.chunk):
            raise ProtocolError("a link of a peer that owns nothing")

    def _adopt(self, source: bytes, message: LinkMessage, payload: bytes, now: float) -> Adoption:
        """Take a link from a peer (or our own) and do what follows from what it turned out to be."""
        chunk = message.link.chunk
        chain = self.ledger.chains[chunk] if chunk < len(self.ledger.chains) else None
        depth = chain.newest.message.link.depth if chain and chain.newest else 0
        adoption = self.ledger.adopt(message, payload)
        have = self.ledger.have(chunk) if adoption is Adoption.MISSING else ()
        if not adoption.is_placed:
            donor = source if source != self._keys.key else self._another(message)
            if donor:
                self.repair.want(donor, chunk, have, now)
        elif adoption is not Adoption.OLD:
            links = max(1, self.ledger.known_parent(chunk)[0] - depth)
            self._after_adoption(chunk, links, adoption is Adoption.EXTENDED, now)
        return adoption

    def _another(self, message: LinkMessage) -> bytes | None:
        peers = [part.peer for part in message.link.parts if part.peer != self._keys.key]
        return next((peer for peer in peers if not self.roster.is_lost(peer)), None)

    def _take_state(self, message: StateMessage, bulk: bytes, now: float) -> None:
        self._window_of(message.link.chunk, message.link.due)
        depth = self.ledger.known_parent(message.link.chunk)[0]
        if self.ledger.adopt_state(message, bulk):
            links = max(0, self.ledger.known_parent(message.link.chunk)[0] - depth)
            self._after_adoption(message.link.chunk, links, links > 0, now)

    def _after_adoption(self, chunk: int, links: int, mix: bool, now: float) -> None:
        self.contributor.adopted(chunk, replaced=not mix)
        for entry in self.ledger.recent(chunk, 1):
            self.roster.weigh(chunk, entry.message.link)
        self.windows.adopted(chunk)
        self.repair.adopted(chunk, now)
        due = self.ledger.chains[chunk].due
        self.retries.settled(chunk, due, now)
        self._commands.append(Settled(chunk=chunk, due=due, links=links, mix=mix))

    def learn(self, records: Sequence[bytes], *, now: float, wall: float) -> None:
        """Presence records from the DHT, or our own. ProtocolError for a bad one."""
        self.introductions.learn(records, None, now=now, wall=wall)

    def lost(self, peer: bytes, now: float) -> None:
        """The stream to a peer closed, or it did not acknowledge in time."""
        self.handle_timer(now)
        self.roster.lose(peer)
        self.windows.lost(peer, now)
        self.repair.lost(peer, now)
        self._run(now)

    def _window_of(self, chunk: int, due: int) -> Window:
        """The window of a message's chunk and due step; ProtocolError unless the swarm can have come to it."""
        if chunk >= len(self.fragment_of):
            raise ProtocolError("unknown chunk")
        return self.pace.near(Window(self.fragment_of[chunk], due))

    def _notice(self, window: Window) -> None:
        if self.phase == TRAINING:
            self.pace.notice(window)

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
            self.pace.watch(now)
            self._tell_status()
        self._run(now)

    def _say_ourselves(self) -> None:
        self.roster.say(self._keys.key, self._status())

    def _status(self) -> Status:
        # Until our last windows have settled we count as a contributor, and nobody may take our heads for final ones.
        settling = self.phase == FINISHED and self.windows.unsettled
        return Status(step=self.step, phase=TRAINING if settling else self.phase, heads=self.ledger.digest())

    def greet(self, peer: bytes, now: float) -> None:
        """A stream to this peer has opened: tell it where we are, and give it what nobody else was left for."""
        self.roster.seen(peer)
        self._commands.append(Send(peer, self._status()))
        self.windows.sending.returned(peer, now)

    def _tell_status(self) -> None:
        self._say_ourselves()
        for peer in self.roster.live():
            self._commands.append(Send(peer, self._status()))

    def all_finished(self) -> bool:
        """Whether we and every peer that may still come to us have finished with our heads: nothing is left to serve.

        A trainer that is lost may only be frozen: it counts while its record lasts.
        """
        if self.windows.unsettled:
            return False
        heads = self.ledger.digest()
        statuses = [neighbour.status for neighbour in self.roster.to_serve()]
        return all(status and status.phase >= FINISHED and status.heads == heads for status in statuses)

    def agreed(self) -> bool:
        """Whether our heads are the swarm's final ones, as far as we can know: not if we may be the ones cut off."""
        return self.all_finished() and not self.roster.is_cut_off(self.ledger.digest())

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
