"""A stranger on the network says everything that it should not, to every handler and DHT key of a swarm that trains.

The peers are real (p2pd, DHT, streams, outer threads), in one process, trained in turns by the test. The stranger has a
p2pd and an identity of its own, and is in the roster, as anyone may be. Training goes on, the peers agree at the end,
every refusal is counted, there is at most one log line a sender and minute, and memory stays bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import struct
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import torch
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.p2p import P2PDaemonError, P2PHandlerError, PeerID
from hivemind.utils import MSGPackSerializer
from torch import nn

import potluck
from bootstrap.daemon import Unreachable
from bootstrap.dht import GENESIS_KEY, genesis_subkey, presence_key
from bootstrap.identity import Identity
from peer.frames import ACK_BYTES, encode_ack, frame_prefix
from peer.frames import Ack as FrameAck
from peer.member import Peer
from peer.network import Network
from peer.settings import Settings
from peer.streams import stream_protocol
from protocol import presence
from protocol.manifest import Manifest, changed, run_id
from protocol.messages import (
    VERSION,
    AskHeads,
    Contribution,
    Heads,
    Hello,
    LinkMessage,
    Message,
    Open,
    Pull,
    Records,
    StateMessage,
    Status,
    contribution_text,
    encode,
    sha256,
)
from protocol.presence import Presence

pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")

WIDTH, ROUND, HEADROOM = 16, 6, 6 * 6
MEMORY = 150 << 20
HANDLERS = ("rpc_ping", "rpc_store", "rpc_find")


@dataclass
class Victim:
    """A peer under attack."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    peer: Peer
    index: int
    address: str
    captured: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Header and bulk of everything that it has sent."""

    @property
    def key(self) -> bytes:
        return self.peer.network.identity.key

    def train(self) -> None:
        batch = torch.linspace(-1, 1, 4 * WIDTH).reshape(4, WIDTH) * (self.index + 1)
        (self.model(batch) - batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def capture(self) -> None:
        """Keep a copy of what it sends: what an eavesdropper at another peer could have."""
        transport = self.peer.outer.transport
        send = transport.send

        def sending(key: bytes, header: bytes, bulk: Any = b"", **options: Any) -> bool:
            self.captured.append((header, bytes(bulk)))
            return send(key, header, bulk, **options)

        transport.send = sending  # type: ignore[method-assign]

    def outer_digest(self) -> bytes:
        return self.peer.write_outer(potluck.ModuleParameters(self.model, self.peer.layout))


def manifest(steps: int, peers: int) -> Manifest:
    return changed(
        Manifest(),
        {
            "run.name": "attacked",
            "run.steps": steps,
            "run.start_peers": peers,
            "schedule.sync_every": ROUND,
            "schedule.overlap": 2,
            "codec.chunk": 1024,
            "codec.block": 32,
            "codec.contributions": "fp32",
            "codec.results": "fp32",
            "merge.late_steps": 3,
        },
    )


@contextlib.contextmanager
def victims(folder: Path, steps: int, count: int) -> Iterator[list[Victim]]:
    """A swarm that has found itself."""
    made: list[Victim] = []
    try:
        for index in range(count):
            model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
            potluck.initialize(model, 0)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            settings = Settings(
                name=f"victim-{index}", out=folder / f"victim-{index}", merge_wait=0.5, linger=10,
                join=tuple(victim.address for victim in made[:1]),
            )  # fmt: skip
            peer = potluck.join(
                model, optimizer, tokens_per_step=64, manifest=manifest(steps, count), settings=settings
            )
            address = peer.network.call(peer.network.daemon.addresses())[0]
            made.append(Victim(model, optimizer, peer, index, address))
        for victim in made:
            victim.peer.gather()
        yield made
    finally:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda victim: victim.peer._leave(), made))


class Stranger:
    """Sends what no honest peer sends."""

    def __init__(self, folder: Path, targets: list[Victim], seed: int) -> None:
        self._targets = targets
        self._chance = random.Random(seed)
        self._run = run_id(targets[0].peer.manifest)
        self.network = Network(Settings(out=folder, join=(targets[0].address,)), lambda text: None)
        self.identity = self.network.identity
        self.frames_sent = 0
        """Well-formed frames that must each be refused."""

    def attack(self) -> None:
        """All of it, once, at everyone."""
        captured = [frame for victim in self._targets for frame in victim.captured]
        for victim in self._targets:
            self.network.call(self._attack(victim, captured), 60.0)

    async def _attack(self, victim: Victim, captured: list[tuple[bytes, bytes]]) -> None:
        await self.network.daemon.connect(victim.key, [victim.address])
        for raw in self._no_frames():
            await self._send_raw(victim, raw)
        introduction = [(encode(Hello(VERSION, self._presence())), b"")]
        bad = [*self._no_messages(), *self._bad_messages(captured)]
        self.frames_sent += len(bad)
        await self._send(victim, [*introduction, *bad])
        # Replays are not refused, since they are what honest peers send after a failover; they must do nothing.
        await self._send(victim, self._chance.sample(captured, min(len(captured), 200)))
        await self._store_in_dht(victim)
        await self._garbage_for_handlers(victim)

    # Streams

    async def _send(self, victim: Victim, frames: list[tuple[bytes, bytes]]) -> None:
        """On one stream, until all are acknowledged: a bad message must not cost the stream."""
        reader, writer = await self.network.daemon.open_stream(victim.key, stream_protocol(self._run))
        try:
            for number, (header, bulk) in enumerate(frames, start=1):
                writer.write(frame_prefix(number, header, bulk) + header + bulk)
                await writer.drain()
            async with asyncio.timeout(20):
                while True:
                    ack = await reader.readexactly(ACK_BYTES)
                    sequence, received = struct.unpack_from("<QQ", ack)
                    assert ack == encode_ack(FrameAck(sequence, received))
                    if sequence == len(frames):
                        return
        finally:
            writer.transport.abort()

    async def _send_raw(self, victim: Victim, raw: bytes) -> None:
        """Bytes on a stream of their own, which the victim closes if it can tell that they are no frame."""
        reader, writer = await self.network.daemon.open_stream(victim.key, stream_protocol(self._run))
        try:
            writer.write(raw)
            with contextlib.suppress(TimeoutError, OSError):
                async with asyncio.timeout(0.15):
                    while await reader.read(4096):
                        pass
        finally:
            writer.transport.abort()

    def _no_frames(self) -> list[bytes]:
        header = encode(AskHeads())
        frame = frame_prefix(1, header, b"") + header
        lengths = [
            struct.pack("<IIQ", *numbers) for numbers in ((2**32 - 1, 0, 1), (10, 2**32 - 1, 1), (10, 64 << 20, 1))
        ]
        return [
            self._chance.randbytes(4096),
            frame[:-1] + b"\x00",
            frame[: len(frame) // 2],
            frame_prefix(7, header, b"") + header,
            bytes(4096),
            *(numbers + bytes(2000) for numbers in lengths),
        ]

    def _no_messages(self) -> list[tuple[bytes, bytes]]:
        pack = msgspec.msgpack.encode
        honest = encode(Status(step=5, phase=0, heads=bytes(32)))
        return [
            *((self._chance.randbytes(self._chance.randrange(1, 300)), b"") for _ in range(20)),
            *((bytes([0x92, tag]) + self._chance.randbytes(60), b"") for tag in range(1, 12)),
            (honest[:-3], b""),
            (honest + b"x", b""),
            (honest, b"bulk that does not belong"),
            (honest + bytes(5000), b""),
            (pack([5, -1, 0, bytes(32)]), b""),
            (pack([5, 2**63, 0, bytes(32)]), b""),
            (pack([5, 1.5, 0, bytes(32)]), b""),
            (pack([5, 1, 9, bytes(32)]), b""),
            (pack([7, [[-1, bytes(32)]] * 4]), b""),
            (b"\x91" * 1000, b""),
        ]

    def _bad_messages(self, captured: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        contribution, payload = _captured(captured, Contribution)
        link, mean = _captured(captured, LinkMessage)
        replace = msgspec.structs.replace
        messages: list[tuple[Message, bytes]] = [
            (Open(fragment=0, due=6_000_000), b""),
            (Open(fragment=0, due=7), b""),
            (Open(fragment=1000, due=ROUND), b""),
            (Pull(chunk=1000, have=()), b""),
            (Heads(((1, bytes(32)),)), b""),
            (Hello(VERSION + 1, self._presence()), b""),
            (Hello(VERSION, b"no record"), b""),
            (Hello(VERSION, self._presence(run=bytes(32))), b""),
            (Hello(VERSION, self._presence()[:-1] + b"\x7f"), b""),
            (Records((self._presence(run=bytes(32)),)), b""),
            # Wrongly signed, or not signed at all.
            (replace(contribution, tokens=contribution.tokens + 1), payload),
            (replace(contribution, peer=self.identity.key), payload),
            (replace(contribution, signature=bytes(64)), payload),
            (contribution, payload[:-1]),
            (contribution, payload + b"x"),
            (replace(link, signature=bytes(64)), mean),
            (replace(link, owner=self.identity.key), mean),
            (link, mean[:-4]),
            (replace(link, link=replace(link.link, cumulative=2**61)), mean),
            (replace(link, link=replace(link.link, weight=0)), mean),
            (StateMessage(link.link, link.owner, link.signature), b"no state"),
            (StateMessage(link.link, link.owner, link.signature), bytes(2 * len(mean)) + mean),
            # Signed by us, and still wrong.
            self._signed(contribution, torch.full((len(payload) // 4,), float("nan")).numpy().tobytes()),
            self._signed(contribution, b"\x7f" + payload[1:-1]),
            self._signed(contribution, payload, due=self._last_due(contribution.due)),
            self._signed(contribution, payload, due=contribution.due + 1000 * ROUND),
            self._signed(contribution, payload, due=contribution.due + 1),
            self._signed(contribution, payload, chunk=500),
            self._signed(contribution, payload, run=bytes(32)),
            *(self._signed(contribution, payload, tokens=tokens) for tokens in (0, -1, 2**40 + 1, 2**62)),
        ]
        return [(encode(message), bulk) for message, bulk in messages]

    def _last_due(self, due: int) -> int:
        """The fragment's last window of the run, which nobody gets near while the attack lasts."""
        steps = self._targets[0].peer.schedule.steps - self._targets[0].peer.schedule.overlap
        return due + (steps - due) // ROUND * ROUND

    def _signed(
        self, honest: Contribution, payload: bytes, *, run: bytes | None = None, **changes: Any
    ) -> tuple[Contribution, bytes]:
        fields = {"peer": self.identity.key, "payload": sha256(payload), **changes}
        message = msgspec.structs.replace(honest, **fields)
        signature = self.identity.sign(contribution_text(run or self._run, message))
        return msgspec.structs.replace(message, signature=signature), payload

    def _presence(self, **changes: Any) -> bytes:
        now = time.time()
        fields: dict[str, Any] = {
            "version": VERSION, "run": self._run, "key": self.identity.key, "addresses": (), "role": "train",
            "owns": False, "from_step": 0, "issued": now, "expires": now + 60,
        }  # fmt: skip
        return presence.encode(Presence(**(fields | changes)), self.identity.sign)

    # The DHT

    async def _store_in_dht(self, victim: Victim) -> None:
        protocol, peer = self.network.rendezvous._node.protocol, PeerID.from_base58(victim.peer.peer_id)
        pack, soon = MSGPackSerializer.dumps, time.time() + 60
        somebody = Identity.from_seed(self._chance.randbytes(32))
        values = [pack(b"x" * size) for size in (0, 100, 17_000)] + [
            self._chance.randbytes(100),
            pack(self._presence()),
        ]
        for key in (presence_key(self._run), GENESIS_KEY, "anything"):
            for subkey in (None, b"short", victim.key, somebody.key, "attacked/" + "0" * 64, genesis_subkey("x", b"y")):
                for expires in (soon, soon + 1e9, float("nan")):
                    ids = [DHTID.generate(source=key)] * len(values)
                    await protocol.call_store(peer, ids, values, [expires] * len(values), [subkey] * len(values))
        whole = DictionaryDHTValue()
        whole.store(victim.key, pack(b"x"), soon)
        await protocol.call_store(peer, [DHTID.generate(source=presence_key(self._run))], [whole], [soon])

    async def _garbage_for_handlers(self, victim: Victim) -> None:
        client, peer = self.network.daemon.p2p._client, PeerID.from_base58(victim.peer.peer_id)
        for handler in HANDLERS:
            for data in (b"", self._chance.randbytes(500), self._chance.randbytes(100_000)):
                with contextlib.suppress(P2PDaemonError, P2PHandlerError, TimeoutError):
                    async with asyncio.timeout(3):
                        await client.call_unary_handler(peer, f"DHTProtocol.{handler}", data)

    async def wrong_run(self, victim: Victim) -> None:
        with pytest.raises(Unreachable):
            await self.network.daemon.open_stream(victim.key, stream_protocol(bytes(32)), timeout=5.0)


