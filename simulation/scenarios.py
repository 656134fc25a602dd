"""Short runs that each show one promise of the protocol. They raise Broken where it does not hold.

Random faults find what nobody thought of; these say what was thought of, and fail when one rule is taken away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from protocol.messages import Contribution, Link, Open, encode
from protocol.schedule import Window
from simulation.invariants import Broken
from simulation.network import Weather
from simulation.swarm import Plan, SimulatedPeer, Swarm

CALM: Final = Plan(steps=84, step_seconds=0.5, weather=Weather(delay=0.02, jitter=0.0))
"""Rounds of 6 seconds, four peers, nothing goes wrong."""


def require(holds: bool, promise: str) -> None:
    """Broken with the promise's text unless it holds."""
    if not holds:
        raise Broken("scenario", promise)


def links(peer: SimulatedPeer, chunk: int) -> list[Link]:
    """A peer's whole chain of a chunk."""
    return [entry.message.link for entry in peer.node.ledger.recent(chunk, 1 << 20)]


def names(link: Link, key: bytes) -> bool:
    """Whether a link names a peer as a contributor."""
    return any(part.peer == key for part in link.parts)


def when(plan: Plan, step: int) -> float:
    """About when an ordinary peer is at a swarm step."""
    return (step + 0.5) * plan.step_seconds


def finish(swarm: Swarm) -> None:
    """Run to the end, and long enough after it for repairs; heads must be equal then."""
    plan = swarm.plan
    swarm.clock.run(when(plan, plan.steps) * 1.5 + 20.0)
    require(len(swarm.heads()) == 1, "heads are equal at the end")


def healthy() -> None:
    """Every window is closed by all, with one link a round, and merged by all."""
    swarm = Swarm(CALM, seed=1)
    finish(swarm)
    windows = list(CALM.schedule.windows())
    for chunk, fragment in enumerate(CALM.fragment_of):
        dues = [link.due for link in links(swarm.peers[0], chunk)]
        require(dues == [w.due for w in windows if w.fragment == fragment], "one link a round and chunk")
        everyone = all(len(link.parts) == CALM.peers for link in links(swarm.peers[0], chunk))
        require(everyone, "all contribute to every window")
    mixed = len(windows) * CALM.chunks_a_fragment
    require(all(len(peer.mixes) == mixed and not peer.missed for peer in swarm.peers), "everyone merges every window")


def slow_peer() -> None:
    """A peer that is four times slower is pulled along, contributes to most windows, and delays nobody."""
    plan = replace(CALM, steps=240, slowness=(1.0, 1.0, 1.0, 4.0))
    swarm = Swarm(plan, seed=2)
    swarm.clock.run(when(plan, plan.steps))
    require(all(peer.step >= plan.steps - 14 for peer in swarm.peers), "the slow peer's swarm step is pulled along")
    finish(swarm)
    windows = list(plan.schedule.windows())
    whole = set(windows)
    for chunk, fragment in enumerate(plan.fragment_of):
        chain = {link.due: link for link in links(swarm.peers[0], chunk)}
        require(set(chain) == {w.due for w in windows if w.fragment == fragment}, "every window has its link")
        whole -= {Window(fragment, due) for due, link in chain.items() if not names(link, swarm.keys[3])}
    require(4 * len(whole) >= 3 * len(windows), "the slow peer contributes to three quarters of the windows")


def mixed_speeds() -> None:
    """Speeds 1, 1, 1/2 and about 1/10: the pace is that of the fast ones, and the slow ones' windows count."""
    plan = replace(CALM, steps=400, sync_every=40, slowness=(1.0, 1.0, 2.0, 9.3))
    _at_the_pace_of_the_fast(plan, fast=(0, 1), slow=(2, 3))


def one_fast_peer() -> None:
    """One fast peer beside two that are ten times slower is not far ahead of the swarm: it is the swarm's pace."""
    plan = replace(CALM, peers=3, steps=400, sync_every=40, slowness=(1.0, 9.3, 10.7))
    _at_the_pace_of_the_fast(plan, fast=(0,), slow=(1, 2))


def laptops_beside_a_fast_peer() -> None:
    """Eight slow peers, who own most chunks, do not keep the links from the fast one until it closes alone."""
    plan = replace(CALM, peers=9, steps=200, sync_every=40, overlap=8, slowness=(1.0, *[9.3] * 8))
    _at_the_pace_of_the_fast(plan, fast=(0,), slow=tuple(range(1, 9)), seed=21)


