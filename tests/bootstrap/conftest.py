"""Real daemons on loopback, on a uvloop loop, with a deadline for each test and nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from bootstrap.daemon import Daemon, DaemonOptions

DEADLINE = 30.0


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    """Runs a coroutine with a deadline, and checks that no child process outlives it."""

    async def within(work: Coroutine[Any, Any, None]) -> None:
        async with asyncio.timeout(DEADLINE):
            await work

    def run_it(work: Coroutine[Any, Any, None]) -> None:
        before = set(psutil.Process().children(recursive=True))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(within(work))
        assert set(psutil.Process().children(recursive=True)) <= before

    return run_it


class Daemons:
    """Starts daemons that are closed at the end, each with its own identity."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder, self._stack, self._count = folder, stack, 0

    async def start(self, options: DaemonOptions | None = None) -> Daemon:
        """One more daemon."""
        self._count += 1
        daemon = await Daemon.start(self._folder / f"identity{self._count}", options)
        self._stack.push_async_callback(daemon.close)
        return daemon


@pytest.fixture
def daemons(tmp_path: Path) -> Callable[[], Any]:
    """An async context manager of `Daemons`."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Daemons]:
        async with AsyncExitStack() as stack:
            yield Daemons(tmp_path, stack)

    return opened
