"""Who reads which part of the data: every trainer has a seat, a small number of its own (docs/protocol.md, section 9a).

A presence record claims a seat. All who see the same records give out the same seats, so nothing is asked and nothing
awaited: the peer that came first keeps what it claims, and of those that came together the one with the smaller key.
Seats of peers that are gone are free again once their records have expired.

`start_of` spreads the seats over the data: seat after seat halves the largest part that nobody has begun.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from itertools import count

MAX_SEATS = 2**16
"""More peers than that share seats."""

Claim = tuple[int, bytes, int]
"""A peer's first due step, its key, and the seat that it claims."""


def assign(claims: Iterable[Claim]) -> dict[bytes, int]:
    """Each peer's seat: a function of the claims alone, whatever their order. No seat is given twice."""
    seats: dict[bytes, int] = {}
    taken: set[int] = set()
    waiting = []
    for _, key, seat in sorted(claims):
        if seat in taken:
            waiting.append(key)
        else:
            taken.add(seat)
            seats[key] = seat
    free = (seat for seat in count() if seat not in taken)
    for key, seat in zip(waiting, free, strict=False):
        seats[key] = seat
    return seats


def start_of(seat: int) -> Fraction:
    """Where on the circle of all data a seat begins to read: 0, 1/2, 1/4, 3/4, 1/8, 5/8, … (van der Corput)."""
    bits = bin(seat)[2:]
    return Fraction(int(bits[::-1], 2), 1 << len(bits)) if seat else Fraction(0)
