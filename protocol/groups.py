"""Which contributions an owner may average: one group that stands on one parent, and enough of the swarm.

Pure functions of what an owner has received (docs/protocol.md, section 5).
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.ledger import weights
from protocol.messages import Contribution, Link, Parent

Received = tuple[Contribution, bytes]
"""A contribution and its packed bytes."""


def best_group(received: Iterable[Received], *, tip: bytes, cumulative: int, cap: int) -> list[Received]:
    """The one group that may be closed: most contributors, then on our own tip, then on the greatest branch.

    What a contributor says of a parent that we do not hold cannot be checked, and neither can the state that it was
    measured from: so heads count first, or one liar, or one fast peer with a flipped bit, would take every window.
    `tip` and `cumulative` are our own chain's; `cap` is the run's weight cap. Empty if no branch beats our tip.
    """
    groups: dict[Parent, list[Received]] = {}
    for item in received:
        groups.setdefault(item[0].parent, []).append(item)
    after = {parent: parent.cumulative + weight_of(group, cap) for parent, group in groups.items()}
    useful = [parent for parent in groups if after[parent] > cumulative]
    if not useful:
        return []
    return groups[max(useful, key=lambda p: (len(groups[p]), p.head == tip, after[p], p.head, p.state))]


def weight_of(group: Iterable[Received], cap: int) -> int:
    """What a link of these contributions weighs."""
    return sum(weights([contribution.tokens for contribution, _ in group], cap))


def are_most(peers: Iterable[bytes], parent: Link, due: int, *, cap: int, sync_every: int) -> bool:
    """Whether those who are here made more than half of their parent's link, by its own weights; half of that for each
    due step missed.

    Weights of two links alone cannot say so: a light peer that joins a heavy one brings the cap down, and both together
    weigh less than the heavy one did.
    """
    here = set(peers)
    shares = zip(parent.parts, weights([part.tokens for part in parent.parts], cap), strict=True)
    weight = sum(share for part, share in shares if part.peer in here)
    missed = max(0, (due - parent.due) // sync_every - 1)
    return weight << (1 + missed) > parent.weight


def is_enough(weight: int, due: int, parent: Parent, sync_every: int) -> bool:
    """Whether more than half of the swarm that closed the parent is here; half of that for each due step missed.

    Weights are compared per swarm step: a first link, or one after a miss, holds the tokens of more steps.
    """
    if parent.depth == 0:
        return True
    span = due - parent.due
    missed = max(0, span // sync_every - 1)
    return (weight * parent.span) << (1 + missed) > parent.weight * span
