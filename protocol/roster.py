"""Who is here, how far they are, and which of them owns which chunk (docs/protocol.md, sections 6 and 9).

A roster is made of presence records, which carry their own proof, and of what peers say of themselves. Two peers whose
rosters differ for a moment rank owners differently: that costs speed, never correctness.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol.messages import LEAVING, TRAINING, Link, Status, sha256
from protocol.presence import Presence
from protocol.seats import assign

BALANCE: Final = 1.1
"""How much more than its equal share of a window's chunks an owner may be ranked first for."""
LATENESS_MEMORY: Final = 8
"""Windows over which a peer's usual lateness is taken."""
MAX_NEIGHBOURS: Final = 1024
"""Records held; more are ignored, so that a flood of made-up peers cannot fill the memory."""


VANISHED_FOR: Final = 3600.0
"""Seconds for which a trainer that went without goodbye is remembered as one that may only be cut off."""
RANKINGS: Final = 64
"""Rankings remembered: an owner looks one up for every contribution."""


@dataclass(slots=True)
class Neighbour:
    """What is known of one peer, ourselves included."""

    record: Presence
    expires: float
    """On the caller's monotonic clock."""
    status: Status | None = None
    lost: bool = False
    named: bool = False
    """Whether a link that we adopted names it: it took part, and its word alone does not say so."""
    raw: bytes = b""
    """The signed record, to pass on."""
    lateness: deque[float] = field(default_factory=lambda: deque(maxlen=LATENESS_MEMORY))

    @property
    def step(self) -> int:
        return self.status.step if self.status else 0

    @property
    def phase(self) -> int:
        return self.status.phase if self.status else TRAINING


