"""Proxies in front of real sockets: they delay, throttle, cut, count and close as a link would.

Times are bounded from below exactly, since a link may not be faster than it is; from above with much room, since a busy
machine is slower.
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable

import pytest

from peer.links.proxy import HOST, Proxy
from peer.links.relay import DelayLine, piece_bytes, window_bytes
from peer.links.shape import LinkShape, Path
from peer.links.sockets import free_port, owner_of
from peer.links.table import OUTSIDE, LinkTable
from peer.links.thread import LinkThread

DIALLER, LISTENER = 0, 1
SECONDS = 30.0


class Bench:
    """A listener behind a proxy, which echoes or collects; everyone who dials is node DIALLER."""

    def __init__(self, shapes: dict[int, LinkShape]) -> None:
        self.table = LinkTable(shapes)
        self.proxy = Proxy(self.table, lambda port, ours: DIALLER, shaped=bool(shapes))
        self.received = bytearray()
        self.ended = asyncio.Event()
        self.broke = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self, *, echo: bool = True) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.append(writer)
            try:
                while data := await reader.read(1 << 16):
                    self.received += data
                    if echo:
                        writer.write(data)
                        await writer.drain()
                self.ended.set()
                writer.write_eof()
            except OSError:
                self.broke.set()
                writer.transport.abort()

        self._server = await asyncio.start_server(serve, HOST, 0)
        self.port = await self.proxy.open(LISTENER)
        self.proxy.set_backend(LISTENER, self._server.sockets[0].getsockname()[1])

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(HOST, self.port)
        self._writers.append(writer)
        return reader, writer

    async def close(self) -> None:
        await self.proxy.close()
        for writer in self._writers:
            writer.transport.abort()
        self._server.close()
        await self._server.wait_closed()
        await asyncio.sleep(0)


def with_bench(
    work: Callable[[Bench], Awaitable[None]], shapes: dict[int, LinkShape] | None = None, *, echo: bool = True
) -> None:
    async def run() -> None:
        bench = Bench(shapes or {})
        await bench.open(echo=echo)
        try:
            async with asyncio.timeout(SECONDS):
                await work(bench)
        finally:
            await bench.close()
        assert bench.proxy.connections == 0

    asyncio.run(run())


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


def test_it_carries_both_ways_and_counts() -> None:
    async def work(bench: Bench) -> None:
        reader, writer = await bench.dial()
        writer.write(b"x" * 300_000)
        writer.write_eof()
        assert await reader.read(-1) == b"x" * 300_000  # so half-closing passed both ways too
        await until(lambda: bench.proxy.connections == 0)
        mine, theirs = bench.table.traffic[DIALLER], bench.table.traffic[LISTENER]
        assert (mine.up, mine.down, theirs.up, theirs.down) == (300_000,) * 4
        assert (theirs.accepted, theirs.refused) == (1, 0)

    with_bench(work)


@pytest.mark.parametrize("slow", [DIALLER, LISTENER])
def test_bandwidth_is_a_node_s_and_each_way(slow: int) -> None:
    size, mbit = 400_000, 8.0

    async def work(bench: Bench) -> None:
        pairs = [await bench.dial() for _ in range(2)]
        began = time.monotonic()
        for _, writer in pairs:
            writer.write(b"x" * (size // 2))
            writer.write_eof()
        await asyncio.gather(*(reader.read(-1) for reader, _ in pairs))
        # Both connections together share 1 MB/s; there and back overlap.
        assert 0.9 * size <= (time.monotonic() - began) * mbit * 125_000 <= 5 * size

    with_bench(work, {slow: LinkShape(mbit=mbit)})


def test_latency_is_added_and_does_not_limit_throughput() -> None:
    async def work(bench: Bench) -> None:
        reader, writer = await bench.dial()
        began = time.monotonic()
        writer.write(b"first")
        assert await reader.readexactly(5) == b"first"
        # The handshake's round trip, and the echo's.
        assert time.monotonic() - began >= 4 * 0.05 - 0.01
        began = time.monotonic()
        sending = asyncio.create_task(send(writer, 8 << 20))
        await reader.readexactly(8 << 20)
        await sending
        # Piece by piece, waiting for each to arrive, this would take 128 × 0.1 s.
        assert 0.1 - 0.01 <= time.monotonic() - began <= 6

    async def send(writer: asyncio.StreamWriter, size: int) -> None:
        writer.write(b"x" * size)
        await writer.drain()

    with_bench(work, {DIALLER: LinkShape(latency=0.02), LISTENER: LinkShape(latency=0.03)})


def test_order_is_kept_under_loss() -> None:
    sent = bytes(range(256)) * 2000

    async def work(bench: Bench) -> None:
        reader, writer = await bench.dial()
        writer.write(sent)
        writer.write_eof()
        assert await reader.read(-1) == sent

    with_bench(work, {LISTENER: LinkShape(loss=0.005)})


def test_a_cut_stops_what_is_open_and_refuses_what_is_new() -> None:
    async def work(bench: Bench) -> None:
        reader, writer = await bench.dial()
        writer.write(b"before")
        assert await reader.readexactly(6) == b"before"
        bench.table.cut("one", lambda node: node)
        bench.table.cut("another", lambda node: node)
        writer.write(b"during")
        other, _ = await bench.dial()
        assert await read_refused(other)
        bench.table.heal("one")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(1), 0.2)
        assert bytes(bench.received) == b"before"
        bench.table.heal("another")
        assert await reader.readexactly(6) == b"during"
        third, _ = await bench.dial()
        third_writer = bench._writers[-1]
        third_writer.write(b"after")
        assert await third.readexactly(5) == b"after"
        assert bench.table.traffic[LISTENER].refused == 1

    with_bench(work)


async def read_refused(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except OSError:
        return True


def test_a_cut_leaves_groups_and_strangers_alone() -> None:
    async def check() -> None:
        table = LinkTable({})
        table.cut("key", lambda node: node % 2)
        assert table.apart(0, 1) and not table.apart(0, 2) and not table.apart(OUTSIDE, 1)
        table.heal("key")
        table.heal("never there")
        assert not table.apart(0, 1)

    asyncio.run(check())


def test_a_broken_end_breaks_the_other() -> None:
    async def work(bench: Bench) -> None:
        reader, writer = await bench.dial()
        writer.write(b"x")
        await reader.readexactly(1)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, as from a killed process
        writer.transport.abort()
        waiting = {asyncio.create_task(one.wait()) for one in (bench.ended, bench.broke)}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        await until(lambda: bench.proxy.connections == 0)

    with_bench(work)


def test_nobody_listens() -> None:
    async def work(bench: Bench) -> None:
        bench.proxy.set_backend(LISTENER, free_port())
        reader, _ = await bench.dial()
        assert await read_refused(reader)
        await until(lambda: bench.proxy.connections == 0)
        assert bench.table.traffic[LISTENER].refused == 1

    with_bench(work)


def test_what_nobody_takes_is_bounded() -> None:
    """A slow link holds its window and small kernel buffers; the rest stays with the sender."""
    shape = LinkShape(mbit=0.8)
    window = window_bytes(Path(rate=shape.rate))

    async def work(bench: Bench) -> None:
        _, writer = await bench.dial()
        writer.write(b"x" * (8 << 20))
        await asyncio.sleep(0.3)
        left = writer.transport.get_write_buffer_size()
        assert (8 << 20) - left <= window + (1 << 20)

    with_bench(work, {LISTENER: shape}, echo=False)


def test_windows_and_pieces() -> None:
    assert piece_bytes(Path()) == 64 * 1024 and piece_bytes(Path(rate=1000)) == 1448
    assert piece_bytes(Path(rate=1e6)) == 10_000
    assert window_bytes(Path(delay=0.1)) == 8 << 20
    assert window_bytes(Path(delay=0.1, rate=1e6)) == 150_000
    assert window_bytes(Path(delay=1, rate=1e9)) == 8 << 20


def test_a_delay_line_keeps_its_window() -> None:
    async def check() -> None:
        line = DelayLine(10)
        await line.put(b"x" * 10, 0.0)
        waiting = asyncio.create_task(line.put(b"y", 0.0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        assert await line.take() == b"x" * 10
        await waiting
        assert await line.take() == b"y"

    asyncio.run(asyncio.wait_for(check(), SECONDS))


def test_a_listening_port_names_its_node() -> None:
    """libp2p dials from the port that it listens at; the owner is asked for other connections only."""
    asked: list[tuple[int, int]] = []

    def owner(port: int, ours: int) -> int:
        asked.append((port, ours))
        return OUTSIDE

    async def run() -> None:
        table = LinkTable({})
        proxy = Proxy(table, owner, shaped=False)
        port = await proxy.open(LISTENER)
        server = await asyncio.start_server(lambda reader, writer: writer.close(), HOST, 0)
        proxy.set_backend(LISTENER, server.sockets[0].getsockname()[1])
        mine = free_port()
        proxy.set_backend(DIALLER, mine)
        for local in ((HOST, mine), None):
            reader, writer = await asyncio.open_connection(HOST, port, local_addr=local)
            assert await reader.read(1) == b""
            writer.close()
        assert table.traffic[LISTENER].accepted == 2
        assert len(asked) == 1 and asked[0][1] == port
        await proxy.close()
        server.close()

    asyncio.run(asyncio.wait_for(run(), SECONDS))


def test_the_system_knows_whose_a_socket_is() -> None:
    import os

    with socket.create_server((HOST, 0)) as server, socket.create_connection(server.getsockname()) as mine:
        port, remote = mine.getsockname()[1], server.getsockname()[1]
        assert owner_of({os.getpid(): 7}, port, remote, otherwise=OUTSIDE) == 7
        assert owner_of({os.getpid(): 7}, port, remote + 1, otherwise=OUTSIDE) == OUTSIDE
        assert owner_of({2**22 - 1: 7}, port, remote, otherwise=OUTSIDE) == OUTSIDE
        server.accept()[0].close()


def test_a_thread_of_its_own_ends_with_everything_in_it() -> None:
    import threading

    with socket.create_server((HOST, 0)) as server:
        links = LinkThread([DIALLER, LISTENER], {}, lambda port, ours: DIALLER)
        with links:
            links.set_backend(LISTENER, server.getsockname()[1])
            with socket.create_connection((HOST, links.ports[LISTENER]), timeout=SECONDS) as mine:
                theirs, _ = server.accept()
                mine.sendall(b"hello")
                theirs.settimeout(SECONDS)
                assert theirs.recv(5) == b"hello"
                assert links.connections() == 1 and links.traffic()[LISTENER].accepted == 1
                links.cut("key", lambda node: node)
                links.heal("key")
                links.close()
                assert theirs.recv(1) == b""
                theirs.close()
        links.close()
    assert not any(thread.name == "potluck-links" for thread in threading.enumerate())
