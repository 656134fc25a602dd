"""Hurts a swarm of six real peers for an hour, a fault every 20 seconds, and looks for what goes wrong slowly.

The faults are drawn with a seed: kill -9 and restart, freeze, partition. Peer 0 is never killed, so that its memory can
be followed over the whole time. All peers are behind emulated links (100 Mbit/s, 5 ms), so the proxies are soaked too.
The memory of every process is sampled all the while. The run's length in steps follows from a short run before it,
so the time is only about what was asked for; the last minute is quiet.

    python benchmarks/soak.py [--seconds 3600] [--every 20] [--peers 6] [--slow 3] [--seed 0] [--out FOLDER]

Each peer is slowed down `--slow` times, so that six of them on a laptop leave the processor free for those who start.

Exits with 1 if: a peer that was not hurt at the end did not finish; the outer parameters differ; a window misses
chunks without a reason; a process, a connection or a daemon's socket is left; or a process that lived through the
second half of the time grew by more than 20% and 20 MB in it. `make soak`, with SOAK_SECONDS for a shorter one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median

import psutil

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from peer.commands.fault_flags import parse_faults  # noqa: E402
from peer.commands.faults import Freeze, Partition, PeerFault, Restart  # noqa: E402
from peer.commands.local_swarm import LocalSwarm, SwarmFailed  # noqa: E402
from peer.commands.options import SwarmOptions  # noqa: E402
from peer.commands.report import assemble, model_shape, write_report  # noqa: E402
from peer.commands.report_format import Report  # noqa: E402
from peer.commands.report_text import report_text  # noqa: E402
from peer.commands.swarm import swarm_manifest  # noqa: E402
from peer.commands.swarm_plan import SwarmPlan  # noqa: E402
from peer.console import Console  # noqa: E402
from peer.links.sockets import daemon_sockets  # noqa: E402
from protocol.manifest import Manifest  # noqa: E402
from protocol.manifest_toml import dumps  # noqa: E402

CALIBRATION_STEPS = 40
QUIET_ROUNDS, QUIET_SECONDS = 4, 60.0
"""At the end nothing is done for so long, whichever is more: who was killed last must be back before the others end."""
SAMPLE_EVERY = 5.0
GROWTH, GROWTH_BYTES = 1.2, 20 << 20
MEGABYTE = 1 << 20


@dataclass
class Memory:
    """Resident bytes of one process over time."""

    name: str
    samples: list[tuple[float, int]] = field(default_factory=list)

    def grew(self, begin: float, end: float) -> tuple[int, int] | None:
        """Median in the third and in the last quarter of the time from `begin` to `end`; None if it was not there."""
        half, quarter = begin + (end - begin) / 2, (end - begin) / 4
        third = [size for at, size in self.samples if half <= at < half + quarter]
        last = [size for at, size in self.samples if at >= half + quarter]
        there = self.samples[0][0] <= half and self.samples[-1][0] >= end - quarter / 2
        return (round(median(third)), round(median(last))) if there and third and last else None


class Sampler:
    """Takes the memory of this process and of all that it started, until it is cancelled."""

    def __init__(self) -> None:
        self.memories: dict[tuple[int, float], Memory] = {}
        self.sockets: set[Path] = set()
        """Files of the sockets between peers and their daemons, ours and nobody else's."""
        self.begin = self.end = time.monotonic()

    async def run(self) -> None:
        """Sample for ever."""
        while True:
            for process in family():
                with contextlib.suppress(psutil.Error):
                    key = (process.pid, process.create_time())
                    if key not in self.memories:
                        self.memories[key] = Memory(name_of(process))
                    self.sockets.update(daemon_sockets(process.pid))
                    self.memories[key].samples.append((time.monotonic(), process.memory_info().rss))
            self.end = time.monotonic()
            await asyncio.sleep(SAMPLE_EVERY)

    def problems(self) -> Iterator[str]:
        """Who grew."""
        for memory in self.memories.values():
            if grown := memory.grew(self.begin, self.end):
                before, after = grown
                if after > GROWTH * before and after - before > GROWTH_BYTES:
                    yield f"{memory.name} grew from {before / MEGABYTE:.0f} to {after / MEGABYTE:.0f} MB"

    def table(self) -> Iterator[str]:
        """By kind of process: how many, the largest, and those that lived through the second half."""
        kinds: dict[str, list[Memory]] = defaultdict(list)
        for memory in self.memories.values():
            kinds[memory.name].append(memory)
        yield f"{'process':12}  {'lives':>5}  {'most MB':>7}  second half of the time, MB"
        for name, memories in sorted(kinds.items()):
            most = max(size for memory in memories for _, size in memory.samples) / MEGABYTE
            grown = [grown for memory in memories if (grown := memory.grew(self.begin, self.end))]
            lived = ", ".join(f"{a / MEGABYTE:.0f} → {b / MEGABYTE:.0f}" for a, b in grown) or "-"
            yield f"{name:12}  {len(memories):>5}  {most:>7.0f}  {lived}"


