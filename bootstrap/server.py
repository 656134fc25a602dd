"""The entry node of a swarm, `potluck bootstrap`: a libp2p daemon, a DHT node and, if given, a manifest to publish."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bootstrap.daemon import Daemon, DaemonError, DaemonOptions
from bootstrap.dial_back import DialBack
from bootstrap.peer_cache import PeerCache
from bootstrap.rendezvous import Notice, Rendezvous

log = logging.getLogger(__name__)

_ALSO_TIMEOUT = 10.0
"""Seconds in which what else the node does must have ended."""


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
    also: Callable[[Daemon, Rendezvous], Awaitable[None]] | None = None,
) -> None:
    """Run the entry node until `stop` is set. `on_ready` gets its full addresses, for `--join`, and p2pd's process id.

    Other entry nodes may be given in `join`. `also` is what else this node does (peer/aggregator.py), cancelled at the
    end; an error of it ends the node. UserError for an unusable identity, address or port. DaemonError if the
    libp2p daemon does not start, or dies.
    """
    daemon = await Daemon.start(identity_path, options)
    try:
        rendezvous = await Rendezvous.start(daemon, join=join, cache=cache, notice=notice)
        try:
            if genesis is not None:
                rendezvous.publish_manifest(genesis.name, genesis.manifest)
            await DialBack(daemon).start()
            on_ready(await daemon.addresses(), daemon.pid)
            await _until(stop, daemon, also(daemon, rendezvous) if also else None)
        finally:
            await rendezvous.close()
    finally:
        await daemon.close()


async def _until(stop: asyncio.Event, daemon: Daemon, also: Awaitable[None] | None) -> None:
    stopped = asyncio.create_task(stop.wait())
    ends: list[asyncio.Future[Any]] = [stopped, daemon.died]
    work = asyncio.ensure_future(also) if also is not None else None
    if work is not None:
        ends.append(work)
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        if work is not None:
            work.cancel()
            await asyncio.wait([work], timeout=_ALSO_TIMEOUT)
    if daemon.died.done():
        raise DaemonError(daemon.died.result())
    if work is not None and work.done() and not work.cancelled():
        work.result()
