"""A peer that comes back when the others have finished, over real daemons: it ends with what they ended with, or says
why it cannot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import potluck
from peer.network import Network
from peer.returning import RunOver
from protocol.manifest import Manifest
from protocol.messages import FINISHED

pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")

Small = Callable[..., Manifest]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Network]:
    """A node that outlives every peer, and holds nothing of the run."""
    network = Network(potluck.Settings(out=tmp_path / "entry"), lambda text: None)
    try:
        yield network
    finally:
        network.close()


@pytest.fixture
def entry(node: Network) -> str:
    """Its address."""
    return node.call(node.daemon.addresses())[0]


def one_is_away(swarm: Any, manifest: Manifest, entry: str, together: int = 9) -> tuple[Any, Any]:
    """Two peers train together, then one of them leaves and the other ends alone."""
    stays = swarm.add(manifest, join=[entry], folder="stays", merge_wait=0.5)
    leaves = swarm.add(manifest, join=[entry], folder="leaves", merge_wait=0.5)
    for replica in (stays, leaves):
        replica.peer.gather()
    until(lambda: all(other.peer.outer.connected for other in (stays, leaves)))
    for _ in range(together):
        stays.train()
        leaves.train()
        time.sleep(0.02)  # real steps take longer than a round trip
    until(leaves.peer.outer.node.companions)
    leaves.peer._leave()
    while not stays.peer.finished:
        stays.train()
        time.sleep(0.02)
    return stays, leaves


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.02)


def finish(replica: Any) -> bytes:
    """Serve and leave, as a peer does at the run's end."""
    replica.peer.linger()
    digest: bytes = replica.digest()
    replica.peer._leave()
    return digest


def test_a_peer_that_comes_back_after_the_end_takes_the_last_state_of_one_who_has_it(
    swarm: Any, small: Small, entry: str
) -> None:
    manifest = small(run__steps=40, run__start_peers=2)
    stays, leaves = one_is_away(swarm, manifest, entry)
    step, digest = leaves.peer.step, finish(stays)
    back = swarm.add(manifest, join=[entry], folder="leaves", linger=60)
    assert back.peer.step == step < 40
    again = []
    starts = threading.Thread(
        target=lambda: again.append(swarm.add(manifest, join=[entry], folder="stays", linger=60)), daemon=True
    )
    starts.start()
    back.peer.gather()  # waits for the one that is started again
    starts.join(60)
    assert back.peer.finished and back.peer.own_step == step, "nobody needs what it would train"
    again[0].peer.gather()
    with ThreadPoolExecutor() as pool:
        assert all(pool.map(lambda one: one.peer.linger(), (back, again[0])))
    assert back.digest() == again[0].digest() == digest
    assert any("has taken over the state in which the others have finished" in text for text in back.notices)
    assert any("this peer has its last state" in text for text in again[0].notices)


def test_a_peer_that_comes_back_when_nobody_has_the_last_state_says_so_and_ends(
    swarm: Any, small: Small, entry: str
) -> None:
    manifest = small(run__steps=40, run__start_peers=2)
    stays, leaves = one_is_away(swarm, manifest, entry)
    step = leaves.peer.step
    finish(stays)
    back = swarm.add(manifest, join=[entry], folder="leaves", linger=0.5)
    with pytest.raises(RunOver, match=f"nobody who has its last state is here.*the state of step {step} stays in"):
        back.peer.gather()
    assert back.peer.step == step
    assert len([text for text in back.notices if "Others have finished this run" in text]) == 1


def test_strangers_words_about_the_end_change_nothing(swarm: Any, small: Small, entry: str) -> None:
    """Anyone can store a farewell. One of a key that no link of ours names does not end us; a newcomer only says so."""
    from bootstrap.identity import Identity
    from peer import clock
    from protocol import farewell

    manifest = small(run__steps=30)
    first = swarm.add(manifest, join=[entry], folder="peer")
    first.peer.gather()
    while first.peer.step < 14:
        first.train()
    first.peer._leave()
    liar = swarm.add(small(run__steps=31), join=[entry], folder="liar").peer.network
    key, run = Identity.from_seed(b"9" * 32), first.peer.outer.node.ledger.run
    words = farewell.Farewell(farewell.VERSION, run, key.key, 30, True, clock.wall(), clock.wall() + 600, "liar")

    async def lie() -> None:
        await liar.rendezvous.joined.wait()
        await liar.rendezvous.say_farewell(run, key.key, farewell.encode(words, key.sign), words.expires)

    liar.call(lie())
    back = swarm.add(manifest, join=[entry], folder="peer", linger=0.5)
    back.peer.gather()
    back.train()
    assert any("Training goes on from step 14 alone, and may make another model" in text for text in back.notices)
    back.peer._leave()
    new = swarm.add(manifest, join=[entry], folder="new", linger=0.5)
    new.peer.gather()
    assert any("Training starts from the beginning, and makes another model" in text for text in new.notices)


@pytest.mark.slow
def test_a_peer_that_comes_back_and_meets_nobody_does_not_call_it_agreed(swarm: Any, small: Small, entry: str) -> None:
    manifest = small(run__steps=40, run__start_peers=2)
    _, leaves = one_is_away(swarm, manifest, entry)
    swarm.close()
    back = swarm.add(manifest, join=[], folder="leaves")
    back.peer.gather()
    while not back.peer.finished:
        back.train()
    assert not back.peer.linger()
    assert leaves.peer.step < 40


def test_a_peer_that_comes_late_takes_the_last_state_and_has_finished(
    swarm: Any, small: Small, entry: str, node: Network
) -> None:
    manifest = small(run__steps=20)
    first = swarm.add(manifest, join=[entry], folder="first")
    first.peer.gather()
    while not first.peer.finished:
        first.train()
    until(lambda: not first.peer.outer.node.windows.unsettled)
    first.peer.network.post(first.peer.outer.set_phase, FINISHED)
    until(lambda: node.call(node.rendezvous.find(first.peer.outer.node.ledger.run)))
    late = swarm.add(manifest, join=[entry], folder="late")
    late.peer.gather()
    assert late.peer.finished and late.peer.own_step == 0
    assert swarm.linger() == [True, True]
    assert late.digest() == first.digest()
