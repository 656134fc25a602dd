"""A swarm of real processes on this machine: started, watched, hurt on purpose, and ended.

One task a peer starts it when it is due, reads its JSON lines, shows them, and starts it again if that is asked for. A
watchdog ends a swarm in which nobody gets anywhere. Whatever happens, no process is left.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peer import clock
from peer.commands.fault_runner import FaultRunner
from peer.commands.faults import Fault, Partition, PeerFault
from peer.commands.processes import Child
from peer.commands.records import clear
from peer.commands.report import Outcome
from peer.commands.report_format import FaultEntry, LinkEntry
from peer.commands.swarm_links import SwarmLinks
from peer.commands.swarm_peer import PeerState
from peer.commands.swarm_plan import SwarmPlan
from peer.console import Console, PeerRow
from peer.exit_codes import MISTAKE
from peer.links.table import ENTRY
from protocol.errors import UserError

STALL_SECONDS = 120.0
"""A swarm in which nobody makes a step for so long is ended."""
START_SECONDS = 240.0
"""The same before the first step: importing and gathering takes long where many peers share few cores."""
READY_SECONDS = 60.0
_LOOK_EVERY = 0.1
_ROW_FIELDS = tuple(name for name in PeerRow.__dataclass_fields__ if name != "peer")


class SwarmFailed(Exception):
    """The swarm could not go on; the sentence says why."""


class LocalSwarm:
    """Runs a plan once: `await LocalSwarm(plan, console).run()`, then `outcomes()`."""

    def __init__(self, plan: SwarmPlan, console: Console, *, seed: int = 0) -> None:
        self.peers = [PeerState(index, plan.folder(index)) for index in range(plan.num_peers)]
        self.link_entries: tuple[LinkEntry, ...] = ()
        """What went through the emulated links, known at the end; empty without any."""
        self._plan = plan
        self._console = console
        self._children: list[Child] = []
        self._progress = clock.monotonic()
        self._width = len(str(plan.num_peers - 1))
        self._reached = 0
        """The greatest swarm step that anybody told."""
        self._join: list[str] = []
        self._links = SwarmLinks(plan.faults, plan.num_peers, seed) if plan.faults.need_proxies else None
        self._faults = FaultRunner(plan.faults, self._links, console.event, self._label)

    async def run(self) -> None:
        """Until every peer has ended. SwarmFailed if the swarm cannot go on; UserError if a peer calls it a mistake."""
        try:
            if not self._plan.local_only:
                self._join = await self._start_bootstrap()
            self._faults.begin()
            await self._watch()
        finally:
            await self._stop_all()

    def outcomes(self) -> list[Outcome]:
        """How each peer ended that was ever started, in order."""
        return [
            Outcome(
                index=peer.index,
                folder=peer.folder,
                peer_id=peer.peer_id,
                exit=peer.exit,
                last_step=peer.step,
                lives=tuple(peer.lives),
                incomplete=peer.incomplete,
            )
            for peer in self.peers
            if peer.child is not None
        ]

    @property
    def reached(self) -> int:
        """The greatest swarm step that anybody told."""
        return self._reached

    def inflict(self, fault: PeerFault | Partition) -> bool:
        """Do a fault now, whatever its step. False if its peer is frozen, gone or ending."""
        peer = None if isinstance(fault, Partition) else self.peers[fault.peer]
        return self._faults.inflict(fault, peer, self._reached)

    def faults_left(self) -> list[Fault]:
        """What never became due, because its peer, or everyone, had ended before."""
        return self._faults.left

    def fault_entries(self) -> list[FaultEntry]:
        """Every fault and when it happened, for the report."""
        return [
            FaultEntry(
                kind=one.fault.kind,
                peer=None if isinstance(one.fault, Partition) else one.fault.peer,
                groups=one.fault.groups if isinstance(one.fault, Partition) else None,
                step=one.fault.step,
                at_step=one.at_step,
                at=one.at,
                ended=one.ended,
            )
            for one in self._faults.log
        ]

    # Starting and ending

    async def _start_bootstrap(self) -> list[str]:
        link = self._links.flags(ENTRY) if self._links else []
        child = await self._start("bootstrap", self._plan.bootstrap_arguments(link), self._plan.out / "bootstrap")
        if self._links:
            self._links.started(ENTRY, child.pid)
        try:
            async with asyncio.timeout(READY_SECONDS):
                async for event in child.events():
                    if event.get("event") == "ready":
                        return list(event["addresses"])
        except TimeoutError:
            raise SwarmFailed(f"The bootstrap server was not ready within {READY_SECONDS:g} s.") from None
        await child.wait()
        raise _no_start("The bootstrap server", child)

    async def _start_life(self, peer: PeerState) -> Child:
        if not peer.lives:
            clear(peer.folder)
        link = self._links.flags(peer.index) if self._links else []
        arguments = self._plan.peer_arguments(peer.index, self._join, link)
        child = await self._start(self._label(peer.index), arguments, peer.folder, again=bool(peer.lives))
        if self._links:
            self._links.started(peer.index, child.pid)
        peer.begin_life(child)
        self._progress = clock.monotonic()
        return child

    async def _start(self, name: str, arguments: Sequence[str], folder: Path, *, again: bool = False) -> Child:
        child = await Child.start(name, arguments, folder / "stderr.log", again=again)
        self._children.append(child)
        return child

    async def _stop_all(self) -> None:
        try:
            await self._faults.close()
            await asyncio.gather(*(child.stop() for child in self._children))
        finally:
            for child in self._children:  # a second Ctrl-C comes here
                if child.returncode is None:
                    child.signal_group(signal.SIGKILL)
            if self._links:
                self.link_entries = self._links.entries()
                self._links.close()

    # Watching

    async def _watch(self) -> None:
        self._progress = clock.monotonic()
        lives = [asyncio.create_task(self._live(peer)) for peer in self.peers]
        everyone = asyncio.gather(*lives)
        watchdog = asyncio.create_task(self._watchdog())
        ends: set[asyncio.Future[Any]] = {everyone, watchdog}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            await (watchdog if watchdog.done() else everyone)
        finally:
            for task in (*lives, watchdog):
                task.cancel()
            await asyncio.gather(*lives, everyone, watchdog, return_exceptions=True)

    async def _live(self, peer: PeerState) -> None:
        """All lives of a peer, from when it is due."""
        try:
            join = self._plan.faults.join_of(peer.index)
            if join and not await self._comes_to(join.step):
                return
            if join:
                self._faults.joins(join, self._reached)
            while True:
                await self._follow(peer, await self._start_life(peer))
                if not peer.returning:
                    return
                await asyncio.sleep(peer.returning.seconds)
        finally:
            peer.over = True

    async def _comes_to(self, step: int) -> bool:
        """Wait until the swarm has reached a step. False if everyone who could reach it has ended."""
        while self._reached < step:
            late = {join.peer for join in self._plan.faults.joins}
            if all(peer.over or (peer.index in late and not peer.lives) for peer in self.peers):
                return False
            await asyncio.sleep(_LOOK_EVERY)
        return True

    async def _follow(self, peer: PeerState, child: Child) -> None:
        async for event in child.events():
            self._take(peer, event)
        await child.wait()
        if not (peer.killed or peer.returning or peer.left or peer.succeeded):
            self._failed(peer, child)

    def _failed(self, peer: PeerState, child: Child) -> None:
        label = self._label(peer.index)
        if not self._reached:
            raise _no_start(label, child, "Nobody had trained yet, and the others would wait for it.")
        self._console.event(f"{label} failed with exit code {child.returncode}.\n{child.last_words()}".rstrip())

    def _take(self, peer: PeerState, event: dict[str, Any]) -> None:
        match event.get("event"):
            case "start":
                peer.peer_id, peer.started = str(event["peer_id"]), True
                self._progress = clock.monotonic()
            case "row":
                self._take_row(peer, event)
            case "notice":
                self._console.event(f"{self._label(peer.index)}: {event['text']}")
            case "incomplete":
                peer.incomplete = True
            case "end":
                peer.finished, peer.ended_itself = event["exit"] == "finished", True
                self._progress = clock.monotonic()

    def _take_row(self, peer: PeerState, event: dict[str, Any]) -> None:
        if event["inner_step"] > peer.inner_step:
            self._progress = clock.monotonic()
        peer.step, peer.inner_step = event["step"], event["inner_step"]
        self._reached = max(self._reached, peer.step)
        self._note_life(peer)
        values = {name: event[name] for name in _ROW_FIELDS if name in event}
        self._console.update(PeerRow(peer=self._label(peer.index), **values))
        self._faults.on_step(peer, self._reached)

    def _note_life(self, peer: PeerState) -> None:
        life = peer.lives[-1]
        life.last_step = peer.step
        if life.since is None:
            late = len(peer.lives) > 1 or self._plan.faults.join_of(peer.index)
            life.since = self._reached if late else 0
            if late:
                self._faults.trains(peer)

    async def _watchdog(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            paused = any(peer.frozen or peer.returning for peer in self.peers)
            limit = STALL_SECONDS if self._reached else START_SECONDS
            if paused:
                self._progress = clock.monotonic()
            elif clock.monotonic() - self._progress > limit:
                what = "made a step" if self._reached else "came to its first step"
                where = "; ".join(f"{self._label(peer.index)} {peer.whereabouts}" for peer in self.peers)
                raise SwarmFailed(
                    f"No peer {what} within {limit:g} s, so the swarm was stopped ({where}). "
                    f"What they had to say is in {self.peers[0].folder / 'stderr.log'} and beside it."
                )

    def _label(self, index: int) -> str:
        return f"peer {index:>{self._width}}"


def _no_start(name: str, child: Child, more: str = "") -> SwarmFailed | UserError:
    """Why a swarm did not come to its start, in the child's words: its failure, or a mistake of the user's."""
    words = child.last_words()
    if child.returncode == MISTAKE:
        return UserError(f"{name}: {words.rpartition('potluck: ')[2]}")
    return SwarmFailed(f"{name} failed with exit code {child.returncode}.\n{words}\n{more}".rstrip())
