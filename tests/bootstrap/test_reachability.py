"""Whether others can dial us: who is dialled back, who is believed, and what it costs the one that is asked."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from bootstrap import reachability
from bootstrap.addresses import host_of, port_of, with_peer
from bootstrap.daemon import Daemon, DaemonOptions
from bootstrap.dial_back import MAX_AT_ONCE, MAX_HOSTS, PROTOCOL, QUESTIONS_A_MINUTE, Answer, DialBack, Question
from bootstrap.probe import answers
from bootstrap.reachability import Reachability, ask, find_out, judge, watch

pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")

KEY = b"k" * 32
SEEN = "/ip4/45.0.1.1/tcp/50000"


def full(address: str) -> str:
    return with_peer(address, KEY)


def test_only_the_asker_itself_counts_as_an_answer(run: Any, daemons: Any) -> None:
    async def check() -> None:
        async with daemons() as some:
            node, asker = await some.start(), await some.start()
            await DialBack(node).start()
            (address,) = await node.addresses()
            ours, others = port_of((await asker.addresses())[0]), port_of(address)
            with socket.create_server(("127.0.0.1", 0)) as silent:
                ports = [ours, others, 1, silent.getsockname()[1]]
                answer = await ask(asker, address, ports)
            assert answer == Answer(1, "127.0.0.1", (ours,))
            assert await answers("127.0.0.1", others, node.key, 5.0)
            assert not await answers("127.0.0.1", others, asker.key, 5.0), "another peer's port"

    run(check())


def test_an_open_port_that_speaks_something_else_is_no_answer(run: Any) -> None:
    async def check() -> None:
        for words in (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            b"\x13/multistream/1.0.0\n\x0b/tls/1.0.0\n nonsense" * 9,
            b"",
        ):

            async def speak(reader: Any, writer: Any, words: bytes = words) -> None:
                writer.write(words)
                writer.close()

            async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
                assert not await answers("127.0.0.1", server.sockets[0].getsockname()[1], KEY, 5.0)

    run(check())


def test_garbage_gets_no_answer_and_does_no_harm(run: Any, daemons: Any) -> None:
    async def check() -> None:
        async with daemons() as some:
            node, asker = await some.start(), await some.start()
            await DialBack(node).start()
            (address,) = await node.addresses()
            await asker.connect(node.key, [address])
            for garbage in (b"\xff", b"\x01\xc0", b"\x05\x92\x01\x91\xcd\x00", b"\x04\x92\x01\x91\x00"):
                reader, writer = await asker.open_stream(node.key, PROTOCOL)
                writer.write(garbage + b"\x00" * 200)
                assert await reader.read() == b""
                writer.transport.abort()
            assert await ask(asker, address, [port_of((await asker.addresses())[0])])

    run(check())


def test_what_a_question_may_cost(run: Any, daemons: Any) -> None:
    async def check() -> None:
        async with daemons() as some:
            now = 0.0
            service, question = DialBack(await some.start(), now=lambda: now), Question(1, (9,))
            local = "/ip4/127.0.0.1/tcp/50000"
            for _ in range(QUESTIONS_A_MINUTE):
                assert await service.answer(KEY, local, question) == Answer(1, "127.0.0.1")
            assert await service.answer(KEY, local, question) == Answer(1, ""), "too often"
            assert (await service.answer(KEY, "/ip4/127.0.0.2/tcp/50000", question)).host == "127.0.0.2"
            now = 61.0
            assert (await service.answer(KEY, local, question)).host == "127.0.0.1"
            relayed = f"/ip4/45.0.0.1/tcp/1/p2p/{'Q' * 46}/p2p-circuit"
            assert await service.answer(KEY, relayed, question) == Answer(1, ""), (
                "the relay's address is not the asker's"
            )
            service._busy = MAX_AT_ONCE
            assert await service.answer(KEY, local, question) == Answer(1, "")
            for number in range(MAX_HOSTS + 9):
                service._may_ask(f"45.0.{number // 256}.{number % 256}")
            assert len(service._asked) == MAX_HOSTS

    run(check())


def test_who_is_seen_from_furthest_away_decides() -> None:
    own = [full("/ip4/10.0.0.2/tcp/4001")]
    inside, outside = Answer(1, "10.0.0.2", (4001,)), Answer(1, "45.0.1.1", ())
    assert judge([], own, (), KEY) == Reachability("unknown", tuple(own))
    assert judge([inside], own, (), KEY) == Reachability("reachable", tuple(own), "10.0.0.2")
    assert judge([inside, outside], own, (), KEY) == Reachability("closed", (), "45.0.1.1")
    forwarded = Answer(1, "45.0.1.1", (4001,))
    found = judge([inside, outside, forwarded], own, (), KEY)
    assert found == Reachability("reachable", (full("/ip4/45.0.1.1/tcp/4001"),), "45.0.1.1")
    shared = judge([inside, Answer(1, "100.64.0.9", ())], own, (), KEY)
    assert shared.kind == "reachable", "a carrier's shared address is no public one"


def test_a_liar_among_the_peers_once_met_decides_nothing() -> None:
    own, honest = [full("/ip4/10.0.0.2/tcp/4001")], Answer(1, "45.0.1.1", ())
    lie, other_lie = Answer(1, "45.9.9.9", (4001,)), Answer(1, "45.8.8.8", (4001,))
    assert judge([honest], own, (), KEY, cached=[lie, lie]) == Reachability("closed", (), "45.0.1.1")
    inside = Answer(1, "10.0.0.2", (4001,))
    assert judge([inside], own, (), KEY, cached=[lie, other_lie]) == Reachability("reachable", tuple(own), "10.0.0.2")
    assert judge([inside], own, (), KEY, cached=[honest, honest, lie]).seen_as == "45.0.1.1", "two from far away"
    assert judge([], own, (), KEY, cached=[lie, honest, honest]).kind == "closed"
    assert judge([], own, (), KEY, cached=[lie]).seen_as == "45.9.9.9", "nobody else knows"


@pytest.mark.parametrize("host", ["2001:4860:4860::8888%\x1b[2J", "fe80::1%eth0", "example.org", ""])
def test_an_answer_that_holds_no_address_is_none(
    run: Any, daemons: Any, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lie(*_: object) -> Answer:
        return Answer(1, host)

    async def check() -> None:
        async with daemons() as some:
            node, asker = await some.start(), await some.start()
            monkeypatch.setattr(DialBack, "answer", lie)
            await DialBack(node).start()
            (address,) = await node.addresses()
            assert await ask(asker, address, [port_of(address)]) is None

    run(check())


def test_what_the_user_announces_is_tested_where_it_can_be() -> None:
    name, number = "/dns4/home.example.org/tcp/4001", "/ip4/45.0.9.9/tcp/4001"
    yes, no = Answer(1, "45.0.1.1", (4001,)), Answer(1, "45.0.1.1", ())
    assert judge([yes], [], (name,), KEY).addresses == (full(name),)
    assert judge([no], [], (name,), KEY).kind == "closed"
    elsewhere = judge([no], [], (number,), KEY)
    assert elsewhere.kind == "unknown" and elsewhere.addresses == (full(number),), "we were not seen there: believed"
    assert judge([no], [], ("/ip4/45.0.1.1/tcp/4001",), KEY).kind == "closed"


def test_one_sentence_for_each() -> None:
    assert Reachability("unasked", ()).sentence() == ""
    assert (
        "at /ip4/45.0.1.1/tcp/4001: it owns" in Reachability("reachable", (full("/ip4/45.0.1.1/tcp/4001"),)).sentence()
    )
    assert "(they see it as 45.0.1.1; NAT" in Reachability("closed", (), "45.0.1.1").sentence()
    assert "asking again later" in Reachability("unknown", ()).sentence()


def outward_address() -> str:
    """This machine's address on a network, without sending anything."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return ""
        found: str = probe.getsockname()[0]
        return "" if found.startswith("127.") else found


