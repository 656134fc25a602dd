"""`potluck swarm`: a manifest from flags, a local swarm of it, and a report."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType

from peer.commands.fault_flags import parse_faults
from peer.commands.faults import Faults, Join, Partition
from peer.commands.local_swarm import LocalSwarm, SwarmFailed
from peer.commands.manifests import seal_with, with_model
from peer.commands.options import SwarmOptions
from peer.commands.places import check_report_place, usable_folder
from peer.commands.report import assemble, model_shape, write_report
from peer.commands.report_text import needs_text, report_text
from peer.commands.swarm_plan import SwarmPlan
from peer.console import Console
from peer.exit_codes import DONE, FAILED, NO_READER, after
from peer.manifest_file import read_manifest
from peer.output import complain, write_line
from peer.screen import broken, width_of
from peer.signals import ending, handled
from protocol.errors import UserError
from protocol.manifest import Manifest, changed
from protocol.manifest_toml import dumps
from protocol.presets import PRESETS


def run_swarm(options: SwarmOptions) -> int:
    """Run a whole local swarm and report it; the exit code. UserError for flags that do not make one."""
    manifest = swarm_manifest(options)
    faults = _faults(options, manifest)
    if options.report:
        check_report_place(options.report, options.out)
    manifest = seal_with(manifest, options.data)
    out = _make_out(options.out)  # last, so that a mistake leaves no directory behind
    path = out / "manifest.toml"
    path.write_text(dumps(manifest), encoding="utf-8")
    plan = SwarmPlan(
        out=out,
        manifest=path,
        num_peers=options.peers,
        data=options.data or (manifest.data.name if options.manifest is None else None),
        lockstep=options.lockstep,
        local_only=options.local_only,
        snapshot_every=options.snapshot_every,
        snapshots_kept=options.snapshots_kept,
        faults=faults,
    )
    if options.lockstep:
        _fix_identities(plan, manifest)
    if options.local_only and (idle := _without_effect(options)):
        _say(f"With --local-only there are no windows: {', '.join(idle)} have no effect.")
    _say(needs_text(manifest, model_shape(manifest), plan))
    return _run_and_report(plan, manifest, options.report or out / "report.json")


def _say(text: str) -> None:
    write_line(sys.stdout, broken(text, width_of(sys.stdout)))


def swarm_manifest(options: SwarmOptions) -> Manifest:
    """The manifest that the flags ask for, not yet sealed: the given one or the demo's, with the flags over it."""
    least = (("peers", options.peers, 1), ("snapshot-every", options.snapshot_every, 0))
    for name, value, smallest in (*least, ("snapshots-kept", options.snapshots_kept, 1)):
        if value is not None and value < smallest:
            raise UserError.field(f"--{name}", value, f"must be at least {smallest}")
    manifest = read_manifest(options.manifest) if options.manifest else PRESETS["demo"]
    manifest = with_model(manifest, options.model) if options.model else manifest
    flags = {
        "run.start_peers": max(1, options.peers - len(options.join)),
        "run.steps": options.steps,
        "run.seed": options.seed,
        "schedule.sync_every": options.sync_every,
        "schedule.overlap": options.overlap,
        "schedule.fragments": options.fragments,
        "merge.mixing": options.mixing,
        "codec.contributions": options.codec,
        "codec.results": options.codec,
    }
    given: dict[str, object] = {name: value for name, value in flags.items() if value is not None}
    return changed(manifest, given)


def _without_effect(options: SwarmOptions) -> list[str]:
    """The flags given that only mean something in a swarm."""
    names = ("sync_every", "overlap", "mixing", "fragments", "codec")
    given = [name for name in names if getattr(options, name) is not None]
    given += [name for name in ("partition", "bandwidth", "latency", "loss") if getattr(options, name)]
    return [f"--{name.replace('_', '-')}" for name in [*given, *(["lockstep"] if options.lockstep else [])]]


