"""`potluck status`: who is in a swarm, at which step, and with which heads.

Reads the presence records from the DHT, opens a stream to everyone, and listens to what each says of itself. It says
that it is only looking, so nobody counts on it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bootstrap.identity import peer_id
from peer import clock
from peer.network import CALL_TIMEOUT, Network, NetworkFailed
from peer.settings import Settings
from peer.streams import P2pdTransport
from protocol import presence
from protocol.errors import ProtocolError
from protocol.manifest import Manifest, run_id
from protocol.messages import LEAVING, VERSION, Hello, Status, decode, encode
from protocol.presence import Presence, decode_verified

PATIENCE: Final = 6.0
"""Seconds in which a peer may answer."""
RECORD_LIFE: Final = 30.0
MANIFEST_PATIENCE: Final = 15.0
PHASES: Final = ("training", "finished", "leaving")


@dataclass(slots=True)
class Listener:
    """Collects what peers say about themselves."""

    records: dict[bytes, Presence] = field(default_factory=dict)
    said: dict[bytes, Status] = field(default_factory=dict)
    greeting: tuple[bytes, ...] = ()
    transport: P2pdTransport | None = None

    def on_frame(self, key: bytes, header: bytes, bulk: memoryview) -> str:
        message = decode(header)
        if isinstance(message, Status):
            self.said[key] = message
        return "status"

    def on_connected(self, key: bytes) -> None:
        assert self.transport is not None
        for frame in self.greeting:
            self.transport.send(key, frame, kind="status")

    def on_lost(self, key: bytes, why: str) -> None:
        """Nothing to do: who does not answer is shown as such."""


def show_status(join: tuple[str, ...], as_json: bool, run: str | None = None) -> int:
    """Print the state of the swarm at these addresses; exit code 0, or 1 if nobody is there.

    UserError if there are several runs and `run`, a name or the first digits of an id, does not say which.
    """
    with tempfile.TemporaryDirectory(prefix="potluck-status-") as folder:
        settings = Settings(out=Path(folder), join=join)
        try:
            manifest, listener = _look(settings, run)
        except NetworkFailed as error:
            print(f"potluck: no run found at {' '.join(join)}: {error}", file=sys.stderr)
            return 1
    found = _as_data(manifest, listener)
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        _show(found)
    return 0 if found["peers"] else 1


def _look(settings: Settings, run: str | None) -> tuple[Manifest, Listener]:
    network = Network(settings, lambda text: print(text, file=sys.stderr), reachable=False)
    try:
        end = clock.monotonic() + MANIFEST_PATIENCE
        manifest = network.find_manifest(run, lambda: clock.monotonic() > end)
        return manifest, network.call(_listen(network, manifest), PATIENCE + CALL_TIMEOUT)
    finally:
        network.close()


async def _listen(network: Network, manifest: Manifest) -> Listener:
    run, listener = run_id(manifest), Listener()
    transport = listener.transport = P2pdTransport(network.daemon, run)
    wall, addresses = clock.wall(), await network.daemon.addresses()
    own = Presence(
        VERSION, run, network.identity.key, tuple(addresses[:8]), "serve", False, 0, wall, wall + RECORD_LIFE, "status"
    )
    hello = Hello(VERSION, presence.encode(own, network.identity.sign))
    listener.greeting = (encode(hello), encode(Status(step=0, phase=LEAVING, heads=bytes(32))))
    await transport.start(listener)
    end = clock.monotonic() + PATIENCE
    while clock.monotonic() < end:
        for data in await network.rendezvous.find(run):
            try:
                record = decode_verified(data, now=clock.wall())
            except ProtocolError:
                continue
            if record.key != network.identity.key:
                listener.records[record.key] = record
                transport.connect(record.key, record.addresses)
        if listener.records and listener.records.keys() <= listener.said.keys():
            break
        await asyncio.sleep(0.3)
    await transport.close()
    return listener


def _as_data(manifest: Manifest, listener: Listener) -> dict[str, Any]:
    peers = []
    for key, record in sorted(listener.records.items(), key=lambda item: (item[1].name, item[0])):
        status = listener.said.get(key)
        peers.append(
            {
                "peer_id": peer_id(key),
                "name": record.name,
                "role": record.role,
                "step": status.step if status else None,
                "phase": PHASES[status.phase] if status else "no answer",
                "heads": status.heads.hex() if status else None,
                "addresses": list(record.addresses),
            }
        )
    heads = Counter(str(peer["heads"]) for peer in peers if peer["heads"])
    return {
        "run": run_id(manifest).hex(),
        "name": manifest.run.name,
        "steps": manifest.run.steps,
        "peers": peers,
        "heads": dict(heads),
    }


def _show(found: dict[str, Any]) -> None:
    table = Table(title=f"run {found['name']} ({found['run'][:12]}), {found['steps']} steps")
    for column in ("peer", "peer id", "role", "step", "phase", "heads"):
        table.add_column(column)
    for peer in found["peers"]:
        heads = (peer["heads"] or "–")[:12]
        step = "–" if peer["step"] is None else str(peer["step"])
        table.add_row(escape(peer["name"]), peer["peer_id"][-8:], peer["role"], step, peer["phase"], heads)
    console = Console()
    console.print(table)
    if not found["peers"]:
        console.print("Nobody is here.")
    elif len(found["heads"]) > 1:
        console.print("Heads differ: windows are in flight, or a repair is under way.")
