"""From a manifest and a model to the parts of a peer: arithmetic, ledger, node, presence record, stream limits."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aggregation.arithmetic import Arithmetic
from aggregation.codecs import codec
from aggregation.fragments import Chunk
from aggregation.outer import fresh
from bootstrap.addresses import is_loopback
from bootstrap.identity import Identity
from peer.disk import log_trouble
from peer.frames import FrameLimits
from peer.parameters import Parameters
from peer.record import Record
from peer.settings import Settings
from peer.stream_options import StreamOptions
from protocol import farewell
from protocol.farewell import Farewell
from protocol.ledger import Ledger
from protocol.manifest import Manifest, run_id, schedule_of
from protocol.messages import HEADER_LIMITS
from protocol.node import Node
from protocol.presence import MAX_ADDRESSES, VERSION, Presence, Role
from protocol.roster import Roster
from protocol.signature import Ed25519Keys
from protocol.window import Rules

ADDRESS_BYTES: Final = 640
"""Of a presence record's 1024: the rest is signature, keys and name."""
FAREWELL_LIFE: Final = 600.0
"""How long those who look at the run are told that a peer has gone, and did not just fall silent."""
HEADS_BYTES: Final = 48
"""Of a chunk in the message that lists all heads, the largest header there is in a large run."""
LOCKSTEP_OVERDUE: Final = 30.0
"""Seconds until a silent peer is lost in lock-step, where everyone waits: a busy machine must not cost the run."""
GIVE_MBIT: Final = 50.0
"""Given away without a cap on uploads, where it goes over a network."""
SMALL_HEADER: Final = max(limit for tag, limit in HEADER_LIMITS.items() if tag != 7)


@dataclass(frozen=True)
class Assembly:
    """What a peer is made of."""

    manifest: Manifest
    identity: Identity
    settings: Settings
    chunks: Sequence[Chunk]
    role: Role = "train"

    @property
    def fragment_of(self) -> tuple[int, ...]:
        """The fragment of each chunk."""
        return tuple(chunk.fragment for chunk in self.chunks)

    def record(self, path: Path, trouble: Callable[[OSError], None] = log_trouble) -> Record:
        """The record of this run's windows, in the file `path`; `trouble` hears of lines that the disk refuses."""
        return Record(
            path,
            fragment_of=self.fragment_of,
            overlap=schedule_of(self.manifest).overlap,
            late_steps=self.manifest.merge.late_steps,
            trouble=trouble,
        )

    def arithmetic(self) -> Arithmetic:
        """The run's arithmetic on tensors."""
        section, merge = self.manifest.codec, self.manifest.merge
        return Arithmetic(
            [chunk.numel for chunk in self.chunks],
            contribution_codec=codec(section.contributions, section.block),
            result_codec=codec(section.results, section.block),
            lr=merge.outer_lr,
            momentum=merge.outer_momentum,
        )

    def node(self, arithmetic: Arithmetic, parameters: Parameters) -> Node:
        """The protocol's node at genesis: `parameters` are the run's initial ones."""
        manifest, run = self.manifest, run_id(self.manifest)
        keys = Ed25519Keys(self.identity.private)
        whole = [parameters.read(fragment.index) for fragment in parameters.layout.fragments]
        ledger = Ledger(
            run=run,
            genesis=[fresh(whole[chunk.fragment][chunk.start : chunk.stop]) for chunk in self.chunks],
            arithmetic=arithmetic,
            keys=keys,
            weight_cap=manifest.limits.weight_cap,
        )
        complete = manifest.run.start_peers if self.settings.lockstep else 0
        schedule = schedule_of(manifest)
        node = Node(
            ledger=ledger,
            arithmetic=arithmetic,
            roster=Roster(run=run, key=self.identity.key),
            schedule=schedule,
            rules=Rules(schedule.sync_every, manifest.limits.weight_cap, self.fragment_of, complete),
            keys=keys,
            random=_seeded_random(self.identity.key),
        )
        node.repair.giving.rate = give_rate(self.settings)
        return node

    def stream_options(self, arithmetic: Arithmetic) -> StreamOptions:
        """No frame of this run is larger than its largest whole state, so nobody can make us hold more."""
        cap = self.settings.upload_mbit
        bulk = max(
            max(8 * chunk.numel + arithmetic.result_bytes(chunk.index), arithmetic.contribution_bytes(chunk.index))
            for chunk in self.chunks
        )
        header = max(SMALL_HEADER, HEADS_BYTES * (len(self.chunks) + 1))
        return StreamOptions(
            limits=FrameLimits(header=header, bulk=bulk),
            upload=cap * 125_000 if cap else None,
            ack_timeout=LOCKSTEP_OVERDUE if self.settings.lockstep else StreamOptions.ack_timeout,
        )

    def presence(self, addresses: Sequence[str], wall: float, from_step: int = 0, seat: int = 0) -> Presence:
        """Our presence record, to be signed. `wall` is Unix time; `from_step` the first due step for which we count.

        `seat` is our part of the data.
        """
        fitting = _fitting(addresses)
        return Presence(
            version=VERSION,
            run=run_id(self.manifest),
            key=self.identity.key,
            addresses=fitting,
            role=self.role,
            owns=bool(fitting),
            from_step=from_step,
            issued=wall,
            expires=wall + self.manifest.limits.presence_ttl,
            name=self.settings.name,
            seat=seat,
        )

    def farewell(self, wall: float, step: int, *, finished: bool) -> tuple[bytes, float]:
        """Our signed farewell at swarm step `step`, and when it expires. `wall` is Unix time."""
        words = Farewell(
            version=farewell.VERSION,
            run=run_id(self.manifest),
            key=self.identity.key,
            step=step,
            finished=finished,
            issued=wall,
            expires=wall + FAREWELL_LIFE,
            name=self.settings.name,
        )
        return farewell.encode(words, self.identity.sign), words.expires


def give_rate(settings: Settings) -> float | None:
    """Bytes a second that we give to those who lack something; None is no cap, for swarms on one machine."""
    if settings.give_mbit:
        return settings.give_mbit * 125_000
    if settings.upload_mbit:
        return settings.upload_mbit * 125_000 / 2
    addresses = [*settings.join, *([] if settings.listen == "auto" else [settings.listen])]
    return None if all(map(is_loopback, addresses)) else GIVE_MBIT * 125_000


def _fitting(addresses: Sequence[str]) -> tuple[str, ...]:
    """The first, most useful addresses that a record has room for."""
    fitting: list[str] = []
    for address in addresses[:MAX_ADDRESSES]:
        if sum(map(len, fitting)) + len(address) <= ADDRESS_BYTES:
            fitting.append(address)
    return tuple(fitting)


def _seeded_random(key: bytes) -> Callable[[], float]:
    """Chance that only spreads repairs in time."""
    return random.Random(key).random
