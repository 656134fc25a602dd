"""Presence records: checked, learnt, and passed on to those who may not have them (docs/protocol.md, section 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from protocol.commands import Send
from protocol.errors import ProtocolError
from protocol.messages import MAX_RECORDS, Records
from protocol.presence import decode_verified
from protocol.roster import Roster

RELAYED_TO: Final = 2
"""Peers whom each one tells of a renewed presence record, which its issuer may not reach."""


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
        fresh: list[bytes] = []
        renewed: list[bytes] = []
        for data in records:
            known = len(self._roster.neighbours)
            try:
                key = self._learn_one(data, now, wall)
            except ProtocolError:
                if len(records) == 1:
                    raise
                continue
            if key is not None and len(self._roster.neighbours) > known:
                fresh.append(data)
            elif key not in (None, self._roster.key):  # our own goes to all, as a `Hello`
                renewed.append(data)
        others = [peer for peer in self._roster.live_after_us() if peer != speaker]
        for news, listeners in ((fresh, others), (renewed, others[:RELAYED_TO])):
            for peer in listeners if news else ():
                self._emit(Send(peer, Records(tuple(news[:MAX_RECORDS]))))

    def _learn_one(self, data: bytes, now: float, wall: float) -> bytes | None:
        """Whose record it is, if it told us anything."""
        record = decode_verified(data, now=wall)
        if record.run != self._roster.run:
            raise ProtocolError("presence record of another run")
        return record.key if self._roster.learn(record, now=now, wall=wall, raw=data) else None