class Roster:
    """All peers that this one knows of, ourselves among them once our own record is learnt."""

    def __init__(self, *, run: bytes, key: bytes) -> None:
        self.run = run
        self.key = key
        self.neighbours: dict[bytes, Neighbour] = {}
        self._shares: dict[int, dict[bytes, int]] = {}
        self._rates: Counter[bytes] = Counter()
        self.vanished: dict[bytes, float] = {}
        """Trainers whose records expired before they had finished or said goodbye, and those whom the links of an
        earlier life of ours name, while we have not heard of them; and since when."""
        self.gone: set[bytes] = set()
        """Lost peers whose processes have ended, by what their machines say: they are not frozen."""
        self._rankings: dict[tuple[tuple[int, ...], tuple[bytes, ...]], dict[int, tuple[bytes, ...]]] = {}
        self.version = 0
        """Changes whenever a record comes or goes."""

    def learn(self, record: Presence, *, now: float, wall: float, raw: bytes = b"") -> bool:
        """Take a verified record (signed bytes: `raw`); returns whether it is newer than what was known, and kept.

        `wall` is Unix time.
        """
        known = self.neighbours.get(record.key)
        if known and record.issued <= known.record.issued:
            return False
        if not known and len(self.neighbours) >= MAX_NEIGHBOURS:
            return False
        named = self.vanished.pop(record.key, None) is not None
        expires = now + (record.expires - wall)
        self.version += 1
        if known:
            known.record, known.expires, known.raw = record, expires, raw
        else:
            self.neighbours[record.key] = Neighbour(record=record, expires=expires, raw=raw, named=named)
        return True

    def forget_expired(self, now: float) -> None:
        """Drop peers whose records have expired and who are lost; one that still speaks to us stays."""
        gone = [key for key, peer in self.neighbours.items() if peer.expires <= now and (peer.lost or not peer.status)]
        for key in gone:
            if key != self.key:
                peer = self.neighbours.pop(key)
                self.version += 1
                if peer.named and peer.phase == TRAINING and peer.record.role == "train":
                    self.vanished[key] = now
        self.vanished = {key: when for key, when in self.vanished.items() if now < when + VANISHED_FOR}

    def seen(self, key: bytes) -> None:
        """A frame of this peer arrived: whatever we thought, it is not lost."""
        if peer := self.neighbours.get(key):
            peer.lost = False

    def lose(self, key: bytes) -> None:
        """Its stream closed or an acknowledgement is overdue."""
        if key != self.key and (peer := self.neighbours.get(key)):
            peer.lost = True

    def is_lost(self, key: bytes) -> bool:
        """Whether nothing should be expected of this peer now."""
        peer = self.neighbours.get(key)
        return peer is None or peer.lost or peer.phase == LEAVING

    def is_apart(self, key: bytes) -> bool:
        """Whether neither of us can dial the other (both behind NAT): we hear of this peer only through others."""
        ours, peer = self.neighbours.get(self.key), self.neighbours.get(key)
        if key == self.key or ours is None or peer is None:
            return False
        return not any(one.record.addresses or one.record.owns for one in (ours, peer))

    def say(self, key: bytes, status: Status) -> None:
        """A peer's own words about itself."""
        if peer := self.neighbours.get(key):
            peer.status = status

    def live(self) -> list[bytes]:
        """Everyone else who is here, in key order."""
        return sorted(key for key in self.neighbours if key != self.key and not self.is_lost(key))

    def live_after_us(self) -> list[bytes]:
        """Everyone else who is here, on the circle of keys from ours on."""
        return sorted(self.live(), key=lambda key: (key < self.key, key))

    def trainers(self) -> set[bytes]:
        """Peers that may contribute, ourselves included if we train."""
        peers = self.neighbours.items()
        return {k for k, p in peers if not self.is_lost(k) and p.phase == TRAINING and p.record.role == "train"}

    def to_serve(self) -> list[Neighbour]:
        """Everyone else who may still need something of us: who is here, and trainers that may only be frozen."""
        others = [(self.is_lost(key), peer) for key, peer in self.neighbours.items() if key != self.key]
        here = [peer for lost, peer in others if not lost and peer.record.role != "serve"]
        others = [(lost, peer) for lost, peer in others if peer.record.key not in self.gone or not lost]
        frozen = [peer for lost, peer in others if lost and peer.phase != LEAVING and peer.record.role == "train"]
        # Two peers behind NAT never meet: whoever owns serves them both.
        return here + [peer for peer in frozen if peer.named and not self.is_apart(peer.record.key)]

    def is_cut_off(self, heads: bytes) -> bool:
        """Whether as many trainers went without a word as are here or ended with these heads: then who knows."""
        trainers = [(key, peer) for key, peer in self.neighbours.items() if peer.record.role == "train"]
        ended = [key for key, peer in trainers if peer.status and peer.phase > TRAINING and peer.status.heads == heads]
        here = {*ended, *(key for key, _ in trainers if not self.is_lost(key))}
        gone = [key for key, peer in trainers if key in self.gone and self.is_lost(key) and peer.phase == TRAINING]
        return len(self.vanished) + len(gone) >= max(1, len(here))

    def seat(self, ours: int, from_step: int) -> int:
        """The seat in the data that we have by the records known, if we claim seat `ours`."""
        records = [peer.record for key, peer in self.neighbours.items() if key != self.key]
        others = [(record.from_step, record.key, record.seat) for record in records if record.role == "train"]
        return assign([*others, (from_step, self.key, ours)])[self.key]

    def late(self, key: bytes, seconds: float) -> None:
        """Remember how long after a window's first contribution this peer's came."""
        if peer := self.neighbours.get(key):
            peer.lateness.append(seconds)

    def usual_lateness(self, keys: Iterable[bytes]) -> float | None:
        """Seconds of the slowest of these peers; None if one of them has no history."""
        histories = [self.neighbours[key].lateness for key in keys if key in self.neighbours]
        if not all(histories):
            return None
        return max((max(history) for history in histories), default=0.0)

    def weigh(self, chunk: int, link: Link) -> None:
        """Take the newest link of a chunk as what its contributors train: tokens a swarm step."""
        shares = {part.peer: (part.tokens << 16) // link.span for part in link.parts}
        self._rates.subtract(self._shares.get(chunk, {}))
        self._rates.update(shares)
        self._shares[chunk] = shares
        for key in shares.keys() & self.neighbours.keys():
            self.neighbours[key].named = True

    def pace(self) -> int:
        """The greatest swarm step that at least half of the live trainers, finished ones too, say to have reached:
        half of them by number, or half of what the newest links say that they train. So many slow peers do not hold
        a fast one, a fast one that stands still does not hold the others, and no single clock moves anyone. Those who
        have not begun, or of whom there is only a record, do not count: newcomers and made-up peers would pull the pace
        to zero. Where some trainer is apart from us, owners that do not train count by number as well: they say the
        pace that they see, and a peer behind NAT may have nobody else to hear it from.
        """
        roles = ("train", "own") if any(map(self.is_apart, self.neighbours)) else ("train",)
        peers = self.neighbours.items()
        steps = {k: p.step for k, p in peers if p.record.role in roles and p.step and not self.is_lost(k)}
        return max(_reached_by_half(steps, dict.fromkeys(steps, 1)), _reached_by_half(steps, self._rates))

    def owners(self, due: int) -> list[bytes]:
        """Peers that may own at a due step, lost ones included (so that rankings agree), in key order."""
        peers = self.neighbours.items()
        return sorted(key for key, peer in peers if peer.record.owns and peer.record.from_step <= due)

    def ranked(self, chunks: Sequence[int], due: int) -> dict[int, tuple[bytes, ...]]:
        """Owners of each chunk of a window, best first: rendezvous hashing with bounded load."""
        owners = tuple(self.owners(due))
        if (tuple(chunks), owners) not in self._rankings:
            if len(self._rankings) >= RANKINGS:
                self._rankings.clear()
            self._rankings[tuple(chunks), owners] = self._rank(chunks, owners)
        return self._rankings[tuple(chunks), owners]

    def _rank(self, chunks: Sequence[int], owners: Sequence[bytes]) -> dict[int, tuple[bytes, ...]]:
        if not owners:
            return dict.fromkeys(chunks, ())
        share = -(-len(chunks) * BALANCE // len(owners))
        load = dict.fromkeys(owners, 0)
        ranking = {}
        for chunk in chunks:
            order = sorted(owners, key=lambda key: sha256(self.run, chunk.to_bytes(4, "little"), key))
            first = next(key for key in order if load[key] < share)
            load[first] += 1
            ranking[chunk] = (first, *(key for key in order if key != first))
        return ranking


def _reached_by_half(steps: Mapping[bytes, int], weights: Mapping[bytes, int]) -> int:
    """The greatest step that peers of at least half of the weight have reached; 0 if nobody weighs anything."""
    left = total = sum(weights.get(key, 0) for key in steps)
    for step, key in sorted(((step, key) for key, step in steps.items()), reverse=True):
        left -= weights.get(key, 0)
        if total and 2 * left <= total:
            return step
    return 0
