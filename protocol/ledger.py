"""The ledger: every chunk's chain of links, and the rules by which outer state changes (docs/protocol.md, section 7).

Anchor and momentum are a pure function of a chain, and a link holds exact bytes; so equal heads mean equal state. A
chunk's state is kept one link behind its tip (`base`), with the newest link packed beside it: stepping back from
a link that lost costs half a byte a parameter. The tip is computed when it is needed.

Nothing here sends or waits. State is opaque: whoever owns the arithmetic passes it in (`Arithmetic`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from protocol.errors import ProtocolError
from protocol.messages import (
    MAX_HAVE,
    Link,
    LinkMessage,
    Parent,
    Part,
    StateMessage,
    close_text,
    genesis_head,
    link_head,
    most_tokens,
    part_text,
    sha256,
)
from protocol.signature import Keys
from protocol.states import Arithmetic, OlderStates

S = TypeVar("S")

MAX_ASIDE = 16
"""Links of a losing branch that a chunk holds; a longer one is fetched as a whole state when it wins."""
MAX_EARLY = 4
"""Links that a chunk holds because they came before their parent."""


class Adoption(Enum):
    """What a valid link did to its chunk."""

    OLD = "not greater than the tip"
    EXTENDED = "the tip's child: applied"
    REPLACED = "the tip's sibling: one step back, then applied"
    MISSING = "its parent is unknown here"
    WRONG_STATE = "our state below it is not the one it was measured from"

    @property
    def is_placed(self) -> bool:
        """Whether the link had its place, if only beside the tip: nothing has to be got first."""
        return self not in (Adoption.MISSING, Adoption.WRONG_STATE)


@dataclass(frozen=True, slots=True)
class Entry:
    """A link as a peer keeps it."""

    message: LinkMessage
    head: bytes
    payload: bytes

    @property
    def order(self) -> tuple[int, bytes]:
        """The total order over links: (cumulative weight, head)."""
        return self.message.link.cumulative, self.head


@dataclass(slots=True)
class Chain(Generic[S]):
    """One chunk: the state one link behind, the newest link, and earlier links for those who missed them."""

    base: S
    base_head: bytes
    newest: Entry | None = None
    kept: deque[Entry] = field(default_factory=deque)
    aside: list[Entry] = field(default_factory=list)
    """A branch that is not greater than the tip yet: it may become so by its next link."""
    aside_from: bytes = b""
    """The head that `aside` starts from: `base_head`, or that of an older state."""
    early: dict[bytes, Entry] = field(default_factory=dict)
    """By parent: links that overtook it on their way, or that wait for our state to be repaired."""

    @property
    def head(self) -> bytes:
        return self.newest.head if self.newest else self.base_head

    @property
    def order(self) -> tuple[int, bytes]:
        return self.newest.order if self.newest else (0, self.base_head)

    @property
    def next_early(self) -> bytes | None:
        """The head, of the tip or of the branch aside, that an early link is a child of."""
        heads = [self.head, *(entry.head for entry in self.aside[-1:])]
        return next((head for head in heads if head in self.early), None)

    @property
    def due(self) -> int:
        return self.newest.message.link.due if self.newest else 0


def weights(tokens: Sequence[int], cap: int) -> list[int]:
    """Tokens capped at `cap` times their lower median: what a contribution weighs in a link."""
    limit = cap * sorted(tokens)[(len(tokens) - 1) // 2]
    return [min(count, limit) for count in tokens]


class Ledger(Generic[S]):
    """All chunks of one peer."""

    def __init__(
        self,
        *,
        run: bytes,
        genesis: Sequence[S],
        arithmetic: Arithmetic[S],
        keys: Keys,
        weight_cap: int,
        keep_bytes: int = 256 << 20,
    ) -> None:
        self.run = run
        self._arithmetic = arithmetic
        self._keys = keys
        self._cap = weight_cap
        self._keep_bytes = keep_bytes
        self._kept_bytes = 0
        self._digest: bytes | None = None
        self.older: OlderStates[S] | None = None
        """Set by whoever keeps snapshots."""
        digests = [arithmetic.digest(state) for state in genesis]
        heads = [genesis_head(run, chunk, digest) for chunk, digest in enumerate(digests)]
        self.chains = [Chain(base=state, base_head=head) for state, head in zip(genesis, heads, strict=True)]

    def tip(self, chunk: int) -> S:
        """Anchor and momentum at the newest link, computed now."""
        chain = self.chains[chunk]
        if chain.newest is None:
            return chain.base
        return self._arithmetic.apply(chunk, chain.base, chain.newest.payload)

    def parent(self, chunk: int, state: S) -> Parent:
        """How a contribution measured from `state` (the tip) names it."""
        return Parent(self.chains[chunk].head, self._arithmetic.digest(state), *self.known_parent(chunk))

    def known_parent(self, chunk: int) -> tuple[int, int, int, int, int]:
        """(depth, due, span, weight, cumulative) of the tip."""
        newest = self.chains[chunk].newest
        if newest is None:
            return 0, 0, 0, 0, 0
        link = newest.message.link
        return link.depth, link.due, link.span, link.weight, link.cumulative

    def digest(self) -> bytes:
        """One digest of all heads."""
        if self._digest is None:
            self._digest = sha256(*(chain.head for chain in self.chains))
        return self._digest

    def close(
        self, chunk: int, due: int, parent: Parent, parts: Sequence[tuple[Part, bytes]]
    ) -> tuple[LinkMessage, bytes]:
        """Make and sign the link of exactly these contributions (at least one; any order). Does not adopt it."""
        ordered = sorted(parts, key=lambda item: item[0].peer)
        shares = weights([part.tokens for part, _ in ordered], self._cap)
        payload = self._arithmetic.mean(chunk, [(w, data) for w, (_, data) in zip(shares, ordered, strict=True)])
        link = Link(
            chunk=chunk,
            due=due,
            span=due - parent.due,
            parent=parent.head,
            state=parent.state,
            depth=parent.depth + 1,
            parts=tuple(part for part, _ in ordered),
            weight=sum(shares),
            cumulative=parent.cumulative + sum(shares),
            result=sha256(payload),
        )
        signature = self._keys.sign(close_text(link_head(self.run, link)))
        return LinkMessage(link=link, owner=self._keys.key, signature=signature), payload

    def adopt(self, message: LinkMessage, payload: bytes) -> Adoption:
        """Take a link if the order and our state allow; ProtocolError if it is not a valid link at all."""
        entry = self._checked(message, payload)
        chain = self.chains[message.link.chunk]
        if entry.head == chain.head:
            return Adoption.OLD
        adoption = self._place(chain, entry)
        if not adoption.is_placed:
            chain.early.pop(next(iter(chain.early)) if len(chain.early) >= MAX_EARLY else b"", None)
            chain.early[message.link.parent] = entry
            return adoption
        followed = self._follow(chain)
        return followed if adoption is Adoption.OLD or followed is Adoption.REPLACED else adoption

    def _place(self, chain: Chain[S], entry: Entry) -> Adoption:
        link = entry.message.link
        if link.parent == chain.head:
            return self._extend(chain, entry)
        if chain.newest is not None and link.parent == chain.base_head:
            _check_sibling(link, chain.newest.message.link)
            branch, start = [entry], chain.base_head
        elif chain.aside and link.parent == chain.aside[-1].head:
            _check_follows(link, chain.aside[-1].message.link)
            branch, start = [*chain.aside, entry], chain.aside_from
        elif self.older and link.parent in self.older.heads(link.chunk):
            for parent in chain.kept:
                if parent.head == link.parent:
                    _check_follows(link, parent.message.link)
            branch, start = [entry], link.parent
        else:
            return Adoption.OLD if entry.order <= chain.order else Adoption.MISSING
        if entry.order <= chain.order:
            chain.aside, chain.aside_from = branch if len(branch) <= MAX_ASIDE else [], start
            return Adoption.OLD
        return self._switch(chain, branch, start)

    def _follow(self, chain: Chain[S]) -> Adoption:
        """The tip or the branch aside grew: links that overtook it follow now. A bad one among them is dropped."""
        self._digest = None
        result = Adoption.OLD
        while (parent := chain.next_early) is not None:
            entry = chain.early.pop(parent)
            try:
                adoption = self._place(chain, entry)
            except ProtocolError:
                continue
            if adoption is Adoption.REPLACED or (adoption is Adoption.EXTENDED and result is Adoption.OLD):
                result = adoption
        return result

    def _switch(self, chain: Chain[S], branch: list[Entry], start: bytes) -> Adoption:
        """Step back to the state at `start` and take a greater branch from there: all of it or nothing."""
        state = chain.base if start == chain.base_head else self._older(branch[0].message.link.chunk, start)
        if state is None:
            return Adoption.MISSING
        states = [state]
        for entry in branch:
            if self._arithmetic.digest(states[-1]) != entry.message.link.state:
                return Adoption.WRONG_STATE
            states.append(self._after(states[-1], entry))
        if start != chain.base_head:
            self._forget(chain)  # what is kept is one chain without gaps
            chain.base_head = start
        for entry in branch[:-1]:
            self._keep(chain, entry)
            chain.base_head = entry.head
        chain.base, chain.newest, chain.aside = states[-2], branch[-1], []
        return Adoption.REPLACED

    def _older(self, chunk: int, head: bytes) -> S | None:
        return self.older.load(chunk, head) if self.older else None

    def _extend(self, chain: Chain[S], entry: Entry) -> Adoption:
        link = entry.message.link
        _check_follows(link, chain.newest.message.link if chain.newest else None)
        tip = self.tip(link.chunk)
        if self._arithmetic.digest(tip) != link.state:
            return Adoption.WRONG_STATE
        self._after(tip, entry)
        if chain.newest is not None:
            self._keep(chain, chain.newest)
            chain.base, chain.base_head, chain.aside = tip, chain.newest.head, []
        chain.newest = entry
        return Adoption.EXTENDED

    def _after(self, state: S, entry: Entry) -> S:
        """The state after a link; a link that leads to values that are not finite is no link."""
        try:
            return self._arithmetic.apply(entry.message.link.chunk, state, entry.payload)
        except ValueError as error:
            raise ProtocolError("a link that leads out of the numbers' range") from error

    def adopt_state(self, message: StateMessage, bulk: bytes) -> bool:
        """Take a whole state: the link, and the anchor and momentum below it, proven by the digest that the link names.

        Returns whether it was taken: not if our own tip is greater. An equal one is taken: it replaces a wrong state.
        """
        chunk = message.link.chunk
        if chunk >= len(self.chains):
            raise ProtocolError("unknown chunk")
        cut = len(bulk) - self._arithmetic.result_bytes(chunk)
        if cut <= 0:
            raise ProtocolError("wrong size of state")
        entry = self._checked(LinkMessage(message.link, message.owner, message.signature), bulk[cut:])
        try:
            state = self._arithmetic.load(chunk, bulk[:cut])
        except ValueError as error:
            raise ProtocolError("bad state bytes") from error
        if self._arithmetic.digest(state) != message.link.state:
            raise ProtocolError("state does not have the digest that the link names")
        self._after(state, entry)
        chain = self.chains[chunk]
        if entry.order < chain.order:
            return False
        chain.base, chain.base_head, chain.newest, chain.aside = state, message.link.parent, entry, []
        self._forget(chain)
        self._follow(chain)
        return True

    def have(self, chunk: int) -> tuple[bytes, ...]:
        """The heads to name when we ask for a chunk's links; none if only a whole state can help."""
        chain = self.chains[chunk]
        if len(chain.aside) >= MAX_ASIDE:
            return ()  # the branch that wins is deeper than what we hold of it
        older = self.older.heads(chunk) if self.older else ()
        aside = [entry.head for entry in chain.aside[-1:]]
        return (chain.head, chain.base_head, *aside, *older)[:MAX_HAVE]

    def after(self, chunk: int, have: Sequence[bytes], limit: int) -> list[Entry]:
        """At most `limit` of our links after the newest of `have` that we know, in order; empty if we know none."""
        if self.chains[chunk].head in have:
            return []
        entries = self.recent(chunk, len(self.chains[chunk].kept) + 1)
        for index in reversed(range(len(entries))):
            if entries[index].message.link.parent in have:
                return entries[index : index + limit]
        return []

    def recent(self, chunk: int, count: int) -> list[Entry]:
        """At most the `count` newest links that we hold, oldest first."""
        chain = self.chains[chunk]
        return [*chain.kept, *([chain.newest] if chain.newest else [])][-count:]

    def contributors(self, chunk: int) -> set[bytes]:
        """The peers named by the two newest links."""
        return {part.peer for entry in self.recent(chunk, 2) for part in entry.message.link.parts}

    def _checked(self, message: LinkMessage, payload: bytes) -> Entry:
        """The link as an entry, if it is well-formed, signed by its owner and carries its payload."""
        link = message.link
        if link.chunk >= len(self.chains):
            raise ProtocolError("unknown chunk")
        peers = [part.peer for part in link.parts]
        if sorted(set(peers)) != peers:
            raise ProtocolError("contributors not in order, or twice")
        if link.weight != sum(weights([part.tokens for part in link.parts], self._cap)):
            raise ProtocolError("wrong weight of a link")
        if max(part.tokens for part in link.parts) > most_tokens(link.span):
            raise ProtocolError("a link with more tokens than can be")
        if link.cumulative < link.weight or sha256(payload) != link.result:
            raise ProtocolError("link and payload do not match")
        head = link_head(self.run, link)
        if not self._keys.verify(message.owner, close_text(head), message.signature):
            raise ProtocolError("bad signature of a link")
        # We checked what our own links are made of when it came, and a head that we hold covers its parts.
        if message.owner != self._keys.key and head != self.chains[link.chunk].head:
            self._check_parts(link)
        try:
            self._arithmetic.check_result(link.chunk, payload)
        except ValueError as error:
            raise ProtocolError("bad payload of a link") from error
        return Entry(message=message, head=head, payload=payload)

    def _check_parts(self, link: Link) -> None:
        """Every part was signed by its contributor: an owner cannot invent contributors or what they claim."""
        for part in link.parts:
            if not self._keys.verify(part.peer, part_text(self.run, link, part), part.signature):
                raise ProtocolError("bad signature of a contribution in a link")

    def _keep(self, chain: Chain[S], entry: Entry) -> None:
        """Keep a link for others; the oldest of the longest chain go when the bytes run out."""
        chain.kept.append(entry)
        self._kept_bytes += len(entry.payload)
        while self._kept_bytes > self._keep_bytes:
            longest = max(self.chains, key=lambda one: len(one.kept))
            if not longest.kept:
                return
            self._kept_bytes -= len(longest.kept.popleft().payload)

    def _forget(self, chain: Chain[S]) -> None:
        self._kept_bytes -= sum(len(entry.payload) for entry in chain.kept)
        chain.kept.clear()


def _check_follows(link: Link, parent: Link | None) -> None:
    """ProtocolError unless depth, due step and weights are those of a child of `parent` (None: genesis)."""
    depth, due, cumulative = (parent.depth, parent.due, parent.cumulative) if parent else (0, 0, 0)
    right = (depth + 1, due, cumulative + link.weight)
    if (link.depth, link.due - link.span, link.cumulative) != right:
        raise ProtocolError("link does not follow from its parent")


def _check_sibling(link: Link, twin: Link) -> None:
    """The same for a link beside the newest one, whose parent may no longer be kept."""
    right = (twin.depth, twin.due - twin.span, twin.cumulative - twin.weight)
    if (link.depth, link.due - link.span, link.cumulative - link.weight) != right:
        raise ProtocolError("link does not follow from its parent")
