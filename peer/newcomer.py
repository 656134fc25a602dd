"""A newcomer to a run under way: it gets the outer parameters before its first step (docs/protocol.md, section 8).

Everything is fetched by the outer thread, from several donors, while new links go on arriving; the training thread
waits here, says how far it is, and trains anyway if nothing more comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from peer import clock
from peer.outer import Outer
from peer.quantities import format_bytes

STALLED: Final = 30.0
"""Seconds without a new chunk, after which a newcomer trains anyway and repair does the rest."""
LAST_LINKS: Final = 3.0
"""Seconds, once every chunk is here, in which the newest links may still come."""
TELL_EVERY: Final = 2.0
LOOK_EVERY: Final = 0.05
JOIN_WARMUP: Final = 10
"""Own inner steps in which a newcomer's learning rate rises from a tenth of the run's to all of it."""


@dataclass(slots=True)
class Joined:
    """How a newcomer came in. `bytes` is all that its streams had read by then, `state_bytes` a whole state's size."""

    from_step: int
    fetch_seconds: float
    bytes: int
    state_bytes: int
    donors: int


@dataclass(frozen=True, slots=True)
class Look:
    """How far a fetch is: chunks that are still at genesis, those that are behind, and how many there are of."""

    bare: frozenset[int]
    lacking: frozenset[int]
    linked: frozenset[int]
    """Chunks that have a link somewhere: those that a newcomer needs."""
    donors: int
    read: int


class Newcomer:
    """Fetches once. `sizes` are the bytes of each chunk's whole state."""

    def __init__(self, outer: Outer, sizes: Sequence[int]) -> None:
        self._outer = outer
        self._sizes = sizes

    def fetch(
        self,
        call: Callable[[Coroutine[Any, Any, Any]], Any],
        notice: Callable[[str], None],
        stop: Callable[[], bool],
    ) -> tuple[float, Look]:
        """Wait until the outer parameters are here, or nothing more comes, or `stop()`; the seconds and the end.

        `call` runs a coroutine in the outer thread, `notice` gets sentences for the user.
        """
        call(self._outer.begin_joining())
        began = moved = bared = clock.monotonic()
        told = began - TELL_EVERY
        first = last = call(self._look())
        while not stop() and last.lacking | last.bare:
            now = clock.monotonic()
            bared = now if last.bare else bared
            if now > bared + LAST_LINKS and not last.bare:
                break
            if now > moved + STALLED:
                notice(f"Nothing new for {STALLED:g} s: training begins, and the rest is fetched meanwhile.")
                break
            if now > told + TELL_EVERY:
                told = now
                notice(self._text(last))
            call(asyncio.sleep(LOOK_EVERY))
            before, last = last, call(self._look())
            if (before.bare, before.lacking) != (last.bare, last.lacking):
                moved = clock.monotonic()
        call(self._done())
        if first is not last:
            notice(self._text(last))
        return clock.monotonic() - began, last

    async def _done(self) -> None:
        if not self._outer.node.repair.bare():
            self._outer.end_joining()

    async def _look(self) -> Look:
        repair, chains = self._outer.node.repair, self._outer.node.ledger.chains
        bare = frozenset(repair.bare())
        linked = frozenset(chunk for chunk, chain in enumerate(chains) if chain.newest) | bare
        read = self._outer.transport.traffic.read.total()
        return Look(bare, frozenset(repair.lacking()), linked, len(repair.donors), read)

    def _text(self, look: Look) -> str:
        here = self.size(look.linked - look.bare - look.lacking)
        peers = "1 peer" if look.donors == 1 else f"{look.donors} peers"
        every = format_bytes(self.size(look.linked))
        return f"Joining: fetching the outer parameters: {format_bytes(here)} of {every} from {peers}."

    def size(self, chunks: frozenset[int]) -> int:
        """Bytes of these chunks' whole states."""
        return sum(self._sizes[chunk] for chunk in chunks)


def warm_up(own_step: int) -> float:
    """The share of the run's learning rate that a newcomer's inner step `own_step` (from 0) uses."""
    return min(1.0, (own_step + 1) / JOIN_WARMUP)
