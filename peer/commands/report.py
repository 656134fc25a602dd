"""Puts the report of a local swarm together from what its peers left, killed ones included, and writes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import msgspec

from peer.commands.records import Evaluation, Summary, read_record, read_summary
from peer.commands.report_files import GAPS, files_entry
from peer.commands.report_format import (
    Exit,
    FaultEntry,
    FilesEntry,
    FragmentEntry,
    LinkEntry,
    ModelEntry,
    PeerEntry,
    Report,
)
from peer.commands.report_traffic import traffic_entry
from peer.commands.report_windows import Span, account, window_entries
from peer.disk import write_atomically
from protocol.manifest import Manifest, fields, run_id


@dataclass(frozen=True)
class ModelShape:
    """The model as the report shows it, and the fragment of each chunk."""

    entry: ModelEntry
    fragment_of: tuple[int, ...]


@dataclass
class Life:
    """One process of a peer, in swarm steps: how far the swarm was at its first step, and its own last step."""

    since: int | None = 0
    """None: it has not made a step."""
    last_step: int = 0


@dataclass(frozen=True)
class Outcome:
    """How one peer ended, as its parent saw it. `last_step` is the last swarm step that it reported.

    `incomplete` says that the peer could not write all of its files, by its own words.
    """

    index: int
    folder: Path
    peer_id: str
    exit: Exit
    last_step: int
    lives: tuple[Life, ...] = ()
    """Empty: one, from the start to `last_step`."""
    incomplete: bool = False


def assemble(
    manifest: Manifest,
    model: ModelShape,
    outcomes: Sequence[Outcome],
    faults: Sequence[FaultEntry] = (),
    links: Sequence[LinkEntry] = (),
    *,
    in_swarm: bool = True,
) -> Report:
    """The report of a swarm whose peers have all ended. Without a swarm, peers have nothing to record."""
    found = [read_summary(outcome.folder) for outcome in outcomes]
    summaries = [one or Summary(peer_id=outcome.peer_id) for outcome, one in zip(outcomes, found, strict=True)]
    records = [read_record(outcome.folder) for outcome in outcomes]
    files = [
        files_entry(outcome.exit, summary, record, refused=outcome.incomplete, in_swarm=in_swarm)
        for outcome, summary, record in zip(outcomes, found, records, strict=True)
    ]
    accounts = [
        account(o.index, summary.peer_id, o.exit, _spans(o), record.events, gaps=entry.record in GAPS)
        for o, summary, record, entry in zip(outcomes, summaries, records, files, strict=True)
    ]
    return Report(
        run=run_id(manifest).hex(),
        manifest=_nested(manifest),
        model=model.entry,
        peers=tuple(map(_peer_entry, outcomes, summaries, files)),
        faults=tuple(faults),
        links=tuple(links),
        windows=tuple(window_entries(accounts, model.fragment_of)),
        evaluation=_evaluation(outcomes, summaries),
        traffic=traffic_entry(accounts, summaries, model.entry.parameters),
    )


def write_report(report: Report, path: Path) -> None:
    """Write it, in one step, so that nobody ever reads half a report; what is no file (a pipe, /dev/null) as it is."""
    text = msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
    else:
        write_atomically(path.resolve(), text)


def model_shape(manifest: Manifest) -> ModelShape:
    """The shape of a manifest's model, without allocating it."""
    import torch

    from peer.models import Decoder, preset
    from peer.sealing import chunks_of, layout_of
    from protocol.manifest import schedule_of

    with torch.device("meta"):
        layout = layout_of(manifest, Decoder(preset(manifest.model.name)))
    chunks = chunks_of(manifest, layout)
    offsets = schedule_of(manifest).offsets
    parts = tuple(FragmentEntry(part.index, part.numel, offsets[part.index], part.names) for part in layout.fragments)
    return ModelShape(ModelEntry(layout.numel, parts, len(chunks)), tuple(chunk.fragment for chunk in chunks))


def _peer_entry(outcome: Outcome, summary: Summary, files: FilesEntry) -> PeerEntry:
    return PeerEntry(
        index=outcome.index,
        peer_id=summary.peer_id or outcome.peer_id,
        exit=outcome.exit,
        lives=max(1, len(outcome.lives)),
        inner_steps=summary.inner_steps,
        tokens=summary.tokens,
        train_loss_first=summary.train_loss_first,
        train_loss_last=summary.train_loss_last,
        windows=summary.windows,
        bytes_sent=summary.bytes_sent,
        bytes_received=summary.bytes_received,
        seconds=summary.seconds,
        utilization=summary.utilization,
        outer_digest=summary.outer_digest,
        files=files,
        joined=summary.joined,
    )


def _spans(outcome: Outcome) -> tuple[Span, ...]:
    """When the peer was there. One that finished was until the end."""
    lives = outcome.lives or (Life(0, outcome.last_step),)
    spans = [Span(life.since, float(life.last_step)) for life in lives if life.since is not None]
    if outcome.exit == "finished" and spans:
        spans[-1] = Span(spans[-1].first, math.inf)
    return tuple(spans)


def _evaluation(outcomes: Sequence[Outcome], summaries: Sequence[Summary]) -> Evaluation:
    """The mean of those that evaluated. In a swarm their outer parameters are the same, and so are their losses.

    What the loss was before the first step is said by those who were there then.
    """
    first = [s for o, s in zip(outcomes, summaries, strict=True) if not o.lives or o.lives[0].since == 0]
    starts = [s.evaluation.outer_loss_start for s in first if s.evaluation.outer_loss_start is not None]
    ends = [s.evaluation.outer_loss_end for s in summaries if s.evaluation.outer_loss_end is not None]
    return Evaluation(fmean(starts) if starts else None, fmean(ends) if ends else None)


def _nested(manifest: Manifest) -> dict[str, dict[str, object]]:
    nested: dict[str, dict[str, object]] = {}
    for name, value in fields(manifest):
        section, key = name.split(".")
        nested.setdefault(section, {})[key] = list(value) if isinstance(value, tuple) else value
    return nested
