"""The report's windows, from the records of all peers.

A window is listed if any peer opened it or adopted a link of it. Every chunk of it is accounted for at every peer that
was there then: it mixed the chunk, or is in `skipped_by` with a reason. `merged_by` asks for every committed chunk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from peer.commands.records import (
    Contributed,
    Event,
    Gave,
    Joined,
    Life,
    Link,
    Missed,
    MissedWhole,
    Mixed,
    Opened,
    TooLate,
)
from peer.commands.report_format import ChunkCounts, Contributor, Exit, Skip, WindowEntry
from protocol.schedule import Window

Place = tuple[int, int]
"""A chunk and a due step: where a link may be."""


@dataclass(frozen=True)
class Span:
    """From which swarm step to which a peer was there; each of its lives has one."""

    first: int
    last: float


@dataclass(frozen=True)
class Account:
    """One peer's record, by place."""

    index: int
    peer_id: str
    exit: Exit
    spans: tuple[Span, ...]
    opened: frozenset[Window]
    links: Mapping[Place, Link]
    """The last adopted link of each place: an earlier one of the same place lost against it."""
    adopted: Mapping[str, Link]
    """All links that the peer ever adopted, by head."""
    mixed: frozenset[Place]
    too_late: frozenset[Place]
    missed: Mapping[Place, str]
    missed_whole: Mapping[Window, str]
    contributed: Mapping[Place, Contributed]
    gave: frozenset[tuple[str, str]]
    """Links that the peer sent as repairs: head, and the receiver's peer id."""
    gaps: bool
    """Whether the record is known not to be whole."""

    def was_there(self, window: Window) -> bool:
        """Whether the peer was running when the window was due."""
        seen = window in self.opened or window in self.missed_whole
        return seen or any(span.first <= window.due <= span.last for span in self.spans)

    def ended(self, window: Window) -> str:
        """How the life of the peer ended that knew of the window; empty if it saw the end of the run."""
        if len(self.spans) > 1 and window.due < self.spans[-1].first:
            return "killed and started again"
        return "" if self.exit == "finished" else self.exit


def account(
    index: int, peer_id: str, exit: Exit, spans: Sequence[Span], events: Sequence[Event], *, gaps: bool = False
) -> Account:
    """Sort one peer's events."""
    links = [event for event in events if isinstance(event, Link)]
    return Account(
        index=index,
        peer_id=peer_id,
        exit=exit,
        spans=tuple(_since_joined(spans, events)),
        opened=frozenset(Window(event.fragment, event.due) for event in events if isinstance(event, Opened)),
        links={(link.chunk, link.due): link for link in links},
        adopted={link.head: link for link in links},
        mixed=frozenset((event.chunk, event.due) for event in events if isinstance(event, Mixed)),
        too_late=frozenset((event.chunk, event.due) for event in events if isinstance(event, TooLate)),
        missed={(event.chunk, event.due): event.reason for event in events if isinstance(event, Missed)},
        missed_whole={Window(e.fragment, e.due): e.reason for e in events if isinstance(e, MissedWhole)},
        contributed={(event.chunk, event.due): event for event in events if isinstance(event, Contributed)},
        gave=frozenset((event.head, event.to) for event in events if isinstance(event, Gave)),
        gaps=gaps,
    )


def _since_joined(spans: Sequence[Span], events: Sequence[Event]) -> list[Span]:
    """The spans, but the last begins after the step at which its life came into the run, if it came as a newcomer."""
    begun = max((place for place, event in enumerate(events) if isinstance(event, Life)), default=0)
    joined = max((event.from_step for event in events[begun:] if isinstance(event, Joined)), default=None)
    found = list(spans)
    if found and joined is not None and joined < found[-1].last:
        found[-1] = Span(max(found[-1].first, joined + 1), found[-1].last)
    return found


def window_entries(accounts: Sequence[Account], fragment_of: Sequence[int]) -> Iterator[WindowEntry]:
    """All windows in order. `fragment_of` gives each chunk's fragment."""
    committed = committed_links(accounts)
    seen = {window for one in accounts for window in one.opened}
    seen |= {Window(link.fragment, link.due) for link in committed.values()}
    for window in sorted(seen):
        places = [(chunk, window.due) for chunk, fragment in enumerate(fragment_of) if fragment == window.fragment]
        yield _entry(window, places, committed, accounts)


