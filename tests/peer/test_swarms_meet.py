"""Swarms that started apart, and peers whose entry node is gone: they keep asking, and come together."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bootstrap.rendezvous
import peer.outer
from bootstrap.addresses import with_peer
from bootstrap.identity import load_or_create
from peer.network import Network
from peer.settings import Settings
from protocol.manifest import Manifest

pytestmark = [
    pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning"),
    pytest.mark.timeout(120),
]
ROOT = Path(__file__).parents[2]


def until(replica: Any, condition: Callable[[], Any]) -> None:
    """Let the outer threads work until the condition holds; the test's deadline ends it."""
    while not condition():
        replica.peer.network.call(asyncio.sleep(0.05))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same back-off as ever, in tenths of the time."""
    monkeypatch.setattr(bootstrap.rendezvous, "REJOIN_EVERY", 1.0)
    monkeypatch.setattr(bootstrap.rendezvous, "_LAST_RETRY", 1.5)
    monkeypatch.setattr(peer.outer, "DISCOVER_LAST", 1.0)


def test_two_swarms_that_get_a_common_address_merge(
    swarm: Any, small: Callable[..., Manifest], tmp_path: Path, impatient: None
) -> None:
    late = Settings(out=tmp_path / "late", listen=f"/ip4/127.0.0.1/tcp/{free_port()}")
    common = with_peer(late.listen, load_or_create(late.out / "identity").key)
    manifest = small(run__steps=60)
    one, two = (swarm.add(manifest, join=[common], merge_wait=5.0) for _ in range(2))
    swarm.run(steps=20)  # each a swarm of its own: both have closed windows
    assert all(max(chain.due for chain in r.peer.outer.node.ledger.chains) >= 12 for r in (one, two))
    assert one.digest() != two.digest()
    assert not one.peer.outer.connected and not two.peer.outer.connected

    network = Network(late, print)
    try:
        for replica, other in ((one, two), (two, one)):
            until(replica, lambda r=replica, o=other: o.peer.network.identity.key in r.peer.outer.connected)
        assert all(any("Joined through the bootstrap" in text for text in r.notices) for r in (one, two))
    finally:
        network.close()
    swarm.run()
    assert swarm.linger() == [True, True]
    assert one.digest() == two.digest()


def test_an_entry_node_that_dies_for_good_is_one_line(
    swarm: Any, small: Callable[..., Manifest], tmp_path: Path, impatient: None
) -> None:
    port = free_port()
    listen, identity = f"/ip4/127.0.0.1/tcp/{port}", tmp_path / "entry"
    command = [sys.executable, "-m", "peer.cli", "bootstrap", "--listen", listen, "--identity", str(identity)]
    with subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    ) as entry:
        try:
            assert entry.stdout is not None and "ready" in entry.stdout.readline()
            join = [with_peer(listen, load_or_create(identity).key)]
            one, two = (swarm.add(small(run__start_peers=2), join=join, merge_wait=5.0) for _ in range(2))
            for replica in (one, two):
                replica.peer.gather()
        finally:
            entry.send_signal(signal.SIGKILL)
    until(one, lambda: all(any("answer" in text for text in r.notices) for r in (one, two)))
    for _ in range(6):  # some more rounds of asking
        one.peer.network.call(asyncio.sleep(0.5))
    for replica in (one, two):
        # On a busy machine the other one may answer too late the first time.
        *before, line = [text for text in replica.notices if "answer" in text]
        assert line.startswith("The bootstrap does not answer at") and "still trying" in line
        assert len(before) <= 1 and all(text.startswith("Nobody answers") for text in before), before
    swarm.run()
    assert swarm.linger() == [True, True] and one.digest() == two.digest()
