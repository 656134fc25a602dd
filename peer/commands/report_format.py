"""The report's shape, version 1. docs/report.md says what each field means."""

from __future__ import annotations

from typing import Literal

import msgspec

from peer.commands.faults import FaultKind
from peer.commands.records import Evaluation, JoinedRun, Seconds, WindowCounts

VERSION = 1
Exit = Literal["finished", "left", "killed", "failed"]
SummaryState = Literal["whole", "old", "missing"]
RecordState = Literal["whole", "incomplete", "missing"]


class FragmentEntry(msgspec.Struct, frozen=True):
    """One fragment: its parameters' number and names, and its offset in swarm steps."""

    index: int
    parameters: int
    offset: int
    names: tuple[str, ...]


class ModelEntry(msgspec.Struct, frozen=True):
    """The model; `chunks` is the number of chunks of all fragments together."""

    parameters: int
    fragments: tuple[FragmentEntry, ...]
    chunks: int


class FilesEntry(msgspec.Struct, frozen=True):
    """What a peer left behind; without a swarm there are no records."""

    summary: SummaryState
    record: RecordState | None


class PeerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One peer. Losses in nats per token."""

    index: int
    peer_id: str
    exit: Exit
    lives: int
    inner_steps: int
    tokens: int
    train_loss_first: float | None
    train_loss_last: float | None
    windows: WindowCounts
    bytes_sent: int
    bytes_received: int
    seconds: Seconds
    utilization: float | None
    outer_digest: str | None
    files: FilesEntry
    joined: JoinedRun | None = None


class Contributor(msgspec.Struct, frozen=True):
    """A peer that is in `chunks` of a window's links, with `tokens` in each of them at least."""

    peer: int
    tokens: int
    chunks: int


class ChunkCounts(msgspec.Struct, frozen=True):
    """What became of a window's chunks."""

    total: int
    committed: int
    failed_over: int
    missing: int


class Skip(msgspec.Struct, frozen=True):
    """How many of a window's chunks a peer did not mix, and why."""

    peer: int
    chunks: int
    reason: str


class WindowEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One window. Peers are indices."""

    fragment: int
    step: int
    contributors: tuple[Contributor, ...]
    chunks: ChunkCounts
    merged_by: tuple[int, ...]
    skipped_by: tuple[Skip, ...]


class TrafficEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of the whole swarm, as sent, and what they compare with."""

    payload_bytes: int
    bytes_on_wire: int
    formula_bytes: int
    overhead: float | None
    repaired_links: int
    repair_bytes: int
    dht_bytes: int | None
    data_parallel_bytes: int
    reduction: float | None
    peak_window_bytes: int
    peak_reduction: float | None


class FaultEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that was asked for, and when it really happened, in seconds since the first peer was started."""

    kind: FaultKind
    peer: int | None
    groups: tuple[tuple[int, ...], ...] | None
    step: int
    at_step: int | None
    at: float | None
    ended: float | None


class LinkEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The emulated link of a peer; `peer` is None for the bootstrap server. Latency in seconds, one way."""

    peer: int | None
    mbit: float | None
    latency: float
    loss: float
    bytes_up: int
    bytes_down: int
    accepted: int
    refused: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a local swarm did."""

    report: int = VERSION
    run: str
    manifest: dict[str, dict[str, object]]
    model: ModelEntry
    peers: tuple[PeerEntry, ...]
    faults: tuple[FaultEntry, ...]
    links: tuple[LinkEntry, ...]
    windows: tuple[WindowEntry, ...]
    evaluation: Evaluation
    traffic: TrafficEntry
