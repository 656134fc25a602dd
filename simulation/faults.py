"""Random faults from one seed, and whole runs under them.

A run has bad weather and faults for its first part, then calm. In the calm everyone gets what it lacks, the live peers'
heads become equal within two rounds of that, and everyone comes to the end of the run with equal heads.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final

from protocol.node import BEAT
from simulation.invariants import Broken
from simulation.network import ACK_OVERDUE, Weather
from simulation.swarm import Plan, Swarm

CALM_AFTER: Final = 0.5
"""Share of the run after which no more faults happen."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one seed did."""

    seed: int
    violation: str
    """Empty if every promise held."""
    links: int
    survivors: int
    log: tuple[str, ...]


def random_plan(seed: int, *, peers: tuple[int, int] = (2, 5)) -> Plan:
    """A small run with weather of its own."""
    dice = random.Random(f"plan {seed}")
    weather = Weather(
        delay=dice.choice([0.005, 0.02, 0.1]),
        jitter=dice.choice([0.0, 0.05, 0.3]),
        loss=dice.choice([0.0, 0.0, 0.02, 0.1]),
        duplication=dice.choice([0.0, 0.05]),
    )
    number = dice.randint(*peers)
    slowness = tuple(dice.choice([1.0, 1.0, 1.0, 1.5, 3.0]) for _ in range(number))
    return Plan(
        peers=number,
        steps=96,
        overlap=dice.choice([0, 2, 5, 8]),
        step_seconds=dice.choice([0.1, 0.1, 0.4]),
        slowness=slowness,
        tokens_a_step=tuple(dice.choice([100, 100, 100, 30, 1000]) for _ in range(number)),
        contribution_codec=dice.choice(["e3m0", "e3m0", "fp32"]),
        weather=weather,
    )


def inject(swarm: Swarm, seed: int, calm: float) -> None:
    """Schedule crashes, freezes, cut links and corruption before `calm` (seconds of virtual time)."""
    dice = random.Random(f"faults {seed}")
    for _ in range(dice.randint(0, 4)):
        victim, when = dice.randrange(swarm.plan.peers), dice.uniform(0.2, calm)
        kind = dice.choice(["crash", "freeze", "cut", "corrupt"])
        if kind == "crash":
            swarm.clock.at(when, lambda v=victim: _crash_but_one(swarm, v))  # type: ignore[misc]
        elif kind == "freeze":
            key, seconds = swarm.keys[victim], dice.uniform(0.5, 5.0)
            swarm.clock.at(when, lambda k=key, s=seconds: swarm.network.freeze(k, s))  # type: ignore[misc]
        elif kind == "cut":
            seconds = min(dice.uniform(0.5, 5.0), calm - when)
            swarm.clock.at(when, lambda v=victim, s=seconds: _cut_off(swarm, v, s))  # type: ignore[misc]
        elif kind == "corrupt":
            chunk = dice.randrange(len(swarm.plan.fragment_of))
            swarm.clock.at(when, lambda v=victim, c=chunk: swarm.corrupt(v, c))  # type: ignore[misc]


def _crash_but_one(swarm: Swarm, victim: int) -> None:
    if len(swarm.live) > 1:
        swarm.crash(victim)


def _cut_off(swarm: Swarm, victim: int, seconds: float) -> None:
    for other in swarm.keys:
        if other != swarm.keys[victim]:
            swarm.network.cut(swarm.keys[victim], other, seconds)


def run(seed: int, plan: Plan | None = None) -> Outcome:
    """One seed, to its end."""
    plan = plan or random_plan(seed)
    swarm = Swarm(plan, seed)
    calm = CALM_AFTER * plan.steps * plan.step_seconds
    inject(swarm, seed, calm)
    violation = ""
    try:
        swarm.clock.run(calm)
        swarm.network.weather = replace(plan.weather, loss=0.0, duplication=0.0)
        while any(swarm.network.is_silent(peer.key) for peer in swarm.live):
            swarm.clock.run(swarm.clock.now + 0.05)
        heal(swarm)
        _finish(swarm)
    except Broken as broken:
        violation = str(broken)
    return Outcome(seed, violation, swarm.invariants.links, len(swarm.live), tuple(swarm.network.log))


def heal(swarm: Swarm) -> None:
    """From here on it is calm: everyone gets what it lacks now, and two rounds after that, heads are equal.

    Windows in flight make heads differ for a moment all the time, so they must be equal at some moment of that time. A
    simulated round is about as short as repair's shortest wait: so one repair is added, for a window that differs anew.
    """
    plan = swarm.plan
    missing = [max(orders) for orders in zip(*(peer.orders for peer in swarm.live), strict=True)]
    repair = swarm.clock.now + repair_bound(swarm)
    while any(have < want for peer in swarm.live for have, want in zip(peer.orders, missing, strict=True)):
        if swarm.clock.now > repair:
            raise Broken("what was missing when faults stopped did not come in time")
        swarm.clock.run(swarm.clock.now + 0.05)
    rounds = 2 * plan.sync_every * plan.step_seconds * max([1.0, *plan.slowness])
    limit = swarm.clock.now + rounds + repair_bound(swarm)
    while len(swarm.heads()) > 1:
        if swarm.clock.now > limit:
            raise Broken(f"heads still differ after two calm rounds: {[head.hex()[:8] for head in swarm.heads()]}")
        swarm.clock.run(swarm.clock.now + 0.05)


def _finish(swarm: Swarm) -> None:
    """On to the end of the run: everyone gets there, and heads are equal a repair later."""
    plan = swarm.plan
    longest = plan.steps * plan.step_seconds * max([1.0, *plan.slowness]) * 1.2 + 6.0
    while any(peer.step < plan.steps for peer in swarm.live):
        if swarm.clock.now > longest:
            raise Broken("a peer did not come to the end of the run")
        swarm.clock.run(swarm.clock.now + 0.5)
    limit = swarm.clock.now + 2 * repair_bound(swarm)
    while len(swarm.heads()) > 1:
        if swarm.clock.now > limit:
            raise Broken("heads differ at the end of the run")
        swarm.clock.run(swarm.clock.now + 0.2)


def repair_bound(swarm: Swarm) -> float:
    """Seconds in which anything missing must have come: a beat, the wait before asking, an old pull's end, and the way.

    A pull that was lost counts as under way for two patiences, and a window in flight excuses for one.
    """
    weather = swarm.plan.weather
    patience = max(peer.node.repair.patience for peer in swarm.live)
    way = 8 * (weather.delay + weather.jitter)
    return BEAT + (1.5 + 2 + 1) * patience + ACK_OVERDUE + way
