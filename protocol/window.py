"""One window of one chunk, from both sides: contributing to it, and owning it (docs/protocol.md, sections 4 and 5).

Contributing: sent to the best-ranked owner that is not lost; to the next when that one is lost or silent; settled by
any link of this or a later due step. Owning: contributions are grouped by what they were measured from; exactly one
group is closed, when all who are expected have come, or at the deadline, and only if it weighs enough. Events in,
commands out; time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

from protocol.errors import ProtocolError
from protocol.ledger import Ledger, weights
from protocol.messages import Contribution, LinkMessage, Message, Open, Parent, Part
from protocol.roster import Roster

PATIENCE_FLOOR: Final = 1.0
DEADLINE_FLOOR: Final = 0.5
DEADLINE_MARGIN: Final = 1.5
FROZEN_AFTER: Final = 2.0
SILENT_AFTER: Final = 2
"""In patiences: then a contributor turns to the next owner."""
MISSING_AFTER: Final = 6
"""In patiences: then a contributor gives a window up."""
FORGET_AFTER: Final = 4
"""In deadlines: then an owner gives a window up."""


@dataclass(frozen=True, slots=True)
class Send:
    """Command: a frame to a peer (possibly ourselves)."""

    to: bytes
    message: Message
    bulk: bytes = b""
    repair: bool = False
    """Whether this is repair traffic: lowest priority, counted apart."""


@dataclass(frozen=True, slots=True)
class Close:
    """Command: adopt this link of ours and send it to everyone live and to `also`."""

    message: LinkMessage
    payload: bytes
    also: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Contributed:
    """Command: write down that this contribution of ours is on its way."""

    contribution: Contribution
    payload: bytes


@dataclass(frozen=True, slots=True)
class Missed:
    """Command: write down that this chunk's window ended without a link that we know of, and why."""

    chunk: int
    due: int
    reason: str


@dataclass(slots=True)
class Outbound:
    """Our contribution to one window of one chunk."""

    contribution: Contribution
    payload: bytes
    owners: tuple[bytes, ...]
    opened: float
    cursor: int = -1
    since: float = inf
    """When the current owner got it; inf when no owner is left."""


@dataclass(slots=True)
class Gathering:
    """One window of one chunk at its owner."""

    chunk: int
    due: int
    first: float
    span: float
    """Seconds from `first` to the deadline."""
    received: dict[bytes, tuple[Contribution, bytes]] = field(default_factory=dict)
    judged: bool = False
    """Whether the deadline has passed."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the windows of a run share."""

    sync_every: int
    weight_cap: int
    fragment_of: tuple[int, ...]
    complete_set: int = 0
    """In lock-step: contributors without whom no window closes. 0 otherwise."""


