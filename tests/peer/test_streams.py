"""The transport over real daemons on loopback: delivery, loss, silence, caps, and what strangers can do to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

import peer
from bootstrap.daemon import Daemon, Unreachable
from peer.frames import ACK_BYTES, Ack, FrameLimits, encode_ack, frame_bytes, frame_prefix
from peer.stream_options import StreamOptions
from peer.streams import P2pdTransport, stream_protocol
from protocol.errors import ProtocolError

# hivemind finds its daemon with a function of importlib that Python 3.11 deprecates and 3.13 does not.
pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")

RUN = b"r" * 32
DEADLINE = 25.0


@dataclass
class Recorder:
    """A handler that keeps what it is told, and wakes whoever waits for it."""

    frames: list[tuple[bytes, bytes, bytes]] = field(default_factory=list)
    connected: list[bytes] = field(default_factory=list)
    lost: list[tuple[bytes, str]] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def on_frame(self, key: bytes, header: bytes, bulk: memoryview) -> str:
        if header == b"nonsense":
            raise ProtocolError("nonsense")
        self.frames.append((key, header, bytes(bulk)))
        self._news.set()
        return "test"

    def on_connected(self, key: bytes) -> None:
        self.connected.append(key)
        self._news.set()

    def on_lost(self, key: bytes, why: str) -> None:
        self.lost.append((key, why))
        self._news.set()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for news until `condition()`."""
        while not condition():
            self._news.clear()
            await self._news.wait()


@dataclass
class Member:
    daemon: Daemon
    transport: P2pdTransport
    seen: Recorder

    @property
    def key(self) -> bytes:
        return self.daemon.key

    async def join(self, other: Member) -> None:
        self.transport.connect(other.key, await other.daemon.addresses())
        await self.seen.until(lambda: other.key in self.seen.connected)


class Swarm:
    def __init__(self, folder: Path, stack: contextlib.AsyncExitStack) -> None:
        self.folder, self.stack, self.count = folder, stack, 0

    async def daemon(self) -> Daemon:
        self.count += 1
        daemon = await Daemon.start(self.folder / f"identity{self.count}")
        self.stack.push_async_callback(daemon.close)
        return daemon

    async def member(self, options: StreamOptions | None = None, run: bytes = RUN) -> Member:
        daemon = await self.daemon()
        member = Member(daemon, P2pdTransport(daemon, run, options), Recorder())
        await member.transport.start(member.seen)
        self.stack.push_async_callback(member.transport.close)
        return member


