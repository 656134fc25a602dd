"""Starting p2pd as a child process that we own.

hivemind's `P2P.create` could start it too, but only in our own process group, where the Ctrl-C that a user types
reaches the daemon before we have said goodbye. So the child is started here, in a session of its own, and `P2P` is
attached to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Sequence
from importlib.resources import as_file, files

import hivemind.hivemind_cli
from hivemind.p2p import P2P, P2PDaemonError
from hivemind.utils.multiaddr import Multiaddr

from bootstrap.daemon_words import LastWords

STOP_TIMEOUT = 3.0
_SOCKET = "/tmp/hivemind-p2pd-{}.sock"
"""Not in a longer folder: the path of a unix socket has at most about 100 bytes."""


class DaemonProcess:
    """One p2pd, from before its start until it is gone."""

    def __init__(self) -> None:
        self.socket = _SOCKET.format(secrets.token_urlsafe(8))
        self.words = LastWords()
        self.child: asyncio.subprocess.Process | None = None
        self.p2p: P2P | None = None
        self._listening: asyncio.Task[None] | None = None

    async def start(self, arguments: Sequence[str], lock: int) -> P2P:
        """Start p2pd and attach to it. P2PDaemonError if it ends before it is ready; the caller sets a deadline.

        p2pd inherits the descriptor `lock`, so that what it locks stays locked until p2pd has ended as well.
        """
        with as_file(files(hivemind.hivemind_cli) / "p2pd") as program:
            self.child = await asyncio.create_subprocess_exec(
                *(str(program), f"-listen=/unix{self.socket}", *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(lock,),
            )
        assert self.child.stdout is not None
        self._listening = asyncio.create_task(self.words.listen(self.child.stdout), name="p2pd's words")
        if not await self.words.ready:
            raise P2PDaemonError("it ended at once")
        self.p2p = await P2P.replicate(Multiaddr(f"/unix{self.socket}"))
        return self.p2p

    async def stop(self) -> bool:
        """End the child, by SIGKILL if need be, and remove the sockets. Returns whether it ended when asked to."""
        if self.p2p is not None:
            self.p2p._terminate()  # stops its tasks and removes its own socket
        in_time = await self._end_child()
        if self._listening is not None:
            await asyncio.wait([self._listening], timeout=STOP_TIMEOUT)
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.socket)
        return in_time

    async def _end_child(self) -> bool:
        if self.child is None:
            return True
        with contextlib.suppress(ProcessLookupError):
            self.child.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                await self.child.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self.child.kill()
            await self.child.wait()
            return False
        return True