def _captured(frames: list[tuple[bytes, bytes]], kind: type) -> tuple[Any, bytes]:
    from protocol.messages import decode

    found = ((decode(header), bulk) for header, bulk in reversed(frames))
    return next((message, bulk) for message, bulk in found if isinstance(message, kind))


def train(swarm: list[Victim], until: int, also: Future[None] | None = None) -> None:
    """In turns, up to a swarm step, or no further than until `also` is over."""
    while any(victim.peer.step < until for victim in swarm) and not (also and also.done()):
        for victim in swarm:
            if victim.peer.step < until:
                victim.train()


def attacked(folder: Path, caplog: pytest.LogCaptureFixture, *, peers: int, steps: int, rounds: int) -> None:
    own, began = psutil.Process(), time.monotonic()
    with victims(folder, steps, peers) as swarm, caplog.at_level(logging.WARNING):
        for victim in swarm:
            victim.capture()
        train(swarm, 4 * ROUND)
        stranger = Stranger(folder / "stranger", swarm, seed=rounds)
        try:
            stranger.network.call(stranger.wrong_run(swarm[0]), 10.0)
            stranger.attack()
            memory = own.memory_info().rss
            with ThreadPoolExecutor() as pool:
                attack = pool.submit(lambda: [stranger.attack() for _ in range(rounds - 1)] and None)
                train(swarm, steps - HEADROOM, attack)
                attack.result()
            assert own.memory_info().rss - memory < MEMORY
        finally:
            stranger.network.close()
        train(swarm, steps)
        with ThreadPoolExecutor() as pool:
            assert all(pool.map(lambda victim: victim.peer.linger(), swarm))
        check(swarm, stranger, caplog, time.monotonic() - began)


