"""The entry node of a swarm, `potluck bootstrap`: a libp2p daemon, a DHT node and, if given, a manifest to publish."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bootstrap.daemon import Daemon, DaemonError, DaemonOptions
from bootstrap.peer_cache import PeerCache
from bootstrap.rendezvous import Notice, Rendezvous

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Genesis:
    """A run to publish: its name, and the canonical encoding of its manifest."""

    name: str
    manifest: bytes


async def serve(
    identity_path: Path,
    options: DaemonOptions,
    *,
    stop: asyncio.Event,
    on_ready: Callable[[list[str], int], None],
    join: Sequence[str] = (),
    genesis: Genesis | None = None,
    cache: PeerCache | None = None,
    notice: Notice = log.info,
) -> None:
    """Run the entry node until `stop` is set. `on_ready` gets its full addresses, for `--join`, and p2pd's process id.

    Other entry nodes may be given in `join`. UserError for an unusable identity, address or port. DaemonError if the
    libp2p daemon does not start, or dies.
    """
    daemon = await Daemon.start(identity_path, options)
    try:
        rendezvous = await Rendezvous.start(daemon, join=join, cache=cache, notice=notice)
        try:
            if genesis is not None:
                rendezvous.publish_manifest(genesis.name, genesis.manifest)
            on_ready(await daemon.addresses(), daemon.pid)
            await _until(stop, daemon)
        finally:
            await rendezvous.close()
    finally:
        await daemon.close()


async def _until(stop: asyncio.Event, daemon: Daemon) -> None:
    stopped = asyncio.create_task(stop.wait())
    ends: list[asyncio.Future[Any]] = [stopped, daemon.died]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
    if daemon.died.done():
        raise DaemonError(daemon.died.result())
