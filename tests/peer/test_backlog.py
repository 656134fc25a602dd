"""What waits for one peer: the urgent first, within a limit, and nothing that nobody wants any more."""

from __future__ import annotations

import asyncio

from peer.backlog import Backlog, Outgoing
from peer.transport import Priority


def frame(name: bytes, *, size: int = 10, wanted: bool | None = None) -> Outgoing:
    return Outgoing(name, bytes(size), "window", None if wanted is None else lambda: bool(wanted))


async def names(backlog: Backlog, count: int) -> list[bytes]:
    return [(await asyncio.wait_for(backlog.get(), 5)).header for _ in range(count)]


def test_the_urgent_come_first_and_each_class_in_order() -> None:
    backlog = Backlog(10_000)
    for name, priority in (
        (b"a", Priority.BULK),
        (b"b", Priority.REPAIR),
        (b"c", Priority.SMALL),
        (b"d", Priority.BULK),
    ):
        assert backlog.put(frame(name), priority)
    assert asyncio.run(names(backlog, 4)) == [b"c", b"a", b"d", b"b"]
    assert backlog.num_bytes == 0


def test_a_frame_over_the_limit_is_not_taken_unless_it_is_alone() -> None:
    backlog = Backlog(500)
    assert backlog.put(frame(b"a", size=1000), Priority.BULK)
    assert not backlog.put(frame(b"b"), Priority.BULK)


def test_what_is_not_wanted_any_more_is_dropped_when_its_turn_comes() -> None:
    async def run() -> None:
        backlog = Backlog(10_000)
        over: list[bool] = []
        backlog.put(Outgoing(b"old", bytes(10), "window", lambda: not over), Priority.BULK)
        backlog.put(frame(b"new", wanted=True), Priority.BULK)
        over.append(True)
        assert await names(backlog, 1) == [b"new"]
        backlog.put(frame(b"never", wanted=False), Priority.BULK)
        waiting = asyncio.create_task(names(backlog, 1))
        while backlog.num_bytes:
            await asyncio.sleep(0)
        assert not waiting.done(), "there is nothing to send"
        backlog.put(frame(b"at last"), Priority.BULK)
        assert await waiting == [b"at last"]

    asyncio.run(run())
