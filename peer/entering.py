"""Before a peer's first step: it waits for the others, comes into a run under way, or comes back to one it was in.

The training thread waits here, asks the outer thread, and says what it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

from peer import clock
from peer.mailbox import Mailbox
from peer.mixing import Mixing
from peer.network import Network, NetworkFailed
from peer.newcomer import STALLED, Joined, Newcomer
from peer.outer import Outer
from peer.record import Record
from peer.returning import LOOK_TIMEOUT, Returning, holder_of_the_end, wait_until
from peer.standing import Standing
from protocol.manifest import Manifest, schedule_of

GATHER_TIMEOUT: Final = 120.0
"""Longest wait, in seconds, for the run's `start_peers` before the first step."""
TELL_EVERY: Final = 5.0
LOOK_EVERY: Final = 0.1

Over = Callable[[], bool]
"""Whether there is nothing to wait for any more: stopped, or cut off from the others."""


class Entering:
    """Enters once. All of it is called in the training thread."""

    def __init__(
        self,
        network: Network,
        outer: Outer,
        manifest: Manifest,
        standing: Standing,
        mixing: Mixing,
        *,
        mailbox: Mailbox,
        record: Record,
        sizes: Sequence[int],
        folder: Path,
    ) -> None:
        """`sizes` are the bytes of each chunk's whole state; `folder` is where this peer's snapshots are."""
        self.joined: Joined | None = None
        """How we came into a run that was under way; None for who was there from its start."""
        self._network = network
        self._outer = outer
        self._wanted = manifest.run.start_peers
        self._schedule = schedule_of(manifest)
        self._standing = standing
        self._mixing = mixing
        self._mailbox = mailbox
        self._record = record
        self._sizes = sizes
        self._folder = folder
        self._returning = Returning(outer, network.rendezvous)
        self._lockstep = network.settings.lockstep

    def gather(self, stop: Callable[[], bool]) -> None:
        """Wait for the run's `start_peers`, if it has not begun yet; at most two minutes. Says what it waits for."""

        def over() -> bool:
            return stop() or bool(self._mailbox.failure)

        if not self._standing.own_step:
            self._gather(over)
        elif not self._lockstep and not self._mailbox.failure:
            self._come_back(over)

    def _gather(self, over: Over) -> None:
        began, told = clock.monotonic(), 0.0
        while not over():
            here = self._network.call(self._outer.present())
            reached = self._network.call(self._outer.furthest())
            if reached >= self._schedule.sync_every:
                self._join_in(over, reached)
            met = clock.monotonic() > began + LOOK_TIMEOUT or self._network.call(self._outer.met())
            if reached or (here >= self._wanted and met):
                self._warn_of_another(reached)
                return
            if clock.monotonic() > began + GATHER_TIMEOUT:
                self._network.notice("Not all peers came; starting with those who are here.")
                return
            if clock.monotonic() > told + TELL_EVERY:
                told = clock.monotonic()
                self._network.notice(
                    f"{here} of {self._wanted} peers are here; waiting for the others before the first step."
                )
            self._network.call(asyncio.sleep(LOOK_EVERY))

    # A run under way

    def _join_in(self, over: Over, reached: int) -> None:
        """Begin at its step, with its outer parameters, so that our first Δ is of our own training."""
        self._standing.own_from(reached, self._schedule)  # two windows ahead
        self._network.post(self._network.rendezvous.announce_soon)
        if self._lockstep:
            return
        newcomer = Newcomer(self._outer, self._sizes)
        seconds, look = newcomer.fetch(self._network.call, self._network.notice, over)
        pace = self._begin_from_outer()
        self._move_to(min(pace or reached, self._schedule.steps))
        size = newcomer.size(look.linked - look.bare)
        self.joined = Joined(self._standing.step, seconds, look.read, size, look.donors)
        self._record.write("joined", **asdict(self.joined))

    def _begin_from_outer(self) -> int:
        """θ ← anchor, everywhere; the swarm's pace."""
        states, pace, bare = self._network.call(self._outer.take_over())
        self._mixing.begin_from(states, bare)
        return pace

    def _move_to(self, step: int) -> None:
        self._standing.step = step
        self._network.post(self._outer.set_step, step, None)

    def _warn_of_another(self, reached: int) -> None:
        """A newcomer that nobody can give anything to begins from the start, even if the run is over elsewhere."""
        if not reached and not self._lockstep and self._said_to_be_over():
            self._network.notice(
                "Peers have finished this run lately, and nobody who has its last state is here. Training starts from "
                "the beginning, and makes another model than theirs."
            )

    def _said_to_be_over(self) -> bool:
        with suppress(NetworkFailed):
            return self._network.call(self._returning.said_by_anyone(0.0))
        return False

    # A run that we were in before

    def _come_back(self, over: Over) -> None:
        """Look whether the run ended while this peer was away. RunOver if it did, and nobody has its last state."""
        if self._standing.step >= self._schedule.steps:
            self._network.notice(
                "This run has finished, and this peer has its last state: it gives it to who lacks it."
            )
            wait_until(self._network, self._outer.met, LOOK_TIMEOUT, over)
        elif holder_of_the_end(
            self._network, self._returning, step=self._standing.step, folder=self._folder, over=over
        ) and self._network.call(self._returning.only_holders(self._schedule.steps)):
            self._take_last_state(over)
        elif not self._network.call(self._returning.company()) and self._said_to_be_over():
            # By somebody that none of our links names, so it does not end us; it may be true all the same.
            self._network.notice(
                f"Somebody says to have finished this run, and nobody is here. Training goes on from step "
                f"{self._standing.step} alone, and may make another model than theirs."
            )

    def _take_last_state(self, over: Over) -> None:
        """Nobody trains any more: take what they ended with, as a newcomer does, unless it is not the last."""
        self._network.call(self._outer.begin_joining())  # repair then asks without hesitating
        has = wait_until(self._network, lambda: self._returning.has_last(self._schedule), STALLED, over)
        self._network.post(self._outer.end_joining)
        if not has:
            return
        self._begin_from_outer()
        self._mixing.bare = frozenset()
        self._move_to(self._schedule.steps)
        self._network.notice("This peer has taken over the state in which the others have finished this run.")
