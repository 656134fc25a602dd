"""The signals that end a command in order, and handlers that are there only while they are needed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

from peer.exit_codes import TERMINATED


def ending() -> tuple[signal.Signals, ...]:
    """Ctrl-C, SIGTERM and a closed terminal. A hang-up that is ignored, as under nohup, stays ignored."""
    hang_up = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hang_up)


def stoppable() -> AbstractContextManager[None]:
    """While it lasts, SIGTERM ends us in order, as Ctrl-C does: what is open is closed on the way out."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(TERMINATED)

    return handled((signal.SIGTERM,), stop)


@contextmanager
def handled(numbers: Sequence[signal.Signals], take: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Let `take` have these signals while the context lasts; the handlers of before are back afterwards."""
    before = {number: signal.signal(number, take) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
