"""Presence records: checked, learnt, and passed on to those who may not have them (docs/protocol.md, section 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from protocol.commands import Send
from protocol.errors import ProtocolError
from protocol.messages import MAX_RECORDS, Records
from protocol.presence import decode_verified
from protocol.roster import Roster

RELAYED_TO: Final = 2
"""Peers whom each one tells of a renewed presence record, which its issuer may not reach."""


RELAY_EVERY: Final = 1.0
"""Seconds, by the issuer's clock, between two records of one peer that are passed on: nobody can make the others talk
without end, since no record may be issued more than an hour ahead."""


class News(Enum):
    """What a presence record told us."""

    NONE = "nothing, or nothing to pass on"
    PEER = "a new peer"
    RENEWAL = "a peer that we knew is still here"


class Introductions:
    """What one peer does with the presence records that come to it."""

    def __init__(self, *, roster: Roster, emit: Callable[[object], None]) -> None:
        self._roster = roster
        self._emit = emit

    def learn(self, records: Sequence[bytes], speaker: bytes | None, *, now: float, wall: float) -> None:
        """Records from the DHT (no speaker) or a peer; new peers are made known to all others, renewed ones to a few.

        ProtocolError for a single bad one. Among others it is left out: one that has just expired, or is a forgery,
        must not cost us the rest.
        """
        told: dict[News, list[bytes]] = {news: [] for news in News}
        for data in records:
            try:
                told[self._learn_one(data, now, wall)].append(data)
            except ProtocolError:
                if len(records) == 1:
                    raise
        others = [peer for peer in self._roster.live_after_us() if peer != speaker]
        for news, listeners in ((News.PEER, others), (News.RENEWAL, others[:RELAYED_TO])):
            for peer in listeners if told[news] else ():
                self._emit(Send(peer, Records(tuple(told[news][:MAX_RECORDS]))))

    def _learn_one(self, data: bytes, now: float, wall: float) -> News:
        record = decode_verified(data, now=wall)
        if record.run != self._roster.run:
            raise ProtocolError("presence record of another run")
        known = self._roster.neighbours.get(record.key)
        before = known.record.issued if known else None
        if not self._roster.learn(record, now=now, wall=wall, raw=data):
            return News.NONE
        if before is None:
            return News.PEER
        ours = record.key == self._roster.key  # goes to all, as a `Hello`
        return News.NONE if ours or record.issued < before + RELAY_EVERY else News.RENEWAL
