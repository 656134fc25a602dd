"""`potluck bootstrap --aggregate`: owning chunks of a run without training, so that home computers have owners.

It is a peer like any other to the protocol, with the role `own`: it closes windows, keeps the ledger, and serves links
and states. Nobody waits for a contribution of it. Its swarm step is the pace of those who train. It lives in the event
loop of the entry node, on the same p2pd and the same place in the DHT.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bootstrap.daemon import Daemon
from bootstrap.reachability import Reachability, find_out, watch
from bootstrap.rendezvous import Rendezvous
from peer import clock
from peer.assembly import Assembly
from peer.mailbox import Anchor, Mailbox
from peer.network import names_of, runs_at
from peer.outer import Outer
from peer.parameters import ModuleParameters
from peer.record import Record
from peer.sealing import build_model, check, chunks_of
from peer.settings import Settings
from peer.streams import P2pdTransport
from protocol.errors import UserError
from protocol.manifest import Manifest, encode, run_id, schedule_of
from protocol.messages import FINISHED, LEAVING
from protocol.pace import Advance, owns_from
from protocol.schedule import Schedule, Window

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 0.2
"""Seconds between two looks at the pace of those who train."""
ASK_MANIFEST_EVERY: Final = 1.0
TELL_EVERY: Final = 30.0
STOP_TIMEOUT: Final = 8.0
PACE_MEMORY: Final = 32
"""Changes of the pace over which the seconds of a step are taken."""


@dataclass(frozen=True, kw_only=True)
class AggregatorOptions:
    """Which run, and where its record goes. Without `manifest` it is asked for; `run` names one of several."""

    manifest: Manifest | None
    run: str | None
    name: str
    record: Path
    join: tuple[str, ...]
    notice: Callable[[str], None]


class NoTrainer(Mailbox):
    """Nobody picks anchors up here, so none are kept."""

    def put_anchor(self, anchor: Anchor) -> None:
        """Dropped."""

    def notice(self, window: Window) -> None:
        """Dropped: the step follows the pace."""


async def aggregate(daemon: Daemon, rendezvous: Rendezvous, options: AggregatorOptions) -> None:
    """Own chunks of one run until cancelled. UserError for a run that this program cannot compute."""
    manifest = options.manifest or await _find(rendezvous, options)
    assembly, parameters = await asyncio.to_thread(_build, manifest, daemon, options)
    with _record(options.record, assembly) as record:
        found = await find_out(daemon, options.join)
        if options.join and (sentence := found.sentence()):
            options.notice(sentence)
        aggregator = Aggregator(daemon, rendezvous, assembly, parameters, record, found)
        del parameters
        if options.manifest is None:
            rendezvous.publish_manifest(manifest.run.name, encode(manifest))
        named = f"{manifest.run.name}, {run_id(manifest).hex()[:12]}"
        options.notice(f"This node owns chunks of the run {named}, and does not train.")
        await aggregator.run(lambda: find_out(daemon, options.join))


async def _find(rendezvous: Rendezvous, options: AggregatorOptions) -> Manifest:
    """Wait for ever for the manifest of the run that `options.run` names, or of the only one that there is."""
    told, what = -TELL_EVERY, options.run or "a run"
    while True:
        found = await runs_at(rendezvous, options.run)
        if len(found) == 1:
            return found[0]
        if clock.monotonic() >= told + TELL_EVERY:
            told = clock.monotonic()
            several = f"Several runs are here: {names_of(found)}. It owns nothing before --run names one of them."
            options.notice(several if found else f"Waiting for a peer that brings the manifest of {what}.")
        await asyncio.sleep(ASK_MANIFEST_EVERY)


def _build(manifest: Manifest, daemon: Daemon, options: AggregatorOptions) -> tuple[Assembly, ModuleParameters]:
    """Everything that takes time: the initial parameters are the genesis of every chunk's chain."""
    if manifest.model.name == "custom":
        raise UserError(
            f"--aggregate: the model of the run {manifest.run.name} is a program's own; only runs of this program's "
            "models (tiny, 35m) can be owned without training so far"
        )
    model = build_model(manifest)
    layout = check(manifest, model, None)
    settings = Settings(name=options.name)
    assembly = Assembly(manifest, daemon.identity, settings, chunks_of(manifest, layout), "own")
    return assembly, ModuleParameters(model, layout)


@contextmanager
def _record(path: Path, assembly: Assembly) -> Iterator[Record]:
    record = assembly.record(path)
    try:
        yield record
    finally:
        record.close()


class Aggregator:
    """The protocol's node of a machine that does not train. Made and used in the event loop's thread."""

    def __init__(
        self,
        daemon: Daemon,
        rendezvous: Rendezvous,
        assembly: Assembly,
        parameters: ModuleParameters,
        record: Record,
        reachability: Reachability,
    ) -> None:
        self._daemon = daemon
        self._reachability = reachability
        self._schedule: Schedule = schedule_of(assembly.manifest)
        self._rendezvous = rendezvous
        self._from_step = 0
        self.pace = Advance(PACE_MEMORY)
        arithmetic = assembly.arithmetic()
        node = assembly.node(arithmetic, parameters)
        self.outer = Outer(
            node=node,
            transport=P2pdTransport(daemon, node.ledger.run, assembly.stream_options(arithmetic)),
            rendezvous=rendezvous,
            mailbox=NoTrainer(),
            record=record,
            make_presence=lambda addresses, wall: assembly.presence(addresses, wall, self._from_step),
            sign_bytes=daemon.identity.sign,
            addresses=reachability.addresses,
        )

    async def run(self, ask_again: Callable[[], Awaitable[Reachability]]) -> None:
        """Until cancelled; then say goodbye, in bounded time."""
        await self.outer.start()
        watching = asyncio.create_task(watch(self._daemon, self._reachability, ask_again, self._reachable))
        try:
            while True:
                self._follow()
                await asyncio.sleep(LOOK_EVERY)
        finally:
            watching.cancel()
            await asyncio.shield(self._leave())

    def _follow(self) -> None:
        """Keep up with those who train. A run that was under way is owned from two windows ahead."""
        before, pace = self.pace.step, self.outer.node.roster.pace()
        if not self.pace.follow(pace, clock.monotonic()):
            return
        if not before and pace >= self._schedule.sync_every:
            self._own_from(pace)
            self._rendezvous.announce_soon()
        self.outer.set_step(pace, self.pace.step_seconds)
        if before < self._schedule.steps <= pace:
            self.outer.set_phase(FINISHED)

    def _own_from(self, reached: int) -> None:
        self._from_step = owns_from(reached, self._schedule)

    def _reachable(self, found: Reachability) -> None:
        if found.addresses and not self.outer.addresses:
            self._own_from(self.pace.step)
        self.outer.move(found.addresses)

    async def _leave(self) -> None:
        async with asyncio.timeout(STOP_TIMEOUT):
            self.outer.set_phase(LEAVING)
            await self.outer.stop()
