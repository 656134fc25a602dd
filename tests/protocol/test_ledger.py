"""The ledger: one total order, and state as a function of the chain; what is not a valid link changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aggregation.arithmetic import Arithmetic
from aggregation.codecs import Fp32
from aggregation.outer import ChunkState
from protocol.errors import ProtocolError
from protocol.ledger import MAX_ASIDE, MAX_EARLY, Adoption, Ledger, weights
from protocol.messages import (
    TOKENS_A_STEP,
    Contribution,
    LinkMessage,
    Part,
    StateMessage,
    close_text,
    contribution_text,
    link_head,
    sha256,
)
from protocol.signature import Ed25519Keys

RUN = b"r" * 32
KEYS = [Ed25519Keys(bytes([n]) * 32) for n in range(3)]
ARITHMETIC = Arithmetic([2, 2], contribution_codec=Fp32(), result_codec=Fp32(), lr=0.5, momentum=0.5)

Link = tuple[LinkMessage, bytes]


def fresh(keep_bytes: int = 1 << 20) -> Ledger[ChunkState]:
    genesis = [ChunkState(torch.tensor([float(c), 1.0]), torch.zeros(2)) for c in range(2)]
    return Ledger(run=RUN, genesis=genesis, arithmetic=ARITHMETIC, keys=KEYS[0], weight_cap=4, keep_bytes=keep_bytes)


def part(who: int, tokens: int, delta: float) -> tuple[Part, bytes]:
    payload = Fp32().encode(torch.tensor([delta, -delta]))
    return Part(KEYS[who].key, tokens, sha256(payload), bytes(64)), payload


def close(
    ledger: Ledger[ChunkState], due: int, *, tokens: int = 100, delta: float = 0.5, who: Sequence[int] = (0,)
) -> Link:
    """A link on the tip of `ledger`, which does not adopt it."""
    parent = ledger.parent(0, ledger.tip(0))
    return ledger.close(0, due, parent, [part(n, tokens, delta) for n in who])


def grow(ledger: Ledger[ChunkState], due: int, **how: Any) -> Link:
    """The same, adopted."""
    link = close(ledger, due, **how)
    assert ledger.adopt(*link) is Adoption.EXTENDED
    return link


def resigned(message: LinkMessage, keys: Ed25519Keys = KEYS[0], **changes: Any) -> LinkMessage:
    """The message with other fields, validly signed: what a lying owner can make."""
    link = msgspec.structs.replace(message.link, **changes)
    return LinkMessage(link, keys.key, keys.sign(close_text(link_head(RUN, link))))


def everything(ledger: Ledger[ChunkState]) -> bytes:
    """A digest of all that a ledger holds."""
    words = []
    for chain in ledger.chains:
        words += [ARITHMETIC.dump(chain.base), chain.base_head, chain.head]
        words += [entry.head + entry.payload for entry in [*chain.kept, *chain.aside, *chain.early.values()]]
        words += [chain.newest.payload] if chain.newest else []
    return sha256(*words, ledger.digest())


def state(ledger: Ledger[ChunkState]) -> bytes:
    return ARITHMETIC.digest(ledger.tip(0))


def test_links_extend_the_chain_and_move_the_state() -> None:
    one, other = fresh(), fresh()
    for due in (10, 20, 30):
        link = grow(one, due)
        assert other.adopt(*link) is Adoption.EXTENDED
        assert other.adopt(*link) is Adoption.OLD, "a duplicate"
        assert (one.digest(), state(one)) == (other.digest(), state(other))
    assert one.known_parent(0) == (3, 30, 10, 100, 300)
    expected = ARITHMETIC.apply(0, one.chains[0].base, link[1])
    assert state(one) == ARITHMETIC.digest(expected)
    assert one.chains[1].newest is None


def test_a_head_does_not_depend_on_who_closed_or_on_the_order_of_arrival() -> None:
    ledger = fresh()
    parent = ledger.parent(0, ledger.tip(0))
    contributions = [part(0, 5, 0.1), part(1, 7, 0.2), part(2, 9, 0.3)]
    one = ledger.close(0, 10, parent, contributions)
    other = ledger.close(0, 10, parent, contributions[::-1])
    assert one == other


def test_a_greater_sibling_replaces_and_a_lesser_one_does_not() -> None:
    ledger = fresh()
    grow(ledger, 10)
    light, heavy = close(ledger, 20, tokens=10), close(ledger, 20, tokens=20)
    assert ledger.adopt(*light) is Adoption.EXTENDED
    assert ledger.adopt(*heavy) is Adoption.REPLACED
    right = state(ledger)
    assert ledger.adopt(*light) is Adoption.OLD
    assert state(ledger) == right
    assert ledger.known_parent(0) == (2, 20, 10, 20, 120)


def test_of_equal_weight_the_greater_head_wins_everywhere() -> None:
    pair = [close(fresh(), 10, delta=delta) for delta in (0.25, 0.5)]
    first, second = fresh(), fresh()
    for ledger, order in ((first, pair), (second, pair[::-1])):
        for link in order:
            ledger.adopt(*link)
    assert first.digest() == second.digest()
    assert first.chains[0].head == max(link_head(RUN, message.link) for message, _ in pair)


def test_a_branch_aside_wins_by_its_next_link() -> None:
    ours, theirs = fresh(), fresh()
    root = grow(ours, 10)
    theirs.adopt(*root)
    grow(ours, 20, tokens=30)
    branch = [grow(theirs, 20, tokens=20), grow(theirs, 30, tokens=20)]
    assert ours.adopt(*branch[0]) is Adoption.OLD
    assert ours.adopt(*branch[1]) is Adoption.REPLACED
    assert (ours.digest(), state(ours)) == (theirs.digest(), state(theirs))
    assert ours.recent(0, 9)[1].head == theirs.recent(0, 9)[1].head, "what is kept is the winning branch"


@dataclass
class Shelf:
    """States on disk."""

    states: dict[bytes, ChunkState] = field(default_factory=dict)

    def heads(self, chunk: int) -> list[bytes]:
        return list(self.states) if chunk == 0 else []

    def load(self, chunk: int, head: bytes) -> ChunkState | None:
        return self.states.get(head)


def forked(ours_after: int, theirs_after: int) -> tuple[Ledger[ChunkState], Ledger[ChunkState], Shelf]:
    """Two ledgers that part after a common link, at which ours has a snapshot; theirs weighs more a link."""
    ours, theirs, shelf = fresh(), fresh(), Shelf()
    theirs.adopt(*grow(ours, 10))
    shelf.states[ours.chains[0].head] = ours.tip(0)
    for n in range(ours_after):
        grow(ours, 20 + 10 * n, tokens=100)
    for n in range(theirs_after):
        grow(theirs, 20 + 10 * n, tokens=130)
    ours.older = shelf
    return ours, theirs, shelf


def test_a_deep_losing_branch_goes_back_to_the_newest_state_before_the_fork() -> None:
    ours, theirs, shelf = forked(4, 4)
    fork = next(iter(shelf.states))
    assert ours.have(0) == (ours.chains[0].head, ours.chains[0].base_head, fork)
    entries = theirs.after(0, ours.have(0), 16)
    assert entries[0].message.link.parent == fork
    adoptions = [ours.adopt(entry.message, entry.payload) for entry in entries]
    assert adoptions[-1] is Adoption.REPLACED and Adoption.MISSING not in adoptions
    assert (ours.digest(), state(ours)) == (theirs.digest(), state(theirs))
    assert [entry.message.link.due for entry in ours.recent(0, 9)] == [20, 30, 40, 50], "what is kept has no gaps"
    grow(ours, 60)


def test_without_the_state_a_deep_losing_branch_is_asked_for_whole() -> None:
    ours, theirs, shelf = forked(4, 4)
    entries = theirs.after(0, ours.have(0), 16)
    shelf.states[next(iter(shelf.states))] = None  # type: ignore[assignment]  # it cannot be read any more
    head = ours.chains[0].head
    assert [ours.adopt(entry.message, entry.payload) for entry in entries][-1] is Adoption.MISSING
    assert ours.chains[0].head == head
    assert ours.adopt_state(*whole(theirs))
    assert ours.digest() == theirs.digest()


def test_a_wrong_state_on_disk_is_found_by_its_digest() -> None:
    ours, theirs, shelf = forked(4, 4)
    entries = theirs.after(0, ours.have(0), 16)
    shelf.states[next(iter(shelf.states))] = ChunkState(torch.ones(2), torch.zeros(2))
    before = state(ours)
    assert [ours.adopt(entry.message, entry.payload) for entry in entries][-1] is Adoption.WRONG_STATE
    assert state(ours) == before


def test_a_branch_deeper_than_what_is_held_is_asked_for_whole() -> None:
    ours, theirs = fresh(), fresh()
    grow(ours, 10, tokens=10**6)
    for due in range(10, 10 * MAX_ASIDE + 10, 10):
        ours.adopt(*grow(theirs, due, tokens=1))
    assert len(ours.chains[0].aside) == MAX_ASIDE
    assert ours.have(0) == (), "asking for its links once more would bring the same ones for ever"


def test_links_that_overtake_their_parent_wait_for_it() -> None:
    ours, theirs = fresh(), fresh()
    chain = [grow(theirs, due) for due in (10, 20, 30)]
    assert ours.adopt(*chain[2]) is Adoption.MISSING
    assert ours.adopt(*chain[1]) is Adoption.MISSING
    assert ours.adopt(*chain[0]) is Adoption.EXTENDED
    assert ours.digest() == theirs.digest()
    assert not ours.chains[0].early


def test_what_is_held_aside_and_early_is_bounded() -> None:
    ours, theirs = fresh(), fresh()
    grow(ours, 10, tokens=10**6)
    branch = [grow(theirs, due, tokens=1) for due in range(10, 10 * (MAX_ASIDE + 5), 10)]
    for link in branch:
        assert ours.adopt(*link) is Adoption.OLD
        assert len(ours.chains[0].aside) <= MAX_ASIDE
    lost = fresh()
    for due in range(10, 200, 10):
        donor = fresh()
        grow(donor, due)
        assert lost.adopt(*grow(donor, due + 5)) is Adoption.MISSING
        assert len(lost.chains[0].early) <= MAX_EARLY


def test_a_wrong_state_of_our_own_is_noticed_and_replaced_by_a_whole_one() -> None:
    ours, theirs = fresh(), fresh()
    for due in (10, 20):
        ours.adopt(*grow(theirs, due))
    chain = ours.chains[0]
    chain.base = ChunkState(chain.base.anchor + 1, chain.base.momentum)
    newest = grow(theirs, 30)
    assert ours.adopt(*newest) is Adoption.WRONG_STATE
    assert chain.head != theirs.chains[0].head
    assert len(chain.early) == 1, "the link waits for the repair"
    assert ours.adopt_state(*whole(theirs))
    assert (ours.digest(), state(ours)) == (theirs.digest(), state(theirs))


def test_a_wrong_state_is_repaired_by_an_equal_link_too() -> None:
    ours, theirs = fresh(), fresh()
    ours.adopt(*grow(theirs, 10))
    ours.adopt(*grow(theirs, 20))
    donor = whole(theirs)
    chain = ours.chains[0]
    chain.base = ChunkState(chain.base.anchor + 1, chain.base.momentum)
    newest = grow(theirs, 30)
    assert ours.adopt(*newest) is Adoption.WRONG_STATE
    assert ours.adopt_state(*donor)
    assert ours.digest() == theirs.digest(), "the link that waited followed"


def whole(ledger: Ledger[ChunkState]) -> tuple[StateMessage, bytes]:
    chain = ledger.chains[0]
    assert chain.newest is not None
    message = chain.newest.message
    state_message = StateMessage(message.link, message.owner, message.signature)
    return state_message, ARITHMETIC.dump(chain.base) + chain.newest.payload


def test_a_lesser_state_is_not_taken() -> None:
    ours, theirs = fresh(), fresh()
    grow(theirs, 10, tokens=50)
    grow(ours, 10, tokens=60)
    before = everything(ours)
    assert not ours.adopt_state(*whole(theirs))
    assert everything(ours) == before


def test_forged_states_are_refused_and_change_nothing() -> None:
    ours, theirs = fresh(), fresh()
    grow(theirs, 10)
    grow(theirs, 20)
    message, bulk = whole(theirs)
    flipped = bytes([bulk[0] ^ 1]) + bulk[1:]
    infinite = b"\x00\x00\x80\x7f" + bulk[4:]
    for bad in (b"", bulk[:-1], bulk + b"\0", flipped, infinite, bulk[: len(bulk) - 8]):
        refused_state(ours, message, bad)
    refused_state(ours, msgspec.structs.replace(message, signature=bytes(64)), bulk)
    refused_state(ours, msgspec.structs.replace(message, owner=KEYS[1].key), bulk)
    elsewhere = resigned(LinkMessage(message.link, message.owner, message.signature), chunk=2)
    refused_state(ours, StateMessage(elsewhere.link, elsewhere.owner, elsewhere.signature), bulk)


def refused_state(ledger: Ledger[ChunkState], message: StateMessage, bulk: bytes) -> None:
    before = everything(ledger)
    with pytest.raises(ProtocolError):
        ledger.adopt_state(message, bulk)
    assert everything(ledger) == before


def numbers(*values: float) -> bytes:
    return torch.tensor(values).numpy().tobytes()


FORGERIES: dict[str, dict[str, Any]] = {
    "weight too great": {"weight": 401, "cumulative": 501},
    "weight zero": {"weight": 0, "cumulative": 100},
    "cumulative too great": {"cumulative": 10_000},
    "cumulative too small": {"cumulative": 250},
    "cumulative below weight": {"cumulative": 1},
    "due not after the parent's": {"due": 10, "span": 10},
    "span of another parent": {"span": 5},
    "due as the parent's": {"due": 10, "span": 1},
    "depth skipped": {"depth": 3},
    "depth of a first link": {"depth": 1},
    "chunk that is not there": {"chunk": 2},
    "chunk of another state": {"chunk": 1},
    "no payload of ours": {"result": bytes(32)},
}


@pytest.mark.parametrize("beside", [False, True], ids=["child", "sibling"])
@pytest.mark.parametrize("changes", FORGERIES.values(), ids=FORGERIES.keys())
def test_forged_fields_change_nothing_even_when_signed(changes: dict[str, Any], beside: bool) -> None:
    ledger = fresh()
    grow(ledger, 10)
    message, payload = close(ledger, 20, who=(0, 1, 2))
    if beside:
        grow(ledger, 20, tokens=1)
    before = everything(ledger)
    try:
        adoption = ledger.adopt(resigned(message, **changes), payload)
    except ProtocolError:
        assert everything(ledger) == before
    else:
        assert changes == FORGERIES["chunk of another state"] and adoption is Adoption.MISSING
        assert ledger.chains[0].head != ledger.chains[1].head and ledger.chains[1].newest is None


@pytest.mark.parametrize(
    "bad", [numbers(float("nan"), 0.0), numbers(float("inf"), 0.0), numbers(3e38, 0.0), b"", b"\0" * 7]
)
def test_payloads_that_are_not_finite_or_of_another_size_are_refused(bad: bytes) -> None:
    ledger = fresh()
    message, _ = close(ledger, 10)
    refused(ledger, resigned(message, result=sha256(bad)), bad)


def refused(ledger: Ledger[ChunkState], message: LinkMessage, payload: bytes) -> None:
    before = everything(ledger)
    with pytest.raises(ProtocolError):
        ledger.adopt(message, payload)
    assert everything(ledger) == before


def test_a_link_that_leads_out_of_the_numbers_is_refused_and_the_chain_goes_on() -> None:
    ledger = fresh()
    huge = numbers(2.0**127, 0.0)
    accepted = 0
    for due in range(10, 100, 10):
        message, _ = close(ledger, due)
        before = everything(ledger)
        try:
            ledger.adopt(resigned(message, result=sha256(huge)), huge)
        except ProtocolError:
            assert everything(ledger) == before
            break
        accepted += 1
    assert 0 < accepted < 9
    assert bool(ledger.tip(0).anchor.isfinite().all())
    grow(ledger, 200)


def test_contributors_twice_or_unsorted_are_refused() -> None:
    ledger = fresh()
    message, payload = close(ledger, 10, who=(0, 1))
    parts = message.link.parts
    refused(ledger, resigned(message, parts=parts[::-1]), payload)
    refused(ledger, resigned(message, parts=(parts[0], parts[0])), payload)


def test_signatures_payloads_and_runs_are_checked() -> None:
    ledger = fresh()
    message, payload = close(ledger, 10)
    refused(ledger, msgspec.structs.replace(message, signature=bytes(64)), payload)
    refused(ledger, msgspec.structs.replace(message, owner=KEYS[1].key), payload)
    refused(ledger, msgspec.structs.replace(message, owner=bytes(32)), payload)
    refused(ledger, message, payload[:-1] + b"\1")
    other_run = Ledger(
        run=b"x" * 32, genesis=[c.base for c in ledger.chains], arithmetic=ARITHMETIC, keys=KEYS[0], weight_cap=4
    )
    refused(ledger, *close(other_run, 10))


def signed_part(who: int, ledger: Ledger[ChunkState], due: int, tokens: int, delta: float = 0.5) -> tuple[Part, bytes]:
    """A part as its contributor signs it, on the tip of `ledger`."""
    unsigned, payload = part(who, tokens, delta)
    parent = ledger.parent(0, ledger.tip(0))
    made = Contribution(0, due, parent, tokens, unsigned.payload, unsigned.peer, bytes(64))
    return Part(unsigned.peer, tokens, unsigned.payload, KEYS[who].sign(contribution_text(RUN, made))), payload


def test_an_owner_cannot_invent_contributors_or_what_they_claim() -> None:
    ours = fresh()
    grow(ours, 10)
    honest = [signed_part(who, ours, 20, 100) for who in (1, 2)]
    message, payload = ours.close(0, 20, ours.parent(0, ours.tip(0)), honest)
    one, other = message.link.parts
    of_another_window = {item.peer: item.signature for item, _ in (signed_part(n, ours, 30, 100) for n in (1, 2))}
    replace = msgspec.structs.replace
    for forged in (
        (one, replace(other, tokens=99)),
        (one, replace(other, signature=one.signature)),
        (one, replace(other, payload=bytes(32))),
        (replace(one, signature=bytes(64)), other),
        (one, replace(other, peer=b"\xff" * 32)),
        (one, replace(other, signature=of_another_window[other.peer])),
    ):
        ordered = tuple(sorted(forged, key=lambda item: item.peer))
        weight = sum(weights([item.tokens for item in ordered], 4))
        lie = resigned(message, KEYS[1], parts=ordered, weight=weight, cumulative=100 + weight)
        with pytest.raises(ProtocolError, match="signature of a contribution"):
            ours.adopt(lie, payload)
    assert ours.adopt(resigned(message, KEYS[1]), payload) is Adoption.EXTENDED


def test_a_whole_state_with_an_invented_contributor_is_refused() -> None:
    ours, theirs = fresh(), fresh()
    grow(theirs, 10)
    message, payload = theirs.close(0, 20, theirs.parent(0, theirs.tip(0)), [part(1, 100, 0.5)])
    forged = resigned(message, KEYS[1])
    bulk = ARITHMETIC.dump(theirs.tip(0)) + payload
    refused_state(ours, StateMessage(forged.link, forged.owner, forged.signature), bulk)


def test_tokens_are_bounded_by_the_steps_since_the_parent() -> None:
    ledger = fresh()
    refused(ledger, *close(ledger, 10, tokens=10 * TOKENS_A_STEP + 1))
    grow(ledger, 10, tokens=10 * TOKENS_A_STEP)


def test_a_bad_link_in_a_branch_aside_leaves_the_tip_where_it_was() -> None:
    ours, theirs = fresh(), fresh()
    grow(ours, 10, tokens=30)
    first = grow(theirs, 10, tokens=20)
    assert ours.adopt(*first) is Adoption.OLD
    message, payload = close(theirs, 20, tokens=20)
    head, right = ours.chains[0].head, state(ours)
    assert ours.adopt(resigned(message, state=bytes(32)), payload) is Adoption.WRONG_STATE
    assert (ours.chains[0].head, state(ours)) == (head, right)
    huge = resigned(message, cumulative=10**9)
    refused(ours, huge, payload)


def test_after_gives_what_comes_after_the_newest_known_head() -> None:
    ledger = fresh()
    links = [grow(ledger, due) for due in range(10, 60, 10)]
    heads = [link_head(RUN, message.link) for message, _ in links]
    genesis = links[0][0].link.parent
    given = ledger.after(0, [heads[1]], 16)
    assert [entry.head for entry in given] == heads[2:]
    assert [entry.head for entry in ledger.after(0, [genesis], 2)] == heads[:2]
    assert [entry.head for entry in ledger.after(0, [heads[3], heads[0]], 16)] == heads[4:]
    assert ledger.after(0, [heads[4], heads[3]], 16) == []
    assert ledger.after(0, [bytes(32)], 16) == []
    assert ledger.after(0, [], 16) == []
    assert ledger.after(1, [genesis], 16) == []


def test_kept_links_are_bounded_by_bytes_and_the_oldest_go() -> None:
    ledger = fresh(keep_bytes=3 * 8)
    for due in range(10, 100, 10):
        grow(ledger, due)
    assert [entry.message.link.due for entry in ledger.chains[0].kept] == [60, 70, 80]
    assert fresh(keep_bytes=0).recent(0, 5) == []
    none_kept = fresh(keep_bytes=0)
    for due in (10, 20, 30):
        grow(none_kept, due)
    assert [entry.message.link.due for entry in none_kept.recent(0, 9)] == [30]


def test_contributors_are_those_of_the_two_newest_links() -> None:
    ledger = fresh()
    for due, who in ((10, 0), (20, 1), (30, 2)):
        grow(ledger, due, who=(who,))
    assert ledger.contributors(0) == {KEYS[1].key, KEYS[2].key}


@pytest.mark.parametrize(
    ("tokens", "right"),
    [
        ([7], [7]),
        ([1, 100], [1, 4]),
        ([100, 1], [4, 1]),
        ([10, 20, 1000], [10, 20, 80]),
        ([10, 20, 30, 1 << 40], [10, 20, 30, 80]),
        ([5, 5, 5], [5, 5, 5]),
    ],
)
def test_weights_are_capped_at_four_times_the_lower_median(tokens: list[int], right: list[int]) -> None:
    assert weights(tokens, 4) == right


@dataclass
class Grown:
    """A tree of links, every one valid, and their number on each branch."""

    links: list[Link] = field(default_factory=list)


def tree(choices: list[tuple[int, int]]) -> Grown:
    """Grow a tree: each choice picks the ledger to grow on and the tokens of its next link; branches are copies."""
    branches = [fresh()]
    grown = Grown()
    for index, (pick, tokens) in enumerate(choices):
        stem = branches[pick % len(branches)]
        branch = fresh()
        for entry in stem.recent(0, 99):
            branch.adopt(entry.message, entry.payload)
        grown.links.append(grow(branch, 10 * (index + 1), tokens=tokens, delta=0.125 * (index + 1)))
        branches.append(branch)
    return grown


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3)), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
def test_any_order_of_arrival_with_pulls_ends_at_the_same_head(choices: list[tuple[int, int]], dice: Any) -> None:
    links = tree(choices).links
    ends = set()
    for _ in range(2):
        arriving = [*links, *links[:2]]
        dice.shuffle(arriving)
        ledger, holders = fresh(), [holder_of(link, links) for link in links]
        for message, payload in arriving:
            if ledger.adopt(message, payload) is Adoption.MISSING:
                holder = next(h for h in holders if h.chains[0].head == link_head(RUN, message.link))
                pull(ledger, holder)
        for holder in holders:
            if holder.chains[0].order > ledger.chains[0].order:
                pull(ledger, holder)
        ends.add((ledger.digest(), state(ledger)))
    best = max((message.link.cumulative, link_head(RUN, message.link)) for message, _ in links)
    assert len(ends) == 1
    assert ledger.chains[0].order == best


def holder_of(link: Link, links: list[Link]) -> Ledger[ChunkState]:
    """A peer whose tip is this link."""
    by_head = {link_head(RUN, message.link): (message, payload) for message, payload in links}
    path = [link]
    while path[0][0].link.parent in by_head:
        path.insert(0, by_head[path[0][0].link.parent])
    holder = fresh()
    for message, payload in path:
        assert holder.adopt(message, payload) is Adoption.EXTENDED
    return holder


def pull(ledger: Ledger[ChunkState], holder: Ledger[ChunkState]) -> None:
    """What Pull does: the links after what is known, else the whole state."""
    chain = ledger.chains[0]
    entries = holder.after(0, (chain.head, chain.base_head), 16)
    for entry in entries:
        ledger.adopt(entry.message, entry.payload)
    if not entries:
        ledger.adopt_state(*whole(holder))
