"""Finding out that heads differ, and getting what is missing (docs/protocol.md, section 8).

A difference must last for a random while before anything is asked: windows in flight make heads differ for a moment all
the time. What is missing comes as links, which any holder has, or as a whole state; the ledger proves both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any, Final

from protocol.commands import Send
from protocol.errors import ProtocolError
from protocol.ledger import Ledger
from protocol.messages import AskHeads, Heads, LinkMessage, Pull, StateMessage
from protocol.roster import Roster
from protocol.window import Windows

PULLS_AT_A_TIME: Final = 4
LINKS_A_PULL: Final = 16
FORGET_EXCUSE: Final = 6
"""In patiences: a difference that long ago was another one."""
LONGEST_WAIT: Final = 5.0
"""Seconds; a cap on the patience used here, which has no end in lock-step."""


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
        self._checks: dict[bytes, float] = {}
        self._wanted: deque[tuple[int, bytes, tuple[bytes, ...]]] = deque()
        self._pulling: dict[int, float] = {}
        self._pulled: dict[int, float] = {}
        self._donors: dict[int, bytes] = {}
        self._wrong: set[int] = set()
        self._excuses: dict[int, float] = {}
        self.timer = inf

    @property
    def patience(self) -> float:
        """D, in seconds."""
        return min(self._windows.patience, LONGEST_WAIT)

    def heard_status(self, peer: bytes, now: float) -> None:
        """A peer said which heads it has."""
        if self._differs(peer):
            self._check(peer, now + self.patience * (0.5 + self._random()))
        else:
            self._checks.pop(peer, None)

    def _check(self, peer: bytes, when: float) -> None:
        """Ask a peer for its heads at `when`, if they still differ then."""
        self.timer = min(self.timer, self._checks.setdefault(peer, when))

    def _differs(self, peer: bytes) -> bool:
        known = self._roster.neighbours.get(peer)
        return known is not None and known.status is not None and known.status.heads != self._ledger.digest()

    def heard_heads(self, peer: bytes, message: Heads, now: float) -> None:
        """What a peer has, chunk by chunk: pull what is greater than ours."""
        if len(message.heads) != len(self._ledger.chains):
            raise ProtocolError("heads of another number of chunks")
        for chunk, order in enumerate(message.heads):
            chain = self._ledger.chains[chunk]
            if tuple(order) <= chain.order:
                continue
            if self._excused(chunk, now):
                self._check(peer, now + self.patience)
            else:
                self.want(peer, chunk, self._ledger.have(chunk), now)

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

    def want(self, peer: bytes, chunk: int, have: tuple[bytes, ...], now: float) -> None:
        """Pull one chunk from a peer, soon; at most once per chunk and patience.

        With nothing in `have` our own state of the chunk is wrong: from then on only a whole state helps.
        """
        if not have and chunk not in self._wrong:
            self._wrong.add(chunk)  # a pull under way asked for links, which cannot help
            self._pulling.pop(chunk, None)
            self._pulled.pop(chunk, None)
        if chunk in self._pulling or now < self._pulled.get(chunk, -inf) + self.patience:
            return
        if any(chunk == queued for queued, *_ in self._wanted):
            return
        self._wanted.append((chunk, peer, have))
        self._pull_next(now)

    def _pull_next(self, now: float) -> None:
        while self._wanted and len(self._pulling) < PULLS_AT_A_TIME:
            chunk, peer, have = self._wanted.popleft()
            if self._roster.is_lost(peer):
                continue
            self._pulling[chunk] = self._pulled[chunk] = now
            self._donors[chunk] = peer
            have = () if chunk in self._wrong else have
            self.timer = min(self.timer, now + 2 * self.patience)
            self._emit(Send(peer, Pull(chunk=chunk, have=have), repair=True))

    def asked(self, peer: bytes, chunk: int) -> bool:
        """Whether this is the peer that we last asked for the chunk."""
        return self._donors.get(chunk) == peer

    def adopted(self, chunk: int, now: float) -> None:
        """Something new of this chunk came, and our state was right for it."""
        self._wrong.discard(chunk)
        self._pulling.pop(chunk, None)
        self._pull_next(now)

    def serve_heads(self, peer: bytes) -> None:
        """Answer AskHeads."""
        self._emit(Send(peer, Heads(tuple(chain.order for chain in self._ledger.chains)), repair=True))

    def serve(self, peer: bytes, message: Pull, dump: Callable[[Any], bytes]) -> None:
        """Answer Pull: the links after what the peer has, else the whole state; nothing at genesis."""
        if message.chunk >= len(self._ledger.chains):
            raise ProtocolError("unknown chunk")
        chain = self._ledger.chains[message.chunk]
        entries = self._ledger.after(message.chunk, message.have, LINKS_A_PULL)
        for entry in entries:
            self._emit(Send(peer, entry.message, entry.payload, repair=True))
        if not entries and chain.newest is not None and chain.head not in message.have:
            newest: LinkMessage = chain.newest.message
            state = StateMessage(newest.link, newest.owner, newest.signature)
            self._emit(Send(peer, state, dump(chain.base) + chain.newest.payload, repair=True))

    def handle_timer(self, now: float) -> None:
        """Checks whose time has come, and pulls that nobody answered."""
        if now < self.timer:
            return
        for peer in [peer for peer, when in self._checks.items() if when <= now]:
            del self._checks[peer]
            if self._differs(peer) and not self._roster.is_lost(peer):
                self._emit(Send(peer, AskHeads(), repair=True))
        for chunk in [chunk for chunk, since in self._pulling.items() if since + 2 * self.patience <= now]:
            del self._pulling[chunk]
        self._pull_next(now)
        pulls = (since + 2 * self.patience for since in self._pulling.values())
        self.timer = min([*self._checks.values(), *pulls], default=inf)
