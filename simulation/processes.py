"""Many independent tasks, on as many processes as there are cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch

from protocol.errors import UserError

MOST_JOBS: Final = 1024


def resolve_jobs(jobs: int | None) -> int:
    """The number of processes for a `--jobs` flag: one a core if it was not given. UserError for nonsense."""
    if jobs is not None and not 1 <= jobs <= MOST_JOBS:
        raise UserError.field("--jobs", jobs, f"must be between 1 and {MOST_JOBS}")
    return jobs or cores()


def cores() -> int:
    """How many this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


Tasks = list[partial[Any]]


@contextmanager
def processes(jobs: int) -> Iterator[Callable[[Tasks], Iterator[tuple[int, Any]]]]:
    """A function that does tasks, several at once, and gives (index, result) as they are done.

    With one job they are done in this process. Leaving early ends what is under way. The function raises
    BrokenProcessPool if a process was killed.
    """
    if jobs == 1:
        torch.set_num_threads(1)
        yield lambda tasks: ((index, task()) for index, task in enumerate(tasks))
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_settle_in)
    try:
        yield lambda tasks: _in_pool(pool, 2 * jobs, tasks)
    except BaseException:
        for worker in multiprocessing.active_children():
            worker.terminate()  # a task may take minutes
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _in_pool(pool: ProcessPoolExecutor, at_once: int, tasks: Tasks) -> Iterator[tuple[int, Any]]:
    """Few tasks are handed out at a time: what is not, costs nothing to drop."""
    waiting = enumerate(tasks)
    running: dict[Future[Any], int] = {}
    while True:
        while len(running) < at_once and (following := next(waiting, None)) is not None:
            running[_submit(pool, following[1])] = following[0]
        if not running:
            return
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            yield running.pop(future), future.result()


def _submit(pool: ProcessPoolExecutor, task: partial[Any]) -> Future[Any]:
    """A worker that this starts inherits the blocked signal: on Ctrl-C we alone speak, and end the workers."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(task)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _settle_in() -> None:
    """A worker: one thread of arithmetic, and no life without the parent."""
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
