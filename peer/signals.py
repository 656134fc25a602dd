"""The signals that end a command in order, and handlers that are there only while they are needed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType


def ending() -> tuple[signal.Signals, ...]:
    """Ctrl-C, SIGTERM and a closed terminal. A hang-up that is ignored, as under nohup, stays ignored."""
    hang_up = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hang_up)


@contextmanager
def handled(numbers: Sequence[signal.Signals], take: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Let `take` have these signals while the context lasts; the handlers of before are back afterwards."""
    before = {number: signal.signal(number, take) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
