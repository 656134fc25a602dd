"""Finding out that heads differ, and getting what is missing (docs/protocol.md, section 8).

A difference must last for a random while before anything is asked: windows in flight make heads differ for a moment all
the time. What is missing comes as links or as a whole state, from any of those who are known to have it; the ledger
proves both. Each chunk is asked of one donor, chosen by chance among the least busy; a donor that is lost, refuses, or
brings nothing for a while is replaced, and what has come stays. A newcomer gets everything in this way.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from protocol.commands import Send
from protocol.errors import ProtocolError
from protocol.giving import Giving
from protocol.ledger import Ledger
from protocol.messages import AskHeads, Busy, Heads, Pull
from protocol.roster import Roster
from protocol.window import Windows

PULLS_AT_A_TIME: Final = 4
PULLS_A_DONOR: Final = 2
HEADS_REMEMBERED: Final = 16
"""Peers whose heads are remembered, and whom a newcomer asks."""
FORGET_EXCUSE: Final = 6
"""In patiences: a difference that long ago was another one."""
LONGEST_WAIT: Final = 5.0
"""Seconds; a cap on the patience used here, which has no end in lock-step."""
LONGEST_PULL: Final = 60.0
"""Seconds without anything from a donor, after which it is replaced however slow it usually is."""
NEWCOMERS_WAIT: Final = 0.25
"""In patiences, and times chance: what a newcomer waits before it asks for heads."""

Order = tuple[int, bytes]


@dataclass(slots=True)
class _Pulling:
    """A chunk on its way: from whom, since when, and when that peer last brought anything."""

    donor: bytes
    began: float
    since: float


class Repair:
    """One peer's repairs, given and taken."""

    def __init__(
        self,
        *,
        ledger: Ledger[Any],
        roster: Roster,
        windows: Windows,
        random: Callable[[], float],
        emit: Callable[[object], None],
    ) -> None:
        self._ledger = ledger
        self._roster = roster
        self._windows = windows
        self._random = random
        self._emit = emit
        self.giving = Giving(ledger=ledger, roster=roster, windows=windows, emit=emit)
        self.joining = False
        """Whether this peer is a newcomer that gets the run's state: then it asks without hesitating."""
        self.donors: set[bytes] = set()
        """Everyone who ever gave us what we asked for."""
        self._checks: dict[bytes, float] = {}
        self._heads: dict[bytes, tuple[Order, ...]] = {}
        """What peers said that they have; they have that or more. Those heard last come last."""
        self._hints: dict[int, bytes] = {}
        """Who sent something of a chunk that we could not place."""
        self._wanted: dict[int, None] = {}
        self._pulling: dict[int, _Pulling] = {}
        self._pulled: dict[int, float] = {}
        self._asked: dict[int, dict[bytes, float]] = {}
        """By chunk: whom we asked since it was last missed, and when."""
        self._tried: dict[int, set[bytes]] = {}
        """By chunk: donors of whom nothing came."""
        self._busy: dict[bytes, float] = {}
        self._took: deque[float] = deque(maxlen=8)
        """Seconds of the last states that came."""
        self._wrong: set[int] = set()
        self._excuses: dict[int, float] = {}
        self._timer = inf

    @property
    def timer(self) -> float:
        """When `handle_timer` must be called next."""
        return min(self._timer, self.giving.timer)

    @property
    def patience(self) -> float:
        """D, in seconds."""
        return min(self._windows.patience, LONGEST_WAIT)

    # Who has what

    def heard_status(self, peer: bytes, now: float) -> None:
        """A peer said which heads it has."""
        if self._roster.is_lost(peer):
            self.lost(peer, now)
        elif not self._differs(peer):
            self._checks.pop(peer, None)
        elif self.joining and (peer in self._heads or len(self._heads) < HEADS_REMEMBERED):
            self._check(peer, now + self.patience * NEWCOMERS_WAIT * self._random())
        elif not self.joining:
            self._check(peer, now + self.patience * (0.5 + self._random()))

    def begin_joining(self, now: float) -> None:
        """A newcomer asks those who are here for their heads, soon and not all at the same moment."""
        self.joining = True
        self._checks.clear()
        for peer in self._roster.live():
            self.heard_status(peer, now)

    def end_joining(self) -> None:
        """From now on it hesitates like everyone."""
        self.joining = False

    def _check(self, peer: bytes, when: float) -> None:
        """Ask a peer for its heads at `when`, if they still differ then."""
        self._arm(self._checks.setdefault(peer, when))

    def _differs(self, peer: bytes) -> bool:
        known = self._roster.neighbours.get(peer)
        return known is not None and known.status is not None and known.status.heads != self._ledger.digest()

    def heard_heads(self, peer: bytes, message: Heads, now: float) -> None:
        """What a peer has, chunk by chunk: pull what is greater than ours."""
        if len(message.heads) != len(self._ledger.chains):
            raise ProtocolError("heads of another number of chunks")
        if self._roster.is_lost(peer):
            return
        self._heads.pop(peer, None)
        self._heads[peer] = message.heads
        if len(self._heads) > HEADS_REMEMBERED:
            del self._heads[next(iter(self._heads))]
        for chunk, order in enumerate(message.heads):
            chain = self._ledger.chains[chunk]
            if tuple(order) <= chain.order:
                continue
            if self._excused(chunk, now):
                self._check(peer, now + self.patience)
            else:
                self.want(peer, chunk, self._ledger.have(chunk), now)
        self._pull_next(now)  # what waits for a donor has one more

    def _excused(self, chunk: int, now: float) -> bool:
        """Whether a window in flight may bring what we lack: for one patience, then it is pulled all the same.

        Where a round is shorter than two patiences there is always a young window.
        """
        if not self._windows.in_flight(chunk, now):
            return False
        since = self._excuses.get(chunk, -inf)
        if now > since + FORGET_EXCUSE * self.patience:
            since = self._excuses[chunk] = now
        return now < since + self.patience

    def lacking(self) -> set[int]:
        """Chunks of which someone here says to have more than we, and has not yet failed to give it."""
        return {chunk for chunk in range(len(self._ledger.chains)) if self._holders(chunk)}

    def bare(self) -> set[int]:
        """Chunks that are at genesis here, but not elsewhere; all of them while that cannot be known.

        A peer's own parameters mean nothing to the swarm where this is so.
        """
        ours = {chunk for chunk, chain in enumerate(self._ledger.chains) if chain.newest is None}
        if not any(heads for peer, heads in self._heads.items() if not self._roster.is_lost(peer)):
            return ours if any(map(self._differs, self._roster.live())) else set()
        return {chunk for chunk in ours if any(heads[chunk][0] for heads in self._heads.values())}

    # Getting it

    def want(self, peer: bytes, chunk: int, have: tuple[bytes, ...], now: float) -> None:
        """Pull one chunk, soon, from `peer` or another who has it; at most once per chunk and patience.

        With nothing in `have` our own state of the chunk is wrong: from then on only a whole state helps.
        """
        if not have and chunk not in self._wrong:
            self._wrong.add(chunk)  # a pull under way asked for links, which cannot help
            self._pulling.pop(chunk, None)
            self._pulled.pop(chunk, None)
        if chunk in self._pulling or chunk in self._wanted or now < self._pulled.get(chunk, -inf) + self.patience:
            return
        self._hints[chunk] = peer
        self._asked.pop(chunk, None)
        self._tried.pop(chunk, None)
        self._wanted[chunk] = None
        self._pull_next(now)

    def _holders(self, chunk: int) -> list[bytes]:
        """Peers that are here and have what we lack of a chunk, as far as we know and have not tried in vain."""
        ours = self._ledger.chains[chunk].order
        least = (ours[0], b"") if chunk in self._wrong else ours
        peers = {peer for peer, heads in self._heads.items() if tuple(heads[chunk]) > least}
        if chunk in self._hints:
            peers.add(self._hints[chunk])
        peers -= self._tried.get(chunk, set())
        return sorted(peer for peer in peers if not self._roster.is_lost(peer))

    def _pull_next(self, now: float) -> None:
        for chunk in list(self._wanted):
            if len(self._pulling) >= PULLS_AT_A_TIME:
                return
            holders = self._holders(chunk)
            if not holders:  # the next difference that is found begins anew
                self._give_up(chunk)
            elif donor := self._choose(holders, now):
                del self._wanted[chunk]
                self._pull(chunk, donor, now)

    def _choose(self, holders: list[bytes], now: float) -> bytes | None:
        """One of the least busy, by chance; None if all have enough to do."""
        load = Counter(pulling.donor for pulling in self._pulling.values())
        waits = [self._busy[peer] for peer in holders if self._busy.get(peer, -inf) > now]
        free = [p for p in holders if self._busy.get(p, -inf) <= now and load[p] < PULLS_A_DONOR]
        if not free:
            self._arm(min(waits, default=inf))
            return None
        idlest = min(load[peer] for peer in free)
        choices = [peer for peer in free if load[peer] == idlest]
        return choices[int(self._random() * len(choices))]

    def _pull(self, chunk: int, donor: bytes, now: float) -> None:
        self._pulling[chunk] = _Pulling(donor, now, now)
        self._pulled[chunk] = self._asked.setdefault(chunk, {})[donor] = now
        have = () if chunk in self._wrong else self._ledger.have(chunk)
        self._arm(now + self._limit)
        self._emit(Send(donor, Pull(chunk=chunk, have=have), repair=True))

    @property
    def _limit(self) -> float:
        """Seconds without anything from a donor, after which it is replaced: on a slow link a state takes its time."""
        return min(LONGEST_PULL, 2 * max([self.patience, *self._took]))

    def _give_up(self, chunk: int) -> None:
        self._wanted.pop(chunk, None)
        self._hints.pop(chunk, None)
        self._tried.pop(chunk, None)

    def _again(self, chunk: int) -> None:
        """A pull has ended with nothing: the chunk is the next to be asked for, of someone else if there is one."""
        del self._pulling[chunk]
        self._pulled.pop(chunk, None)
        self._wanted = {chunk: None, **self._wanted}

    def asked(self, peer: bytes, chunk: int) -> bool:
        """Whether this is a peer that we asked for the chunk, if only before another."""
        return peer in self._asked.get(chunk, ())

    def heard_from(self, peer: bytes, chunk: int, *, placed: bool, whole: bool, now: float) -> None:
        """A good link or state (`whole`) came from a peer: as long as something comes, a donor is not replaced.

        What has no place here (not `placed`) is no answer: it is a later window's link, of a donor that owns the chunk.
        """
        if not placed:
            return
        pulled = self._pulling.get(chunk)
        answers = whole or (pulled is not None and pulled.donor == peer and chunk not in self._wrong)
        for pulling in self._pulling.values():
            # Windows go on meanwhile, and their links are no answer: nothing puts the end off for ever.
            if answers and pulling.donor == peer and now < pulling.began + LONGEST_PULL:
                pulling.since = now
        since = self._asked.get(chunk, {}).get(peer)
        if since is None:
            return
        self.donors.add(peer)
        if whole:
            self._took.append(now - since)
            self._pulling.pop(chunk, None)
            self._pull_next(now)

    def heard_busy(self, peer: bytes, message: Busy, now: float) -> None:
        """A donor has too much to do: ask another, and this one later."""
        wait = max(message.wait / 1000, 0.1) * (1 + NEWCOMERS_WAIT * self._random())
        self._busy[peer] = now + wait
        pulling = self._pulling.get(message.chunk)
        if pulling and pulling.donor == peer:
            self._again(message.chunk)
            self._pull_next(now)

    def lost(self, peer: bytes, now: float) -> None:
        """A peer is gone or leaving: what it was to give comes from another."""
        for gone in (self._checks, self._heads, self._busy):
            gone.pop(peer, None)
        for chunk in [chunk for chunk, pulling in self._pulling.items() if pulling.donor == peer]:
            self._again(chunk)
        self._pull_next(now)

    def adopted(self, chunk: int, now: float) -> None:
        """Something new of this chunk came, and our state was right for it."""
        self._wrong.discard(chunk)
        self._pulling.pop(chunk, None)
        self._give_up(chunk)
        self._pull_next(now)
        self.giving.serve(now)

    # Giving it

    def serve_heads(self, peer: bytes) -> None:
        """Answer AskHeads."""
        self._emit(Send(peer, Heads(tuple(chain.order for chain in self._ledger.chains)), repair=True))

    def serve(self, peer: bytes, message: Pull, dump: Callable[[Any], bytes], now: float) -> None:
        """Answer Pull: the links after what the peer has, else the whole state; nothing at genesis."""
        self.giving.ask(peer, message, dump, now)

    # Time

    def handle_timer(self, now: float) -> None:
        """Checks whose time has come, and pulls that nobody answered."""
        if now >= self.giving.timer:
            self.giving.serve(now)
        if now < self._timer:
            return
        self._timer = inf
        for peer in [peer for peer, when in self._checks.items() if when <= now]:
            del self._checks[peer]
            if self._differs(peer) and not self._roster.is_lost(peer):
                self._emit(Send(peer, AskHeads(), repair=True))
        for chunk, pulling in list(self._pulling.items()):
            if pulling.since + self._limit <= now:
                self._tried.setdefault(chunk, set()).add(pulling.donor)
                self._again(chunk)
        self._pull_next(now)
        pulls = (pulling.since + self._limit for pulling in self._pulling.values())
        self._arm(min([*self._checks.values(), *pulls], default=inf))

    def _arm(self, when: float) -> None:
        self._timer = min(self._timer, when)
