"""A virtual network under a virtual clock: links that delay, lose, reorder and duplicate, and peers that crash.

One seed gives one order of events. Nothing here knows the protocol; `simulation/swarm.py` puts nodes on it.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

DETECTION: Final = 0.2
"""Seconds after which a stream to a crashed peer is known to be closed."""
ACK_OVERDUE: Final = 3.0
"""Seconds after which a frame that a silent peer did not acknowledge makes it suspect."""


@dataclass(frozen=True, slots=True)
class Weather:
    """What the links do to a frame. Probabilities per frame; seconds."""

    delay: float = 0.02
    jitter: float = 0.02
    loss: float = 0.0
    duplication: float = 0.0


@dataclass
class Clock:
    """Virtual time and the events to come."""

    now: float = 0.0
    _queue: list[tuple[float, int, Callable[[], object]]] = field(default_factory=list)
    _count: int = 0

    def at(self, when: float, action: Callable[[], object]) -> None:
        """Do `action` at `when` (not before now). Events of the same time run in the order they were asked for."""
        self._count += 1
        heapq.heappush(self._queue, (max(when, self.now), self._count, action))

    def run(self, until: float) -> None:
        """Let time pass."""
        while self._queue and self._queue[0][0] <= until:
            self.now, _, action = heapq.heappop(self._queue)
            action()
        self.now = until


Deliver = Callable[[bytes, bytes, bytes], None]
"""(sender, header, bulk)."""


class Network:
    """Frames between named peers."""

    def __init__(self, clock: Clock, *, seed: int, weather: Weather) -> None:
        self.clock = clock
        self.weather = weather
        self.log: list[str] = []
        self._random = random.Random(seed)
        self._deliver: dict[bytes, Deliver] = {}
        self._lost: dict[bytes, Callable[[bytes], None]] = {}
        self._met: dict[bytes, Callable[[bytes], None]] = {}
        self._silent: dict[bytes, float] = {}
        self._cut: set[frozenset[bytes]] = set()

    def join(self, key: bytes, deliver: Deliver, lost: Callable[[bytes], None], met: Callable[[bytes], None]) -> None:
        """Add a peer:

        `deliver` gets its frames, `lost` the peers whose streams broke, `met` those whose opened again.
        """
        self._deliver[key], self._lost[key], self._met[key] = deliver, lost, met

    def random(self) -> float:
        """The run's one source of chance."""
        return self._random.random()

    def send(self, source: bytes, to: bytes, header: bytes, bulk: bytes) -> None:
        """Put a frame on its way."""
        copies = 1 + (self.random() < self.weather.duplication)
        for _ in range(copies):
            if self.random() < self.weather.loss:
                self.note("lost", source, to)
                continue
            delay = self.weather.delay + self.weather.jitter * self.random()
            self.clock.at(self.clock.now + delay, lambda: self._arrive(source, to, header, bulk))

    def _arrive(self, source: bytes, to: bytes, header: bytes, bulk: bytes) -> None:
        pair = frozenset((source, to))
        if pair in self._cut:
            self.clock.at(self.clock.now + ACK_OVERDUE, lambda: self._suspect(source, to, while_cut=True))
        elif self.is_silent(to):
            self.clock.at(self.clock.now + ACK_OVERDUE, lambda: self._suspect(source, to))
        elif to in self._deliver:
            self.note("frame", source, to, header[1])
            self._deliver[to](source, header, bulk)

    def _suspect(self, source: bytes, to: bytes, *, while_cut: bool = False) -> None:
        """The sender learns that the receiver is silent, unless it is gone or silent itself or the cut is over."""
        is_over = while_cut and frozenset((source, to)) not in self._cut
        if source in self._lost and not self.is_silent(source) and not is_over:
            self._lost[source](to)

    def crash(self, key: bytes) -> None:
        """The peer is gone for good; its streams break a moment later."""
        self.note("crash", key)
        del self._deliver[key], self._lost[key], self._met[key]
        for other in list(self._lost):
            self.clock.at(self.clock.now + DETECTION, lambda other=other: self._suspect(other, key))  # type: ignore[misc]

    def freeze(self, key: bytes, seconds: float) -> None:
        """The peer does nothing and acknowledges nothing for a while; frames to it are gone."""
        self.note("freeze", key)
        self._silent[key] = max(self._silent.get(key, 0.0), self.clock.now + seconds)

    def is_silent(self, key: bytes) -> bool:
        """Whether the peer is frozen."""
        return self._silent.get(key, 0.0) > self.clock.now

    def cut(self, one: bytes, other: bytes, seconds: float) -> None:
        """Frames between two peers are gone for a while, without a word to either."""
        self.note("cut", one, other)
        pair = frozenset((one, other))
        self._cut.add(pair)
        self.clock.at(self.clock.now + seconds, lambda: self._mend(one, other))

    def _mend(self, one: bytes, other: bytes) -> None:
        self._cut.discard(frozenset((one, other)))
        if one in self._met and other in self._met:
            self._met[one](other)
            self._met[other](one)

    def note(self, what: str, *details: object) -> None:
        """One line of the event log."""
        words = [d.hex()[:6] if isinstance(d, bytes) else str(d) for d in details]
        self.log.append(f"{self.clock.now:.6f} {what} {' '.join(words)}")
