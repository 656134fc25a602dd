"""What a local swarm says to people: what it is about to do, and at the end what was averaged and what that saved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.table import Table

from peer.commands.report import ModelShape
from peer.commands.report_files import about_files
from peer.commands.report_format import FaultEntry, PeerEntry, Report
from peer.commands.swarm_plan import SwarmPlan
from peer.quantities import announce_needs, format_bytes, format_count
from peer.screen import Column, broken, fitting, rendered
from protocol.manifest import Manifest, run_id

_COLUMNS: Final = (
    Column("peer", left=True),
    Column("end", left=True),
    Column("steps"),
    Column("loss"),
    Column("merged"),
    Column("late", drop=1),
    Column("skipped", drop=2),
    Column("sent", drop=6),
    Column("received", drop=7),
    Column("waited", drop=4),
    Column("utilization", drop=5),
    Column("digest", drop=3, left=True),
)


def needs_text(manifest: Manifest, shape: ModelShape, plan: SwarmPlan) -> str:
    """What is going to happen, and what each peer and this machine need for it."""
    model, schedule = shape.entry, manifest.schedule
    largest = max(fragment.parameters for fragment in model.fragments)
    entry = "no swarm" if plan.local_only else "a bootstrap server"
    lines = [
        f"Run {manifest.run.name} {run_id(manifest).hex()[:12]}: {plan.num_peers} peers and {entry} on this machine, "
        f"{manifest.run.steps} steps of the model {manifest.model.name} on {manifest.data.name}.",
        f"{schedule.fragments} fragments in {model.chunks} chunks, each averaged every {schedule.sync_every} steps and "
        f"merged {schedule.overlap} steps later with α = {manifest.merge.mixing:g}."
        if not plan.local_only
        else "Nothing is averaged.",
        f"Everything that the processes write is in {plan.out}.",
    ]
    sent = 0 if plan.local_only else round(_packed(manifest, shape) * 2 * (plan.num_peers - 1) / plan.num_peers)
    needs = announce_needs(
        parameters=model.parameters, largest_fragment=largest, sent_per_round=sent, received_per_round=sent
    )
    return "\n".join([*lines, needs.replace("This run needs", "Each peer needs")])


def _packed(manifest: Manifest, shape: ModelShape) -> float:
    """Mean bytes of one model's contributions and of its results, packed."""
    sizes = {"e3m0": 0.5 + 1 / manifest.codec.block, "fp32": 4.0}
    return shape.entry.parameters * (sizes[manifest.codec.contributions] + sizes[manifest.codec.results]) / 2


def report_text(report: Report, path: Path, width: int | None = None) -> str:
    """The final table, and the report in a few sentences, for a terminal of `width` cells; None for a file or pipe."""
    sentences = "\n".join([*_sentences(report), f"The report is in {path}."])
    return f"{rendered(_table(report, width), width)}\n{broken(sentences, width)}"


def _table(report: Report, width: int | None) -> Table:
    return fitting(_COLUMNS, [_cells(peer) for peer in report.peers], width)


def _cells(peer: PeerEntry) -> tuple[str, ...]:
    return (
        str(peer.index),
        peer.exit,
        str(peer.inner_steps),
        "-" if peer.train_loss_last is None else f"{peer.train_loss_last:.3f}",
        str(peer.windows.merged),
        str(peer.windows.late),
        str(peer.windows.skipped),
        format_bytes(peer.bytes_sent),
        format_bytes(peer.bytes_received),
        f"{peer.seconds.waiting:.2f} s",
        "-" if peer.utilization is None else f"{peer.utilization:.1%}",
        (peer.outer_digest or "-")[:12],
    )


def _sentences(report: Report) -> Iterator[str]:
    yield from map(_about_fault, report.faults)
    yield from about_files(report.peers)
    yield from _about_loss(report)
    if report.windows:
        yield from _about_windows(report)
        yield from _about_traffic(report)


def _about_fault(fault: FaultEntry) -> str:
    """One line. What never happened is said elsewhere too: it is the user's mistake."""
    if fault.at is None:
        return f"--{fault.kind} at step {fault.step} never happened."
    when = f"at step {fault.at_step}, {fault.at:.1f} s after the start"
    who = f"Peer {fault.peer}"
    after = None if fault.ended is None else f"{fault.ended - fault.at:.1f} s"
    match fault.kind:
        case "kill":
            return f"{who} was killed {when}."
        case "leave":
            return f"{who} was told to leave {when}."
        case "freeze":
            return f"{who} was frozen {when}, " + (f"for {after}." if after else "until the end.")
        case "restart":
            return f"{who} was killed {when}; started again, it " + _trained(after)
        case "join":
            return f"{who} was started {when}; it " + _trained(after)
        case "partition":
            groups = " | ".join(", ".join(map(str, group)) for group in fault.groups or ())
            return f"Peers {groups} were cut off from each other {when}, " + (
                f"for {after}." if after else "to the end."
            )


def _trained(after: str | None) -> str:
    return f"made its first step {after} after that." if after else "never made a step."


def _about_loss(report: Report) -> Iterator[str]:
    start, end = report.evaluation.outer_loss_start, report.evaluation.outer_loss_end
    if start is not None and end is not None:
        of = "the outer parameters" if report.windows else "the local parameters"
        yield f"Held-out loss of {of}: {start:.3f} at the start, {end:.3f} at the end (nats per token)."
    digests = [peer.outer_digest for peer in report.peers if peer.exit == "finished" and peer.outer_digest]
    if len(digests) > 1:
        same = len(set(digests)) == 1
        yield (
            f"The outer parameters of all {len(digests)} peers that finished are equal to the bit."
            if same
            else f"THE OUTER PARAMETERS DIFFER: {len(set(digests))} versions at {len(digests)} peers."
        )


def _about_windows(report: Report) -> Iterator[str]:
    total = sum(window.chunks.total for window in report.windows)
    committed = sum(window.chunks.committed for window in report.windows)
    over = sum(window.chunks.failed_over for window in report.windows)
    whole = sum(not window.skipped_by and not window.chunks.missing for window in report.windows)
    yield (
        f"{len(report.windows)} windows, {whole} of them merged whole by everyone; "
        f"{committed} of {total} chunks averaged, {over} of these by a stand-in."
    )


def _about_traffic(report: Report) -> Iterator[str]:
    traffic = report.traffic
    if traffic.overhead is not None:
        yield (
            f"{format_bytes(traffic.bytes_on_wire)} were sent for windows, {traffic.overhead:.3f} times the formula, "
            f"and {format_bytes(traffic.repair_bytes)} for repairs."
        )
    if traffic.reduction is not None and traffic.data_parallel_bytes:
        yield (
            f"Synchronous data parallel training in bf16 would have sent {format_bytes(traffic.data_parallel_bytes)}: "
            f"{format_count(traffic.reduction)} times as much. Its peak, one exchange of the whole model, would have "
            f"been {traffic.peak_reduction or 0:.1f} times that of our largest window, "
            f"{format_bytes(traffic.peak_window_bytes)}."
        )
