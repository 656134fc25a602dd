"""Notices when whoever reads our output is gone, so that a child of a killed local swarm ends by itself."""

from __future__ import annotations

import asyncio
import select

_CHECK_SECONDS = 1.0


async def reader_gone(descriptor: int = 1) -> None:
    """Returns when the reading end of the pipe `descriptor` has been closed; never for anything but a pipe."""
    while not has_no_reader(descriptor):
        await asyncio.sleep(_CHECK_SECONDS)


def has_no_reader(descriptor: int = 1) -> bool:
    """Whether the reading end of the pipe `descriptor` has been closed."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
