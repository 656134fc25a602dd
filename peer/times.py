"""Where a peer's time goes: what the report calls seconds, and what the protocol takes for the usual inner step."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from peer import clock

STEPS_REMEMBERED = 32


@dataclass(slots=True)
class Times:
    """Seconds. `waiting` is time blocked on the network; `hook` is all that the swarm costs the training thread."""

    started: float = 0.0
    waiting: float = 0.0
    wait_max: float = 0.0
    """The longest that one step boundary waited."""
    allowed: float = 0.0
    """The longest that one was allowed to."""
    hook: float = 0.0
    steps: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS_REMEMBERED))
    ended: float = 0.0

    @property
    def step(self) -> float | None:
        """Usual seconds of one inner step; None before the first."""
        return median(self.steps) if self.steps else None

    @property
    def total(self) -> float:
        """Since the first step began."""
        return (self.ended or clock.monotonic()) - self.started if self.started else 0.0

    def waited(self, seconds: float) -> None:
        """A step boundary was blocked on the network for so long."""
        self.waiting += seconds
        self.wait_max = max(self.wait_max, seconds)
