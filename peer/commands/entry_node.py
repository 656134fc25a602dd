"""`potluck bootstrap`: the entry node of a swarm, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from peer.commands.manifests import seal_with
from peer.commands.reader import reader_gone
from peer.exit_codes import DONE, FAILED, NO_READER
from peer.manifest_file import read_manifest
from peer.output import complain, write_line
from peer.signals import ending
from protocol.errors import UserError
from protocol.manifest import Manifest, encode, run_id, sealed

if TYPE_CHECKING:
    from bootstrap.daemon import Daemon
    from bootstrap.rendezvous import Rendezvous


@dataclass(frozen=True, kw_only=True)
class EntryOptions:
    """What an entry node needs to know. Addresses in `join` are of other entry nodes."""

    manifest: Path | None
    data: str | None
    join: tuple[str, ...]
    listen: str
    announce: str | None
    identity: Path
    aggregate: bool
    """Whether it owns chunks of the run that it publishes, or else of the one that `run` names or that it finds."""
    run: str | None
    json: bool


def run_entry_node(options: EntryOptions) -> int:
    """Serve until told to stop; the exit code. UserError for a manifest, identity or address that is not right."""
    if options.run and not options.aggregate:
        raise UserError.field("run", options.run, "names what to own with --aggregate; an entry node serves every run")
    if options.run and options.manifest:
        raise UserError("--run and --manifest: give one of them; the manifest is the run to aggregate")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    manifest = _manifest_to_publish(options)

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(options, manifest))


def _manifest_to_publish(options: EntryOptions) -> Manifest | None:
    if options.manifest is None:
        return None
    manifest = read_manifest(options.manifest)
    if sealed(manifest):
        return manifest
    if manifest.model.name == "custom":
        raise UserError("model.name = 'custom': the run's own program must seal the manifest first")
    return seal_with(manifest, options.data)


async def _serve(options: EntryOptions, manifest: Manifest | None) -> int:
    from bootstrap.daemon import DaemonError, DaemonOptions
    from bootstrap.peer_cache import PeerCache
    from bootstrap.server import Genesis, serve

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in ending():
        loop.add_signal_handler(number, stop.set)
    watch = asyncio.create_task(_stop_without_reader(stop))
    announce = (options.announce,) if options.announce else ()

    def notice(text: str) -> None:
        _say({"event": "notice", "text": text}, text, as_json=options.json)

    try:
        await serve(
            options.identity,
            DaemonOptions(listen=(options.listen,), announce=announce),
            stop=stop,
            on_ready=lambda addresses, daemon: _say_ready(addresses, daemon, manifest, as_json=options.json),
            join=options.join,
            genesis=Genesis(manifest.run.name, encode(manifest)) if manifest else None,
            cache=PeerCache(options.identity.with_suffix(".peers.json")),
            notice=notice,
            also=_aggregator(options, manifest, notice) if options.aggregate else None,
        )
    except DaemonError as error:
        complain(str(error))
        return FAILED
    finally:
        watch.cancel()
    return NO_READER if watch.done() else DONE  # it serves until it is told to stop


def _aggregator(
    options: EntryOptions, manifest: Manifest | None, notice: Callable[[str], None]
) -> Callable[[Daemon, Rendezvous], Awaitable[None]]:
    """What owns chunks on the entry node's daemon. Only here is torch needed."""
    from peer.aggregator import AggregatorOptions, aggregate

    what = AggregatorOptions(
        manifest=manifest,
        run=options.run,
        name="aggregator",
        record=options.identity.with_suffix(".record.jsonl"),
        join=options.join,
        notice=notice,
    )
    return lambda daemon, rendezvous: aggregate(daemon, rendezvous, what)


async def _stop_without_reader(stop: asyncio.Event) -> None:
    await reader_gone()
    stop.set()


def _say_ready(addresses: list[str], daemon: int, manifest: Manifest | None, *, as_json: bool) -> None:
    command = f"potluck peer --join {' '.join(addresses[:1])}"
    event: dict[str, object] = {"event": "ready", "addresses": addresses, "command": command}
    event |= {"pid": os.getpid(), "daemon_pid": daemon}
    lines = ["This entry node is ready. Others join with:", "", f"    {command}", ""]
    if manifest:
        run = run_id(manifest).hex()
        event["run"] = run
        lines.append(f"It publishes the run {manifest.run.name}, {run[:12]}. Ctrl-C stops it.")
    else:
        lines.append("It publishes no run: peers bring the manifest. Ctrl-C stops it.")
    _say(event, "\n".join(lines), as_json=as_json)


def _say(event: dict[str, object], text: str, *, as_json: bool) -> None:
    with contextlib.suppress(BrokenPipeError):  # the watch stops us
        write_line(sys.stdout, json.dumps(event) if as_json else text)
