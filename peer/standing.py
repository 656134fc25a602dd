"""How far a peer is in its run, and what its presence records say of it. A snapshot keeps all of it."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.pace import owns_from
from protocol.schedule import Schedule


@dataclass(slots=True)
class Standing:
    """The training thread writes the counts; the seat is the outer thread's once training has begun."""

    step: int = 0
    """The swarm step."""
    own_step: int = 0
    """Optimizer steps taken here, over all lives."""
    tokens: int = 0
    """Tokens trained on here, over all lives."""
    seat: int = 0
    """Which part of the data is ours (protocol/seats.py). It changes if an earlier peer turns out to have it."""
    from_step: int = 0
    """The first due step for which our record counts. Renewals must not move it: for a while nobody would own."""

    def own_from(self, reached: int, schedule: Schedule) -> None:
        """Own, beginning when the swarm is at this step."""
        self.from_step = owns_from(reached, schedule)