def _at_the_pace_of_the_fast(plan: Plan, fast: tuple[int, ...], slow: tuple[int, ...], seed: int = 20) -> None:
    swarm = Swarm(plan, seed)
    swarm.clock.run(when(plan, plan.steps))
    require(all(swarm.peers[index].step >= plan.steps - 4 for index in fast), "nobody holds the fast ones")
    ahead = plan.sync_every // plan.fragments + 1
    require(all(swarm.peers[index].step >= plan.steps - ahead for index in slow), "the slow ones are pulled along")
    finish(swarm)
    chains = [links(swarm.peers[0], chunk) for chunk in range(len(plan.fragment_of))]
    closed = sum(map(len, chains))
    require(closed == plan.chunks_a_fragment * len(list(plan.schedule.windows())), "every window closes")
    for index in (*fast, *slow):
        named = sum(names(link, swarm.keys[index]) for chain in chains for link in chain)
        enough = named == closed if index in fast else 5 * named >= closed
        require(enough, "fast ones are in every link, and slow ones in their share")


def first_owner(swarm: Swarm, chunk: int, due: int) -> int:
    """Index of the peer that owns a chunk first."""
    peer = swarm.live[0]
    ranking = peer.node.roster.ranked(peer.node.chunks_of(swarm.plan.fragment_of[chunk]), due)
    return swarm.keys.index(ranking[chunk][0])


def killed_owner() -> None:
    """An owner dies with the contributions in its hands: the next one closes the same window."""
    swarm = Swarm(CALM, seed=3)
    owner = first_owner(swarm, 0, 24)
    swarm.clock.run(when(CALM, 23))
    while not any(key == (0, 24) for key in swarm.peers[owner].node.windows.gathering):
        swarm.clock.run(swarm.clock.now + 0.001)
    swarm.crash(owner)
    swarm.clock.run(when(CALM, 24 + CALM.overlap) + 0.5)
    for peer in swarm.live:
        require(peer.node.ledger.chains[0].due == 24, "a dead owner's chunk fails over within the window")
    finish(swarm)


def silent_owner() -> None:
    """An owner that freezes without a word is passed over, and closes nothing old when it wakes."""
    swarm = Swarm(CALM, seed=4)
    owner = first_owner(swarm, 0, 24)
    swarm.clock.run(when(CALM, 23))
    while not any(key == (0, 24) for key in swarm.peers[owner].node.windows.gathering):
        swarm.clock.run(swarm.clock.now + 0.001)
    swarm.network.freeze(swarm.keys[owner], 20.0)
    swarm.clock.run(when(CALM, 35))
    others = [peer for peer in swarm.peers if peer.index != owner]
    require(all(peer.node.ledger.chains[0].due == 24 for peer in others), "a silent owner's chunk fails over")
    swarm.clock.run(swarm.clock.now + 18.0)
    require(swarm.peers[owner].node.ledger.chains[0].due >= 24, "a frozen owner takes what the others closed")
    finish(swarm)


def idle_owner() -> None:
    """An owner that takes contributions and closes nothing is passed over after a while."""
    swarm = Swarm(CALM, seed=4)
    owner = first_owner(swarm, 0, 24)
    swarm.peers[owner].node.windows.receive = lambda *_: None  # type: ignore[method-assign]
    swarm.clock.run(when(CALM, 35))
    others = [peer for peer in swarm.peers if peer.index != owner]
    require(all(peer.node.ledger.chains[0].due == 24 for peer in others), "an idle owner's chunk fails over")
    finish(swarm)


def frozen_contributor() -> None:
    """Nobody waits for a frozen contributor longer than the deadline; awake, it catches up."""
    swarm = Swarm(CALM, seed=5)
    swarm.clock.run(when(CALM, 22))
    swarm.network.freeze(swarm.keys[1], 12.0)
    swarm.clock.run(when(CALM, 24 + CALM.overlap + 2))
    owned = [chunk for chunk in (0, 1) if first_owner(swarm, chunk, 24) != 1]
    for chunk in owned:
        require(
            swarm.peers[0].node.ledger.chains[chunk].due == 24, "a window closes at the deadline without the frozen"
        )
    swarm.clock.run(when(CALM, 84))
    finish(swarm)
    last = links(swarm.peers[0], 0)[-1]
    require(len(last.parts) == CALM.peers, "a peer that was frozen contributes again")


def corrupted_anchor() -> None:
    """A flipped bit is found at the next window of its fragment, goes into no average, and is repaired."""
    for victim, chunk in ((0, 0), (1, 3), (2, 1), (3, 2)):
        swarm = Swarm(CALM, seed=6)
        swarm.clock.run(when(CALM, 38))
        swarm.corrupt(victim, chunk)
        swarm.clock.run(when(CALM, 48) + 0.1 + 6.0 * CALM.fragment_of[chunk] / 2)
        swarm.clock.run(swarm.clock.now + 3.0)  # the pull of the state
        states = {p.arithmetic.digest(p.node.ledger.tip(chunk)) for p in swarm.peers}
        require(len(states) == 1, "a corrupted anchor is repaired at its next window")
        finish(swarm)


