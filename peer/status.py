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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bootstrap.identity import peer_id
from peer import clock
from peer.exit_codes import DONE, FAILED
from peer.network import CALL_TIMEOUT, HOW_A_RUN_COMES, Network, NetworkFailed
from peer.output import complain
from peer.screen import Column, broken, fitting, rendered, width_of
from peer.settings import Settings
from peer.streams import P2pdTransport
from protocol import presence
from protocol.errors import ProtocolError
from protocol.farewell import Farewell
from protocol.manifest import Manifest, run_id
from protocol.messages import LEAVING, VERSION, Hello, Status, decode, encode
from protocol.presence import Presence, decode_verified

PATIENCE: Final = 6.0
"""Seconds in which a peer may answer."""
RECORD_LIFE: Final = 30.0
MANIFEST_PATIENCE: Final = 15.0
"""Seconds in which somebody at the addresses may tell of a run."""
ANSWER_PATIENCE: Final = 10.0
"""Seconds in which anybody at all must answer there."""
PHASES: Final = ("training", "finished", "leaving")
NO_ANSWER: Final = "no answer"
GONE: Final = ("left", "finished and left")
_COLUMNS: Final = (
    Column("peer", left=True),
    Column("peer id", drop=1, left=True),
    Column("role", drop=3, left=True),
    Column("step"),
    Column("phase", left=True),
    Column("heads", drop=2, left=True),
)


class NobodyThere(Exception):
    """No run could be looked at; the sentences say why, and what to try."""


@dataclass(slots=True)
class Listener:
    """Collects what peers say about themselves."""

    records: dict[bytes, Presence] = field(default_factory=dict)
    said: dict[bytes, Status] = field(default_factory=dict)
    gone: dict[bytes, Farewell] = field(default_factory=dict)
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
        except (NobodyThere, NetworkFailed) as error:
            complain(str(error))
            return FAILED
    found = _as_data(manifest, listener)
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        _show(found)
    return DONE if any(peer["phase"] not in GONE for peer in found["peers"]) else FAILED


def _look(settings: Settings, run: str | None) -> tuple[Manifest, Listener]:
    network = Network(settings, lambda text: None, reachable=False)  # it would say that it goes on trying
    joined, began = network.rendezvous.joined, clock.monotonic()

    def too_long() -> bool:
        waited = clock.monotonic() - began
        return waited > MANIFEST_PATIENCE or (waited > ANSWER_PATIENCE and not joined.is_set())

    try:
        manifest = network.find_manifest(run, too_long)
        return manifest, network.call(_listen(network, manifest), PATIENCE + CALL_TIMEOUT)
    except NetworkFailed:
        if too_long():
            raise NobodyThere(_why(settings.join, joined.is_set(), clock.monotonic() - began)) from None
        raise
    finally:
        network.close()


def _why(join: tuple[str, ...], answered: bool, seconds: float) -> str:
    where = " ".join(join)
    if answered:
        return f"{where} answers, but no run is published there. {HOW_A_RUN_COMES}"
    return (
        f"Nobody answers at {where} (asked for {seconds:.0f} s). Is that machine up, and can its TCP port be reached "
        "from here? The address must be as `potluck bootstrap` prints it now, with the peer id at its end: a new key "
        "file makes a new id."
    )


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
        found, farewells = await asyncio.gather(network.rendezvous.find(run), network.rendezvous.find_farewells(run))
        for data in found:
            try:
                record = decode_verified(data, now=clock.wall())
            except ProtocolError:
                continue
            if record.key != network.identity.key:
                listener.records[record.key] = record
                transport.connect(record.key, record.addresses)
        _take_farewells(listener, farewells)
        if listener.records and listener.records.keys() <= listener.said.keys() | listener.gone.keys():
            break
        await asyncio.sleep(0.3)
    await transport.close()
    return listener


def _take_farewells(listener: Listener, farewells: Sequence[Farewell]) -> None:
    """Who has said farewell has gone, unless it has come back since."""
    for farewell in farewells:
        record = listener.records.get(farewell.key)
        if record is None or record.issued <= farewell.issued:
            listener.gone[farewell.key] = farewell


def _as_data(manifest: Manifest, listener: Listener) -> dict[str, Any]:
    entries = [_entry(key, listener) for key in listener.records.keys() | listener.gone.keys()]
    peers = sorted(entries, key=lambda entry: (entry["name"], entry["peer_id"]))
    heads = Counter(str(peer["heads"]) for peer in peers if peer["heads"])
    return {
        "run": run_id(manifest).hex(),
        "name": manifest.run.name,
        "steps": manifest.run.steps,
        "peers": peers,
        "heads": dict(heads),
    }


def _entry(key: bytes, listener: Listener) -> dict[str, Any]:
    """One peer: by its own words, else by its farewell, else by its presence record alone."""
    record, status, gone = listener.records.get(key), listener.said.get(key), listener.gone.get(key)
    known = record or gone
    assert known is not None
    step, phase = None, NO_ANSWER
    if status:
        step, phase = status.step, PHASES[status.phase]
    elif gone:
        step, phase = gone.step, GONE[gone.finished]
    return {
        "peer_id": peer_id(key),
        "name": known.name,
        "role": record.role if record else None,
        "step": step,
        "phase": phase,
        "heads": status.heads.hex() if status else None,
        "addresses": list(record.addresses) if record else [],
    }


def _show(found: dict[str, Any]) -> None:
    width = width_of(sys.stdout)
    rows = [
        (
            peer["name"] or "–",
            peer["peer_id"][-8:],
            peer["role"] or "–",
            "–" if peer["step"] is None else str(peer["step"]),
            peer["phase"],
            (peer["heads"] or "–")[:12],
        )
        for peer in found["peers"]
    ]
    print(broken(f"Run {found['name']} ({found['run'][:12]}), {found['steps']} steps", width))
    print(rendered(fitting(_COLUMNS, rows, width), width))
    for sentence in _remarks(found):
        print(broken(sentence, width))


def _remarks(found: dict[str, Any]) -> Iterator[str]:
    phases = [peer["phase"] for peer in found["peers"]]
    if not phases:
        yield "Nobody is here."
    elif all(phase in GONE for phase in phases):
        yield "Nobody is here any more."
    if NO_ANSWER in phases:
        yield f"No answer within {PATIENCE:g} s: killed, cut off, or its network does not let us in."
    if len(found["heads"]) > 1:
        yield "Heads differ: windows are in flight, or a repair is under way."