def check(swarm: list[Victim], stranger: Stranger, caplog: pytest.LogCaptureFixture, seconds: float) -> None:
    assert len({victim.outer_digest() for victim in swarm}) == 1
    for victim in swarm:
        outer = victim.peer.outer
        counts = victim.peer.record.counts(None)
        assert counts.merged + counts.late >= 0.8 * counts.opened > 0
        assert outer.errors == {}, "nothing of it is more than a bad message"
        assert stranger.identity.key not in {key for chain in outer.node.ledger.chains for key in _names(chain)}
        assert victim.peer.network.rendezvous.garbage > 0
        assert victim.peer.times.wait_max < 2.0
    refused = sum((victim.peer.outer.refused for victim in swarm[1:]), swarm[0].peer.outer.refused.copy())
    assert refused.total() >= stranger.frames_sent
    wanted = {"malformed message", "unknown message tag", "oversized message", "bad signature of a contribution",
              "bad payload of a contribution", "bad signature of a link", "a window far ahead of the swarm",
              "presence record of another run", "another version of the protocol", "unknown chunk"}  # fmt: skip
    assert wanted <= refused.keys()
    assert all(victim.peer.outer.transport.traffic.bad[stranger.identity.key] > 20 for victim in swarm)
    # Everything still finds everybody.
    found = swarm[0].peer.network.call(swarm[0].peer.network.rendezvous.find(run_id(swarm[0].peer.manifest)))
    assert {victim.key for victim in swarm} <= {presence.decode_verified(data, time.time()).key for data in found}
    # At most one line a sender and minute, at each of the victims, and nothing else is said.
    lines = [record.getMessage() for record in caplog.records]
    about = [line for line in lines if stranger.identity.peer_id in line]
    assert len(swarm) <= len(about) <= len(swarm) * (1 + seconds // 60)
    assert lines == about


def _names(chain: Any) -> set[bytes]:
    entries = [*chain.kept, *([chain.newest] if chain.newest else [])]
    return {part.peer for entry in entries for part in entry.message.link.parts}


def test_garbage_does_not_stop_a_swarm(tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    attacked(tmp_path, caplog, peers=2, steps=120, rounds=2)
    assert capfd.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_much_garbage_does_not_stop_a_larger_swarm(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    attacked(tmp_path, caplog, peers=3, steps=3000, rounds=12)
