"""A peer's own snapshots: gone on from when it starts, taken at step boundaries, and once more when it ends.

Files and the thread that writes them are peer/snapshots.py's; here is what goes into one, and what is put back where.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from aggregation.outer import ChunkState
from peer import clock
from peer.mixing import Mixing
from peer.network import Network, NetworkFailed
from peer.record import Record
from peer.settings import Settings
from peer.snapshot_files import Index, Snapshot, SnapshotFolder
from peer.snapshots import (
    Kept,
    OuterPart,
    Snapshots,
    Taken,
    newest_good,
    pack_state,
    program_version,
    restore_state,
)
from peer.standing import Standing
from protocol.manifest import Manifest, run_id, schedule_of
from protocol.manifest_toml import dumps
from protocol.node import Node

log = logging.getLogger(__name__)


class Keeping:
    """All of it is called in the training thread."""

    def __init__(
        self,
        network: Network,
        manifest: Manifest,
        standing: Standing,
        mixing: Mixing,
        record: Record,
        *,
        optimizer: torch.optim.Optimizer,
        kept: Kept | None,
    ) -> None:
        """`kept` is what the training loop wants back after a restart."""
        settings = network.settings
        self.folder = snapshot_folder(settings, manifest)
        self.snapshots = Snapshots(
            self.folder,
            interval=settings.snapshot_every * schedule_of(manifest).sync_every,
            layout=mixing.parameters.layout,
            manifest=dumps(manifest),
            notice=network.notice,
            disk=network.disk,
            written=record.write,
        )
        self._network = network
        self._run = run_id(manifest).hex()
        self._standing = standing
        self._mixing = mixing
        self._record = record
        self._optimizer = optimizer
        self._kept = kept

    # At the start

    def restore(self, node: Node, dump: Callable[[ChunkState], bytes]) -> None:
        """Go on from the newest good snapshot of an earlier life, if there is one. `dump` gives a state's bytes."""
        notice, standing, parameters = self._network.notice, self._standing, self._mixing.parameters
        self.folder.clean()
        found = newest_good(self.folder, parameters.layout, node.ledger, dump, notice)
        if found:
            snapshot, fragments = found
            for fragment, values in zip(parameters.layout.fragments, fragments, strict=True):
                parameters.write(fragment.index, 0, values)
            restore_state(snapshot, self._optimizer, self._kept, notice)
            self._resume(snapshot, node)
            notice(f"Going on from the snapshot of step {standing.step} in {snapshot.path}.")
        self.snapshots.started(standing.step, standing.own_step, node)
        lives = self._record.begin_life(standing.step, standing.own_step)
        if lives > 1 and not found and self.snapshots.enabled:
            notice(
                f"No usable snapshot in {self.folder.path}, though this peer was in this run before. It comes in again "
                "as a newcomer does: with what the others have, if they have begun."
            )

    def _resume(self, snapshot: Snapshot, node: Node) -> None:
        index, standing = snapshot.index, self._standing
        standing.step, standing.own_step, standing.tokens = index.step, index.own_step, index.tokens
        standing.from_step, standing.seat = index.from_step, index.seat
        node.resume(index.step, index.tokens, index.marks, clock.monotonic())
        self._mixing.resume(index, node.ledger)

    # At a step boundary

    def take_if_due(self, node: Node) -> None:
        """Copy our part, and have the outer thread add its own: all that training waits for is the copy."""
        if not self.snapshots.is_due(self._standing.step):
            return
        taken = self._take()
        if not self._network.post(lambda: self.snapshots.put(taken, OuterPart.of(node))):
            self.snapshots.abandon()

    def _take(self) -> Taken:
        """Our part of a snapshot, copied."""
        began = clock.monotonic()
        self.snapshots.begin()
        state, optimizer, loop = pack_state(self._optimizer, self._kept, self.snapshots.say_once)
        standing, mixing = self._standing, self._mixing
        index = Index(
            potluck=program_version(),
            run=self._run,
            peer=self._network.identity.key.hex(),
            step=standing.step,
            own_step=standing.own_step,
            tokens=standing.tokens,
            from_step=standing.from_step,
            seat=standing.seat,
            mixed=mixing.mixed,
            opened=mixing.opened,
            marks=(),
            optimizer=optimizer,
            loop=loop,
        )
        parameters = mixing.parameters
        fragments = [parameters.read(fragment.index) for fragment in parameters.layout.fragments]
        return Taken(index, fragments, state, clock.monotonic() - began)

    # At the end

    def take_last(self, node: Node) -> None:
        """The last snapshot begins to be written, unless the one before says the same. Bounded in time."""
        if not self.snapshots.enabled or not self._standing.own_step or not self.snapshots.wait():
            return
        taken = self._take()

        async def put() -> None:
            self.snapshots.put(taken, OuterPart.of(node))

        try:
            self._network.call(put())
        except NetworkFailed as error:
            self.snapshots.abandon()
            log.warning("the last snapshot was not taken: %s", error)

    def close(self) -> None:
        """Wait until what is being written is. Bounded in time."""
        if not self.snapshots.wait():
            self._network.notice("The last snapshot takes too long to write; the one before it stays.")


def snapshot_folder(settings: Settings, manifest: Manifest) -> SnapshotFolder:
    """Where a peer of a sealed run keeps its snapshots."""
    return SnapshotFolder(settings.out / "snapshots", run=run_id(manifest), kept=settings.snapshots_kept)
