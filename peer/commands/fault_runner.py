"""Does the faults of a local swarm when they are due, and notes when each of them really happened."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from peer import clock
from peer.commands.faults import Fault, Faults, Freeze, Join, Kill, Leave, Partition, PeerFault, Restart
from peer.commands.processes import Child
from peer.commands.swarm_links import SwarmLinks
from peer.commands.swarm_peer import PeerState

LEAVE_SECONDS = 60.0
"""What a peer may take to leave on a busy machine, before it counts as failed."""


@dataclass
class Happened:
    """One fault, and what became of it. Times are seconds since the first peer was started."""

    fault: Fault
    at: float | None = None
    """None: not yet, or never."""
    at_step: int | None = None
    """The swarm step that the peer, or for a join or a partition anybody, had reached."""
    ended: float | None = None
    """When a peer went on, trained in its new life, or could reach the others again."""


class FaultRunner:
    """Hurts the peers of one swarm. `say` shows a sentence, `label` names a peer."""

    def __init__(
        self, faults: Faults, links: SwarmLinks | None, say: Callable[[str], None], label: Callable[[int], str]
    ) -> None:
        self.log = [Happened(fault) for fault in faults.events()]
        self._links, self._say, self._label = links, say, label
        self._began = clock.monotonic()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """The swarm starts now."""
        self._began = clock.monotonic()

    @property
    def left(self) -> list[Fault]:
        """What never happened."""
        return [one.fault for one in self.log if one.at is None]

    def on_step(self, peer: PeerState, reached: int) -> None:
        """A peer told its step; somebody in the swarm has `reached` a step."""
        for one in self.log:
            if one.at is not None or one.fault.step > max(peer.step, reached):
                continue
            if isinstance(one.fault, Partition):
                self._part(one, one.fault, reached)
            elif not isinstance(one.fault, Join) and one.fault.peer == peer.index and peer.step >= one.fault.step:
                self._hurt(one, one.fault, peer)

    def inflict(self, fault: PeerFault | Partition, peer: PeerState | None, reached: int) -> bool:
        """Do a fault now, whatever its step. False if its peer is not in a state to be hurt."""
        one = Happened(fault)
        if isinstance(fault, Partition):
            self._part(one, fault, reached)
        elif peer is not None:
            self._hurt(one, fault, peer)
        if one.at is not None:
            self.log.append(one)
        return one.at is not None

    def joins(self, join: Join, reached: int) -> None:
        """A peer is started now that the swarm has reached its step."""
        for one in self.log:
            if one.fault == join:
                self._note(one, reached)
        self._say(f"{self._label(join.peer)}: started at step {reached}")

    def trains(self, peer: PeerState) -> None:
        """A peer that came late, or came back, has made a step."""
        for one in self.log:
            coming = isinstance(one.fault, Join | Restart) and one.fault.peer == peer.index
            if coming and one.at is not None and one.ended is None:
                one.ended = self._now()
                self._say(f"{self._label(peer.index)}: trains {one.ended - one.at:.1f} s after that")

    async def close(self) -> None:
        """Nothing more will be hurt."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What is done

    def _hurt(self, one: Happened, fault: PeerFault, peer: PeerState) -> None:
        if peer.frozen or peer.leaving or not peer.running or peer.child is None:
            return  # not now; if it comes back, then
        self._note(one, peer.step)
        match fault:
            case Kill():
                peer.killed = True
                peer.child.kill()
                self._say(f"{self._label(peer.index)}: killed at step {peer.step}")
            case Restart():
                peer.returning = fault
                peer.child.kill()
                self._say(f"{self._label(peer.index)}: killed at step {peer.step}, back in {fault.seconds:g} s")
            case Leave():
                peer.leaving = True
                self._spawn(peer.child.stop(LEAVE_SECONDS))
                self._say(f"{self._label(peer.index)}: told to leave at step {peer.step}")
            case Freeze():
                self._spawn(self._freeze(one, fault, peer, peer.child))

    async def _freeze(self, one: Happened, freeze: Freeze, peer: PeerState, child: Child) -> None:
        peer.frozen = True
        child.signal_group(signal.SIGSTOP)
        self._say(f"{self._label(peer.index)}: frozen at step {peer.step} for {freeze.seconds:g} s")
        await asyncio.sleep(freeze.seconds)
        child.signal_group(signal.SIGCONT)
        peer.frozen, one.ended = False, self._now()
        self._say(f"{self._label(peer.index)}: goes on")

    def _part(self, one: Happened, partition: Partition, reached: int) -> None:
        self._note(one, reached)
        if self._links:
            self._spawn(self._cut_for_a_while(one, partition, self._links))

    async def _cut_for_a_while(self, one: Happened, partition: Partition, links: SwarmLinks) -> None:
        links.cut(partition)
        names = groups_text(partition)
        self._say(f"Cut off from each other at step {one.at_step} for {partition.seconds:g} s: {names}")
        try:
            await asyncio.sleep(partition.seconds)
        finally:
            links.heal(partition)
        one.ended = self._now()
        self._say(f"Connected again: {names}")

    def _note(self, one: Happened, step: int) -> None:
        one.at, one.at_step = self._now(), step

    def _now(self) -> float:
        return clock.monotonic() - self._began

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def groups_text(partition: Partition) -> str:
    """As a person reads it: peers 0, 1 | 2, 3."""
    return "peers " + " | ".join(", ".join(map(str, group)) for group in partition.groups)
