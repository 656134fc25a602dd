"""Machines that own chunks without training, beside trainers that nobody can dial. Real daemons, one process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import peer.network
from bootstrap.identity import peer_id
from bootstrap.reachability import Reachability
from peer.aggregator import PACE_MEMORY, AggregatorOptions, NoTrainer, aggregate
from peer.mailbox import Anchor
from peer.network import Network
from peer.parameters import ModuleParameters
from peer.sealing import build_model, seal
from peer.settings import Settings
from protocol.errors import UserError
from protocol.manifest import Manifest, changed, encode
from protocol.pace import Advance
from protocol.schedule import Window

pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")

STEPS = 26


@pytest.fixture
def tiny(small: Callable[..., Manifest]) -> Manifest:
    """A run of one of our own models, on data that nobody checks."""
    manifest = small(
        run__steps=STEPS, run__start_peers=2, codec__chunk=65536, model__name="tiny", schedule__overlap=2, run__seed=3
    )
    sealed = seal(manifest, None, build_model(manifest))
    return changed(sealed, {"model.name": "tiny", "data.name": "bible"})


class Server:
    """An entry node that owns chunks, on a network of its own in this process."""

    def __init__(
        self, out: Path, manifest: Manifest | None, run: str | None = None, join: tuple[str, ...] = ()
    ) -> None:
        self.notices: list[str] = []
        self.record = out / "owned.jsonl"
        self.network = Network(Settings(out=out, join=join), self.notices.append)
        if manifest is not None:
            publish, name = self.network.rendezvous.publish_manifest, manifest.run.name
            self.network.loop.call_soon_threadsafe(publish, name, encode(manifest))
        options = AggregatorOptions(
            manifest=manifest, run=run, name="server", record=self.record, join=join, notice=self.notices.append
        )
        work = aggregate(self.network.daemon, self.network.rendezvous, options)
        self.work: concurrent.futures.Future[None] = asyncio.run_coroutine_threadsafe(work, self.network.loop)

    @property
    def address(self) -> str:
        return self.network.call(self.network.daemon.addresses())[0]

    @property
    def id(self) -> str:
        return peer_id(self.network.identity.key)

    def links(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.record.read_text().splitlines()]

    def close(self) -> None:
        self.work.cancel()
        self.network.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def start(*arguments: Any, **options: Any) -> Server:
        made.append(Server(tmp_path / f"server-{len(made)}", *arguments, **options))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture
def behind_nat(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Calling it makes every network that starts from then on find that nobody can dial it."""

    async def closed(*_: object) -> Reachability:
        return Reachability("closed", (), "45.0.1.1")

    return lambda: monkeypatch.setattr(peer.network, "find_out", closed)


def step(replica: Any) -> None:
    """An inner step on made-up gradients: what is averaged does not matter here."""
    for parameter in replica.model.parameters():
        parameter.grad = torch.full_like(parameter, 0.01 * (replica.index + 1))
    replica.optimizer.step()


def train(replicas: list[Any], until_step: int) -> None:
    """In turns, up to swarm step `until_step`; a window is over before the next step, whatever the machine's speed."""
    while going := [replica for replica in replicas if replica.peer.step < until_step]:
        for replica in going:
            step(replica)
        for replica in going:
            while replica.peer.outer.pending.total() or replica.peer.outer.node.windows.outbound:
                replica.peer.network.call(asyncio.sleep(0.02))


def digest(home: Any) -> bytes:
    """Of the outer parameters and momentum."""
    whole: bytes = home.peer.write_outer(ModuleParameters(build_model(home.peer.manifest), home.peer.layout))
    return whole


def start_homes(swarm: Any, manifest: Manifest, join: list[str]) -> list[Any]:
    homes = [swarm.add(None, model=build_model(manifest), join=join) for _ in range(2)]
    for home in homes:
        home.peer.gather()
    return homes


