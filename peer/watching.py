"""What a peer watches in the outer thread for as long as it is in a swarm: its seat, its clock, whether others can
dial it, and p2pd.
"""

from __future__ import annotations

import asyncio
from typing import Final

from bootstrap.reachability import Reachability
from peer import clock
from peer.mailbox import Mailbox
from peer.network import Network
from peer.outer import Outer
from peer.standing import Standing
from protocol.schedule import Schedule

CLOCK_JUMP: Final = 5.0
LOOK_EVERY: Final = 1.0
"""Seconds."""


class Watching:
    """All but the constructor and `begun` is the outer thread's."""

    def __init__(
        self, network: Network, outer: Outer, standing: Standing, mailbox: Mailbox, schedule: Schedule
    ) -> None:
        self.begun = False
        """Whether training has begun: from then on we find another seat if ours is taken."""
        self._network = network
        self._outer = outer
        self._standing = standing
        self._mailbox = mailbox
        self._schedule = schedule
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Watch until the event loop ends."""
        self._tasks = [
            asyncio.create_task(self._watch_daemon()),
            asyncio.create_task(self._look_around()),
            asyncio.create_task(self._network.watch_reachability(self._reachable)),
        ]

    async def _look_around(self) -> None:
        """Find a free seat when ours is taken; tell of a clock that was set, which nothing else here follows."""
        told = 0.0
        while True:
            await self.sit()
            if abs((jump := clock.jump()) - told) > CLOCK_JUMP:
                told = jump
                self._network.notice(
                    f"This computer's clock has been set by {jump:+.0f} s since the start. Training goes on; until a "
                    "restart this peer meets others only through those that it knows already."
                )
            await asyncio.sleep(LOOK_EVERY)

    async def sit(self) -> None:
        """Take a free seat if an earlier peer has ours."""
        standing = self._standing
        seat = self._outer.node.roster.seat(standing.seat, standing.from_step) if self.begun else standing.seat
        if seat != standing.seat:
            standing.seat = seat
            self._network.rendezvous.announce_soon()

    def _reachable(self, found: Reachability) -> None:
        """Others can dial us elsewhere now, or no longer. Who owns anew does so from two windows ahead."""
        if found.addresses and not self._outer.addresses:
            self._standing.own_from(max(self._standing.step, self._outer.node.roster.pace()), self._schedule)
        self._outer.move(found.addresses)

    async def _watch_daemon(self) -> None:
        """When p2pd dies, everything that needs it ends, training is told, and the user hears of it once."""
        why = await asyncio.shield(self._network.daemon.died)
        self._mailbox.fail(why)
        self._outer.alone()
        await self._network.rendezvous.close()
        self._network.notice(f"The network is gone, training goes on alone: {why}")
