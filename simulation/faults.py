"""Whole runs under random faults: one seed is one plan and one list of events (simulation/events.py).

A run has faults for its first half, then calm. In the calm everyone gets what it lacks, the live peers' heads become
equal within two rounds of that, chunks go on closing, and everyone comes to the end of the run with equal heads.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from protocol.ledger import weights
from protocol.node import BEAT
from simulation.events import CALM_AFTER, Event, calm_at, random_events, schedule
from simulation.invariants import Broken
from simulation.network import ACK_OVERDUE, LAST_DIAL, Weather
from simulation.swarm import WEIGHT_CAP, Plan, Swarm


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one seed did."""

    seed: int
    invariant: str
    """The one that was broken; empty if every promise held."""
    violation: str
    """That and what was seen; empty likewise."""
    links: int
    survivors: int
    log: tuple[str, ...]


def random_plan(seed: int, *, peers: tuple[int, int] = (2, 12)) -> Plan:
    """A small run with weather of its own."""
    dice = random.Random(f"plan {seed}")
    weather = Weather(delay=dice.choice([0.005, 0.02, 0.1]), jitter=dice.choice([0.0, 0.05, 0.3]))
    number = dice.randint(*peers)
    return Plan(
        peers=number,
        steps=96,
        overlap=dice.choice([0, 2, 5, 8]),
        elements=32,
        step_seconds=dice.choice([0.1, 0.1, 0.4]),
        slowness=tuple(dice.choice([1.0, 1.0, 1.0, 1.0, 1.5, 3.0]) for _ in range(number)),
        tokens_a_step=tuple(dice.choice([100, 100, 100, 30, 1000]) for _ in range(number)),
        contribution_codec=dice.choice(["e3m0", "e3m0", "fp32"]),
        weather=weather,
    )


def run(
    seed: int, plan: Plan | None = None, events: tuple[Event, ...] | None = None, *, recording: bool = True
) -> Outcome:
    """One seed, to its end; with a plan or events of one's own instead of the seed's."""
    plan = plan or random_plan(seed)
    swarm = Swarm(plan, seed, recording=recording)
    invariant = violation = ""
    try:
        _run(swarm, random_events(seed, plan) if events is None else events)
    except Broken as broken:
        invariant, violation = broken.invariant, str(broken)
    except Exception as error:  # noqa: BLE001  (whatever the protocol raises is a finding, and the seed shows it again)
        invariant, violation = "no-error", f"no-error: {error!r}"
    return Outcome(seed, invariant, violation, swarm.invariants.links, len(swarm.live), tuple(swarm.network.log))


def _run(swarm: Swarm, events: tuple[Event, ...]) -> None:
    schedule(swarm, events)
    swarm.clock.run(calm_at(swarm.plan))
    while not is_calm(swarm):
        swarm.clock.run(swarm.clock.now + 0.05)
    heal(swarm)
    finish(swarm)
    if not swarm.world.memory.unchanged():
        raise Broken("equal-heads-equal-state", "a state was changed in place")


def is_calm(swarm: Swarm) -> bool:
    """Whether nobody is frozen and everyone who is to come back is back."""
    return not any(swarm.network.is_silent(peer.key) for peer in swarm.live)


def heal(swarm: Swarm) -> None:
    """From here on it is calm: everyone gets what it lacks now, and two rounds after that, heads are equal.

    Windows in flight make heads differ for a moment all the time, so they must be equal at some moment of that time. A
    simulated round is about as short as repair's shortest wait: so one repair is added, for a window that differs anew.
    """
    missing = [max(orders) for orders in zip(*(peer.orders for peer in swarm.live), strict=True)]
    repair = swarm.clock.now + repair_bound(swarm)
    while any(have < want for peer in swarm.live for have, want in zip(peer.orders, missing, strict=True)):
        if swarm.clock.now > repair:
            raise Broken("repair-arrives", "what was missing when faults stopped did not come in time")
        swarm.clock.run(swarm.clock.now + 0.05)
    limit = swarm.clock.now + 2 * round_seconds(swarm) + repair_bound(swarm)
    while len(swarm.heads()) > 1:
        if swarm.clock.now > limit:
            heads = [head.hex()[:8] for head in sorted(swarm.heads())]
            raise Broken("heads-agree", f"heads still differ after two calm rounds: {heads}")
        swarm.clock.run(swarm.clock.now + 0.05)


def finish(swarm: Swarm) -> None:
    """On to the end of the run: everyone gets there, and heads are equal a repair later."""
    plan = swarm.plan
    left = plan.steps - min(peer.step for peer in swarm.live)
    longest = swarm.clock.now + left * plan.step_seconds * max(slowness(swarm)) * 1.2 + 6.0
    while any(peer.step < plan.steps for peer in swarm.live):
        if swarm.clock.now > longest:
            raise Broken("run-ends", "a peer did not come to the end of the run")
        swarm.clock.run(swarm.clock.now + 0.5)
    windows_close(swarm)
    limit = swarm.clock.now + 2 * repair_bound(swarm)
    while len(swarm.heads()) > 1:
        if swarm.clock.now > limit:
            raise Broken("run-ends", "heads differ at the end of the run")
        swarm.clock.run(swarm.clock.now + 0.2)


def windows_close(swarm: Swarm) -> None:
    """Of every chunk a window that opened a round or more into the calm was closed, if enough of the swarm is left.

    Those who are left may close at once with half of the last link's weight, with a quarter after one missed window.
    """
    plan = swarm.plan
    all_of_us = sum(weights([plan.tokens_of(peer.index) for peer in swarm.peers], WEIGHT_CAP))
    left = sum(weights([plan.tokens_of(peer.index) for peer in swarm.live], WEIGHT_CAP))
    since = CALM_AFTER * plan.steps + plan.sync_every
    if left <= all_of_us / 4:
        return
    for chunk in range(len(plan.fragment_of)):
        newest = max(peer.node.ledger.chains[chunk].due for peer in swarm.live)
        if newest < since:
            raise Broken("windows-close", f"chunk {chunk} was last closed at step {newest}, the run has {plan.steps}")


def slowness(swarm: Swarm) -> list[float]:
    """How much longer than the plan's step those of the live peers take."""
    return [peer.seconds / swarm.plan.step_seconds for peer in swarm.live]


def round_seconds(swarm: Swarm) -> float:
    """Of the slowest live peer."""
    return swarm.plan.sync_every * swarm.plan.step_seconds * max(slowness(swarm))


def repair_bound(swarm: Swarm) -> float:
    """Seconds in which anything missing must have come: a beat, the wait before asking, an old pull's end, and the way.

    A pull that was lost counts as under way for two patiences, and a window in flight excuses for one. A stream that is
    down, or that nobody knows yet to be so, is dialled again first.
    """
    weather = swarm.plan.weather
    patience = max(peer.node.repair.patience for peer in swarm.live)
    way = 8 * (weather.delay + weather.jitter)
    return BEAT + (1.5 + 2 + 1) * patience + ACK_OVERDUE + LAST_DIAL + way
