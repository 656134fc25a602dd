"""What a peer leaves in its folder, read back: `summary.json`, rewritten as it goes, and `record.jsonl`, appended.

A peer that was killed leaves its last summary, up to two seconds old, and perhaps half a line at the end of its record.
Fields that a newer peer adds are ignored.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

log = logging.getLogger(__name__)
T = TypeVar("T")

SUMMARY = "summary.json"
RECORD = "record.jsonl"
METRICS = "metrics.jsonl"
SNAPSHOTS = "snapshots"


class WindowCounts(msgspec.Struct, frozen=True):
    """Windows of one peer since its start."""

    opened: int = 0
    merged: int = 0
    late: int = 0
    skipped: int = 0


class Seconds(msgspec.Struct, frozen=True):
    """Where one peer's time went; `merge_wait` is the longest single wait that it allowed itself."""

    total: float = 0.0
    training: float = 0.0
    waiting: float = 0.0
    wait_max: float = 0.0
    merge_wait: float | None = None


class Evaluation(msgspec.Struct, frozen=True):
    """Nats per token of the held-out text, of the outer parameters; of the local ones where there are no others."""

    outer_loss_start: float | None = None
    outer_loss_end: float | None = None


class PeerTraffic(msgspec.Struct, frozen=True):
    """Bytes that one peer wrote to streams for windows, without and with framing; for repairs; for the DHT."""

    payload_bytes: int = 0
    bytes_on_wire: int = 0
    repair_bytes: int = 0
    dht_bytes: int | None = None
    peak_window_bytes: int = 0


class JoinedRun(msgspec.Struct, frozen=True):
    """How a newcomer came into a run that was under way. `seconds` until its first contribution, None before it."""

    from_step: int = 0
    seconds: float | None = None
    fetch_seconds: float = 0.0
    bytes: int = 0
    state_bytes: int = 0
    donors: int = 0


class Summary(msgspec.Struct, frozen=True):
    """`summary.json`: a peer's own account of itself."""

    peer_id: str = ""
    exit: Literal["running", "finished", "failed"] = "running"
    inner_steps: int = 0
    tokens: int = 0
    train_loss_first: float | None = None
    train_loss_last: float | None = None
    windows: WindowCounts = WindowCounts()
    bytes_sent: int = 0
    bytes_received: int = 0
    seconds: Seconds = Seconds()
    utilization: float | None = None
    outer_digest: str | None = None
    record_lost: int = 0
    """Lines that the disk refused."""
    joined: JoinedRun | None = None
    evaluation: Evaluation = Evaluation()
    traffic: PeerTraffic = PeerTraffic()


class Opened(msgspec.Struct, frozen=True, tag_field="kind", tag="opened"):
    """The peer snapshot the fragment for the window of `due`, after `own_step` inner steps."""

    fragment: int
    due: int
    own_step: int = 0


class Part(msgspec.Struct, frozen=True):
    """One contributor of a link, by its libp2p peer id."""

    peer: str
    tokens: int


class Link(msgspec.Struct, frozen=True, tag_field="kind", tag="link"):
    """The peer adopted a link. `rank` is the owner's place in this peer's ranking, from 0."""

    chunk: int
    fragment: int
    due: int
    head: str
    owner: str
    rank: int
    payload_bytes: int
    contributors: tuple[Part, ...]


class Retried(msgspec.Struct, frozen=True, tag_field="kind", tag="retried"):
    """The peer snapshot the fragment once more, for the chunks of the window that nobody had closed."""

    fragment: int
    due: int
    own_step: int = 0


class Mixed(msgspec.Struct, frozen=True, tag_field="kind", tag="mixed"):
    """The peer mixed the chunk's newest anchor, that of `due`, into its parameters."""

    chunk: int
    due: int
    late: int = 0
    power: int = 1


class TooLate(msgspec.Struct, frozen=True, tag_field="kind", tag="too_late"):
    """The link came after `late_steps`: only the anchor moved."""

    chunk: int
    due: int
    late: int = 0


class Missed(msgspec.Struct, frozen=True, tag_field="kind", tag="missed"):
    """The peer could not contribute, or gave up waiting for a link."""

    chunk: int
    due: int
    reason: str


class MissedWhole(msgspec.Struct, frozen=True, tag_field="kind", tag="missed_whole"):
    """The peer did not open the window at all."""

    fragment: int
    due: int
    reason: str


class Contributed(msgspec.Struct, frozen=True, tag_field="kind", tag="contributed"):
    """The peer sent a contribution, of `payload_bytes` packed."""

    chunk: int
    due: int
    tokens: int
    payload_bytes: int


class Gave(msgspec.Struct, frozen=True, tag_field="kind", tag="gave"):
    """The peer sent a link, or the state that it leads to, to a peer that had missed it."""

    chunk: int
    due: int
    head: str
    to: str


class Joined(msgspec.Struct, frozen=True, tag_field="kind", tag="joined"):
    """The peer came into a run under way, and began at a swarm step."""

    from_step: int


class Life(msgspec.Struct, frozen=True, tag_field="kind", tag="life"):
    """A process began to write here: the first, or one that goes on after a restart."""

    number: int
    step: int
    own_step: int


class Kept(msgspec.Struct, frozen=True, tag_field="kind", tag="snapshot"):
    """A snapshot was written."""

    step: int
    copy_seconds: float
    write_seconds: float
    bytes: int


Event = Life | Kept | Joined | Opened | Retried | Link | Mixed | TooLate | Missed | MissedWhole | Contributed | Gave
_DECODER = msgspec.json.Decoder(Event)


def clear(folder: Path) -> None:
    """Remove what an earlier swarm in the same directory left of a peer: its account and its snapshots."""
    for name in (SUMMARY, RECORD, METRICS):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / SNAPSHOTS, ignore_errors=True)


def read_summary(folder: Path) -> Summary | None:
    """The peer's last summary; None if it never wrote one."""
    path = folder / SUMMARY
    try:
        return msgspec.json.decode(path.read_bytes(), type=Summary)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        log.warning("%s is ignored: %s", path, error)
        return None


@dataclass(frozen=True)
class Recorded:
    """One peer's record, as it was found."""

    events: list[Event]
    """In the order in which they happened. A last line that was cut is left out: a kill does that."""
    missing: bool = False
    unreadable: int = 0
    """Other lines that are no events: they were cut, or a newer peer wrote them."""


def read_record(folder: Path) -> Recorded:
    """The peer's record. What cannot be read is left out, counted, and said in the log."""
    path = folder / RECORD
    try:
        lines = path.read_bytes().split(b"\n")[:-1]  # after the last line's end comes a cut line, or nothing
    except FileNotFoundError:
        return Recorded([], missing=True)
    events: list[Event] = []
    for number, line in enumerate(lines, start=1):
        try:
            events.append(_DECODER.decode(line))
        except msgspec.MsgspecError as error:
            log.warning("%s: line %d is ignored: %s", path, number, error)
    return Recorded(events, unreadable=len(lines) - len(events))
