"""What a peer gives to those who lack something: links or whole states, in the background (docs/protocol.md, section
8).

Under a cap one answer goes out at a time, and none while a window of our own is young: whoever asks waits a moment in
a short queue, or is told to ask another. The cap counts the bulk bytes of links and states, asked for by anyone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from protocol.commands import Send
from protocol.errors import ProtocolError
from protocol.ledger import Ledger
from protocol.messages import MAX_BUSY, Busy, Message, Pull, StateMessage
from protocol.roster import Roster
from protocol.window import Windows

LINKS_A_PULL: Final = 16
MOST_WAITING: Final = 16
"""Requests in the queue."""
LONGEST_QUEUE: Final = 1.0
"""Seconds after which a request in the queue must be served; one that would wait longer is refused."""
WINDOW_FIRST: Final = 0.5
"""Seconds that a request waits for a window in flight, at most."""


@dataclass(frozen=True, slots=True)
class _Request:
    message: Pull
    dump: Callable[[Any], bytes]
    since: float


class Giving:
    """One peer's answers to Pull."""

    def __init__(
        self, *, ledger: Ledger[Any], roster: Roster, windows: Windows, emit: Callable[[object], None]
    ) -> None:
        self._ledger = ledger
        self._roster = roster
        self._windows = windows
        self._emit = emit
        self.rate: float | None = None
        """Bytes a second; None is no cap."""
        self.timer = inf
        self._queue: dict[tuple[bytes, int], _Request] = {}
        """By asker and chunk, in the order of service: who asks twice has asked once."""
        self._free_at = -inf
        self._usual = 0.0
        """Seconds that the last answer took of the cap."""

    def ask(self, peer: bytes, message: Pull, dump: Callable[[Any], bytes], now: float) -> None:
        """A peer asks: answer, have it wait, or refuse. ProtocolError for a chunk that does not exist."""
        if message.chunk >= len(self._ledger.chains):
            raise ProtocolError("unknown chunk")
        wait = max(0.0, self._free_at - now) + len(self._queue) * self._usual
        key = (peer, message.chunk)
        if key not in self._queue and (wait > LONGEST_QUEUE or len(self._queue) >= MOST_WAITING):
            milliseconds = min(MAX_BUSY, round(1000 * wait))
            self._emit(Send(peer, Busy(message.chunk, milliseconds), repair=True))
            return
        self._queue.setdefault(key, _Request(message, dump, now))
        self.serve(now)

    def serve(self, now: float) -> None:
        """Give what may go out now."""
        self.timer = inf
        while self._queue:
            (peer, chunk), request = next(iter(self._queue.items()))
            when = self._when(request, now)
            if when > now:
                self.timer = when
                return
            del self._queue[peer, chunk]
            if not self._roster.is_lost(peer):
                self._give(peer, request, now)

    def _when(self, request: _Request, now: float) -> float:
        if self.rate is None:
            return now
        first = request.since + WINDOW_FIRST
        return max(self._free_at, first if now < first and self._window_in_flight(now) else now)

    def _window_in_flight(self, now: float) -> bool:
        young = (now < out.opened + self._windows.patience for out in self._windows.outbound.values())
        return any(young) or not all(gathering.judged for gathering in self._windows.gathering.values())

    def _give(self, peer: bytes, request: _Request, now: float) -> None:
        size = 0
        for message, bulk in answer(self._ledger, request.message, request.dump):
            size += len(bulk)
            self._emit(Send(peer, message, bulk, repair=True))
        if self.rate is not None:
            self._usual = size / self.rate
            self._free_at = max(now, self._free_at) + self._usual


def answer(ledger: Ledger[Any], message: Pull, dump: Callable[[Any], bytes]) -> list[tuple[Message, bytes]]:
    """The frames that answer a Pull: the links after what the asker has, else the whole state; nothing at genesis.

    Whichever is smaller: a newcomer that lacks a whole run of links gets the state, which is as good.
    """
    chain = ledger.chains[message.chunk]
    if chain.newest is None or chain.head in message.have:
        return []
    entries = ledger.after(message.chunk, message.have, LINKS_A_PULL + 1)
    links: list[tuple[Message, bytes]] = [(entry.message, entry.payload) for entry in entries]
    if len(links) == 1:
        return links
    newest = chain.newest.message
    state = dump(chain.base) + chain.newest.payload
    if 0 < len(links) <= LINKS_A_PULL and sum(len(payload) for _, payload in links) <= len(state):
        return links
    return [(StateMessage(newest.link, newest.owner, newest.signature), state)]
