"""The promises of docs/protocol.md, section 11, checked after every event of a simulated run.

The checks know everything that any peer ever sent, which no peer does: so they can tell what a link was really made of.
Each has a name (`NAMES`); whoever breaks one gets `Broken`, with the name and what was seen.
"""

from __future__ import annotations

from math import ceil, inf
from typing import Any, Final

from protocol.commands import Contributed
from protocol.ledger import MAX_ASIDE, MAX_EARLY, Ledger, weights
from protocol.messages import Link, sha256
from protocol.node import Node
from protocol.sending import MISSING_AFTER, SILENT_AFTER, Outbound

NAMES: Final = {
    "equal-heads-equal-state": "equal heads imply equal anchors and momentum, bit for bit",
    "no-cross-head-average": "only deltas with the same head and the same state digest are averaged",
    "links-hold-what-they-name": "a link is made of exactly the contributions that it names",
    "enough-of-us": "a chunk closes only with half of its last link's weight, half of that for each missed due step",
    "owners-fail-over": "what was sent to an owner that is lost goes to the next one at once",
    "windows-end": "no owner holds a window open beyond its deadline",
    "training-never-blocks": "training never waits for the network longer than merge_wait",
    "bounded-memory": "what a peer holds, and what is on its way to it, does not grow with the run",
    "bounded-work": "no event calls forth others for ever",
    "repair-arrives": "when faults stop, everyone gets what it lacks in bounded time",
    "heads-agree": "two rounds after that, all live peers have had equal heads",
    "windows-close": "in the calm, chunks close again",
    "run-ends": "every live peer comes to the end of the run, with equal heads",
    "no-error": "nothing that an honest peer does raises an error",
    "scenario": "what a scenario was made to show",
}
"""Every invariant, and what it says."""

WINDOWS_TO_SPARE: Final = 2
"""Windows per chunk that a peer may hold on either side, beyond those that open until it gives the first one up."""
FRAMES_A_PAIR: Final = 64
"""Frames in the air from one peer to another, on average over all pairs."""
STEP_SLACK: Final = 1.2
"""How much longer than usual a step of the simulated trainer may take, beyond what it may wait."""
LOOK_EVERY: Final = 64
"""Events of one peer between two looks at all that it holds."""
FAIL_OVER: Final = 0.5
"""Seconds in which a contribution must have left a lost owner."""
LATE_TIMER: Final = 0.1
"""Seconds that a deadline may be overstepped."""


class Broken(AssertionError):
    """A promise was broken: its name, and what was seen where."""

    def __init__(self, invariant: str, seen: str) -> None:
        assert invariant in NAMES, invariant
        super().__init__(f"{invariant}: {seen}")
        self.invariant = invariant
        self.seen = seen