def family() -> list[psutil.Process]:
    """This process and everything below it."""
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def name_of(process: psutil.Process) -> str:
    """peer 3, p2pd of peer 3, …"""
    if process.pid == os.getpid():
        return "soak, proxies"
    words = " ".join(process.cmdline())
    whose = next((part for part in words.replace("=", "/").split("/") if part.startswith("peer-")), "bootstrap")
    whose = whose.split()[0]
    return f"p2pd {whose}" if "hivemind_cli" in words else whose


class Hurt:
    """Draws a fault every so often, and does it."""

    def __init__(self, swarm: LocalSwarm, peers: int, every: float, seed: int, until_step: int) -> None:
        self.done = 0
        self._swarm, self._peers, self._every, self._until = swarm, peers, every, until_step
        self._chance = Random(seed)

    async def run(self) -> None:
        """Until the swarm's last quiet rounds."""
        while self._swarm.reached < 1:
            await asyncio.sleep(0.5)
        while self._swarm.reached < self._until:
            await asyncio.sleep(self._every)
            if self._swarm.reached < self._until:
                self._hurt(self._draw())

    def _hurt(self, fault: PeerFault | Partition) -> None:
        """Do it, but not to a peer that has not made a step yet: starting slowly, it would never get to one."""
        if isinstance(fault, Partition) or self._swarm.peers[fault.peer].step:
            self.done += self._swarm.inflict(fault)

    def _draw(self) -> PeerFault | Partition:
        seconds = round(self._chance.uniform(1, 0.75 * self._every), 1)
        match self._chance.choice(("restart", "restart", "freeze", "partition")):
            case "restart":
                return Restart(self._chance.randrange(1, self._peers), self._swarm.reached, seconds)
            case "freeze":
                return Freeze(self._chance.randrange(self._peers), self._swarm.reached, seconds)
            case _:
                order = self._chance.sample(range(self._peers), self._peers)
                cut = self._chance.randrange(1, self._peers)
                groups = (tuple(sorted(order[:cut])), tuple(sorted(order[cut:])))
                return Partition(groups, self._swarm.reached, seconds)


def plan_for(out: Path, options: SwarmOptions, slow: float) -> tuple[SwarmPlan, Manifest]:
    """Six peers behind links."""
    from peer.commands.manifests import seal_with

    manifest = seal_with(swarm_manifest(options), options.data)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "manifest.toml"
    path.write_text(dumps(manifest))
    faults = parse_faults(
        num_peers=options.peers,
        steps=manifest.run.steps,
        bandwidth=("all:100",),
        latency=("all:5",),
        slow=tuple(f"{peer}:{slow:g}" for peer in range(options.peers)) if slow > 1 else (),
    )
    plan = SwarmPlan(out=out, manifest=path, num_peers=options.peers, data=options.data, faults=faults)
    return plan, manifest


