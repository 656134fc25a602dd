"""Whose a socket is, from the operating system; what a killed process leaves of its own; ports that are free."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

_DAEMON_SOCKET: Final = "hivemind-p2p"


def owner_of(processes: dict[int, int], port: int, remote_port: int, *, otherwise: int) -> int:
    """The node whose process has a TCP socket from `port` to `remote_port`; `otherwise` if none of them has.

    `processes` has the node of each process id; what these processes started counts as theirs.
    """
    for pid, node in processes.items():
        for process in _family(pid):
            if _has(process, port, remote_port):
                return node
    return otherwise


def _family(pid: int) -> Iterator[psutil.Process]:
    try:
        process = psutil.Process(pid)
        yield from (*process.children(recursive=True), process)
    except psutil.Error:
        return


def _has(process: psutil.Process, port: int, remote_port: int) -> bool:
    try:
        sockets = process.net_connections(kind="tcp")
    except psutil.Error:  # it has ended, or is not ours to look into
        return False
    return any(one.raddr and one.laddr.port == port and one.raddr.port == remote_port for one in sockets)


def daemon_sockets(pid: int) -> list[Path]:
    """The files of the unix sockets by which a process listens to its libp2p daemon: kill -9 leaves them behind."""
    try:
        sockets = psutil.Process(pid).net_connections(kind="unix")
    except psutil.Error:
        return []
    paths = {Path(one.laddr) for one in sockets if isinstance(one.laddr, str) and one.laddr}
    return [path for path in paths if path.name.startswith(_DAEMON_SOCKET)]


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that nobody listens at now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
