"""Between a peer's parameters and the swarm's: snapshots of fragments go out, anchors come in and are mixed.

All of it runs in the training thread, at step boundaries. When to mix is decided in protocol/merging.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from torch import Tensor

from aggregation.fragments import Chunk
from aggregation.outer import ChunkState, merge
from peer import clock
from peer.mailbox import Anchor, Mailbox
from peer.network import NetworkFailed
from peer.parameters import Parameters
from peer.record import Record
from peer.snapshot_files import Index
from peer.times import Times
from protocol.ledger import Ledger
from protocol.manifest import Manifest, schedule_of
from protocol.merging import Merges, Mix
from protocol.schedule import Window

log = logging.getLogger(__name__)


class Mixing:
    """The parameters, and the anchors on their way into them."""

    def __init__(
        self,
        manifest: Manifest,
        parameters: Parameters,
        chunks: Sequence[Chunk],
        *,
        mailbox: Mailbox,
        record: Record,
        times: Times,
    ) -> None:
        """`record` is told what was mixed, `times` how long the network was waited for."""
        self.parameters = parameters
        self.chunks = chunks
        self.bare: frozenset[int] = frozenset()
        """Chunks of which our parameters are still the initial ones, though the swarm's are not."""
        self._alpha = manifest.merge.mixing
        self._schedule = schedule_of(manifest)
        self._merges = Merges(
            overlap=self._schedule.overlap,
            late_steps=manifest.merge.late_steps,
            fragment_of=tuple(chunk.fragment for chunk in chunks),
        )
        self._mailbox = mailbox
        self._record = record
        self._times = times
        self._anchors: dict[int, Tensor] = {}
        self._mixed: dict[int, int] = {}
        """Of each chunk the due step of the newest link that the parameters have seen."""

    # What a snapshot keeps, and gives back

    @property
    def mixed(self) -> tuple[int, ...]:
        """As `Index.mixed`."""
        return tuple(self._mixed.get(chunk.index, 0) for chunk in self.chunks)

    @property
    def opened(self) -> tuple[tuple[int, int, int], ...]:
        """As `Index.opened`."""
        return tuple((window.fragment, window.due, own) for window, own in self._merges.snapshots)

    def resume(self, index: Index, ledger: Ledger[ChunkState]) -> None:
        """Go on from a snapshot: windows that were on their way are, and anchors that were not mixed yet will be."""
        for fragment, due, own_step in index.opened:
            self._merges.opened(Window(fragment, due), own_step)
        self._mixed = dict(enumerate(index.mixed))
        for chunk, seen in enumerate(index.mixed):
            due = ledger.chains[chunk].due
            if due > seen:  # the link was there, and not mixed yet
                links = max(1, (due - seen) // self._schedule.sync_every)
                self._keep(Anchor(chunk, due, links, True, ledger.tip(chunk).anchor))

    def begin_from(self, states: Iterable[ChunkState], bare: frozenset[int]) -> None:
        """θ ← anchor, everywhere; `bare` are the chunks that nobody has given us yet."""
        self.bare = bare
        for chunk, state in zip(self.chunks, states, strict=True):
            self.parameters.write(chunk.fragment, chunk.start, state.anchor)

    # Out

    def snapshot(self, window: Window, own_step: int) -> list[Tensor]:
        """The parameters of each chunk of a window, copied; from now on it counts as on its way."""
        snapshot = self.parameters.read(window.fragment)
        self._merges.opened(window, own_step)
        return [snapshot[chunk.start : chunk.stop] for chunk in self.chunks if chunk.fragment == window.fragment]

    def lacks(self, fragment: int) -> bool:
        """Whether part of it is bare."""
        return any(self.chunks[chunk].fragment == fragment for chunk in self.bare)

    # In

    def collect(self) -> list[Window]:
        """Take the mail; returns the windows that others have reached before us."""
        began = clock.monotonic()
        anchors, noticed = self._mailbox.take()
        self._times.waited(clock.monotonic() - began)
        for anchor in anchors:
            self._keep(anchor)
        return noticed

    def _keep(self, anchor: Anchor) -> None:
        self._anchors[anchor.chunk] = anchor.values
        self._merges.settled(anchor.chunk, anchor.due, anchor.links, anchor.mix)

    def wait(self, windows: Sequence[Window], limit: float, *, lockstep: bool) -> None:
        """Wait until these windows have settled, at most `limit` seconds for all. In lock-step more is an error."""
        began = clock.monotonic()
        for window in windows:
            while self._waiting(window) and (left := began + limit - clock.monotonic()) > 0:
                self._mailbox.wait(left)
                for anchor in self._mailbox.take_anchors():
                    self._keep(anchor)
            if lockstep and self._merges.waiting(window):
                raise NetworkFailed(f"lock-step: fragment {window.fragment} of step {window.due} did not settle")
        if windows:
            self._times.allowed = max(self._times.allowed, limit)
            self._times.waited(clock.monotonic() - began)

    def _waiting(self, window: Window) -> bool:
        return bool(self._merges.waiting(window)) and not self._mailbox.failure

    def dress(self, bare: frozenset[int]) -> bool:
        """Forget the chunks whose anchors have come since we began without them. Whether these were the last."""
        if not self.bare:
            return False
        self.bare &= bare
        return not self.bare

    def mix(self, own_step: int) -> None:
        """Mix what is due after so many own inner steps."""
        for mix in self._merges.take(own_step):
            self._mixed[mix.chunk] = mix.due
            if isinstance(mix, Mix):
                self._mix_chunk(mix)
            else:
                self._anchors.pop(mix.chunk)
                self._record.write("too_late", chunk=mix.chunk, due=mix.due, late=mix.late)

    def _mix_chunk(self, mix: Mix) -> None:
        chunk = self.chunks[mix.chunk]
        anchor = self._anchors.pop(mix.chunk)
        local = self.parameters.view(chunk.fragment, chunk.start, chunk.stop)
        alpha = self._alpha**mix.power
        if not bool(local.isfinite().all()):
            log.warning("chunk %d of our parameters was not finite: it is the swarm's now", mix.chunk)
            alpha = 0.0
        if mix.chunk in self.bare:
            alpha = 0.0  # ours are the initial parameters
            self.bare -= {mix.chunk}
        self.parameters.write(chunk.fragment, chunk.start, merge(local, anchor, alpha))
        self._record.mixed(mix.chunk, mix.due, mix.late, mix.power)