async def soak(swarm: LocalSwarm, hurt: Hurt, sampler: Sampler) -> None:
    """Run, hurt and watch. SIGTERM and Ctrl-C stop the peers before us."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    tasks = [asyncio.create_task(hurt.run()), asyncio.create_task(sampler.run())]
    try:
        await swarm.run()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def step_seconds(out: Path, peers: int, data: str, slow: float) -> float:
    """Of a short swarm of the same size: what one swarm step takes on this machine."""
    plan, manifest = plan_for(out, SwarmOptions(peers=peers, steps=CALIBRATION_STEPS, data=data), slow)
    swarm = LocalSwarm(plan, Console())
    asyncio.run(swarm.run())
    report = assemble(manifest, model_shape(manifest), swarm.outcomes())
    return max(peer.seconds.total for peer in report.peers) / CALIBRATION_STEPS


def problems(report: Report, sampler: Sampler) -> Iterator[str]:
    """Everything that is wrong at the end."""
    for peer in report.peers:
        if peer.exit != "finished":
            yield f"peer {peer.index}: {peer.exit}"
    digests = {peer.outer_digest for peer in report.peers if peer.exit == "finished"}
    if len(digests) != 1:
        yield f"{len(digests)} versions of the outer parameters"
    for window in report.windows:
        if window.chunks.missing and not window.skipped_by:
            yield f"window {window.step} of fragment {window.fragment}: {window.chunks.missing} chunks without a reason"
    yield from sampler.problems()
    yield from left_behind(sampler.sockets)


def left_behind(sockets: set[Path]) -> Iterator[str]:
    """What should be gone. A killed peer's daemon ends by itself, within seconds."""
    end = time.monotonic() + 15
    while len(family()) > 1 and time.monotonic() < end:
        time.sleep(0.2)
    yield from (f"process {process.pid} is left: {name_of(process)}" for process in family()[1:])
    yield from (f"connection is left: {one}" for one in psutil.Process().net_connections(kind="tcp"))
    yield from (f"socket is left: {path}" for path in sorted(sockets) if path.exists())


def main() -> None:
    """Calibrate, soak, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--every", type=float, default=20.0)
    parser.add_argument("--peers", type=int, default=6)
    parser.add_argument("--slow", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", default="bible")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    os.environ.setdefault("POTLUCK_BATCH", "2")  # many windows matter here, not how well they train
    with contextlib.ExitStack() as stack:
        out = given.out or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            raise SystemExit(run(out, given))
        except SwarmFailed as error:
            raise SystemExit(f"the short run before the soak failed: {error}") from None


def run(out: Path, given: argparse.Namespace) -> int:
    """The exit code."""
    seconds = step_seconds(out / "calibration", given.peers, given.data, given.slow)
    steps = max(2 * CALIBRATION_STEPS, round((given.seconds + QUIET_SECONDS) / seconds))
    plan, manifest = plan_for(out / "soak", SwarmOptions(peers=given.peers, steps=steps, data=given.data), given.slow)
    print(
        f"{steps} steps, as one takes {seconds:.2f} s; a fault every {given.every:g} s, seed {given.seed}", flush=True
    )
    swarm, sampler = LocalSwarm(plan, Console()), Sampler()
    quiet = max(QUIET_ROUNDS * manifest.schedule.sync_every, round(QUIET_SECONDS / seconds))
    hurt = Hurt(swarm, given.peers, given.every, given.seed, steps - quiet)
    found, began = [], time.monotonic()
    try:
        asyncio.run(soak(swarm, hurt, sampler))
    except SwarmFailed as error:
        found.append(str(error))
    except asyncio.CancelledError:
        found.append("interrupted")
    report = assemble(manifest, model_shape(manifest), swarm.outcomes(), swarm.fault_entries(), swarm.link_entries)
    path = out / "report.json"
    write_report(report, path)
    print(report_text(report, path))
    print("\n".join(sampler.table()))
    found += problems(report, sampler)
    print(json.dumps({"seconds": round(time.monotonic() - began), "faults": hurt.done, "problems": found}, indent=1))
    return 1 if found else 0


if __name__ == "__main__":
    main()