class Windows:
    """All windows in flight at one peer."""

    def __init__(self, *, rules: Rules, ledger: Ledger[Any], roster: Roster, emit: Callable[[object], None]) -> None:
        self._rules = rules
        self._ledger = ledger
        self._roster = roster
        self._emit = emit
        self.patience = inf if rules.complete_set else PATIENCE_FLOOR
        self.outbound: dict[tuple[int, int], Outbound] = {}
        self.gathering: dict[tuple[int, int], Gathering] = {}
        self._first: dict[int, tuple[int, float]] = {}
        self._sent_for: dict[int, dict[bytes, int]] = {}
        self._asked: set[tuple[bytes, int, int]] = set()
        self.timer = inf
        """When `handle_timer` must be called next."""

    # Contributing

    def contribute(self, contribution: Contribution, payload: bytes, owners: tuple[bytes, ...], now: float) -> None:
        """Send our contribution on its way."""
        out = Outbound(contribution=contribution, payload=payload, owners=owners, opened=now)
        self.outbound[contribution.chunk, contribution.due] = out
        self._emit(Contributed(contribution, payload))
        self._to_next_owner(out, now)
        self._arm(now + MISSING_AFTER * self.patience)

    def _to_next_owner(self, out: Outbound, now: float) -> None:
        out.since = inf
        for index in range(out.cursor + 1, len(out.owners)):
            out.cursor = index
            if not self._roster.is_lost(out.owners[index]):
                out.since = now
                self._emit(Send(out.owners[index], out.contribution, out.payload))
                self._arm(now + SILENT_AFTER * self.patience)
                return

    # Owning

    def receive(self, message: Contribution, payload: bytes, now: float) -> None:
        """A contribution that has been checked (signature, payload) came to us as an owner."""
        chain = self._ledger.chains[message.chunk]
        key = (message.chunk, message.due)
        if message.parent.due >= message.due:
            raise ProtocolError("contribution is not after its parent")
        if not _possible(message.parent):
            raise ProtocolError("contribution misstates its parent")
        if message.parent.head == chain.head and self._ledger.known_parent(message.chunk) != _facts(message.parent):
            raise ProtocolError("contribution misstates its parent")
        self._sent_for.setdefault(message.chunk, {})[message.peer] = message.due
        if message.due <= chain.due:
            self._answer(message, now)
            return
        gathering = self.gathering.get(key) or self._start(message, now)
        if message.peer not in gathering.received:
            gathering.received[message.peer] = (message, payload)
            self._roster.late(message.peer, now - gathering.first)
        self._close_if_complete(gathering)

    def _answer(self, message: Contribution, now: float) -> None:
        """Too late for this window: the sender gets what was closed. Its lateness counts all the same."""
        due, first = self._first.get(message.chunk, (0, now))
        if due == message.due:
            self._roster.late(message.peer, now - first)
        newest = self._ledger.chains[message.chunk].newest
        assert newest is not None
        if newest.head != message.parent.head:
            self._emit(Send(message.peer, newest.message, newest.payload))

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

    def _start(self, message: Contribution, now: float) -> Gathering:
        """The first contribution of a window: ask the others for theirs, and set the deadline."""
        expected = self._expected(message.chunk, message.due) - {message.peer}
        usual = self._roster.usual_lateness(expected)
        wanted = self.patience if usual is None else usual * DEADLINE_MARGIN + 0.1
        span = max(DEADLINE_FLOOR, min(wanted, self.patience)) if not self._rules.complete_set else inf
        gathering = Gathering(chunk=message.chunk, due=message.due, first=now, span=span)
        self.gathering[message.chunk, message.due] = gathering
        self._first[message.chunk] = (message.due, now)
        self._arm(now + span)
        fragment = self._rules.fragment_of[message.chunk]
        for peer in sorted(expected):
            if (peer, fragment, message.due) not in self._asked:
                self._asked.add((peer, fragment, message.due))
                self._emit(Send(peer, Open(fragment=fragment, due=message.due)))
        return gathering

    def _expected(self, chunk: int, due: int) -> set[bytes]:
        if self._ledger.chains[chunk].newest is None:
            return self._roster.trainers()
        recent = {p for p, d in self._sent_for.get(chunk, {}).items() if d >= due - self._rules.sync_every}
        return (self._ledger.contributors(chunk) | recent) & self._roster.trainers()

    def _best(self, gathering: Gathering) -> list[tuple[Contribution, bytes]]:
        """The one group that may be closed: most contributors, then on our own tip, then on the greatest branch.

        What a contributor says of a parent that we do not hold cannot be checked, and neither can the state that it was
        measured from: so heads count first, or one liar, or one fast peer with a flipped bit, would take every window.
        Empty if no branch beats our tip or the group weighs too little.
        """
        groups: dict[Parent, list[tuple[Contribution, bytes]]] = {}
        for item in gathering.received.values():
            groups.setdefault(item[0].parent, []).append(item)
        tip = self._ledger.chains[gathering.chunk]
        after = {parent: parent.cumulative + self._weight(group) for parent, group in groups.items()}
        useful = [parent for parent in groups if after[parent] > tip.order[0]]
        if not useful:
            return []
        parent = max(useful, key=lambda p: (len(groups[p]), p.head == tip.head, after[p], p.head, p.state))
        return groups[parent] if self._enough(self._weight(groups[parent]), gathering.due, parent) else []

    def _enough(self, weight: int, due: int, parent: Parent) -> bool:
        """Whether more than half of the swarm that closed the parent is here; half of that for each due step missed.

        Weights are compared per swarm step: a first link, or one after a miss, holds the tokens of more steps.
        """
        if parent.depth == 0:
            return True
        span = due - parent.due
        missed = max(0, span // self._rules.sync_every - 1)
        return (weight * parent.span) << (1 + missed) > parent.weight * span

    def _weight(self, group: Iterable[tuple[Contribution, bytes]]) -> int:
        return sum(weights([contribution.tokens for contribution, _ in group], self._rules.weight_cap))

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

    def adopted(self, chunk: int) -> list[Outbound]:
        """The chunk's tip moved: windows up to it are over. Returns our contributions to them."""
        newest = self._ledger.chains[chunk].newest
        assert newest is not None
        due = newest.message.link.due
        over = [key for key in self.outbound if key[0] == chunk and key[1] <= due]
        for key in [key for key in self.gathering if key[0] == chunk and key[1] <= due]:
            named = {part.peer for part in newest.message.link.parts}
            for peer in self.gathering.pop(key).received.keys() - named:
                self._emit(Send(peer, newest.message, newest.payload))
        self._asked = {one for one in self._asked if one[2] > due - 2 * self._rules.sync_every}
        return [self.outbound.pop(key) for key in over]

    def lost(self, peer: bytes, now: float) -> None:
        """A peer is suspect: what it owned goes to the next owner; nobody waits for its contribution."""
        for out in list(self.outbound.values()):
            if out.since < inf and out.owners[out.cursor] == peer:
                self._to_next_owner(out, now)
        for gathering in list(self.gathering.values()):
            self._close_if_complete(gathering)

    @property
    def unsettled(self) -> bool:
        """Whether a link may yet come of what we sent, or of what we gather and have not judged."""
        return bool(self.outbound) or not all(gathering.judged for gathering in self.gathering.values())

    def in_flight(self, chunk: int, now: float) -> bool:
        """Whether a young window of this chunk may still bring what another peer already has."""
        flights = (out.opened for key, out in self.outbound.items() if key[0] == chunk)
        return any(now < opened + SILENT_AFTER * self.patience for opened in flights)

    def handle_timer(self, now: float) -> None:
        """Everything whose time has come. Cheap when called early."""
        if now < self.timer:
            return
        self.timer = inf
        for out in list(self.outbound.values()):
            self._time_outbound(out, now)
        for gathering in list(self.gathering.values()):
            self._time_gathering(gathering, now)

    def _time_outbound(self, out: Outbound, now: float) -> None:
        if now >= out.opened + MISSING_AFTER * self.patience:
            del self.outbound[out.contribution.chunk, out.contribution.due]
            reason = "no owner left" if out.since == inf else "no link came"
            self._emit(Missed(out.contribution.chunk, out.contribution.due, reason))
            return
        if now >= out.since + SILENT_AFTER * self.patience:
            self._to_next_owner(out, now)
        self._arm(min(out.since + SILENT_AFTER * self.patience, out.opened + MISSING_AFTER * self.patience))

    def _time_gathering(self, gathering: Gathering, now: float) -> None:
        deadline = gathering.first + gathering.span
        frozen = not gathering.judged and now > deadline + max(gathering.span, FROZEN_AFTER)
        if frozen or now >= gathering.first + FORGET_AFTER * gathering.span:
            del self.gathering[gathering.chunk, gathering.due]
            return
        if now >= deadline:
            gathering.judged = True
            self._close(gathering)
        self._arm(gathering.first + FORGET_AFTER * gathering.span if gathering.judged else deadline)

    def _arm(self, when: float) -> None:
        self.timer = min(self.timer, when)


def _facts(parent: Parent) -> tuple[int, int, int, int, int]:
    return parent.depth, parent.due, parent.span, parent.weight, parent.cumulative


def _possible(parent: Parent) -> bool:
    """Whether a tip can be so at all: all zero at genesis, else nothing zero and nothing more than its sum."""
    if parent.depth == 0:
        return not any(_facts(parent))
    return 0 < parent.span <= parent.due and 0 < parent.weight <= parent.cumulative
