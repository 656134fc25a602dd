"""A swarm of real processes on this machine: started, watched, hurt on purpose, and ended.

One task reads each peer's JSON lines, shows them, and does the faults that they are due for. A watchdog ends a swarm in
which nobody gets anywhere. Whatever happens, no process is left.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer import clock
from peer.commands.faults import Freeze, Kill
from peer.commands.processes import Child
from peer.commands.records import RECORD, SUMMARY, read_summary
from peer.commands.report import Outcome
from peer.commands.swarm_plan import SwarmPlan
from peer.console import Console, PeerRow
from peer.exit_codes import DONE, MISTAKE, TERMINATED
from protocol.errors import UserError

STALL_SECONDS = 120.0
"""A swarm in which nobody makes a step for so long is ended."""
START_SECONDS = 240.0
"""The same before the first step: importing and gathering takes long where many peers share few cores."""
READY_SECONDS = 60.0
_ENDED_WELL = (DONE, TERMINATED, -signal.SIGTERM)
"""Exit codes of a peer that has said that it finished. Our own SIGTERM may reach it while it tidies up."""
_ROW_FIELDS = tuple(name for name in PeerRow.__dataclass_fields__ if name != "peer")


class SwarmFailed(Exception):
    """The swarm could not go on; the sentence says why."""


@dataclass
class PeerState:
    """One peer as its parent sees it."""

    index: int
    child: Child
    peer_id: str = ""
    step: int = 0
    inner_step: int = 0
    finished: bool = False
    killed: bool = False
    frozen: bool = False
    incomplete: bool = False
    """It could not write all of its files, by its own words."""
    faults_done: set[Kill | Freeze] = field(default_factory=set)


class LocalSwarm:
    """Runs a plan once: `await LocalSwarm(plan, console).run()`, then `outcomes()`."""

    def __init__(self, plan: SwarmPlan, console: Console) -> None:
        self.peers: list[PeerState] = []
        self._plan = plan
        self._console = console
        self._children: list[Child] = []
        self._thaws: set[asyncio.Task[None]] = set()
        self._progress = clock.monotonic()
        self._width = len(str(plan.num_peers - 1))

    async def run(self) -> None:
        """Until every peer has ended. SwarmFailed if the swarm cannot go on; UserError if a peer calls it a mistake."""
        try:
            join = [] if self._plan.local_only else await self._start_bootstrap()
            await asyncio.gather(*(self._start_peer(index, join) for index in range(self._plan.num_peers)))
            await self._watch()
        finally:
            await self._stop_all()

    def outcomes(self) -> list[Outcome]:
        """How each peer ended, in order."""
        return [
            Outcome(
                index=peer.index,
                folder=self._plan.folder(peer.index),
                peer_id=peer.peer_id,
                exit="killed" if peer.killed else "finished" if self._succeeded(peer) else "failed",
                last_step=peer.step,
                incomplete=peer.incomplete,
            )
            for peer in sorted(self.peers, key=lambda peer: peer.index)
        ]

    def faults_left(self) -> list[Kill | Freeze]:
        """Kills and freezes that never became due, because their peer had ended before."""
        done = {fault for peer in self.peers for fault in peer.faults_done}
        wanted: list[Kill | Freeze] = [*self._plan.faults.kills, *self._plan.faults.freezes]
        return [fault for fault in wanted if fault not in done]

    # Starting and ending

    async def _start_bootstrap(self) -> list[str]:
        child = await self._start("bootstrap", self._plan.bootstrap_arguments(), self._plan.out / "bootstrap")
        try:
            async with asyncio.timeout(READY_SECONDS):
                async for event in child.events():
                    if event.get("event") == "ready":
                        return list(event["addresses"])
        except TimeoutError:
            raise SwarmFailed(f"The bootstrap server was not ready within {READY_SECONDS:g} s.") from None
        await child.wait()
        raise _no_start("The bootstrap server", child)

    async def _start_peer(self, index: int, join: Sequence[str]) -> None:
        folder = self._plan.folder(index)
        for left in (folder / SUMMARY, folder / RECORD, folder / "metrics.jsonl"):
            left.unlink(missing_ok=True)  # of an earlier run in the same directory
        shutil.rmtree(folder / "snapshots", ignore_errors=True)
        child = await self._start(self._label(index), self._plan.peer_arguments(index, join), folder)
        self.peers.append(PeerState(index, child))

    async def _start(self, name: str, arguments: Sequence[str], folder: Path) -> Child:
        child = await Child.start(name, arguments, folder / "stderr.log")
        self._children.append(child)
        return child

    async def _stop_all(self) -> None:
        for task in self._thaws:
            task.cancel()
        try:
            await asyncio.gather(*(child.stop() for child in self._children))
        finally:
            for child in self._children:  # a second Ctrl-C comes here
                if child.returncode is None:
                    child.signal_group(signal.SIGKILL)

    # Watching

    async def _watch(self) -> None:
        self._progress = clock.monotonic()
        everyone = asyncio.create_task(self._follow_all())
        watchdog = asyncio.create_task(self._watchdog())
        try:
            await asyncio.wait({everyone, watchdog}, return_when=asyncio.FIRST_COMPLETED)
            await (watchdog if watchdog.done() else everyone)
        finally:
            everyone.cancel()
            watchdog.cancel()
            await asyncio.gather(everyone, watchdog, return_exceptions=True)

    async def _follow_all(self) -> None:
        await asyncio.gather(*map(self._follow, self.peers))

    async def _follow(self, peer: PeerState) -> None:
        async for event in peer.child.events():
            self._take(peer, event)
        await peer.child.wait()
        if not peer.killed and not self._succeeded(peer):
            self._failed(peer)

    def _failed(self, peer: PeerState) -> None:
        label, words = self._label(peer.index), peer.child.last_words()
        if not any(other.step for other in self.peers):
            raise _no_start(label, peer.child, "Nobody had trained yet, and the others would wait for it.")
        self._console.event(f"{label} failed with exit code {peer.child.returncode}.\n{words}".rstrip())

    def _succeeded(self, peer: PeerState) -> bool:
        if peer.child.returncode not in _ENDED_WELL:
            return False
        # A swarm that was stopped has perhaps not read the peer's last line; the summary was written before it.
        summary = None if peer.finished else read_summary(self._plan.folder(peer.index))
        return peer.finished or (summary is not None and summary.exit == "finished")

    def _take(self, peer: PeerState, event: dict[str, Any]) -> None:
        match event.get("event"):
            case "start":
                peer.peer_id = str(event["peer_id"])
                self._progress = clock.monotonic()
            case "row":
                self._take_row(peer, event)
            case "notice":
                peer.incomplete |= bool(event.get("incomplete"))
                self._console.event(f"{self._label(peer.index)}: {event['text']}")
            case "end":
                peer.finished = event["exit"] == "finished"
                self._progress = clock.monotonic()

    def _take_row(self, peer: PeerState, event: dict[str, Any]) -> None:
        if event["inner_step"] > peer.inner_step:
            self._progress = clock.monotonic()
        peer.step, peer.inner_step = event["step"], event["inner_step"]
        values = {name: event[name] for name in _ROW_FIELDS if name in event}
        self._console.update(PeerRow(peer=self._label(peer.index), **values))
        self._do_faults(peer)

    async def _watchdog(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            frozen = any(peer.frozen for peer in self.peers)
            begun = any(peer.step for peer in self.peers)
            limit = STALL_SECONDS if begun else START_SECONDS
            if frozen:
                self._progress = clock.monotonic()
            elif clock.monotonic() - self._progress > limit:
                what = "made a step" if begun else "came to its first step"
                where = "; ".join(map(self._whereabouts, sorted(self.peers, key=lambda peer: peer.index)))
                raise SwarmFailed(
                    f"No peer {what} within {limit:g} s, so the swarm was stopped ({where}). "
                    f"What they had to say is in {self._plan.folder(0) / 'stderr.log'} and beside it."
                )

    def _whereabouts(self, peer: PeerState) -> str:
        """One peer, for whoever wonders why nothing moves."""
        if peer.killed:
            how = f"was killed at step {peer.step}"
        elif peer.child.returncode is not None:
            how = f"ended with exit code {peer.child.returncode} at step {peer.step}"
        elif peer.finished:
            how = "has finished and serves the others"
        elif peer.step:
            how = f"trains, at step {peer.step}"
        else:
            how = "waits for its first step" if peer.peer_id else "has not come up"
        return f"{self._label(peer.index)} {how}"

    # Faults

    def _do_faults(self, peer: PeerState) -> None:
        for kill in self._plan.faults.kills:
            if kill.peer == peer.index and peer.step >= kill.step and kill not in peer.faults_done:
                peer.faults_done.add(kill)
                peer.killed = True
                peer.child.kill()
                self._console.event(f"{self._label(peer.index)}: killed at step {peer.step}")
        for freeze in self._plan.faults.freezes:
            due = freeze.peer == peer.index and peer.step >= freeze.step and freeze not in peer.faults_done
            if due and not peer.killed and not peer.frozen:
                peer.faults_done.add(freeze)
                self._freeze(peer, freeze.seconds)

    def _freeze(self, peer: PeerState, seconds: float) -> None:
        peer.frozen = True
        peer.child.signal_group(signal.SIGSTOP)
        self._console.event(f"{self._label(peer.index)}: frozen at step {peer.step} for {seconds:g} s")
        task = asyncio.create_task(self._thaw_after(peer, seconds))
        self._thaws.add(task)
        task.add_done_callback(self._thaws.discard)

    async def _thaw_after(self, peer: PeerState, seconds: float) -> None:
        await asyncio.sleep(seconds)
        peer.child.signal_group(signal.SIGCONT)
        peer.frozen = False
        self._console.event(f"{self._label(peer.index)}: goes on")

    def _label(self, index: int) -> str:
        return f"peer {index:>{self._width}}"


def _no_start(name: str, child: Child, more: str = "") -> SwarmFailed | UserError:
    """Why a swarm did not come to its start, in the child's words: its failure, or a mistake of the user's."""
    words = child.last_words()
    if child.returncode == MISTAKE:
        return UserError(f"{name}: {words.rpartition('potluck: ')[2]}")
    return SwarmFailed(f"{name} failed with exit code {child.returncode}.\n{words}\n{more}".rstrip())