def _faults(options: SwarmOptions, manifest: Manifest) -> Faults:
    faults = parse_faults(
        kill=options.kill,
        freeze=options.freeze,
        slow=options.slow,
        leave=options.leave,
        restart=options.restart,
        join=options.join,
        partition=options.partition,
        bandwidth=options.bandwidth,
        latency=options.latency,
        loss=options.loss,
        num_peers=options.peers,
        steps=manifest.run.steps,
    )
    for fault in faults.events() if options.lockstep else []:
        if fault.kind != "freeze":
            raise UserError(f"--lockstep: everyone waits for everyone, so a swarm with --{fault.kind} would not end")
    return replace(faults, partitions=(), links=()) if options.local_only else faults


def _make_out(out: Path | None) -> Path:
    """The run's directory, made. Without one given, the first of runs/swarm-001, runs/swarm-002, … that is free."""
    if out is not None:
        return usable_folder("--out", out)
    for number in range(1, 100_000):
        candidate = usable_folder("--out", Path("runs")) / f"swarm-{number:03d}"
        with contextlib.suppress(FileExistsError):
            candidate.mkdir()
            return candidate
    raise UserError("runs/: is full; give --out")


def _fix_identities(plan: SwarmPlan, manifest: Manifest) -> None:
    """Give each peer an identity that follows from seed and number: contributions are summed in the order of keys.

    Anyone can compute these keys. They are for a swarm on one machine, behind the loopback address.
    """
    from bootstrap.identity import Identity

    for index in range(plan.num_peers):
        seed = hashlib.sha256(f"potluck lockstep {manifest.run.seed} {index}".encode()).digest()
        identity = Identity.from_seed(seed)
        path = plan.folder(index) / "identity"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(bytes([0x08, 0x01, 0x12, 0x40]) + identity.private + identity.key)  # libp2p's PrivateKey


def _run_and_report(plan: SwarmPlan, manifest: Manifest, path: Path) -> int:
    console = Console()
    swarm = LocalSwarm(plan, console, seed=manifest.run.seed)
    signals = _Signals()
    failure, code = "", DONE
    with handled(ending(), signals.take):
        try:
            with console:
                asyncio.run(_until_signal(swarm, signals))
        except SwarmFailed as error:
            failure, code = str(error), FAILED
        except BrokenPipeError:
            code = NO_READER
        except (KeyboardInterrupt, asyncio.CancelledError):
            failure, code = "Interrupted.", after(signals.first)
        happened = swarm.outcomes(), swarm.fault_entries(), swarm.link_entries
        report = assemble(manifest, model_shape(manifest), *happened, in_swarm=not plan.local_only)
        if report.peers and all(peer.exit == "finished" for peer in report.peers):
            failure, code = "", DONE  # whatever came then came too late to break anything off
        try:
            write_line(sys.stdout, report_text(report, path, width_of(sys.stdout)))
            for problem in _problems(swarm, failure):
                complain(problem)
        finally:
            write_report(report, path)  # last: on a full disk the words above are all there is
    digests = {peer.outer_digest for peer in report.peers if peer.outer_digest}
    if code == DONE and (any(peer.exit == "failed" for peer in report.peers) or len(digests) > 1):
        code = FAILED
    return code


def _problems(swarm: LocalSwarm, failure: str) -> Iterator[str]:
    if failure:
        yield failure
        return
    for fault in swarm.faults_left():
        who = "everyone" if isinstance(fault, Partition | Join) else f"peer {fault.peer}"
        yield f"--{fault.kind}: never happened, {who} had ended before step {fault.step}"


class _Signals:
    """SIGTERM, Ctrl-C and a closed terminal, from the start of a swarm until its report is written.

    Handlers of the event loop's own would be gone before the report is.
    """

    def __init__(self) -> None:
        self.first = signal.SIGINT
        """The signal that stopped the swarm."""
        self.stop: Callable[[], object] | None = None
        """What a signal does; nothing while the report is written, which takes a moment."""
        self.came = False

    def take(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        if not self.came:
            self.first = signal.Signals(number)
        self.came = True
        if self.stop:
            self.stop()


async def _until_signal(swarm: LocalSwarm, signals: _Signals) -> None:
    """Run it. A signal ends it in order: the peers are stopped before we are. A second one ends it at once."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    signals.stop = lambda: loop.call_soon_threadsafe(task.cancel)
    if signals.came:  # before there was anything to stop
        signals.stop()
    try:
        await swarm.run()
    finally:
        signals.stop = None