def fast_and_corrupted() -> None:
    """A peer with a wrong state is outvoted by heads, even if it trains more tokens than all the others."""
    plan = replace(CALM, tokens_a_step=(100, 100, 100, 10_000))
    swarm = Swarm(plan, seed=7)
    swarm.clock.run(when(plan, 38))
    swarm.corrupt(3, 0)
    finish(swarm)
    honest = [link for link in links(swarm.peers[0], 0) if names(link, swarm.keys[0])]
    require(len(honest) == len(links(swarm.peers[0], 0)), "one wrong state does not win against three right ones")


def cut_off() -> None:
    """A peer that loses its network for a moment makes no branch: it skips windows, and its tokens count later."""
    swarm = Swarm(CALM, seed=8)
    swarm.clock.run(when(CALM, 22))
    for key in swarm.keys[1:]:
        swarm.network.cut(swarm.keys[0], key, 5.0)
    swarm.clock.run(when(CALM, 33))
    dues = {link.due: link for chunk in (0, 1) for link in links(swarm.peers[0], chunk)}
    alone = [link for link in dues.values() if len(link.parts) == 1]
    require(not alone, "a minority that is cut off closes nothing in its first missed round")
    finish(swarm)
    chain = links(swarm.peers[1], 0)
    for key in swarm.keys:
        total = sum(part.tokens for link in chain for part in link.parts if part.peer == key)
        counted = abs(total - 100 * chain[-1].due) <= 300  # a notice skips a step or two
        require(counted, "every token counts once, those of missed windows too")


def asymmetric_link() -> None:
    """A peer that cannot reach one owner reaches it through another: its windows close once, and name it."""
    _cut_from_the_owner(rank=-1)


def asymmetric_second() -> None:
    """So does the peer that is next in rank: it asks those behind it, and does not only wait to close alone."""
    for seed in (13, 15):
        _cut_from_the_owner(rank=1, seed=seed)
    _cut_from_the_owner(rank=1, one_way=True)


def _cut_from_the_owner(rank: int, *, seed: int = 13, one_way: bool = False) -> None:
    """Chunk 0's first owner and the one of this rank have no way to each other, or only one from the owner."""
    plan = replace(CALM, steps=120)
    swarm = Swarm(plan, seed)
    owner = first_owner(swarm, 0, 36)
    far = swarm.keys.index(swarm.peers[owner].node.roster.ranked([0, 1], 36)[0][rank])
    swarm.clock.run(when(plan, 14))
    ways = [(swarm.keys[far], swarm.keys[owner]), (swarm.keys[owner], swarm.keys[far])]
    swarm.network.block(ways[:1] if one_way else ways, 1e6)
    swarm.clock.run(when(plan, plan.steps) + 20.0)
    require(len(swarm.heads()) == 1, "heads are equal at the end")
    for chunk, fragment in enumerate(plan.fragment_of):
        late = [link for link in links(swarm.peers[far], chunk) if link.due >= 36]
        dues = [w.due for w in plan.schedule.windows() if w.fragment == fragment and w.due >= 36]
        require([link.due for link in late] == dues, "every window closes")
        named = sum(names(link, swarm.keys[far]) for link in late)
        require(4 * named >= 3 * len(late), "who cannot reach an owner contributes through another")


def retried_chunk() -> None:
    """A chunk that nobody closed is tried again in the next window, under its own name, and merges in time."""
    plan = replace(CALM, steps=130, sync_every=40, overlap=2)
    swarm = Swarm(plan, seed=14)
    for peer in swarm.peers:
        _deaf_to_first_try(swarm, peer, chunk=0, due=40, until=when(plan, 55))
    swarm.clock.run(when(plan, 75))
    mixed = [[mix for mix in peer.mixes if mix.due == 40] for peer in swarm.peers]
    for peer, mixes in zip(swarm.peers, mixed, strict=True):
        require([link.due for link in links(peer, 0)] == [40], "what nobody closed is closed by the retry")
        require(len([mix for mix in mixes if mix.chunk == 1]) == 1, "what was closed is not done again")
    in_time = sum(any(mix.chunk == 0 and mix.late <= 1 for mix in mixes) for mixes in mixed)
    require(in_time >= 3, "a retry merges as if its window had opened then")
    finish(swarm)
    require([link.due for link in links(swarm.peers[0], 0)] == [40, 80, 120], "at most one link a round")


