"""One window of one chunk at its owner, and all windows of a peer together (docs/protocol.md, sections 4 and 5).

Contributions are grouped by what they were measured from; exactly one group is closed, when all who are expected have
come, or at the deadline, and only if it weighs enough. An owner that can reach a better-ranked one passes on what it
gets instead, and relays the link. Events in, commands out; time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

from protocol.commands import Close, Missed, Send
from protocol.errors import ProtocolError
from protocol.groups import Received, are_most, best_group, is_enough, weight_of
from protocol.ledger import Ledger
from protocol.messages import Contribution, Open, Parent, Part, most_tokens
from protocol.roster import Roster
from protocol.sending import PATIENCE_FLOOR, SILENT_AFTER, Outbound, Sending

DEADLINE_FLOOR: Final = 0.5
DEADLINE_MARGIN: Final = 1.5
FROZEN_AFTER: Final = 2.0
FORGET_AFTER: Final = 4
"""In deadlines: then an owner gives a window up."""
MISSED_KEPT: Final = 4
"""Rounds for which a window whose reason is written is remembered, where a chunk is never closed."""
SUPERSEDED: Final = "a later link came first"
FROZEN: Final = "we were frozen over the deadline"
TOO_FEW: Final = "too few came to close it"
LIGHTER: Final = "what came stands on a lighter branch than ours"


@dataclass(slots=True)
class Gathering:
    """One window of one chunk at its owner."""

    chunk: int
    due: int
    first: float
    """When the first contribution came; where we pass on, when we began to with this owner."""
    span: float
    """Seconds from `first` to the deadline."""
    received: dict[bytes, Received] = field(default_factory=dict)
    judged: bool = False
    """Whether the deadline has passed."""
    to: bytes | None = None
    """The better-ranked owner that we pass everything on to; None if we close ourselves."""
    direct: set[bytes] = field(default_factory=set)
    """Contributors who sent to us themselves: whoever closes may not reach them."""
    silent: set[bytes] = field(default_factory=set)
    """Better-ranked owners that gave no link for what we passed on."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the windows of a run share."""

    sync_every: int
    weight_cap: int
    fragment_of: tuple[int, ...]
    complete_set: int = 0
    """In lock-step: contributors without whom no window closes. 0 otherwise."""

    def chunks_of(self, fragment: int) -> list[int]:
        """The chunks of a fragment, in order."""
        return [chunk for chunk, owner in enumerate(self.fragment_of) if owner == fragment]


