"""Faults as explicit events: what a seed does to a swarm is a list that can be printed, shortened and run again.

Every kind of fault is one entry of `KINDS`. Seconds are virtual; peers count from 0. Faults stop at the plan's calm:
whoever was taken down for a while is back by then.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from simulation.network import Weather
from simulation.swarm import Plan, Swarm

CALM_AFTER: Final = 0.5
"""Share of the run after which no more faults happen."""
FIRST: Final = 0.2
"""Seconds before which only weather happens."""

KINDS: Final = {
    "crash": "a peer is killed for good",
    "leave": "a peer says goodbye and goes",
    "restart": "a peer is killed, and comes back with its newest snapshot",
    "wipe": "a peer is killed, and comes back with nothing, as a newcomer",
    "freeze": "a process stands still for a while; frames to it are gone (amount 0) or wait for it (amount 1)",
    "partition": "the peers listed cannot reach the others, nor these them",
    "cut": "two peers cannot reach each other; all others can",
    "one-way": "a peer cannot reach another one, which reaches it",
    "loss": "frames are lost with a probability of `amount`",
    "delay": "every frame takes up to `amount` seconds longer, so that frames overtake each other",
    "duplication": "frames come twice with a probability of `amount`",
    "skew": "a peer's wall clock is `amount` seconds ahead from now on",
    "slow-peer": "a peer's steps take `amount` times as long",
    "slow-link": "each bulk frame that a peer sends takes `amount` seconds more, one after the other",
    "slow-disk": "a snapshot takes `amount` seconds to write: a kill finds an older one",
    "full-disk": "a peer can write no snapshot",
    "corrupt": "one value of a peer's anchor of the chunk `amount` flips",
}
"""Every kind of fault, and what it does."""

_WEATHER: Final = ("loss", "delay", "duplication")
"""Those that happen to everyone and name nobody."""

_AMOUNTS: Final[dict[str, tuple[float, ...]]] = {
    "freeze": (0, 1),
    "loss": (0.02, 0.1, 0.3),
    "delay": (0.1, 0.3, 1.0),
    "duplication": (0.05, 0.3),
    "skew": (-2.0, -0.7, 0.7, 2.0),
    "slow-peer": (1.5, 3.0, 3.0),
    "slow-link": (0.02, 0.1, 0.3),
    "slow-disk": (0.5, 2.0),
}


@dataclass(frozen=True, slots=True, order=True)
class Event:
    """One fault."""

    at: float
    kind: str
    peer: int = 0
    others: tuple[int, ...] = ()
    """The other side, where there is one."""
    seconds: float = 0.0
    """How long it lasts."""
    amount: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Without what does not matter for the kind."""
        given = {field.name for field in fields(Event) if getattr(self, field.name) != field.default}
        names = {"at", "kind", *given} | (set() if self.kind in _WEATHER else {"peer"})
        return {name: value for name, value in asdict(self).items() if name in names}

    def __str__(self) -> str:
        details = {"others": self.others, "for": f"{self.seconds:g} s" if self.seconds else "", "amount": self.amount}
        words = [f"{name} {value}" for name, value in details.items() if value]
        who = [] if self.kind in _WEATHER else [f"peer {self.peer}"]
        return f"{self.at:7.3f} s  {self.kind:<11} " + ", ".join([*who, *words])


def calm_at(plan: Plan) -> float:
    """Seconds after which no more faults happen."""
    return CALM_AFTER * plan.steps * plan.step_seconds