class Invariants:
    """Watches all nodes of one swarm."""

    def __init__(self, run: bytes, *, sync_every: int, weight_cap: int, round_seconds: float) -> None:
        self._run = run
        self._sync_every = sync_every
        self._cap = weight_cap
        self._round_seconds = round_seconds
        self._states: dict[bytes, bytes] = {}
        self._made: dict[tuple[bytes, bytes, int, int, int], tuple[bytes, set[tuple[bytes, bytes]]]] = {}
        """(peer, payload's digest, tokens, chunk, due) to the payload and what it was measured from: (head, state).
        A peer that was killed may come to a window again."""
        self._links: dict[bytes, Link] = {}
        self._stepped: dict[bytes, float] = {}
        self._awake: dict[bytes, float] = {}
        self._events: dict[bytes, int] = {}
        self._patience: dict[bytes, float] = {}
        self._stuck: dict[tuple[bytes, int, int], float] = {}

    @property
    def links(self) -> int:
        """How many links were audited."""
        return len(self._links)

    def awake(self, key: bytes, now: float) -> None:
        """A peer was frozen or dead until now, by its own clock: what was due meanwhile comes now."""
        self._awake[key] = now

    def stepped(self, key: bytes, now: float, seconds: float | None) -> None:
        """A trainer finished an inner step, waiting included, that may take `seconds`; None: any (lock-step)."""
        since = max(self._stepped.get(key, now), self._awake.get(key, 0.0))
        if seconds is not None and now - since > STEP_SLACK * seconds:
            raise Broken("training-never-blocks", f"a step of at most {seconds:.2f} s took {now - since:.2f} s")
        self._stepped[key] = now

    def contributed(self, command: Contributed) -> None:
        """Remember every contribution that was really made."""
        one = command.contribution
        key = one.peer, one.payload, one.tokens, one.chunk, one.due
        self._made.setdefault(key, (command.payload, set()))[1].add((one.parent.head, one.parent.state))

    def adopted(self, ledger: Ledger[Any], arithmetic: Any, chunk: int) -> None:
        """A node's tip of a chunk moved."""
        chain = ledger.chains[chunk]
        state = arithmetic.digest(ledger.tip(chunk))
        if self._states.setdefault(chain.head, state) != state:
            raise Broken("equal-heads-equal-state", f"one head, two states: chunk {chunk}, step {chain.due}")
        for entry in ledger.recent(chunk, 8):
            if entry.head not in self._links:
                self._audit(entry, arithmetic)

    def _audit(self, entry: Any, arithmetic: Any) -> None:
        link = entry.message.link
        where = f"chunk {link.chunk}, step {link.due}"
        made = []
        for part in link.parts:
            known = self._made.get((part.peer, part.payload, part.tokens, link.chunk, link.due))
            if known is None:
                raise Broken("links-hold-what-they-name", f"a contribution that nobody made: {where}")
            if (link.parent, link.state) not in known[1]:
                raise Broken("no-cross-head-average", f"deltas of different heads or states: {where}")
            made.append(known[0])
        shares = weights([part.tokens for part in link.parts], self._cap)
        payload = arithmetic.mean(link.chunk, list(zip(shares, made, strict=True)))
        if payload != entry.payload or sha256(payload) != link.result:
            raise Broken("links-hold-what-they-name", f"other bytes than the mean: {where}")
        self._enough(link, sum(shares), where)
        self._links[entry.head] = link

    def _enough(self, link: Link, weight: int, where: str) -> None:
        """The threshold, counted again from the two links alone (their parent may be one that nobody showed us)."""
        parent = self._links.get(link.parent)
        if parent is None:
            return
        missed = (link.due - parent.due) // self._sync_every - 1
        here = {part.peer for part in link.parts}
        shares = weights([part.tokens for part in parent.parts], self._cap)
        again = sum(share for part, share in zip(parent.parts, shares, strict=True) if part.peer in here)
        share = max((weight / link.span) / (parent.weight / parent.span), again / parent.weight)
        if share * 2 ** (1 + missed) <= 1 - 1e-9:
            raise Broken("enough-of-us", f"{share:.2f} of the last link's weight after {missed} missed: {where}")

    def bounded(self, node: Node, key: bytes, now: float) -> None:
        """What a node holds does not grow with the run. `now` is its own clock, as in `awake`."""
        windows = node.windows
        patience = self._patience[key] = max(windows.patience, self._patience.get(key, 0.0))
        limit = self._most_windows(patience) * len(node.ledger.chains)
        if len(windows.outbound) > limit or len(windows.gathering) > limit:
            raise Broken("bounded-memory", f"{len(windows.outbound)}, {len(windows.gathering)} windows in flight")
        self._events[key] = count = self._events.get(key, 0) + 1
        if count % LOOK_EVERY == 0:
            self._look(node, limit)
        since = self._awake.get(key, 0.0)
        for out in windows.outbound.values():
            self._failed_over(node, key, out, max(now - FAIL_OVER, since))
        for one in windows.gathering.values():
            allowed = patience if one.to is None else SILENT_AFTER * patience  # passed on: until that owner is silent
            if not one.judged and now > max(one.first + allowed, since) + LATE_TIMER:
                raise Broken("windows-end", f"chunk {one.chunk}, step {one.due}: open for {now - one.first:.1f} s")

    def _failed_over(self, node: Node, key: bytes, out: Outbound, before: float) -> None:
        """Broken if a contribution has been with a lost owner since `before`, while a later one is here."""
        neighbours = node.roster.neighbours
        here = [owner in neighbours and not neighbours[owner].lost for owner in out.owners]
        window = key, out.contribution.chunk, out.contribution.due
        if out.cursor < 0 or here[out.cursor] or not any(here[out.cursor + 1 :]):
            self._stuck.pop(window, None)
        elif self._stuck.setdefault(window, before + FAIL_OVER) < before:
            raise Broken("owners-fail-over", f"chunk {window[1]}, step {window[2]}: still with a lost owner")

    def _most_windows(self, patience: float) -> int:
        """Of one chunk. In lock-step, where patience has no end, everyone waits for the newest one."""
        rounds = ceil(MISSING_AFTER * patience / self._round_seconds) if patience < inf else 0
        return rounds + WINDOWS_TO_SPARE

    def _look(self, node: Node, windows: int) -> None:
        chains = node.ledger.chains
        if any(len(chain.early) > MAX_EARLY or len(chain.aside) > MAX_ASIDE for chain in chains):
            raise Broken("bounded-memory", "links that wait for others pile up")
        limit = 64 + windows + len(chains) * len(node.roster.neighbours)
        for name, size in sizes(node).items():
            if size > limit:
                raise Broken("bounded-memory", f"{size} entries in {name}")

    def on_the_way(self, frames: int, peers: int) -> None:
        """So many frames are in the air."""
        if frames > FRAMES_A_PAIR * peers * peers:
            raise Broken("bounded-memory", f"{frames} frames on their way among {peers} peers")


def sizes(node: Node) -> dict[str, int]:
    """The number of entries of every container that a node's parts hold, by name; kept links are bounded by bytes."""
    parts = {"node": node, "windows": node.windows, "repair": node.repair, "roster": node.roster}
    found = {}
    for part, owner in parts.items():
        for name, value in vars(owner).items():
            if isinstance(value, dict | list | set | tuple) or hasattr(value, "popleft"):
                found[f"{part}.{name.lstrip('_')}"] = len(value)
    return found