def in_swarm(check: Callable[[Swarm], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """Run the coroutine on a uvloop loop with a deadline, with a swarm that is closed at the end, and leave nothing."""

    def test(tmp_path: Path) -> None:
        async def main() -> None:
            async with asyncio.timeout(DEADLINE), contextlib.AsyncExitStack() as stack:
                await check(Swarm(tmp_path, stack))

        before = set(psutil.Process().children(recursive=True))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
        assert set(psutil.Process().children(recursive=True)) <= before

    test.__name__, test.__doc__ = check.__name__, check.__doc__
    return test


@in_swarm
async def test_frames_arrive_whole_and_are_counted(swarm: Swarm) -> None:
    one, two = await swarm.member(), await swarm.member()
    await one.join(two)
    large = memoryview(os.urandom(3_000_000))
    assert one.transport.send(two.key, b"first", large, kind="window")
    assert one.transport.send(two.key, b"second", b"bulk", kind="window")
    # Two has not dialled: it opens its stream over the connection that one made.
    two.transport.connect(one.key, [])
    await two.seen.until(lambda: two.seen.connected)
    assert two.transport.send(one.key, b"back", kind="status")
    await two.seen.until(lambda: len(two.seen.frames) == 2)
    await one.seen.until(lambda: one.seen.frames)
    assert two.seen.frames == [(one.key, b"first", bytes(large)), (one.key, b"second", b"bulk")]
    assert one.seen.frames == [(two.key, b"back", b"")]
    await one.transport.close(flush=5.0)
    size = frame_bytes(b"first", large) + frame_bytes(b"second", b"bulk")
    traffic = one.transport.traffic
    assert traffic.written["window"] == two.transport.traffic.read["test"] == size
    assert traffic.written["test"] == ACK_BYTES, "the acknowledgement of what two sent"
    assert traffic.written_by_peer[two.key] == traffic.written.total()
    assert one.seen.lost == []


@in_swarm
async def test_a_killed_peer_is_noticed_at_once(swarm: Swarm) -> None:
    one, two = await swarm.member(), await swarm.member()
    await one.join(two)
    start = time.monotonic()
    os.kill(two.daemon.pid, signal.SIGKILL)
    await one.seen.until(lambda: one.seen.lost)
    assert time.monotonic() - start < 2.0
    assert one.seen.lost[0][0] == two.key
    assert not one.transport.send(two.key, b"h", kind="x")
    assert one.transport.queued(two.key) == 0


@in_swarm
async def test_death_of_our_own_daemon_loses_all_peers(swarm: Swarm) -> None:
    one, two = await swarm.member(), await swarm.member()
    await one.join(two)
    os.kill(one.daemon.pid, signal.SIGKILL)
    await one.seen.until(lambda: one.seen.lost)
    await one.daemon.died
    await one.transport.close()


@in_swarm
async def test_a_peer_that_comes_back_is_found_again(swarm: Swarm) -> None:
    one, two = await swarm.member(StreamOptions(first_retry=0.05)), await swarm.member()
    await one.join(two)
    await two.transport.close()
    await one.seen.until(lambda: one.seen.lost)
    again = P2pdTransport(two.daemon, RUN)
    await again.start(two.seen)
    await one.seen.until(lambda: len(one.seen.connected) == 2)
    assert one.transport.send(two.key, b"hello again", kind="x")
    await two.seen.until(lambda: two.seen.frames)
    await again.close()


@in_swarm
async def test_an_error_of_ours_costs_a_stream_and_not_the_peer(swarm: Swarm) -> None:
    one, two = await swarm.member(StreamOptions(first_retry=0.05)), await swarm.member()
    await one.join(two)
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(one.transport.traffic, "written")  # counting what is written fails
        one.transport.send(two.key, b"lost", kind="x")
        await one.seen.until(lambda: one.seen.lost)
    assert one.seen.lost == [(two.key, "an error of ours")]
    await one.seen.until(lambda: len(one.seen.connected) == 2)
    assert one.transport.send(two.key, b"hello again", kind="x")
    await two.seen.until(lambda: two.seen.frames and two.seen.frames[-1][1] == b"hello again")


@in_swarm
async def test_a_peer_that_cannot_be_reached_is_lost_once_and_can_be_forgotten(swarm: Swarm) -> None:
    one = await swarm.member(StreamOptions(first_retry=0.01, last_retry=0.01))
    nobody = b"\x01" * 32
    assert not one.transport.send(nobody, b"h", kind="x"), "not connecting to it"
    one.transport.connect(nobody, ["/ip4/127.0.0.1/tcp/9"])
    assert one.transport.send(nobody, b"h", kind="x"), "it may yet answer"
    await one.seen.until(lambda: one.seen.lost)
    assert not one.transport.send(nobody, b"h", kind="x")
    since = one.transport.refused_since(nobody)
    assert since is not None and since <= time.monotonic(), "nobody listens there"
    one.transport.forget(nobody)
    assert one.transport.refused_since(nobody) is None
    assert [key for key, _ in one.seen.lost] == [nobody]
    await one.transport.close()


@in_swarm
async def test_a_peer_without_addresses_is_not_dialled_but_used_when_it_comes(swarm: Swarm) -> None:
    owner, home = await swarm.member(), await swarm.member()
    dialled: list[bytes] = []
    open_stream = owner.daemon.open_stream

    async def counted(key: bytes, *arguments: Any) -> Any:
        dialled.append(key)
        return await open_stream(key, *arguments)

    owner.daemon.open_stream = counted  # type: ignore[method-assign]
    owner.transport.connect(home.key, [])
    await owner.seen.until(lambda: owner.seen.lost)
    assert not dialled, "p2pd would try whatever private address it was once told"
    await home.join(owner)
    await owner.seen.until(lambda: home.key in owner.seen.connected)
    assert owner.transport.send(home.key, b"over its own connection", kind="window")
    await home.seen.until(lambda: home.seen.frames)


@in_swarm
async def test_another_run_is_refused(swarm: Swarm) -> None:
    one, two = await swarm.member(), await swarm.member(run=b"q" * 32)
    one.transport.connect(two.key, await two.daemon.addresses())
    await one.seen.until(lambda: one.seen.lost)
    assert "protocols not supported" in one.seen.lost[0][1]
    assert not one.seen.connected


FROZEN = """
import asyncio, signal, sys
from pathlib import Path
import uvloop
from bootstrap.daemon import Daemon
from peer.streams import P2pdTransport

class Handler:
    def on_frame(self, key, header, bulk):
        return "test"
    def on_connected(self, key):
        pass
    def on_lost(self, key, why):
        pass

async def main():
    daemon = await Daemon.start(Path(sys.argv[1]))
    transport = P2pdTransport(daemon, b"r" * 32)
    await transport.start(Handler())
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print(daemon.key.hex(), (await daemon.addresses())[0], flush=True)
    await stop.wait()
    await transport.close()
    await daemon.close()

uvloop.run(main())
"""


@in_swarm
async def test_a_frozen_peer_is_noticed_and_welcomed_back(swarm: Swarm) -> None:
    """Its p2pd lives and takes our bytes, and even new streams; only acknowledgements tell."""
    one = await swarm.member(StreamOptions(ack_timeout=0.6, keepalive=0.3, first_retry=0.1, last_retry=0.1))
    command = [sys.executable, "-c", FROZEN, str(swarm.folder / "frozen")]
    root = Path(str(peer.__file__)).parents[1]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root) as child:
        try:
            assert child.stdout is not None
            key, address = (await asyncio.to_thread(child.stdout.readline)).decode().split()
            one.transport.connect(bytes.fromhex(key), [address])
            await one.seen.until(lambda: one.seen.connected)
            child.send_signal(signal.SIGSTOP)
            start = time.monotonic()
            one.transport.send(bytes.fromhex(key), b"h", b"b", kind="x")
            await one.seen.until(lambda: one.seen.lost)
            assert 0.5 < time.monotonic() - start < 2.5
            assert "acknowledged nothing" in one.seen.lost[0][1]
            child.send_signal(signal.SIGCONT)
            await one.seen.until(lambda: len(one.seen.connected) == 2)
        finally:
            child.send_signal(signal.SIGCONT)
            child.terminate()


@in_swarm
async def test_an_idle_stream_stays_open(swarm: Swarm) -> None:
    one, two = await swarm.member(StreamOptions(keepalive=0.05, ack_timeout=0.6)), await swarm.member()
    await one.join(two)
    while two.transport.traffic.read["keepalive"] < 100:
        await asyncio.sleep(0.02)
    assert one.seen.lost == [] and two.seen.frames == []


@in_swarm
async def test_upload_cap_slows_all_and_loses_nobody(swarm: Swarm) -> None:
    """300 kB at 300 kB/s take about a second, though each piece waits longer than the silence that is allowed."""
    options = StreamOptions(upload=300_000.0, ack_timeout=0.6)
    one, two, three = await swarm.member(options), await swarm.member(), await swarm.member()
    await one.join(two)
    await one.join(three)
    start = time.monotonic()
    for other in (two, three):
        assert one.transport.send(other.key, b"h", bytes(150_000), kind="x")
    for other in (two, three):
        await other.seen.until(lambda other=other: other.seen.frames)
    assert 0.7 < time.monotonic() - start < 4.0
    assert one.seen.lost == []


@in_swarm
async def test_a_slow_receiver_delays_nobody_else(swarm: Swarm) -> None:
    """Two never reads. What is for it piles up to the limit and is then refused; three gets everything meanwhile."""
    one = await swarm.member(StreamOptions(queue_bytes=4_000_000, ack_timeout=2.0))
    deaf, three = await swarm.daemon(), await swarm.member()

    async def never_read(_info: object, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_ack(Ack(0, 0)))
        await done.wait()
        writer.transport.abort()

    done = asyncio.Event()
    swarm.stack.callback(done.set)
    await deaf.serve_stream(stream_protocol(RUN), never_read)
    one.transport.connect(deaf.key, await deaf.addresses())
    await one.seen.until(lambda: one.seen.connected)
    await one.join(three)
    while one.transport.send(deaf.key, b"h", bytes(1_000_000), kind="x"):
        await asyncio.sleep(0)
    assert one.transport.queued(deaf.key) > 3_000_000
    for number in range(20):
        assert one.transport.send(three.key, b"%d" % number, bytes(100_000), kind="x")
    await three.seen.until(lambda: len(three.seen.frames) == 20)
    assert one.seen.lost == []
    await one.seen.until(lambda: one.seen.lost)
    assert one.seen.lost[0][0] == deaf.key


@contextlib.asynccontextmanager
async def raw_stream(stranger: Daemon, victim: Member) -> AsyncIterator[tuple[Any, asyncio.StreamWriter]]:
    await stranger.connect(victim.key, await victim.daemon.addresses())
    reader, writer = await stranger.open_stream(victim.key, stream_protocol(RUN))
    try:
        assert await reader.readexactly(ACK_BYTES) == encode_ack(Ack(0, 0))
        yield reader, writer
    finally:
        writer.transport.abort()


def test_garbage_costs_its_sender_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    @in_swarm
    async def check(swarm: Swarm) -> None:
        victim = await swarm.member(StreamOptions(limits=FrameLimits(header=100, bulk=1000)))
        friend, stranger = await swarm.member(), await swarm.daemon()
        await friend.join(victim)
        good = frame_prefix(1, b"h", b"b") + b"hb"
        for garbage in (
            os.urandom(5000),
            frame_prefix(1, bytes(101), b"") + bytes(101),
            frame_prefix(1, b"", bytes(1001)),
            good + good,
            good[:-1] + b"x",
            bytes(4) + b"\xff" * 28,
        ):
            async with raw_stream(stranger, victim) as (reader, writer):
                writer.write(garbage)
                # Closed by the victim, after an acknowledgement of what was good before.
                assert len(await reader.read()) in (0, ACK_BYTES)
        async with raw_stream(stranger, victim) as (_, writer):
            writer.write(good[:-1])  # truncated: ends without an error, and without a frame
        async with raw_stream(stranger, victim) as (reader, writer):
            writer.write(frame_prefix(1, b"nonsense", b"") + b"nonsense" + frame_prefix(2, b"h", b"") + b"h")
            ack = b""
            while len(ack) < ACK_BYTES or not ack.endswith(encode_ack(Ack(2, 2 * frame_bytes(b"", b"") + 9))):
                ack += await reader.readexactly(ACK_BYTES)
        assert victim.transport.traffic.bad[stranger.key] == 7
        assert friend.transport.send(victim.key, b"still here", kind="x")
        await victim.seen.until(lambda: any(header == b"still here" for _, header, _ in victim.seen.frames))
        assert victim.seen.lost == friend.seen.lost == []

    with caplog.at_level(logging.WARNING):
        check(tmp_path)
    lines = [entry.getMessage() for entry in caplog.records if entry.name == "peer.complaints"]
    assert len(lines) == 1 and "dropped a bad message from 12D3KooW" in lines[0]


@in_swarm
async def test_false_acknowledgements_close_the_stream(swarm: Swarm) -> None:
    one, liar = await swarm.member(), await swarm.daemon()

    async def lie(_info: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_ack(Ack(0, 0)) + encode_ack(Ack(9, 9)))
        await reader.read()
        writer.transport.abort()

    await liar.serve_stream(stream_protocol(RUN), lie)
    one.transport.connect(liar.key, await liar.addresses())
    await one.seen.until(lambda: one.seen.lost)
    assert one.seen.lost[0] == (liar.key, "ack: of what was not sent")
    assert one.transport.traffic.bad[liar.key] >= 1


@in_swarm
async def test_streams_of_one_peer_are_limited(swarm: Swarm) -> None:
    """The third stream closes the first; the newest two work."""
    victim, stranger = await swarm.member(), await swarm.daemon()
    async with contextlib.AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(raw_stream(stranger, victim)) for _ in range(3)]
        assert await opened[0][0].read() == b""
        for number, (_, writer) in enumerate(opened[1:]):
            writer.write(frame_prefix(1, b"%d" % number, b"") + b"%d" % number)
        await victim.seen.until(lambda: len(victim.seen.frames) == 2)


@in_swarm
async def test_many_frames_a_second_are_read_more_slowly(swarm: Swarm) -> None:
    victim, stranger = await swarm.member(StreamOptions(frames_per_second=50)), await swarm.daemon()
    async with raw_stream(stranger, victim) as (_, writer):
        start = time.monotonic()
        for number in range(1, 122):
            writer.write(frame_prefix(number, b"h", b"") + b"h")
            await asyncio.sleep(0.001)
        await victim.seen.until(lambda: len(victim.seen.frames) == 121)
        assert time.monotonic() - start > 1.0


@in_swarm
async def test_close_is_quick_and_refuses_new_streams(swarm: Swarm) -> None:
    one, two = await swarm.member(), await swarm.member()
    await one.join(two)
    start = time.monotonic()
    await two.transport.close()
    assert time.monotonic() - start < 1.0
    with contextlib.suppress(Unreachable):
        # libp2p may open a stream before it has asked, if it knew the protocol before: then it ends without a hello.
        reader, writer = await one.daemon.open_stream(two.key, stream_protocol(RUN))
        assert await reader.read() == b""
        writer.transport.abort()
