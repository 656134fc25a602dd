"""Child processes of a local swarm: each in a process group of its own, and none left behind.

A child writes JSON lines to its standard output, which we read, and everything else to a file. If we are killed without
a chance to clean up, the children find their output closed and end by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Self

from peer.links.sockets import daemon_sockets

log = logging.getLogger(__name__)

STOP_SECONDS = 15.0
"""What a child may take to say goodbye after SIGTERM."""
_LINE_LIMIT = 1 << 20
_TAIL_BYTES = 4000

# Not `-m peer.cli`: that would import a folder `peer` of the current directory first.
_ENTRY = "import sys; sys.path.append(sys.argv.pop(1)); from peer.cli import main; main()"
_ROOT = str(Path(__file__).resolve().parents[2])


class Child:
    """One running `potluck` command. Made by `start`."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, errors: Path) -> None:
        self.name = name
        self._process = process
        self._errors = errors
        self._daemon: int | None = None
        """Its libp2p daemon, which has a process group of its own; known once the child has told."""
        self._left: list[Path] = []
        """Files that it cannot remove itself, since we killed it."""

    @classmethod
    async def start(cls, name: str, arguments: Sequence[str], errors: Path, *, again: bool = False) -> Self:
        """Run `potluck` with these arguments; its standard error goes to the file `errors`, after what is in it if
        this is the same process `again`."""
        errors.parent.mkdir(parents=True, exist_ok=True)
        with errors.open("ab" if again else "wb") as file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-c", _ENTRY, _ROOT, *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=file,
                start_new_session=True,
                limit=_LINE_LIMIT,
            )
        return cls(name, process, errors)

    @property
    def pid(self) -> int:
        """The process's id, and its group's."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; the exit code; or the negative number of the signal that ended it."""
        return self._process.returncode

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """The JSON objects that it writes, until it closes its output."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                log.warning("%s wrote a line that is not JSON: %r", self.name, line[:200])
                continue
            if isinstance(event, dict):
                self._daemon = event.get("daemon_pid") or self._daemon
                yield event

    async def wait(self) -> int:
        """The exit code, when it has ended."""
        code = await self._process.wait()
        for path in self._left:
            path.unlink(missing_ok=True)
        return code

    def kill(self) -> None:
        """kill -9 to the process alone, as a user would. `wait` removes the sockets that it leaves in /tmp."""
        self._left = daemon_sockets(self.pid)
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def signal_group(self, number: signal.Signals) -> None:
        """A signal to the process and to its libp2p daemon."""
        for group in (self.pid, self._daemon):
            if group:
                with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: the latter
                    os.killpg(group, number)

    async def stop(self, within: float = STOP_SECONDS) -> None:
        """Ask it to end, and make sure that nothing of its group is left, at the latest after `within` seconds."""
        if self.returncode is not None:
            return  # its daemon ends by itself, and the numbers of both may belong to others by now
        self.signal_group(signal.SIGCONT)
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), within)
        self.signal_group(signal.SIGKILL)
        await self._process.wait()

    def last_words(self, lines: int = 12) -> str:
        """The end of what it wrote to standard error."""
        with self._errors.open("rb") as file:
            file.seek(max(0, self._errors.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
        return "\n".join(text.strip().splitlines()[-lines:])