def _deaf_to_first_try(swarm: Swarm, peer: SimulatedPeer, *, chunk: int, due: int, until: float) -> None:
    windows = peer.node.windows
    receive = windows.receive

    def deaf(message: Contribution, payload: bytes, now: float, via: bytes | None = None) -> None:
        if (message.chunk, message.due) != (chunk, due) or swarm.clock.now > until:  # `now` is the peer's own clock
            receive(message, payload, now, via)

    windows.receive = deaf  # type: ignore[method-assign]


def nothing_is_urgent_after_an_outage() -> None:
    """Where everything was missed nothing is tried again: all fragments would be urgent together, and miss again."""
    plan = replace(CALM, steps=210, sync_every=40, overlap=2)
    swarm = Swarm(plan, seed=15)
    swarm.clock.run(when(plan, 118))
    for one in swarm.keys:
        for other in swarm.keys:
            if one < other:
                swarm.network.cut(one, other, 14.0)
    finish(swarm)
    dues = [link.due for link in links(swarm.peers[0], 0)]
    require(120 not in dues and dues[:2] == [40, 80] and 160 in dues, "an outage's windows are not tried again")


def two_halves() -> None:
    """Two peers that start apart make branches of equal weight; when they meet, the greater hash wins for both."""
    plan = replace(CALM, peers=2, steps=20)
    swarm = Swarm(plan, seed=12)
    swarm.network.cut(swarm.keys[0], swarm.keys[1], when(plan, 19))
    swarm.clock.run(when(plan, 18))
    ends = {peer.node.ledger.chains[0].order for peer in swarm.peers}
    require(len({cumulative for cumulative, _ in ends}) == 1 and len(ends) == 2, "apart, both close alone")
    finish(swarm)


def split_and_heal() -> None:
    """Two parts of a swarm go on apart, each at its own threshold; after the heal the heavier branch wins for all."""
    plan = replace(CALM, peers=5, steps=240)
    swarm = Swarm(plan, seed=16)
    swarm.clock.run(when(plan, 30))
    for one in swarm.keys[:2]:
        for other in swarm.keys[2:]:
            swarm.network.cut(one, other, when(plan, 150) - swarm.clock.now)
    swarm.clock.run(when(plan, 149))
    light, heavy = swarm.peers[0], swarm.peers[4]
    for chunk in range(len(plan.fragment_of)):
        apart = [{link.due for link in links(peer, chunk)} for peer in (light, heavy)]
        require(all(len({due for due in dues if due > 36}) >= 5 for dues in apart), "both parts go on apart")
        require(light.orders[chunk] < heavy.orders[chunk], "three peers' branch is heavier than two's")
    branch = [peer_head for _, peer_head in heavy.orders]
    swarm.clock.run(when(plan, 150) + 2 * plan.sync_every * plan.step_seconds)
    require(len(swarm.heads()) == 1, "heads agree within two rounds of the heal")
    for chunk, head in enumerate(branch):
        entries = swarm.peers[4].node.ledger.recent(chunk, 1 << 20)
        require(head in {entry.head for entry in entries}, "the heavier branch wins")
    finish(swarm)
    require(all(names(links(heavy, 0)[-1], key) for key in swarm.keys), "the losers contribute again")


def bad_clock() -> None:
    """A peer whose step counter is far ahead drags nobody, and ends no chunk."""
    plan = replace(CALM, steps=400)
    swarm = Swarm(plan, seed=9)
    swarm.clock.run(when(plan, 30))
    swarm.peers[0].step = 300
    swarm.clock.run(when(plan, 72))
    for peer in swarm.peers[1:]:
        require(peer.step < 80, "one bad clock drags nobody")
        require(all(54 <= chain.due <= 72 for chain in peer.node.ledger.chains), "one bad clock ends no chunk")


def early_notice() -> None:
    """A notice of a window that is too far ahead does not hide those that come before it."""
    swarm = Swarm(replace(CALM, slowness=(1.0, 1.0, 1.0, 4.0)), seed=10)
    swarm.clock.run(when(CALM, 13))
    header = encode(Open(fragment=0, due=36))
    swarm.network.send(swarm.keys[0], swarm.keys[3], header, b"")
    swarm.clock.run(when(CALM, 29))
    require(swarm.peers[3].step >= 24, "an early notice hides no other")


SCENARIOS: Final[tuple[Callable[[], None], ...]] = (
    healthy,
    slow_peer,
    mixed_speeds,
    one_fast_peer,
    laptops_beside_a_fast_peer,
    killed_owner,
    silent_owner,
    idle_owner,
    frozen_contributor,
    corrupted_anchor,
    fast_and_corrupted,
    cut_off,
    asymmetric_link,
    asymmetric_second,
    retried_chunk,
    nothing_is_urgent_after_an_outage,
    two_halves,
    split_and_heal,
    bad_clock,
    early_notice,
)
"""All of them."""
