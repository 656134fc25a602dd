"""What this peer contributes: the signed outer gradient of a chunk, and the tokens that it stands for.

Tokens are those trained since the snapshot of our last contribution that a link of our ledger names; so a window that
was missed costs nothing but time (docs/protocol.md, section 4).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from statistics import median
from typing import Any, Final

import msgspec

from protocol.ledger import Ledger
from protocol.messages import Contribution, contribution_text, most_tokens, sha256
from protocol.signature import Keys
from protocol.states import Arithmetic

REMEMBERED: Final = 8
"""Contributions per chunk whose token counts are kept."""


TOO_FAR: Final = 8.0
"""Times the median ‖Δ‖: what is further than that from the anchor of a branch that won starts again from it."""
SIZES: Final = 8
"""Contributions per chunk over which that median is taken; with fewer than a third of them nothing starts again."""


class Refused(Exception):
    """Why there is nothing to contribute; the text goes into the report."""

    def __init__(self, reason: str, *, start_again: bool = False) -> None:
        super().__init__(reason)
        self.start_again = start_again
        """Whether the chunk's parameters should become the swarm's."""


class Contributor:
    """Makes the contributions of one peer."""

    def __init__(self, *, ledger: Ledger[Any], arithmetic: Arithmetic[Any], keys: Keys) -> None:
        self._ledger = ledger
        self._arithmetic = arithmetic
        self._keys = keys
        self._sent: dict[int, list[tuple[bytes, int]]] = {}
        self._sizes: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=SIZES))
        self._replaced: set[int] = set()
        self._named: dict[int, int] = {}
        self.marks: dict[int, int] = {}
        """By chunk: tokens trained at the snapshot of our last contribution that a link names."""
        self._earlier = 0
        """Tokens when this life of the peer began: 0, or those of the snapshot that it was restored from."""

    def resume(self, tokens: int, marks: Iterable[int]) -> None:
        """Go on after an earlier life that had trained so many tokens, with its `marks`."""
        self._earlier, self.marks = tokens, dict(enumerate(marks))

    def order(self, chunks: Iterable[int]) -> list[int]:
        """In which order to send a window's chunks: those first whose last contribution that counted is the oldest.

        Where the upload does not fit, the last ones of a window come too late: so it is not always the same ones.
        """
        return sorted(chunks, key=lambda chunk: (self._named.get(chunk, 0), chunk))

    def make(self, chunk: int, due: int, local: object, tokens: int) -> tuple[Contribution, bytes]:
        """The contribution of `local` parameters, and its packed bytes; `tokens` are all trained since the start.

        Refused if there is nothing that others could use.
        """
        fresh = tokens - self.marks.get(chunk, 0)
        if fresh <= 0:
            raise Refused("nothing trained")
        tip = self._ledger.tip(chunk)
        try:
            payload = self._arithmetic.contribution(chunk, tip, local)
        except ValueError as error:
            raise Refused("our parameters are not finite") from error
        self._measure(chunk, self._arithmetic.distance(chunk, tip, local))
        parent = self._ledger.parent(chunk, tip)
        unsigned = Contribution(
            chunk=chunk,
            due=due,
            parent=parent,
            tokens=min(fresh, most_tokens(due - parent.due)),
            payload=sha256(payload),
            peer=self._keys.key,
            signature=bytes(64),
        )
        signature = self._keys.sign(contribution_text(self._ledger.run, unsigned))
        signed = msgspec.structs.replace(unsigned, signature=signature)
        self._sent.setdefault(chunk, []).append((signed.payload, tokens))
        del self._sent[chunk][:-REMEMBERED]
        return signed, payload

    def _measure(self, chunk: int, size: float) -> None:
        """Losing a branch moves the anchor only, so our progress is in the next Δ: unless that is out of measure."""
        sizes, replaced = self._sizes[chunk], chunk in self._replaced
        self._replaced.discard(chunk)
        if replaced and 3 * len(sizes) >= SIZES and size > TOO_FAR * median(sizes):
            raise Refused("too far from the branch that won: starts again from it", start_again=True)
        sizes.append(size)

    def adopted(self, chunk: int, *, replaced: bool) -> None:
        """The chunk's tip moved: what its links name of ours is counted. `replaced`: ours was not below it."""
        if replaced:
            self._replaced.add(chunk)
        for entry in self._ledger.recent(chunk, REMEMBERED):
            for part in entry.message.link.parts:
                if part.peer == self._keys.key:
                    self._named[chunk] = max(self._named.get(chunk, 0), entry.message.link.due)
                    totals = [total for payload, total in self._sent.get(chunk, ()) if payload == part.payload]
                    # One that is not ours any more was sent by an earlier life, from no more than it had trained.
                    self.marks[chunk] = max([self.marks.get(chunk, 0), *(totals or [self._earlier])])
