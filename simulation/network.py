"""A virtual network under a virtual clock: links that delay, lose, reorder and duplicate, and peers that come and go.

One seed gives one order of events. Nothing here knows the protocol; `simulation/swarm.py` puts nodes on it.

A stream leads one way, as in peer/: each peer dials its own to every other one. What is sent into a stream that is
down is dropped. A stream goes down when the other end is gone, or acknowledges nothing for ACK_OVERDUE; then it is
dialled again, with growing pauses, for as long as its owner lives. Each pair of peers has its own source of chance, so
that an event taken out of a run disturbs the rest of it little: failing runs can be shrunk.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from simulation.invariants import Broken

DETECTION: Final = 0.2
"""Seconds after which a stream to a crashed peer is known to be closed."""
ACK_OVERDUE: Final = 3.0
"""Seconds after which a frame that a silent peer did not acknowledge makes it suspect."""
FIRST_DIAL, LAST_DIAL = 0.25, 1.0
"""Seconds between two dials: a fifth of peer/'s longest pause, so that runs can be short."""
QUEUE: Final = 256
"""Frames that wait on a slow line; more are dropped."""
MOST_EVENTS: Final = 300_000
"""Of one run. The bound is on work and not on time, so that it means the same on every machine."""


@dataclass(frozen=True, slots=True)
class Weather:
    """What the links do to a frame. Probabilities per frame; seconds."""

    delay: float = 0.02
    jitter: float = 0.02
    loss: float = 0.0
    duplication: float = 0.0

    def and_also(self, other: Weather) -> Weather:
        """Both at once."""
        return Weather(
            self.delay + other.delay,
            self.jitter + other.jitter,
            self.loss + other.loss,
            self.duplication + other.duplication,
        )


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

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Do `action` in so many seconds."""
        self.at(self.now + seconds, action)

    def run(self, until: float) -> None:
        """Let time pass. Broken if that takes more than MOST_EVENTS in all: something goes round in circles."""
        while self._queue and self._queue[0][0] <= until:
            if self._count > MOST_EVENTS:
                raise Broken("bounded-work", f"more than {MOST_EVENTS} events in {self.now:.1f} s")
            self.now, _, action = heapq.heappop(self._queue)
            action()
        self.now = until


@dataclass(frozen=True, slots=True, eq=False)
class Endpoint:
    """One life of a peer on the network."""

    deliver: Callable[[bytes, bytes, bytes], None]
    """(sender, header, bulk)."""
    lost: Callable[[bytes], None]
    """Our stream to that peer went down."""
    met: Callable[[bytes], None]
    """Our stream to that peer is open again."""
    woke: Callable[[], None]
    """We were frozen until now; what came meanwhile comes next."""


class Network:
    """Frames between named peers."""

    def __init__(self, clock: Clock, *, seed: int, weather: Weather, recording: bool = True) -> None:
        """`recording` keeps a line for everything that happens, in `log`."""
        self.clock = clock
        self.weather = weather
        """What it is now; `storm` adds to it for a while."""
        self.log: list[str] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self._recording = recording
        self._seed = seed
        self._random = Random(seed)
        self._chance: dict[tuple[bytes, bytes], Random] = {}
        self._basic = weather
        self._storms: list[Weather] = []
        self._ends: dict[bytes, Endpoint] = {}
        self._down: set[tuple[bytes, bytes]] = set()
        self._blocked: Counter[tuple[bytes, bytes]] = Counter()
        self._silent: dict[bytes, float] = {}
        self._waking: defaultdict[bytes, list[Callable[[], object]]] = defaultdict(list)
        self._keeps: dict[bytes, bool] = {}
        self._lines: dict[bytes, float] = {}
        self._line_free: dict[bytes, float] = {}

    # Who is here

    def join(self, key: bytes, end: Endpoint, *, dialling: bool = False) -> None:
        """Add a peer. `dialling`: it comes later than the others, and no stream is open yet."""
        self._ends[key] = end
        others = [other for other in self._ends if other != key] if dialling else []
        for other in others:
            self._goes_down((other, key))
            self._down.add((key, other))
            self._dial((key, other), end, FIRST_DIAL)

    def random(self) -> float:
        """Chance for whoever is on the network."""
        return self._random.random()

    def has(self, key: bytes) -> bool:
        """Whether this peer lives."""
        return key in self._ends

    def crash(self, key: bytes) -> None:
        """The peer is gone; streams to it break a moment later."""
        self.note("crash", key)
        del self._ends[key]
        self._waking.pop(key, None)
        self._silent.pop(key, None)
        for other in list(self._ends):
            self.clock.after(DETECTION, lambda other=other: self._broke((other, key)))  # type: ignore[misc]

    def _broke(self, pair: tuple[bytes, bytes]) -> None:
        """Unless the peer is back by now: then a new stream has replaced the broken one."""
        if pair[1] not in self._ends:
            self._goes_down(pair)

    # Frames

    def send(self, source: bytes, to: bytes, header: bytes, bulk: bytes) -> None:
        """Put a frame on its way."""
        if (source, to) in self._down:
            self.note("dropped", source, to)
            return
        chance = self._chance_of(source, to)
        end = self._ends.get(to)
        copies = 1 + (chance.random() < self.weather.duplication)
        for _ in range(copies):
            luck, way = chance.random(), chance.random()
            if luck < self.weather.loss:
                self.note("lost", source, to)
                continue
            delay = self.weather.delay + self.weather.jitter * way + (self._queued(source) if bulk else 0.0)
            if delay == float("inf"):
                self.note("dropped", source, to)
                continue
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            self.clock.after(delay, lambda: self._arrive(source, to, end, header, bulk))

    def _chance_of(self, source: bytes, to: bytes) -> Random:
        if (source, to) not in self._chance:
            self._chance[source, to] = Random(b"%d" % self._seed + source + to)
        return self._chance[source, to]

    def _queued(self, source: bytes) -> float:
        """Seconds that a bulk frame waits for a slow line; no end if too many wait already."""
        seconds = self._lines.get(source, 0.0)
        if not seconds:
            return 0.0
        begin = max(self.clock.now, self._line_free.get(source, 0.0))
        if begin - self.clock.now > QUEUE * seconds:
            return float("inf")
        self._line_free[source] = begin + seconds
        return begin + seconds - self.clock.now

    def _arrive(self, source: bytes, to: bytes, end: Endpoint | None, header: bytes, bulk: bytes) -> None:
        self.in_flight -= 1
        if self._blocked[source, to]:
            self.clock.after(ACK_OVERDUE, lambda: self._suspect_blocked((source, to)))
        elif self.is_silent(to):
            if self._keeps[to]:
                self._waking[to].append(lambda: self._land(source, to, end, header, bulk))
            self.clock.after(ACK_OVERDUE, lambda: self._suspect_silent((source, to)))
        else:
            self._land(source, to, end, header, bulk)

    def _land(self, source: bytes, to: bytes, end: Endpoint | None, header: bytes, bulk: bytes) -> None:
        """A frame to an earlier life is gone with it. Whoever hears of a peer that it lost dials it at once."""
        if end is None or self._ends.get(to) is not end:
            return
        self.note("frame", source, to, header[1])
        end.deliver(source, header, bulk)
        if (to, source) in self._down and self._ends.get(to) is end:
            self._try((to, source), end)

    # Streams

    def is_down(self, source: bytes, to: bytes) -> bool:
        """Whether a peer has no stream to another one."""
        return (source, to) in self._down

    def _suspect_blocked(self, pair: tuple[bytes, bytes]) -> None:
        if self._blocked[pair]:
            self._goes_down(pair)

    def _suspect_silent(self, pair: tuple[bytes, bytes]) -> None:
        if self.is_silent(pair[1]):
            self._goes_down(pair)

    def _goes_down(self, pair: tuple[bytes, bytes]) -> None:
        """The stream's owner learns that the other end is lost, unless it is gone itself; frozen, when it wakes."""
        source, to = pair
        if source not in self._ends or pair in self._down:
            return
        end = self._ends[source]
        self._down.add(pair)
        self.note("down", source, to)
        self.awake(source, lambda: end.lost(to))
        self._dial(pair, end, FIRST_DIAL)

    def _dial(self, pair: tuple[bytes, bytes], end: Endpoint, pause: float) -> None:
        self.clock.after(pause, lambda: self._dialled(pair, end, pause))

    def _dialled(self, pair: tuple[bytes, bytes], end: Endpoint, pause: float) -> None:
        if pair in self._down and self._ends.get(pair[0]) is end and not self._try(pair, end):
            self._dial(pair, end, min(2 * pause, LAST_DIAL))

    def _try(self, pair: tuple[bytes, bytes], end: Endpoint) -> bool:
        """Dial once; whether the other end answered."""
        source, to = pair
        if to not in self._ends or self._blocked[pair] or self.is_silent(to) or self.is_silent(source):
            return False
        self._down.discard(pair)
        self.note("met", source, to)
        end.met(to)
        return True

    # Faults

    def freeze(self, key: bytes, seconds: float, *, keeps: bool = False) -> None:
        """The process does nothing and acknowledges nothing for a while. Frames to it are gone, or, if it `keeps` them,
        lie in its machine's buffers until it wakes."""
        self.note("freeze", key)
        self._silent[key] = max(self._silent.get(key, 0.0), self.clock.now + seconds)
        self._keeps[key] = keeps
        self.clock.at(self._silent[key], lambda: self._wake(key))

    def is_silent(self, key: bytes) -> bool:
        """Whether the peer is frozen."""
        return self._silent.get(key, 0.0) > self.clock.now

    def awake(self, key: bytes, action: Callable[[], object]) -> None:
        """Do it now, or as soon as the peer is no longer frozen; never if it dies before."""
        if self.is_silent(key):
            self._waking[key].append(action)
        else:
            action()

    def _wake(self, key: bytes) -> None:
        if key in self._ends and not self.is_silent(key):
            self._ends[key].woke()
            for action in self._waking.pop(key, ()):
                action()

    def block(self, pairs: Iterable[tuple[bytes, bytes]], seconds: float) -> None:
        """What is sent from one peer to the other is gone for a while, without a word to either."""
        pairs = list(pairs)
        self._blocked.update(pairs)
        self.clock.after(seconds, lambda: self._blocked.subtract(pairs))

    def cut(self, one: bytes, other: bytes, seconds: float) -> None:
        """The same, in both directions."""
        self.note("cut", one, other)
        self.block([(one, other), (other, one)], seconds)

    def storm(self, extra: Weather, seconds: float) -> None:
        """Worse weather everywhere for a while."""
        self.note("storm", *(f"{value:g}" for value in (extra.delay, extra.jitter, extra.loss, extra.duplication)))
        self._storms.append(extra)
        self._blow()
        self.clock.after(seconds, lambda: self._calm(extra))

    def _calm(self, extra: Weather) -> None:
        self._storms.remove(extra)
        self._blow()

    def _blow(self) -> None:
        self.weather = self._basic
        for extra in self._storms:
            self.weather = self.weather.and_also(extra)

    def slow_line(self, key: bytes, seconds_a_frame: float, seconds: float) -> None:
        """What a peer uploads takes longer for a while: each frame with bulk bytes waits for the one before."""
        self.note("slow-line", key)
        self._lines[key] = seconds_a_frame
        self.clock.after(seconds, lambda: self._lines.pop(key, None))

    def note(self, what: str, *details: object) -> None:
        """One line of the event log."""
        if self._recording:
            words = [d.hex()[:6] if isinstance(d, bytes) else str(d) for d in details]
            self.log.append(f"{self.clock.now:.6f} {what} {' '.join(words)}")
