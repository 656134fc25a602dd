"""The libp2p daemon as a real child process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from bootstrap import daemon as daemon_module
from bootstrap import daemon_process
from bootstrap.addresses import join_address
from bootstrap.daemon import Daemon, DaemonError, DaemonOptions, Unreachable
from bootstrap.identity import Identity
from protocol.errors import UserError

# hivemind finds its daemon with a function of importlib that Python 3.11 deprecates and 3.13 does not.
pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")


def sockets_of(daemon: Daemon) -> list[Path]:
    return [Path(address["unix"]) for address in (daemon.p2p._daemon_listen_maddr, daemon.p2p._client_listen_maddr)]


def test_identity_and_addresses(run: Any, daemons: Any) -> None:
    async def check() -> None:
        async with daemons() as some:
            one = await some.start()
            (address,) = await one.addresses()
            assert join_address(address)[0] == one.key == one.identity.key
            assert address.startswith("/ip4/127.0.0.1/tcp/")
            two = await some.start()
            await two.connect(one.key, [address])
            assert await two.connected() == {one.key}
            assert await one.connected() == {two.key}

    run(check())


def test_close_leaves_nothing(run: Any, tmp_path: Path) -> None:
    async def check() -> None:
        daemon = await Daemon.start(tmp_path / "identity")
        await daemon.serve_stream("/test/1", _close_at_once)
        assert all(path.exists() for path in sockets_of(daemon))
        child = psutil.Process(daemon.pid)
        await daemon.close()
        await daemon.close()
        assert not child.is_running()
        assert not any(path.exists() for path in sockets_of(daemon))
        assert not daemon.died.done()

    run(check())


def test_close_kills_a_daemon_that_does_not_stop(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_process, "STOP_TIMEOUT", 0.2)

    async def check() -> None:
        daemon = await Daemon.start(tmp_path / "identity")
        child = psutil.Process(daemon.pid)
        child.suspend()
        await daemon.close()
        assert not child.is_running()

    run(check())


def test_death_of_the_daemon_is_told(run: Any, daemons: Any) -> None:
    async def check() -> None:
        async with daemons() as some:
            daemon = await some.start()
            os.kill(daemon.pid, signal.SIGKILL)
            async with asyncio.timeout(2):
                assert "p2pd exited with code -9" in await daemon.died
            with pytest.raises(Unreachable):
                await daemon.open_stream(b"k" * 32, "/test/1", 1.0)
            with pytest.raises(DaemonError):
                await daemon.addresses()

    run(check())


def test_unreachable_peers(run: Any, daemons: Any) -> None:
    async def check() -> None:
        async with daemons() as some:
            one, two = await some.start(), await some.start()
            nobody = Identity.from_seed(b"n" * 32).key
            with pytest.raises(Unreachable, match="cannot connect"):
                await one.connect(nobody, ["/ip4/127.0.0.1/tcp/9"], 5.0)
            # Somebody lives there, but it is somebody else.
            with pytest.raises(Unreachable):
                await one.connect(nobody, await two.addresses(), 5.0)
            await one.connect(two.key, await two.addresses())
            with pytest.raises(Unreachable, match="protocols not supported"):
                await one.open_stream(two.key, "/unknown/1")

    run(check())


def test_used_port_is_an_error(run: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}"

        async def check() -> None:
            with pytest.raises(UserError, match=rf"listen = '{address}': the port is in use"):
                await Daemon.start(tmp_path / "identity", DaemonOptions(listen=(address,)))

        run(check())


def test_used_identity_is_an_error(run: Any, tmp_path: Path) -> None:
    async def check() -> None:
        daemon = await Daemon.start(tmp_path / "identity")
        with pytest.raises(UserError, match="another running peer uses it"):
            await Daemon.start(tmp_path / "identity")
        await daemon.close()
        await (await Daemon.start(tmp_path / "identity")).close()

    run(check())


def test_failed_start_tells_the_daemons_own_words(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An address that no interface has, as if it had gone between our check and p2pd's start: p2pd exits at once."""
    monkeypatch.setattr(daemon_module, "require_free", lambda listen: None)

    async def check() -> None:
        options = DaemonOptions(listen=("/ip4/192.0.2.1/tcp/4001",), attempts=2)
        with pytest.raises(DaemonError, match=r"attempt 2 of 2.*its last words: .*192\.0\.2\.1"):
            await Daemon.start(tmp_path / "identity", options)

    run(check())
    assert "attempt 1 of 2" in caplog.text


def test_address_that_is_not_ours_is_the_users_mistake(run: Any, tmp_path: Path) -> None:
    async def check() -> None:
        with pytest.raises(UserError, match="cannot listen there"):
            await Daemon.start(tmp_path / "identity", DaemonOptions(listen=("/ip4/192.0.2.1/tcp/4001",)))

    run(check())


@pytest.mark.parametrize(
    "changes",
    [
        {"listen": ()},
        {"listen": ("/dns4/example.org/tcp/1",)},
        {"listen": ("/ip4/0.0.0.0/udp/1/quic",)},
        {"announce": ("/ip4/192.0.2.7/tcp/0",)},
    ],
)
def test_wrong_options_are_the_users_mistake(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(changes))):
        DaemonOptions(**changes)


PARENT = """
import asyncio, sys
from pathlib import Path
import uvloop
from bootstrap.daemon import Daemon

async def main():
    daemon = await Daemon.start(Path(sys.argv[1]))
    print(daemon.pid, flush=True)
    await asyncio.Event().wait()

uvloop.run(main())
"""


def test_daemon_ends_with_a_killed_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "identity")]
    root = Path(daemon_module.__file__).parents[1]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=root) as parent:
        assert parent.stdout is not None and parent.stderr is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        noise = parent.stderr.read()
        gone, _ = psutil.wait_procs([child], timeout=10)
    assert gone
    assert noise == b"", "hivemind's logging reached the terminal"


async def _close_at_once(_info: object, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()
