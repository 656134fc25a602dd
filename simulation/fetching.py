"""A newcomer to a simulated run under way gets the outer parameters before its first step, as peer/newcomer.py does.

It begins when everything is here, or nothing more comes, or nobody is; with what is still bare it does what
peer/mixing.py does. What to ask of whom is protocol/repair.py's, in both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from simulation.swarm import SimulatedPeer

LOOK_EVERY: Final = 0.05
ALONE: Final = 2.0
"""Seconds in which others may say where they are. These three are a fifth of peer/'s, so that runs can be short."""
STALLED: Final = 6.0
"""Seconds without anything new."""
LAST_LINKS: Final = 0.6
"""Seconds for the newest links, once every chunk is here."""


class Fetching:
    """One newcomer's wait; at its end the peer trains."""

    def __init__(self, peer: SimulatedPeer) -> None:
        self._peer = peer
        self._clock = peer.network.clock
        self._repair, self._roster = peer.node.repair, peer.node.roster
        self._began = self._moved = self._bared = self._clock.now
        self._seen = -1, -1
        peer._do(self._repair.begin_joining)
        self._again()

    def _again(self) -> None:
        self._clock.after(LOOK_EVERY, lambda: self._peer.network.awake(self._peer.key, self._look))

    def _look(self) -> None:
        if self._peer.crashed:
            return
        if not self._is_over():
            self._again()
            return
        bare = self._repair.bare()
        if not bare:
            self._repair.end_joining()
        self._peer.come_in(self._roster.pace(), bare)

    def _is_over(self) -> bool:
        now = self._clock.now
        others = [peer for key, peer in self._roster.neighbours.items() if key != self._roster.key]
        heard = any(peer.status and not peer.lost for peer in others)
        if not heard or not all(peer.status or peer.lost for peer in others):
            return now > self._began + ALONE
        if self._roster.pace() < self._peer.plan.sync_every:
            return True  # no window has been yet
        return self._is_fetched(now)

    def _is_fetched(self, now: float) -> bool:
        bare, lacking = self._repair.bare(), self._repair.lacking()
        if (len(bare), len(lacking)) != self._seen:
            self._seen, self._moved = (len(bare), len(lacking)), now
        if bare:
            self._bared = now
        elif not lacking or now > self._bared + LAST_LINKS:
            return True
        return now > self._moved + STALLED
