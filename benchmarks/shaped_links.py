"""Real links between real processes, as slow and as long as a benchmark wants them: two ways to have them.

`Namespaces`: each process in a network namespace of its own, its upload shaped by the kernel's tbf. Needs root, `ip`
and `tc`. No latency, where the kernel has no netem. `Proxies`: loopback, through the delaying proxies of `potluck
swarm`, which take processor time of their own and need no rights.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from peer.commands.faults import Faults  # noqa: E402
from peer.commands.swarm_links import SwarmLinks  # noqa: E402
from peer.links.shape import LinkShape  # noqa: E402
from peer.links.table import ENTRY  # noqa: E402

PORT = 4001


class Links(Protocol):
    """Where an entry node and peers live."""

    def start_entry(self, *arguments: str) -> subprocess.Popen[str]:
        """Python with these arguments and an address to listen at, not shaped; its standard output is ours to read."""

    def start_peer(self, index: int, *arguments: str) -> subprocess.Popen[str]:
        """Python with these arguments on peer `index`'s link, told by `--listen` and `--announce` where to listen."""

    def close(self) -> None:
        """End every process, and leave nothing behind."""


class Namespaces:
    """See Links."""

    def __init__(self, mbit: float) -> None:
        """SystemExit where this machine cannot do it."""
        made = _namespaces()
        self._mbit = mbit
        try:
            self._internet = made.Internet()
        except made.Unavailable as error:
            raise SystemExit(f"this machine cannot run it: {error}") from error

    def start_entry(self, *arguments: str) -> subprocess.Popen[str]:
        """See Links."""
        home = self._internet.server(1)
        return self._start(home, (*arguments, "--listen", f"/ip4/0.0.0.0/tcp/{PORT}"), subprocess.PIPE)

    def start_peer(self, index: int, *arguments: str) -> subprocess.Popen[str]:
        """See Links."""
        home = self._internet.server(index + 2)
        rate = f"{round(self._mbit * 1e6)}bit"
        tbf = ["tc", "qdisc", "add", "dev", "wan", "root", "tbf", "rate", rate, "burst", "4kb", "limit", "1mb"]
        done = subprocess.run(["ip", "netns", "exec", home, *tbf], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"tbf: {done.stderr.strip()}")
        return self._start(home, (*arguments, "--listen", "auto", "--announce", ""), subprocess.DEVNULL)

    def close(self) -> None:
        """See Links."""
        self._internet.close()

    def _start(self, home: str, arguments: Sequence[str], stdout: int) -> subprocess.Popen[str]:
        process: subprocess.Popen[str] = self._internet.popen(home, **_how(arguments, stdout))
        return process


class Proxies:
    """See Links."""

    def __init__(self, mbit: float, latency: float, peers: int) -> None:
        """`latency` is that between two peers, one way, in seconds. The entry node is half as far."""
        shapes = tuple(LinkShape(mbit=mbit, latency=latency / 2) for _ in range(peers))
        self._links = SwarmLinks(Faults(links=shapes), peers, seed=0)
        self._processes: list[subprocess.Popen[str]] = []

    def start_entry(self, *arguments: str) -> subprocess.Popen[str]:
        """See Links."""
        return self._start(ENTRY, arguments, subprocess.PIPE)

    def start_peer(self, index: int, *arguments: str) -> subprocess.Popen[str]:
        """See Links."""
        return self._start(index, arguments, subprocess.DEVNULL)

    def close(self) -> None:
        """See Links."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        self._links.close()

    def _start(self, node: int, arguments: Sequence[str], stdout: int) -> subprocess.Popen[str]:
        how = _how((*arguments, *self._links.flags(node)), stdout)
        process = subprocess.Popen(how.pop("command"), text=True, **how)
        self._links.started(node, process.pid)
        self._processes.append(process)
        return process


def _how(arguments: Sequence[str], stdout: int) -> dict[str, Any]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, *arguments]
    return {"command": command, "cwd": ROOT, "env": environment, "stdin": subprocess.DEVNULL, "stdout": stdout}


def _namespaces() -> Any:
    """tests/chaos/namespaces.py, which makes and removes the namespaces."""
    path = ROOT / "tests/chaos/namespaces.py"
    spec = importlib.util.spec_from_file_location("namespaces", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
