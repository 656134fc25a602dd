"""What a peer leaves in its folder, read back: `summary.json`, rewritten as it goes, and `record.jsonl`, appended.

A peer that was killed leaves its last summary, up to two seconds old, and perhaps half a line at the end of its record.
Fields that a newer peer adds are ignored.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

log = logging.getLogger(__name__)
T = TypeVar("T")

SUMMARY = "summary.json"
EARLIER = "summary.life-{}.json"
"""The last summary of a life before this one; the first life is 1."""
RECORD = "record.jsonl"
METRICS = "metrics.jsonl"


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


Event = Opened | Link | Mixed | TooLate | Missed | MissedWhole | Contributed
_DECODER = msgspec.json.Decoder(Event)


def read_summaries(folder: Path) -> list[Summary]:
    """What each life of a peer wrote last, in order; a life that wrote nothing is left out."""
    earlier = sorted(folder.glob(EARLIER.format("*")), key=lambda path: int(path.name.split("-")[-1].split(".")[0]))
    found = (_read_summary(path) for path in (*earlier, folder / SUMMARY))
    return [summary for summary in found if summary is not None]


def set_aside(folder: Path, life: int) -> None:
    """Keep the summary of a peer's life that is over, and end a line of its record that was cut."""
    with contextlib.suppress(FileNotFoundError):
        (folder / SUMMARY).replace(folder / EARLIER.format(life))
    with contextlib.suppress(FileNotFoundError), (folder / RECORD).open("rb+") as record:
        if record.seek(0, os.SEEK_END) and record.seek(-1, os.SEEK_END) and record.read(1) != b"\n":
            record.write(b"\n")


def clear(folder: Path) -> None:
    """Remove what an earlier swarm in the same directory left of a peer's account."""
    for path in (folder / SUMMARY, folder / RECORD, folder / METRICS, *folder.glob(EARLIER.format("*"))):
        path.unlink(missing_ok=True)


def read_summary(folder: Path) -> Summary | None:
    """The peer's last summary; None if it never wrote one."""
    return _read_summary(folder / SUMMARY)


def _read_summary(path: Path) -> Summary | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Summary)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        log.warning("%s is ignored: %s", path, error)
        return None


def read_record(folder: Path) -> list[Event]:
    """The peer's events in the order in which they happened. A last line that was cut is left out."""
    path = folder / RECORD
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")  # what comes after the last line's end is a cut line, or nothing
    return list(_events(path, lines[:-1]))


def _events(path: Path, lines: list[bytes]) -> Iterator[Event]:
    for number, line in enumerate(lines, start=1):
        try:
            yield _DECODER.decode(line)
        except msgspec.MsgspecError as error:
            log.warning("%s: line %d is ignored: %s", path, number, error)