def random_events(seed: int, plan: Plan, kinds: tuple[str, ...] = tuple(KINDS)) -> tuple[Event, ...]:
    """What happens to a run, in order."""
    dice = random.Random(f"faults {seed}")
    number = dice.randint(0, 4 + plan.peers // 3)
    return tuple(sorted(_event(dice, dice.choice(kinds), plan) for _ in range(number)))


def _event(dice: random.Random, kind: str, plan: Plan) -> Event:
    calm = calm_at(plan)
    at = round(dice.uniform(FIRST, calm - FIRST), 3)
    peer = dice.randrange(plan.peers)
    seconds = round(min(dice.choice([0.3, 1.0, 3.0, 5.0]) * dice.uniform(0.5, 1.5), calm - at), 3)
    amount = float(dice.choice(_AMOUNTS.get(kind, (0.0,))))
    if kind == "corrupt":
        amount = float(dice.randrange(len(plan.fragment_of)))
    others: tuple[int, ...] = ()
    if kind == "partition":
        others = tuple(sorted(dice.sample(range(plan.peers), dice.randint(1, plan.peers - 1))))
    elif kind in ("cut", "one-way"):
        others = (dice.choice([other for other in range(plan.peers) if other != peer]),)
    if kind in ("crash", "leave", "skew", "corrupt"):
        seconds = 0.0
    if kind in ("slow-peer", "slow-disk", "skew") and dice.random() < 0.5:
        at, seconds = 0.0, round(calm, 3)  # the whole time
    return Event(at, kind, peer, others, seconds, amount)


def schedule(swarm: Swarm, events: tuple[Event, ...]) -> None:
    """Let these happen to a swarm that has not started yet."""
    for event in events:
        swarm.clock.at(event.at, lambda e=event: happen(swarm, e))  # type: ignore[misc]


def happen(swarm: Swarm, event: Event) -> None:
    """One fault, now."""
    after, network, keys = swarm.clock.after, swarm.network, swarm.keys
    peer, key = swarm.peers[event.peer], swarm.keys[event.peer]
    match event.kind:
        case "crash" | "leave" | "restart" | "wipe":
            _go(swarm, event)
        case "freeze":
            swarm.freeze(event.peer, event.seconds, keeps=bool(event.amount))
        case "partition":
            network.note("partition", *event.others)
            inside = {keys[index] for index in event.others}
            network.block([(a, b) for a in keys for b in keys if (a in inside) != (b in inside)], event.seconds)
        case "cut":
            network.cut(key, keys[event.others[0]], event.seconds)
        case "one-way":
            network.note("one-way", key, keys[event.others[0]])
            network.block([(key, keys[event.others[0]])], event.seconds)
        case "loss":
            network.storm(Weather(0.0, 0.0, event.amount, 0.0), event.seconds)
        case "delay":
            network.storm(Weather(0.0, event.amount, 0.0, 0.0), event.seconds)
        case "duplication":
            network.storm(Weather(0.0, 0.0, 0.0, event.amount), event.seconds)
        case "skew":
            peer.skew = event.amount
            network.note("skew", key)
        case "slow-peer":
            network.note("slow-peer", key)
            swarm.slow_down(event.peer, event.amount)
            after(event.seconds, lambda: swarm.slow_down(event.peer, 1.0))
        case "slow-link":
            network.slow_line(key, event.amount, event.seconds)
        case "slow-disk":
            network.note("slow-disk", key)
            peer.disk.write_seconds = event.amount
        case "full-disk":
            network.note("full-disk", key)
            peer.disk.full_until = swarm.clock.now + event.seconds
        case "corrupt":
            if not peer.crashed:
                swarm.corrupt(event.peer, int(event.amount))
        case _:
            raise ValueError(f"kind = {event.kind!r}: must be one of {', '.join(KINDS)}")


def _go(swarm: Swarm, event: Event) -> None:
    """A peer dies or leaves, unless it is dead already or would be the last one; some come back."""
    peer = swarm.peers[event.peer]
    if peer.crashed or len(swarm.live) == 1:
        return
    if event.kind == "leave":
        swarm.leave(event.peer)
        return
    swarm.crash(event.peer)
    if event.kind != "crash":
        swarm.clock.after(event.seconds, lambda: swarm.start_again(event.peer, with_disk=event.kind == "restart"))