def test_a_peer_finds_out_over_a_real_interface(run: Any, daemons: Any) -> None:
    host = outward_address()
    if not host:
        pytest.skip("this machine has no address but loopback")

    async def check() -> None:
        async with daemons() as some:
            node = await some.start(DaemonOptions(listen=("/ip4/0.0.0.0/tcp/0",)))
            await DialBack(node).start()
            join = [one for one in await node.addresses() if host_of(one) == host]
            asker = await some.start(DaemonOptions(listen=("/ip4/0.0.0.0/tcp/0",)))
            port = port_of((await asker.addresses())[0])
            found = await find_out(asker, join)
            assert found == Reachability("reachable", (with_peer(f"/ip4/{host}/tcp/{port}", asker.key),), host)
            only_here = await some.start()
            found = await find_out(only_here, join)
            assert found == Reachability("closed", (), host)
            dead = with_peer(f"/ip4/{host}/tcp/9", KEY)
            assert (await find_out(asker, [dead])).kind == "unknown"
            assert (await find_out(asker, [dead], cached=join)).kind == "reachable", (
                "a peer met before can tell as well"
            )

    run(check())


def test_on_one_machine_nobody_is_asked(run: Any, daemons: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object) -> None:
        raise AssertionError

    async def check() -> None:
        async with daemons() as some:
            node, asker = await some.start(), await some.start()
            own = tuple(await asker.addresses())
            assert await find_out(asker, await node.addresses()) == Reachability("unasked", own)
            assert await find_out(asker, []) == Reachability("unasked", own)

    monkeypatch.setattr(reachability, "ask", never)
    run(check())


class Fixed:
    """A daemon whose addresses the test sets."""

    def __init__(self) -> None:
        self.own = ["/ip4/10.0.0.2/tcp/4001"]

    async def addresses(self) -> list[str]:
        return self.own


def test_a_change_is_told_when_seen_twice(run: Any, tmp_path: Path) -> None:
    closed, reachable = Reachability("closed", (), "45.0.1.1"), Reachability("reachable", (full(SEEN),), "45.0.1.1")
    unknown = Reachability("unknown", ())
    daemon: Any = Fixed()

    async def told(held: Reachability, answers: list[Reachability], **every: float) -> Reachability:
        """What the watch tells first, when asked questions have these answers."""
        coming, told = iter(answers), asyncio.get_running_loop().create_future()

        async def ask_again() -> Reachability:
            return next(coming, answers[-1])

        task = asyncio.create_task(watch(daemon, held, ask_again, told.set_result, look=0.01, **every))
        try:
            return await told
        finally:
            task.cancel()

    async def check() -> None:
        # One answer of its own is an accident, and not knowing is no news.
        answers = [reachable, closed, unknown, closed, reachable, reachable]
        assert await told(closed, answers, again=0.02) == reachable
        assert await told(unknown, [unknown, closed, closed], again=3600.0) == closed, "asked again before its time"
        waiting = asyncio.create_task(told(closed, [reachable], again=3600.0))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        daemon.own = ["/ip4/10.0.7.7/tcp/4001"]
        assert await waiting == reachable, "a new address of ours is a reason to ask"

    run(check())


def test_a_daemon_that_is_gone_breaks_nothing(run: Any, daemons: Any, tmp_path: Path) -> None:
    async def check() -> None:
        daemon = await Daemon.start(tmp_path / "identity")
        (address,) = await daemon.addresses()
        await daemon.close()
        assert await ask(daemon, with_peer(address, KEY), [1]) is None

    run(check())