def committed_links(accounts: Sequence[Account]) -> dict[Place, Link]:
    """The link of each place in the final chain of those that finished; of all peers if nobody did.

    Where they differ, which a finished swarm does not, the link that most of them have.
    """
    finished = [one for one in accounts if one.exit == "finished"] or accounts
    votes: dict[Place, Counter[str]] = {}
    by_head: dict[tuple[Place, str], Link] = {}
    for one in finished:
        for place, link in one.links.items():
            votes.setdefault(place, Counter())[link.head] += 1
            # An owner's own ranking is the one that it acted by.
            if link.owner == one.peer_id or (place, link.head) not in by_head:
                by_head[place, link.head] = link
    return {place: by_head[place, heads.most_common(1)[0][0]] for place, heads in votes.items()}


def _elsewhere(one: Account, place: Place, links: Mapping[Place, Link]) -> bool:
    """Whether a peer that was cut off has taken another link here than the swarm's."""
    return place in one.links and place in links and one.links[place].head != links[place].head


def _merged(one: Account, links: Mapping[Place, Link]) -> bool:
    """Whether the peer mixed every committed chunk; nobody did where none was committed."""
    return bool(links) and all(place in one.mixed and not _elsewhere(one, place, links) for place in links)


def _entry(
    window: Window, places: Sequence[Place], committed: Mapping[Place, Link], accounts: Sequence[Account]
) -> WindowEntry:
    links = {place: committed[place] for place in places if place in committed}
    there = [one for one in accounts if one.was_there(window)]
    merged = [one.index for one in there if _merged(one, links)]
    return WindowEntry(
        fragment=window.fragment,
        step=window.due,
        contributors=tuple(_contributors(list(links.values()), accounts)),
        chunks=ChunkCounts(
            total=len(places),
            committed=len(links),
            failed_over=sum(link.rank > 0 for link in links.values()),
            missing=len(places) - len(links),
        ),
        merged_by=tuple(merged),
        skipped_by=tuple(skip for one in there for skip in _skips(one, window, places, links, one.index in merged)),
    )


def _contributors(links: Sequence[Link], accounts: Sequence[Account]) -> Iterator[Contributor]:
    for one in accounts:
        tokens = [part.tokens for link in links for part in link.contributors if part.peer == one.peer_id]
        if tokens:
            yield Contributor(peer=one.index, tokens=min(tokens), chunks=len(tokens))


def _skips(
    one: Account, window: Window, places: Sequence[Place], links: Mapping[Place, Link], merged: bool
) -> Iterator[Skip]:
    """Each chunk that a peer did not mix has a reason. `merged` is whether it mixed every committed one."""
    mixed = links if merged else {place for place in one.mixed if not _elsewhere(one, place, links)}
    reasons = Counter(_reason(one, window, place, links) for place in places if place not in mixed)
    for reason, chunks in sorted(reasons.items()):
        yield Skip(peer=one.index, chunks=chunks, reason=reason)


def _reason(one: Account, window: Window, place: Place, links: Mapping[Place, Link]) -> str:
    """Why a peer did not mix a chunk: what its own record says, else what follows from it."""
    if place in one.mixed:
        return "mixed a link of its own branch, which lost"
    if place in one.missed:
        return one.missed[place]
    if place in one.too_late:
        return "came too late to mix; only the anchor moved"
    if window in one.missed_whole:
        return one.missed_whole[window]
    if (ended := one.ended(window)) and place not in one.links:
        return ended
    if place not in links:
        return "nobody closed it"
    if one.gaps:
        return "not in its record, which has gaps"
    if window not in one.opened:
        return "did not open it"
    if place not in one.links:
        return "no link came"
    if any(due > place[1] for chunk, due in one.links if chunk == place[0]):
        return "a newer link came before it was mixed"
    return ended or "the run ended before it was mixed"