def test_home_computers_and_one_server(swarm: Any, server: Any, behind_nat: Any, tiny: Manifest) -> None:
    owner = server(tiny)
    behind_nat()
    homes = start_homes(swarm, tiny, [owner.address])
    assert all("owns nothing" in home.notices[0] for home in homes)
    assert not any("Not all peers came" in note for home in homes for note in home.notices), "each counted the other"
    train(homes, STEPS)
    assert swarm.linger() == [True, True]
    assert digest(homes[0]) == digest(homes[1])
    links = owner.links()
    windows = {(line["chunk"], line["due"]) for line in links}
    schedule, fragment_of = homes[0].peer.schedule, homes[0].peer.fragment_of
    due = {(chunk, w.due) for w in schedule.windows() for chunk, owns in enumerate(fragment_of) if owns == w.fragment}
    # All of them, strictly, in tests/chaos/: here a busy machine that stands still for seconds may cost a window.
    assert windows <= due and len(windows) >= 0.75 * len(due)
    assert {chunk for chunk, _ in windows} == set(range(len(fragment_of)))
    assert {line["owner"] for line in links} == {owner.id}
    trainers = {home.peer.peer_id for home in homes}
    assert all({part["peer"] for part in line["contributors"]} <= trainers for line in links)
    for home in homes:
        assert not home.peer.outer.node.roster.neighbours[home.peer.network.identity.key].record.owns
        assert home.peer.outer.connected == {owner.network.identity.key}, "they never dial each other"
        assert not home.peer.outer.errors and not home.peer.outer.refused


def test_the_second_server_takes_over(swarm: Any, server: Any, behind_nat: Any, tiny: Manifest) -> None:
    first = server(tiny)
    second = server(None, run=tiny.run.name, join=(first.address,))
    behind_nat()
    homes = start_homes(swarm, tiny, [first.address, second.address])
    owners = {first.network.identity.key, second.network.identity.key}
    while not all(home.peer.outer.connected >= owners for home in homes):
        homes[0].peer.network.call(asyncio.sleep(0.1))
    train(homes, 14)
    assert {line["owner"] for line in second.links()} == {first.id, second.id}, "ownership is shared"
    first.close()
    train(homes, STEPS)
    assert swarm.linger() == [True, True]
    assert digest(homes[0]) == digest(homes[1])
    assert {line["owner"] for line in second.links() if line["due"] >= 21} == {second.id}
    assert {line["chunk"] for line in second.links() if line["due"] >= 21} == set(range(len(homes[0].peer.fragment_of)))


def test_a_run_that_is_not_ours_to_compute_ends_with_a_reason(server: Any, small: Any, blocks: Any) -> None:
    ours = server(seal(small(), None, blocks()))
    with pytest.raises(UserError, match="the model of the run small is a program's own"):
        ours.work.result(30)


def test_a_server_waits_for_a_manifest_and_says_so(server: Any, tiny: Manifest) -> None:
    waiting = server(None, run="elsewhere")
    while not waiting.notices:
        waiting.network.call(asyncio.sleep(0.05))
    assert waiting.notices == ["Waiting for a peer that brings the manifest of elsewhere."]
    assert not waiting.work.done()


def test_pace_never_goes_back() -> None:
    pace = Advance(PACE_MEMORY)
    assert not pace.follow(0, 1.0) and pace.step_seconds is None
    assert pace.follow(10, 2.0) and pace.step_seconds is None
    assert not pace.follow(9, 3.0) and not pace.follow(10, 4.0)
    assert pace.follow(14, 10.0)
    assert (pace.step, pace.step_seconds) == (14, 2.0)
    for number in range(100):
        pace.follow(15 + number, 11.0 + number)
    assert pace.step_seconds == 1.0, "old paces are forgotten"


def test_nobody_picks_up_what_a_server_settles() -> None:
    mailbox = NoTrainer()
    mailbox.put_anchor(Anchor(0, 6, 1, True, torch.zeros(4)))
    mailbox.notice(Window(0, 6))
    assert mailbox.take() == ([], [])
