"""The promises of docs/protocol.md, section 11, checked after every event of a simulated run.

The checks know everything that any peer ever sent, which no peer does: so they can tell what a link was really made of.
"""

from __future__ import annotations

from typing import Any, Final

from protocol.commands import Contributed
from protocol.ledger import Ledger, weights
from protocol.messages import Contribution, sha256
from protocol.node import Node

WINDOWS_A_CHUNK: Final = 4
"""Windows in flight per chunk that a peer may hold on either side."""

STEP_SLACK: Final = 1.2
"""How much longer than usual a step of the simulated trainer, which never waits, may take."""


class Broken(AssertionError):
    """A promise was broken; the text says which and where."""


class Invariants:
    """Watches all nodes of one swarm."""

    def __init__(self, run: bytes, weight_cap: int = 4) -> None:
        self._run = run
        self._cap = weight_cap
        self._states: dict[bytes, bytes] = {}
        self._contributions: dict[tuple[bytes, bytes, int, int], tuple[Contribution, bytes]] = {}
        self._audited: set[bytes] = set()
        self._stepped: dict[bytes, float] = {}
        self._awake: dict[bytes, float] = {}
        self.links = 0

    def frozen(self, key: bytes, now: float) -> None:
        """A peer is frozen: its step may take as long as that lasts."""
        self._awake[key] = now

    def stepped(self, key: bytes, now: float, seconds: float | None) -> None:
        """A trainer finished an inner step of usually `seconds`; None where it may wait (lock-step)."""
        since = max(self._stepped.get(key, now), self._awake.get(key, 0.0))
        if seconds is not None and now - since > STEP_SLACK * seconds:
            raise Broken(f"training was blocked: a step of {seconds} s took {now - since:.2f} s")
        self._stepped[key] = now

    def contributed(self, command: Contributed) -> None:
        """Remember every contribution that was really made."""
        message = command.contribution
        self._contributions[message.peer, message.payload, message.chunk, message.due] = (message, command.payload)

    def adopted(self, ledger: Ledger[Any], arithmetic: Any, chunk: int) -> None:
        """A node's tip of a chunk moved."""
        chain = ledger.chains[chunk]
        state = arithmetic.digest(ledger.tip(chunk))
        if self._states.setdefault(chain.head, state) != state:
            raise Broken(f"equal heads, other state: chunk {chunk}")
        for entry in ledger.recent(chunk, 8):
            if entry.head not in self._audited:
                self._audit(entry, arithmetic)

    def _audit(self, entry: Any, arithmetic: Any) -> None:
        link = entry.message.link
        made = []
        for part in link.parts:
            known = self._contributions.get((part.peer, part.payload, link.chunk, link.due))
            if known is None:
                raise Broken(f"a link names a contribution that nobody made: chunk {link.chunk}, step {link.due}")
            if (known[0].parent.head, known[0].parent.state) != (link.parent, link.state):
                raise Broken(f"deltas of different heads or states averaged: chunk {link.chunk}, step {link.due}")
            made.append(known[1])
        shares = weights([part.tokens for part in link.parts], self._cap)
        payload = arithmetic.mean(link.chunk, list(zip(shares, made, strict=True)))
        if payload != entry.payload or sha256(payload) != link.result:
            raise Broken(f"a link does not hold exactly what it names: chunk {link.chunk}, step {link.due}")
        self._audited.add(entry.head)
        self.links += 1

    def bounded(self, node: Node) -> None:
        """What a node holds does not grow with the run."""
        limit = WINDOWS_A_CHUNK * len(node.ledger.chains)
        if len(node.windows.outbound) > limit or len(node.windows.gathering) > limit:
            raise Broken("windows in flight pile up")
