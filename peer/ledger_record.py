"""What the record says of the ledger: links that this peer adopts, and those that it gives to others."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Final

from bootstrap.identity import peer_id
from peer.record import Record
from protocol.commands import Contributed
from protocol.ledger import Entry
from protocol.messages import LinkMessage, StateMessage, link_head
from protocol.node import Node

LINKS_REMEMBERED: Final = 64
"""Newest links of a chunk that are remembered as written to the record."""


class LedgerRecord:
    """Writes each link once. Used in the outer thread only."""

    def __init__(self, node: Node, record: Record) -> None:
        self._node = node
        self._record = record
        self._written: defaultdict[int, deque[bytes]] = defaultdict(lambda: deque(maxlen=LINKS_REMEMBERED))

    def contributed(self, command: Contributed) -> None:
        """Our contribution to a chunk's window goes out."""
        self._record.write(
            "contributed",
            chunk=command.contribution.chunk,
            due=command.contribution.due,
            tokens=command.contribution.tokens,
            payload_bytes=len(command.payload),
        )

    def gave(self, to: bytes, message: LinkMessage | StateMessage) -> None:
        """A link that goes to a peer as a repair: the report counts it apart from what windows cost."""
        link = message.link
        head = link_head(self._node.ledger.run, link).hex()
        self._record.write("gave", chunk=link.chunk, due=link.due, head=head, to=peer_id(to))

    def settled(self, chunk: int) -> None:
        """A chunk's chain has grown, or is another now: write the links that were not written yet."""
        for entry in self._fresh(chunk):
            self._write_link(entry)

    def _fresh(self, chunk: int) -> list[Entry]:
        """The links that were adopted since the last time, oldest first."""
        written, fresh = self._written[chunk], []
        for entry in reversed(self._node.ledger.recent(chunk, LINKS_REMEMBERED)):
            if entry.head in written:
                break
            fresh.append(entry)
        fresh.reverse()
        written.extend(entry.head for entry in fresh)
        return fresh

    def _write_link(self, entry: Entry) -> None:
        link, owner = entry.message.link, entry.message.owner
        fragment = self._node.fragment_of[link.chunk]
        ranked = self._node.roster.ranked(self._node.chunks_of(fragment), link.due)[link.chunk]
        self._record.write(
            "link",
            chunk=link.chunk,
            fragment=fragment,
            due=link.due,
            head=entry.head.hex(),
            owner=peer_id(owner),
            rank=ranked.index(owner) if owner in ranked else -1,
            payload_bytes=len(entry.payload),
            contributors=[{"peer": peer_id(part.peer), "tokens": part.tokens} for part in link.parts],
        )
