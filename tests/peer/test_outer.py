"""The shell around the node: what goes wrong in a callback ends there, and what it remembers is bounded."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bootstrap.identity import Identity
from peer.assembly import Assembly
from peer.ledger_record import LINKS_REMEMBERED
from peer.mailbox import Mailbox
from peer.outer import GONE_AFTER, Outer
from peer.parameters import ModuleParameters
from peer.record import Record
from peer.sealing import chunks_of, layout_of, seal
from peer.settings import Settings
from peer.transport import Handler, Priority, Traffic, Transport
from protocol.commands import Send
from protocol.errors import ProtocolError
from protocol.messages import VERSION, Contribution, Hello, Status, encode
from protocol.presence import encode as encode_record
from protocol.schedule import Window

ADDRESS = "/ip4/127.0.0.1/tcp/4001"
ME, OTHER = Identity.from_seed(b"1" * 32), Identity.from_seed(b"2" * 32)


class Nowhere(Transport):
    """A transport whose frames go into a list."""

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.sent: list[tuple[bytes, bytes]] = []
        self.connecting: set[bytes] = set()

    async def start(self, handler: Handler) -> None: ...

    def connect(self, key: bytes, addresses: Sequence[str]) -> None:
        self.connecting.add(key)

    def forget(self, key: bytes) -> None:
        self.connecting.discard(key)

    def send(
        self,
        key: bytes,
        header: bytes,
        bulk: bytes | memoryview = b"",
        *,
        kind: str,
        priority: Priority | None = None,
        wanted: Callable[[], bool] | None = None,
    ) -> bool:
        self.sent.append((key, header))
        return True

    def queued(self, key: bytes) -> int:
        return 0

    async def close(self, flush: float = 0.0) -> None: ...


class Desert:
    """A rendezvous where nobody is; `failing` makes looking there an error."""

    failing: Exception | None = None
    asked = True

    def __init__(self) -> None:
        self.joined = asyncio.Event()

    def announce(self, run: bytes, make: Callable[[], bytes]) -> None: ...

    async def find(self, run: bytes) -> list[bytes]:
        if self.failing:
            raise self.failing
        return []


@asynccontextmanager
async def opened(folder: Path, manifest: Any, model: Any) -> AsyncIterator[Outer]:
    manifest = seal(manifest, None, model)
    layout = layout_of(manifest, model)
    chunks = chunks_of(manifest, layout)
    assembly = Assembly(manifest, ME, Settings(out=folder), chunks)
    fragment_of = tuple(chunk.fragment for chunk in chunks)
    record = Record(folder / "record.jsonl", fragment_of=fragment_of, overlap=2, late_steps=3)
    outer = Outer(
        node=assembly.node(assembly.arithmetic(), ModuleParameters(model, layout)),
        transport=Nowhere(),
        rendezvous=Desert(),  # type: ignore[arg-type]
        mailbox=Mailbox(),
        record=record,
        make_presence=assembly.presence,
        sign_bytes=ME.sign,
        addresses=[ADDRESS],
    )
    await outer.start()
    try:
        yield outer
    finally:
        await outer.stop()
        record.close()


@pytest.fixture
def run(tmp_path: Path, small: Any, blocks: Any) -> Callable[[Callable[[Outer], Any]], None]:
    """Runs a coroutine function with an outer shell that knows nobody."""

    def run_it(check: Callable[[Outer], Any]) -> None:
        async def within() -> None:
            async with asyncio.timeout(10), opened(tmp_path, small(), blocks()) as outer:
                await check(outer)

        asyncio.run(within())

    return run_it


def test_a_bad_frame_raises_a_protocol_error_and_is_counted(run: Any) -> None:
    async def check(outer: Outer) -> None:
        frames = [b"", b"\x91", b"\xc1" * 5, encode(Status(step=1, phase=0, heads=bytes(32)))[:-1], bytes(100)]
        for header in frames:
            with pytest.raises(ProtocolError):
                outer.on_frame(OTHER.key, header, memoryview(b""))
        assert outer.refused.total() == len(frames)
        assert not outer.errors

    run(check)


def test_an_error_of_ours_is_logged_once_and_the_peer_goes_on(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def check(outer: Outer) -> None:
        def break_down(*_: Any, **__: Any) -> None:
            raise KeyError("a bug")

        receive, outer.node.receive = outer.node.receive, break_down  # type: ignore[method-assign]
        frame = encode(Status(step=1, phase=0, heads=bytes(32)))
        for _ in range(3):
            with pytest.raises(ProtocolError):
                outer.on_frame(OTHER.key, frame, memoryview(b""))
        assert outer.errors == {"take a frame": 3}
        assert outer._timer is not None and not outer._timer.cancelled()
        outer.node.receive = receive  # type: ignore[method-assign]
        assert outer.on_frame(OTHER.key, frame, memoryview(b"")) == "window"

    with caplog.at_level(logging.WARNING):
        run(check)
    (line,) = caplog.records
    assert line.getMessage().startswith("could not take a frame") and line.exc_info


def test_one_command_that_fails_does_not_stop_the_others(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def check(outer: Outer) -> None:
        write, outer._record.write = outer._record.write, None  # type: ignore[method-assign, assignment]
        chunks = outer.node.chunks_of(0)
        snapshot = [outer.node.ledger.tip(chunk).anchor + 1.0 for chunk in chunks]
        outer.open(Window(0, 6), snapshot, 64)
        outer._record.write = write  # type: ignore[method-assign]
        assert outer.errors.total() >= 2  # writing that we contributed, and the links
        outer.set_step(7, 0.1)
        assert outer.node.step == 7

    with caplog.at_level(logging.WARNING):
        run(check)
    assert len(caplog.records) <= 2


@pytest.mark.parametrize("error", [KeyError("a bug"), ProtocolError("what others sent")])
def test_discovery_survives_an_error(run: Any, caplog: pytest.LogCaptureFixture, error: Exception) -> None:
    async def check(outer: Outer) -> None:
        outer._rendezvous.failing = error  # type: ignore[attr-defined]
        while not outer.errors:
            await asyncio.sleep(0.05)
        assert outer._discovery is not None and not outer._discovery.done()

    run(check)
    assert sum("look for others" in line.getMessage() for line in caplog.records) == 1


def test_after_stop_nothing_is_done(run: Any) -> None:
    async def check(outer: Outer) -> None:
        await outer.stop()
        outer.set_step(5, 0.1)
        outer.on_lost(OTHER.key, "late news")
        assert outer.node.step == 0
        assert outer._timer is not None and outer._timer.cancelled()

    run(check)


def test_links_are_written_once_each(run: Any, tmp_path: Path) -> None:
    async def check(outer: Outer) -> None:
        for due, tokens in ((6, 64), (12, 128)):
            chunks = outer.node.chunks_of(0)
            snapshot = [outer.node.ledger.tip(chunk).anchor + 1.0 for chunk in chunks]
            outer.open(Window(0, due), snapshot, tokens)
        assert not outer.errors and not outer.refused
        assert all(len(heads) <= LINKS_REMEMBERED for heads in outer._ledger_record._written.values())

    run(check)
    lines = [msgspec.json.decode(line) for line in (tmp_path / "record.jsonl").read_bytes().splitlines()]
    links = [(line["chunk"], line["due"]) for line in lines if line["kind"] == "link"]
    assert links and len(links) == len(set(links))


def test_a_presence_record_has_the_addresses_that_fit(run: Any) -> None:
    async def check(outer: Outer) -> None:
        outer.addresses = tuple(f"/ip6/{'2001:0db8:' * 10}{number}/tcp/4001" for number in range(12))
        assert len(outer.presence()) <= 1024
        ours = outer.node.roster.neighbours[ME.key].record
        assert 1 <= len(ours.addresses) <= 8 and ours.owns
        assert ours.addresses[0] == outer.addresses[0]

    run(check)


def test_what_the_transport_does_not_take_is_not_counted(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(outer: Outer) -> None:
        state = outer.node.ledger.tip(0)
        parent = outer.node.ledger.parent(0, state)
        message = Contribution(0, 6, parent, 1, bytes(32), ME.key, bytes(64))
        outer._obey(Send(OTHER.key, message, b"12345"))
        assert outer.window_bytes.total == 5
        monkeypatch.setattr(outer.transport, "send", lambda *_, **__: False)
        outer._obey(Send(OTHER.key, message, b"12345"))
        assert outer.window_bytes.total == 5

    run(check)


def test_a_contribution_whose_window_is_over_is_not_wanted(run: Any) -> None:
    async def check(outer: Outer) -> None:
        parent = outer.node.ledger.parent(0, outer.node.ledger.tip(0))
        ahead, over = (Contribution(0, due, parent, 1, bytes(32), ME.key, bytes(64)) for due in (6, 0))
        assert outer._still_open(ahead)()
        assert not outer._still_open(over)()

    run(check)


def test_the_last_words_of_a_lost_peer_do_not_revive_it(run: Any) -> None:
    async def check(outer: Outer) -> None:
        other = Assembly(outer._make_presence.__self__.manifest, OTHER, Settings(name="other"), [])  # type: ignore[attr-defined]
        record = encode_record(other.presence([ADDRESS], time.time()), OTHER.sign)
        words = encode(Status(step=3, phase=0, heads=bytes(32)))
        outer.on_frame(OTHER.key, encode(Hello(VERSION, record)), memoryview(b""))
        assert outer.transport.connecting == {OTHER.key}  # type: ignore[attr-defined]
        outer.on_frame(OTHER.key, words, memoryview(b""))
        assert outer.node.roster.live() == [], "we cannot answer it yet"
        outer.on_connected(OTHER.key)
        assert outer.node.roster.live() == [OTHER.key]
        outer.on_frame(OTHER.key, words, memoryview(b""))
        assert outer.node.roster.live() == [OTHER.key]
        outer.on_lost(OTHER.key, "its stream closed")
        outer.on_frame(OTHER.key, words, memoryview(b""))
        assert outer.node.roster.live() == []

    run(check)


def test_two_that_nobody_can_dial_do_not_dial_each_other_but_count(run: Any) -> None:
    async def check(outer: Outer) -> None:
        other = Assembly(outer._make_presence.__self__.manifest, OTHER, Settings(name="other"), [])  # type: ignore[attr-defined]

        def learn(addresses: list[str], wall: float) -> None:
            outer._learn([encode_record(other.presence(addresses, wall), OTHER.sign)])

        outer.addresses = ()
        outer.presence()
        learn([], time.time())
        assert outer.transport.connecting == set()  # type: ignore[attr-defined]
        assert outer.node.roster.live() == [], "nothing is expected of it here"
        assert await outer.present() == 2
        learn([ADDRESS], time.time() + 1)
        assert outer.transport.connecting == {OTHER.key}  # type: ignore[attr-defined]
        assert await outer.present() == 1, "it can be dialled now, and does not answer yet"
        learn([], time.time() + 2)
        assert outer.transport.connecting == set()  # type: ignore[attr-defined]

    run(check)


def test_who_refuses_every_dial_for_long_is_taken_for_gone(run: Any) -> None:
    async def check(outer: Outer) -> None:
        now, since = time.monotonic(), dict[bytes, float]()
        outer.transport.refused_since = since.get  # type: ignore[method-assign]
        outer._note_the_gone()
        assert outer.node.roster.gone == set()
        since[ME.key] = now - GONE_AFTER / 2
        outer._note_the_gone()
        assert outer.node.roster.gone == set(), "it may be starting again"
        since[ME.key] = now - GONE_AFTER - 1
        outer._note_the_gone()
        assert outer.node.roster.gone == {ME.key}
        since.clear()
        outer._note_the_gone()
        assert outer.node.roster.gone == set(), "something listens there again"

    run(check)