class Windows:
    """All windows in flight at one peer."""

    def __init__(self, *, rules: Rules, ledger: Ledger[Any], roster: Roster, emit: Callable[[object], None]) -> None:
        self._rules = rules
        self._ledger = ledger
        self._roster = roster
        self._emit = emit
        patience = inf if rules.complete_set else PATIENCE_FLOOR
        self.sending = Sending(roster=roster, emit=emit, miss=self.miss, patience=patience)
        self.hidden = inf
        """Seconds that τ hides at the swarm's pace, where that is much less than at ours: a cap on our deadlines."""
        self.gathering: dict[tuple[int, int], Gathering] = {}
        self._first: dict[int, tuple[int, float]] = {}
        self._sent_for: dict[int, dict[bytes, int]] = {}
        self._through: dict[int, dict[bytes, tuple[bytes, int]]] = {}
        self._asked: set[tuple[bytes, int, int]] = set()
        self._missed: set[tuple[int, int]] = set()
        self._timer = inf

    @property
    def timer(self) -> float:
        """When `handle_timer` must be called next."""
        return min(self._timer, self.sending.timer)

    @property
    def patience(self) -> float:
        """D, in seconds: what τ hides. Without end in lock-step."""
        return self.sending.patience

    @patience.setter
    def patience(self, seconds: float) -> None:
        self.sending.patience = seconds

    @property
    def outbound(self) -> dict[tuple[int, int], Outbound]:
        """Our contributions in flight, by chunk and due step."""
        return self.sending.outbound

    def in_flight(self, chunk: int, now: float) -> bool:
        """Whether a young window of this chunk may still bring what another peer already has."""
        return self.sending.in_flight(chunk, now)

    def miss(self, chunk: int, due: int, reason: str) -> None:
        """Write down, once, why a chunk's window ended here without a link that we know of."""
        if (chunk, due) not in self._missed:
            self._missed.add((chunk, due))
            self._emit(Missed(chunk, due, reason))
            if len(self._missed) > MISSED_KEPT * len(self._rules.fragment_of):
                old = due - MISSED_KEPT * self._rules.sync_every
                self._missed = {one for one in self._missed if one[1] > old}

    # What comes

    def receive(self, message: Contribution, payload: bytes, now: float, via: bytes | None = None) -> None:
        """A contribution that has been checked (signature, payload) came to us as an owner.

        `via` is the owner that passed it on; None if the contributor itself sent it.
        """
        self._check(message)
        self._sent_for.setdefault(message.chunk, {})[message.peer] = message.due
        if via is not None:
            self._through.setdefault(message.chunk, {})[message.peer] = (via, message.due)
        if message.due <= self._ledger.chains[message.chunk].due:
            self._answer(message, via or message.peer, now)
            if via is None:
                self._pass_on_late(message, payload)
            return
        gathering = self.gathering.get((message.chunk, message.due)) or self._start(message, via, now)
        self._take(gathering, message, payload, now, via)

    def _check(self, message: Contribution) -> None:
        if message.parent.due >= message.due:
            raise ProtocolError("contribution is not after its parent")
        if message.tokens > most_tokens(message.due - message.parent.due):
            raise ProtocolError("contribution claims more tokens than can be")
        known = message.parent.head == self._ledger.chains[message.chunk].head
        if not _possible(message.parent) or (
            known and self._ledger.known_parent(message.chunk) != _facts(message.parent)
        ):
            raise ProtocolError("contribution misstates its parent")

    def _take(self, gathering: Gathering, message: Contribution, payload: bytes, now: float, via: bytes | None) -> None:
        if via is None:
            gathering.direct.add(message.peer)
        if message.peer not in gathering.received:
            gathering.received[message.peer] = (message, payload)
            if gathering.to is None:
                self._roster.late(message.peer, now - gathering.first)
            elif via is None and gathering.to != message.peer:
                self._emit(Send(gathering.to, message, payload))
        if gathering.to is None:
            self._close_if_complete(gathering)
        elif via == gathering.to and self._roster.key < via:
            gathering.silent.add(via)  # each of us takes the other for the better-ranked: the lesser key closes
            self._redirect(gathering, now)
        else:
            self._redirect(gathering, now)

    def _answer(self, message: Contribution, to: bytes, now: float) -> None:
        """Too late for this window: the sender gets what was closed. Its lateness counts all the same."""
        due, first = self._first.get(message.chunk, (0, now))
        if due == message.due:
            self._roster.late(message.peer, now - first)
        newest = self._ledger.chains[message.chunk].newest
        assert newest is not None
        if newest.head != message.parent.head:
            self._emit(Send(to, newest.message, newest.payload))

    def _pass_on_late(self, message: Contribution, payload: bytes) -> None:
        """Who comes through us is as late at the owner that closed without it: that one waits for it next time."""
        newest = self._ledger.chains[message.chunk].newest
        assert newest is not None
        named = any(part.peer == message.peer for part in newest.message.link.parts)
        to = self._better(message.chunk, message.due, set())
        if newest.message.link.due == message.due and not named and to not in (None, message.peer):
            assert to is not None
            self._emit(Send(to, message, payload))

    def came_late(self, peer: bytes, chunk: int, due: int, now: float) -> None:
        """A peer has reached a window. If that closed without it, it is waited for next time as long as it took."""
        newest = self._ledger.chains[chunk].newest
        if newest is None or newest.message.link.due != due:
            return
        if all(part.peer != peer for part in newest.message.link.parts):
            self._sent_for.setdefault(chunk, {})[peer] = due
            first_due, first = self._first.get(chunk, (0, now))
            if first_due == due:
                self._roster.late(peer, now - first)

    # Passing on

    def _better(self, chunk: int, due: int, silent: set[bytes]) -> bytes | None:
        """The best-ranked owner before us that is neither lost nor silent; None if we are to close ourselves."""
        chunks = self._rules.chunks_of(self._rules.fragment_of[chunk])
        passed = {*silent, *self.sending.passed(chunk, due)}
        for owner in self._roster.ranked(chunks, due)[chunk]:
            if owner == self._roster.key:
                return None
            if owner not in passed and not self._roster.is_lost(owner):
                return owner
        return None

    def _redirect(self, gathering: Gathering, now: float) -> None:
        """Look again who closes what we pass on: the next owner gets all of it, or we close ourselves."""
        to = self._better(gathering.chunk, gathering.due, gathering.silent)
        if to == gathering.to:
            return
        gathering.to, gathering.first = to, now
        if to is None:
            self._begin(gathering, now)
            self._close_if_complete(gathering)
            return
        self._arm(now + SILENT_AFTER * self.patience)
        for peer in sorted(gathering.direct - {to}):
            self._emit(Send(to, *gathering.received[peer]))

    # Owning

    def _start(self, message: Contribution, via: bytes | None, now: float) -> Gathering:
        """The first contribution of a window. What was passed on to us is never passed on again."""
        to = self._better(message.chunk, message.due, set()) if via is None else None
        gathering = Gathering(chunk=message.chunk, due=message.due, first=now, span=inf, to=to)
        self.gathering[message.chunk, message.due] = gathering
        if to is None:
            self._begin(gathering, now, message.peer)
        else:
            self._arm(now + SILENT_AFTER * self.patience)
        return gathering

    def _begin(self, gathering: Gathering, now: float, *first: bytes) -> None:
        """We close this window: ask the others for theirs, and set the deadline."""
        expected = self._expected(gathering.chunk, gathering.due) - {*first, *gathering.received}
        usual = self._roster.usual_lateness(expected)
        wanted = self.patience if usual is None else usual * DEADLINE_MARGIN + 0.1
        if not self._rules.complete_set:
            gathering.span = max(DEADLINE_FLOOR, min(wanted, self.patience, self.hidden))
        self._first[gathering.chunk] = (gathering.due, now)
        self._arm(now + gathering.span)
        fragment = self._rules.fragment_of[gathering.chunk]
        for peer in sorted(expected):
            if (peer, fragment, gathering.due) not in self._asked:
                self._asked.add((peer, fragment, gathering.due))
                self._emit(Send(peer, Open(fragment=fragment, due=gathering.due)))

    def _expected(self, chunk: int, due: int) -> set[bytes]:
        """Who is waited for: trainers who are here, or from whom another owner passes on."""
        trainers, since = self._roster.trainers(), due - self._rules.sync_every
        if self._ledger.chains[chunk].newest is None:
            return trainers
        recent = {peer for peer, sent in self._sent_for.get(chunk, {}).items() if sent >= since}
        passed_on = self._through.get(chunk, {}).items()
        through = {peer for peer, (via, sent) in passed_on if sent >= since and not self._roster.is_lost(via)}
        return (self._ledger.contributors(chunk) | recent) & trainers | through

    def _best(self, gathering: Gathering) -> list[Received]:
        """The group to close now; empty if none beats our tip, or it weighs too little."""
        group = self._greatest(gathering)
        if not group:
            return []
        return group if self._is_enough(group, gathering) else []

    def _is_enough(self, group: list[Received], gathering: Gathering) -> bool:
        parent, due, newest = group[0][0].parent, gathering.due, self._ledger.chains[gathering.chunk].newest
        cap, sync_every = self._rules.weight_cap, self._rules.sync_every
        if newest is not None and newest.head == parent.head:
            peers = [contribution.peer for contribution, _ in group]
            if are_most(peers, newest.message.link, due, cap=cap, sync_every=sync_every):
                return True
        return is_enough(weight_of(group, cap), due, parent, sync_every)

    def _greatest(self, gathering: Gathering) -> list[Received]:
        chain, cap = self._ledger.chains[gathering.chunk], self._rules.weight_cap
        return best_group(gathering.received.values(), tip=chain.head, cumulative=chain.order[0], cap=cap)

    def _close_if_complete(self, gathering: Gathering) -> None:
        received = gathering.received.keys()
        complete = received >= self._expected(gathering.chunk, gathering.due) and (
            len(received) >= self._rules.complete_set
        )
        if complete or gathering.judged:
            self._close(gathering)

    def _close(self, gathering: Gathering) -> None:
        if not (group := self._best(gathering)):
            return
        parts = [(Part(c.peer, c.tokens, c.payload, c.signature), payload) for c, payload in group]
        message, payload = self._ledger.close(gathering.chunk, gathering.due, group[0][0].parent, parts)
        del self.gathering[gathering.chunk, gathering.due]
        self._emit(Close(message, payload, also=tuple(gathering.received)))

    # Both

    def adopted(self, chunk: int) -> None:
        """The chunk's tip moved: windows up to it are over, and those who wait for our answer get it."""
        newest = self._ledger.chains[chunk].newest
        assert newest is not None
        due = newest.message.link.due
        over = self.sending.settled(chunk, due)
        for key in [key for key in self.gathering if key[0] == chunk and key[1] <= due]:
            gathering = self.gathering.pop(key)
            over.append(key[1])
            named = {part.peer for part in newest.message.link.parts}
            unanswered = gathering.received.keys() - named | (gathering.direct if gathering.to else set())
            for peer in sorted(unanswered - {self._roster.key}):
                self._emit(Send(peer, newest.message, newest.payload))
        closed = {entry.message.link.due for entry in self._ledger.recent(chunk, len(over) + 1)} if over else set()
        for past in sorted({*over} - closed):
            self.miss(chunk, past, SUPERSEDED)
        old = due - 2 * self._rules.sync_every
        self._asked = {one for one in self._asked if one[2] > old}
        self._missed = {one for one in self._missed if one[0] != chunk or one[1] > old}

    def lost(self, peer: bytes, now: float) -> None:
        """A peer is suspect: what it owned goes to the next owner; nobody waits for its contribution."""
        self.sending.lost(peer, now)
        for gathering in list(self.gathering.values()):
            if gathering.to is None:
                self._close_if_complete(gathering)
            else:
                self._redirect(gathering, now)

    @property
    def unsettled(self) -> bool:
        """Whether a link may yet come of what we sent, or of what we gather and have not judged."""
        return bool(self.outbound) or not all(gathering.judged for gathering in self.gathering.values())

    def handle_timer(self, now: float) -> None:
        """Everything whose time has come. Cheap when called early."""
        self.sending.handle_timer(now)
        if now < self._timer:
            return
        self._timer = inf
        for gathering in list(self.gathering.values()):
            if gathering.to is None:
                self._time_gathering(gathering, now)
            else:
                self._time_passing_on(gathering, now)

    def _time_gathering(self, gathering: Gathering, now: float) -> None:
        deadline = gathering.first + gathering.span
        frozen = not gathering.judged and now > deadline + max(gathering.span, FROZEN_AFTER)
        if frozen or now >= gathering.first + FORGET_AFTER * gathering.span:
            self._forget(gathering, FROZEN if frozen else TOO_FEW if self._greatest(gathering) else LIGHTER)
            return
        if now >= deadline:
            gathering.judged = True
            self._close(gathering)
        self._arm(gathering.first + FORGET_AFTER * gathering.span if gathering.judged else deadline)

    def _time_passing_on(self, gathering: Gathering, now: float) -> None:
        assert gathering.to is not None
        silent = gathering.first + SILENT_AFTER * self.patience
        if now > silent + max(self.patience, FROZEN_AFTER):
            self._forget(gathering, FROZEN)
        elif now >= silent:
            gathering.silent.add(gathering.to)
            self._redirect(gathering, now)
        else:
            self._arm(silent)

    def _forget(self, gathering: Gathering, reason: str) -> None:
        del self.gathering[gathering.chunk, gathering.due]
        self.miss(gathering.chunk, gathering.due, reason)

    def _arm(self, when: float) -> None:
        self._timer = min(self._timer, when)


def _facts(parent: Parent) -> tuple[int, int, int, int, int]:
    return parent.depth, parent.due, parent.span, parent.weight, parent.cumulative


def _possible(parent: Parent) -> bool:
    """Whether a tip can be so at all: all zero at genesis, else nothing zero and nothing more than its sum."""
    if parent.depth == 0:
        return not any(_facts(parent))
    return 0 < parent.span <= parent.due and 0 < parent.weight <= parent.cumulative
