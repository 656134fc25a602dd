"""A contributor's side of the windows in flight (docs/protocol.md, section 4).

Our contribution goes to the best-ranked owner that is not lost; to the next when that one is lost or silent; where none
is left, to the first that returns. It is settled by any link of this or a later due step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from protocol.commands import Contributed, Send
from protocol.messages import Contribution
from protocol.roster import Roster

PATIENCE_FLOOR: Final = 1.0
SILENT_AFTER: Final = 2
"""In patiences: then a contributor turns to the next owner."""
MISSING_AFTER: Final = 6
"""In patiences: then a contributor gives a window up."""


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


class Sending:
    """All our contributions whose windows are open."""

    def __init__(
        self,
        *,
        roster: Roster,
        emit: Callable[[object], None],
        miss: Callable[[int, int, str], None],
        patience: float = PATIENCE_FLOOR,
    ) -> None:
        """`miss` gets chunk, due step and the reason of a window that ended without a link that we know of."""
        self._roster = roster
        self._emit = emit
        self._miss = miss
        self.patience = patience
        """D, in seconds: what τ hides."""
        self.outbound: dict[tuple[int, int], Outbound] = {}
        self.timer = inf
        """When `handle_timer` must be called next."""

    def contribute(self, contribution: Contribution, payload: bytes, owners: tuple[bytes, ...], now: float) -> None:
        """Send our contribution on its way."""
        out = Outbound(contribution=contribution, payload=payload, owners=owners, opened=now)
        self.outbound[contribution.chunk, contribution.due] = out
        self._emit(Contributed(contribution, payload))
        self._to_next_owner(out, now)
        self._arm(now + MISSING_AFTER * self.patience)

    def _to_next_owner(self, out: Outbound, now: float) -> None:
        out.since = inf
        index = self._here(out, out.cursor + 1)
        out.cursor = min(index, len(out.owners) - 1)
        if index < len(out.owners):
            self._send(out, now)

    def _here(self, out: Outbound, start: int) -> int:
        """Index of the first owner from `start` on that is not lost; their number if there is none."""
        rest = range(start, len(out.owners))
        return next((index for index in rest if not self._roster.is_lost(out.owners[index])), len(out.owners))

    def _send(self, out: Outbound, now: float) -> None:
        out.since = now
        owner = out.owners[out.cursor]
        self._emit(Send(owner, out.contribution, out.payload))
        self._arm(now + SILENT_AFTER * self.patience)
        if owner == self._roster.key and out.cursor > 0:
            # Those before us may be lost to us alone: the next one passes ours on to them if it can.
            for other in out.owners[self._here(out, out.cursor + 1) :][:1]:
                self._emit(Send(other, out.contribution, out.payload))

    def passed(self, chunk: int, due: int) -> tuple[bytes, ...]:
        """The owners that we have tried for this window and found lost or silent."""
        out = self.outbound.get((chunk, due))
        return () if out is None else out.owners[: out.cursor + (out.since == inf)]

    def lost(self, peer: bytes, now: float) -> None:
        """A peer is suspect: what it was to own goes to the next owner."""
        for out in list(self.outbound.values()):
            if out.since < inf and out.owners[out.cursor] == peer:
                self._to_next_owner(out, now)

    def returned(self, peer: bytes, now: float) -> None:
        """We can speak to a peer (again): it gets what no owner was left for."""
        for out in list(self.outbound.values()):
            if out.since == inf and peer in out.owners:
                out.cursor = out.owners.index(peer)
                self._send(out, now)

    def settled(self, chunk: int, due: int) -> list[int]:
        """A link of `due` was adopted: windows up to it are over. Returns their due steps."""
        over = [key for key in self.outbound if key[0] == chunk and key[1] <= due]
        for key in over:
            del self.outbound[key]
        return [key[1] for key in over]

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

    def _time_outbound(self, out: Outbound, now: float) -> None:
        if now >= out.opened + MISSING_AFTER * self.patience:
            del self.outbound[out.contribution.chunk, out.contribution.due]
            reason = "no owner left" if out.since == inf else "no link came"
            self._miss(out.contribution.chunk, out.contribution.due, reason)
            return
        if now >= out.since + SILENT_AFTER * self.patience:
            self._to_next_owner(out, now)
        self._arm(min(out.since + SILENT_AFTER * self.patience, out.opened + MISSING_AFTER * self.patience))

    def _arm(self, when: float) -> None:
        self.timer = min(self.timer, when)
