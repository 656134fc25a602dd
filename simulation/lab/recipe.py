"""Everything about one run of the lab but its seed and what is trained: a `Recipe`. An experiment is a list of them."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.errors import UserError
from protocol.schedule import Schedule, spread


@dataclass(frozen=True, slots=True)
class Away:
    """A replica that neither contributes nor merges from swarm step `first` to `last`, and trains on or stands."""

    replica: int
    first: int
    last: int
    trains: bool = True


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One run. Steps are swarm steps; a replica of speed 1 takes an inner step in each. The defaults are a small
    Streaming DiLoCo with the product's outer optimizer. UserError from the constructor names what is wrong."""

    replicas: int = 2
    """M."""
    steps: int = 240
    """S."""
    batch: int = 4
    """Samples of one replica's inner step."""
    inner: str = "adamw"
    """The inner optimizer: adamw or sgd."""
    inner_lr: float | None = None
    """Its peak learning rate; None is the workload's."""
    exchange: str = "agreed"
    """What is done with contributions: a name of `methods.EXCHANGES`, or `every-step` (data-parallel)."""
    sync_every: int = 20
    """H."""
    fragments: int = 2
    """P."""
    pattern: str = "strided"
    sizes: tuple[int, ...] = ()
    """Layers of each fragment in the order of depth; given, it replaces `fragments` and `pattern`."""
    offsets: tuple[int, ...] = ()
    """t_p; empty spreads them evenly."""
    overlap: tuple[int, ...] = (1,)
    """τ of each replica; the last stands for those beyond."""
    mixing: tuple[float, ...] = (0.5,)
    """α: one number, or two for a line from the first to the last step."""
    outer: str = "nesterov"
    """The outer optimizer: a name of `methods.OUTER`."""
    outer_lr: float = 0.4
    outer_momentum: float = 0.9
    lr_of_fragment: tuple[float, ...] = ()
    """Factor on `outer_lr` for each fragment; empty is 1 for all."""
    momentum_rounds: int = 0
    """Rounds over which the outer momentum grows linearly to its value."""
    short_steps: int = 0
    """Steps at the start during which rounds last `short_sync_every` instead of H."""
    short_sync_every: int = 0
    up: str = "e3m0"
    """Compression of contributions."""
    down: str = "e3m0"
    """Compression of their mean."""
    per_tensor: bool = False
    """Compress each parameter in its own shape (what matrix methods need), not the flat fragment."""
    chunk: int = 0
    """Elements that are lost or late together; 0 is the whole fragment."""
    block: int = 256
    """Chunks are whole blocks of so many elements."""
    drop: float = 0.0
    """Share of chunks of contributions that get lost."""
    skip: float = 0.0
    """Share of chunks whose merge a replica misses."""
    speeds: tuple[float, ...] = (1.0,)
    """Inner steps of each replica in one swarm step, at most 1; the last stands for those beyond."""
    weighting: str = "tokens"
    """tokens or equal."""
    weight_cap: int = 4
    """Tokens count up to this multiple of their lower median."""
    freezing: bool = False
    """FedPart: only the fragment that is due next trains."""
    shards: str = "shared"
    """shared: every replica reads all of the text from a place of its own; own: each reads only its part of it."""
    away: tuple[Away, ...] = ()
    pull: float = 1.0
    """NoLoCo: how strongly a pair pulls its anchors together (γ)."""
    share: float = 1.0
    """Random subsets: the share of the values that is exchanged."""
    gather: bool = False
    """All get all contributions as they were sent and take the mean. Else owners send it, compressed as `down`."""
    settle: bool = False
    """After the last step one more window for every fragment that has trained since its last: rows that differ in H or
    τ would else end at different distances from their last exchange."""

    def __post_init__(self) -> None:
        for name, value, holds, right in self._rules():
            if not holds:
                raise UserError.field(f"recipe.{name}", value, right)

    def _rules(self) -> list[tuple[str, object, bool, str]]:
        late = max(self.overlap, default=0)
        choices = (("inner", ("adamw", "sgd")), ("weighting", ("tokens", "equal")), ("shards", ("shared", "own")))
        counts = ("replicas", "steps", "batch", "sync_every", "fragments", "block", "weight_cap")
        return [
            *((name, getattr(self, name), getattr(self, name) >= 1, "must be at least 1") for name in counts),
            *((name, getattr(self, name), getattr(self, name) in allowed, f"must be one of {', '.join(allowed)}")
              for name, allowed in choices),
            ("overlap", self.overlap, bool(self.overlap) and min(self.overlap) >= 0 and late < self.sync_every,
             f"must be at least 0 and below sync_every ({self.sync_every})"),
            ("short_sync_every", self.short_sync_every, not self.short_steps or self.short_sync_every > late,
             f"must be above every overlap ({late})"),
            ("mixing", self.mixing, len(self.mixing) in (1, 2) and all(0 <= alpha <= 1 for alpha in self.mixing),
             "must be one or two numbers from 0 to 1"),
            ("speeds", self.speeds, bool(self.speeds) and all(0 < speed <= 1 for speed in self.speeds),
             "must be above 0 and at most 1"),
            *((name, getattr(self, name), 0 <= getattr(self, name) <= 1, "must be from 0 to 1")
              for name in ("drop", "skip", "share")),
            ("down", self.down, not self.gather or self.down == "none", "must be none with gather"),
            ("offsets", self.offsets, not self.offsets or len(self.offsets) == self.num_fragments,
             "must have one value for each fragment"),
            ("lr_of_fragment", self.lr_of_fragment,
             not self.lr_of_fragment or len(self.lr_of_fragment) == self.num_fragments,
             "must have one value for each fragment"),
        ]  # fmt: skip

    @property
    def num_fragments(self) -> int:
        """P."""
        return len(self.sizes) or self.fragments

    def schedules(self) -> tuple[Schedule, Schedule]:
        """That of the short rounds at the start (no windows if there are none), and that of the others."""
        short, count = self.short_sync_every or self.sync_every, self.num_fragments
        # A short window settles before the first long one can open.
        first = Schedule(short, max(self.overlap), spread(count, short), self.short_steps)
        offsets = self.offsets or spread(count, self.sync_every)
        return first, Schedule(self.sync_every, max(self.overlap), offsets, self.steps)

    def alpha(self, step: int) -> float:
        """α at a swarm step."""
        first, last = self.mixing[0], self.mixing[-1]
        return first if first == last else first + (last - first) * min(1.0, step / self.steps)

    def overlap_of(self, replica: int) -> int:
        """τ of a replica."""
        return self.overlap[min(replica, len(self.overlap) - 1)]

    def inner_steps(self, replica: int, step: int) -> int:
        """How many inner steps a replica takes in swarm step `step` (from 1): 0 or 1."""
        speed = self.speeds[min(replica, len(self.speeds) - 1)]
        # The hair keeps 10 × 0.1 from being 0.
        return int(step * speed + 1e-9) - int((step - 1) * speed + 1e-9)
