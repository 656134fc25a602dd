"""The public face over real daemons on loopback: models, optimizers and loops that are not potluck's own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import potluck
from peer.member import Peer
from protocol.manifest import Manifest, run_id
from protocol.schedule import Window

pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")

Small = Callable[..., Manifest]
UNREACHABLE = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWBUJifCTgaxAUrcM9JysqCcS4CS8tiYH5hExbdWCAoNwb"


def lines(peer: Peer, kind: str) -> list[dict[str, Any]]:
    """Of a peer's record."""
    written = map(json.loads, (peer.settings.out / "record.jsonl").read_text().splitlines())
    return [line for line in written if line["kind"] == kind]


def until(replica: Any, condition: Callable[[], Any]) -> None:
    """Let the outer thread work until the condition holds; the test's deadline ends it."""
    while not condition():
        replica.peer.network.call(asyncio.sleep(0.02))


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def test_two_peers_meet_average_and_agree(swarm: Any, small: Small) -> None:
    first = swarm.add(small(run__start_peers=2), optimizer=torch.optim.SGD, merge_wait=5.0)
    # The second knows an address and nothing else.
    second = swarm.add(None, optimizer=torch.optim.Adam, merge_wait=5.0)
    assert run_id(second.peer.manifest) == run_id(first.peer.manifest)
    assert first.peer.manifest.model.name == "custom"
    for replica in (first, second):
        replica.peer.gather()
    while not (first.peer.finished and second.peer.finished):
        for replica, batches in ((first, 1), (second, 3)):
            if not replica.peer.finished:
                replica.train(accumulate=batches)
    # The hook counts optimizer steps, not backward passes.
    assert len(second.losses) == 3 * second.peer.own_step and len(first.losses) == first.peer.own_step
    assert first.peer.tokens == 64 * first.peer.own_step
    assert swarm.linger() == [True, True]
    assert first.digest() == second.digest()

    both = {replica.peer.peer_id for replica in swarm.replicas}
    windows = [{part["peer"] for part in line["contributors"]} for line in lines(first.peer, "link")]
    assert both in windows and all(names <= both for names in windows)
    for replica in swarm.replicas:
        counts = replica.peer.record.counts(None)
        assert counts.opened == counts.merged + counts.late + counts.skipped >= 4
        assert counts.merged + counts.late >= 3
        assert replica.peer.times.wait_max <= 5.0 == replica.peer.times.allowed
        assert 0 < replica.peer.times.waiting <= replica.peer.times.hook < replica.peer.times.total
        assert not replica.peer.outer.errors and not replica.peer.outer.refused
    # A window has two chunks here, each with one contribution and one result at most.
    assert first.peer.outer.window_bytes.peak * 2 <= first.peer.outer.window_bytes.total


def test_a_merge_moves_the_parameters(swarm: Any, small: Small) -> None:
    manifest = small(run__start_peers=2, merge__mixing=0.0, codec__contributions="fp32", codec__results="fp32")
    for _ in range(2):
        swarm.add(manifest, merge_wait=5.0)
    assert swarm.replicas[0].peer.schedule.merging(8) == (Window(0, 6),)
    swarm.run(steps=7)
    before = [replica.peer._mixing.parameters.read(0) for replica in swarm.replicas]
    assert not torch.equal(*before), "each has trained towards a target of its own"
    swarm.run(steps=1)
    after = [replica.peer._mixing.parameters.read(0) for replica in swarm.replicas]
    # With α = 0 a merge leaves nothing of the local parameters: both have the anchor's.
    assert torch.equal(*after)
    assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert not torch.equal(*(replica.peer._mixing.parameters.read(1) for replica in swarm.replicas))
    # Nobody has finished, so there is somebody to wait for; a signal ends that at once.
    began = time.monotonic()
    assert not swarm.replicas[0].peer.linger(lambda: True)
    assert time.monotonic() < began + 2


def test_tau_0_waits_for_no_longer_than_merge_wait(swarm: Any, small: Small) -> None:
    manifest = small(run__start_peers=2, run__steps=13, schedule__overlap=0)
    for _ in range(2):
        swarm.add(manifest, merge_wait=0.05)
    swarm.run()  # in turns: the first cannot have what the second has not sent
    assert swarm.linger() == [True, True]
    assert len({replica.digest() for replica in swarm.replicas}) == 1
    first = swarm.replicas[0].peer
    assert first.times.allowed == 0.05
    assert 0.04 < first.times.wait_max < 0.5, "a loaded machine may wake us late, but not by that much"
    assert first.times.waiting < 0.5 * first.record.counts(None).opened


def test_what_is_not_finite_is_not_shared_and_heals(swarm: Any, small: Small) -> None:
    manifest = small(run__start_peers=2)
    for _ in range(2):
        swarm.add(manifest, merge_wait=5.0)
    broken, healthy = swarm.replicas

    swarm.run(steps=5)
    with torch.no_grad():
        broken.model[0].weight[0, 0] = float("nan")
    for _ in range(3):  # the window opens at step 6 and merges at step 8
        healthy.train()
        broken.optimizer.step()  # without gradients: a trainer skips steps whose loss is not finite
    assert bool(flat(broken.model).isfinite().all()), "the swarm's anchor took its place"
    swarm.run()
    assert swarm.linger() == [True, True]
    reasons = [line["reason"] for line in lines(broken.peer, "missed")]
    assert "our parameters are not finite" in reasons
    for replica in swarm.replicas:
        assert bool(flat(replica.model).isfinite().all())
    assert healthy.digest() == broken.digest()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"seed": 1}, "model.initial: "),
        ({"width": 8}, "model.layout: "),
        ({"layers": 1}, "fragments = 2: must be between 1 and 1"),
    ],
)
def test_another_model_is_refused_before_anything_starts(
    tmp_path: Path, small: Small, blocks: Any, model: dict[str, int], message: str, nothing_left: None
) -> None:
    from peer.sealing import seal

    manifest = seal(small(), None, blocks())
    mine = blocks(**model)
    with pytest.raises(potluck.UserError, match=message):
        potluck.join(
            mine,
            torch.optim.SGD(mine.parameters(), lr=0.1),
            tokens_per_step=1,
            manifest=manifest,
            settings=potluck.Settings(out=tmp_path / "never"),
        )
    assert not (tmp_path / "never").exists()


def test_a_mistake_that_only_the_network_shows_leaves_nothing(
    tmp_path: Path, small: Small, blocks: Any, nothing_left: None
) -> None:
    model = blocks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = potluck.Settings(out=tmp_path)
    with pytest.raises(potluck.UserError, match=r"tokens_per_step = 0: must be at least 1"):
        potluck.join(model, optimizer, tokens_per_step=0, manifest=small(), settings=settings)
    with pytest.raises(potluck.UserError, match="join: needs an address"):
        potluck.join(model, optimizer, tokens_per_step=1, settings=settings)
    assert not optimizer._optimizer_step_post_hooks
    with pytest.raises(potluck.UserError, match="cannot be read"):
        potluck.join(model, optimizer, tokens_per_step=1, manifest=tmp_path / "missing.toml", settings=settings)


def test_when_p2pd_dies_training_goes_on_alone(swarm: Any, small: Small) -> None:
    manifest = small(run__start_peers=2, run__steps=30)
    for _ in range(2):
        swarm.add(manifest, merge_wait=0.2)
    orphan, other = swarm.replicas
    swarm.run(steps=7)
    os.kill(orphan.peer.network.daemon.pid, signal.SIGKILL)
    until(orphan, lambda: orphan.peer.alone and orphan.notices)
    swarm.run()
    assert orphan.peer.finished and other.peer.finished
    assert orphan.peer.alone and not other.peer.alone
    assert not orphan.peer.linger(), "who is cut off from everyone has agreed with nobody"
    assert swarm.close() < 10
    assert [text for text in orphan.notices if "network is gone" in text] == orphan.notices[-1:]


def test_without_a_bootstrap_a_peer_says_so_and_trains(swarm: Any, small: Small) -> None:
    alone = swarm.add(small(), join=[UNREACHABLE], merge_wait=5.0)
    swarm.run()
    assert alone.peer.finished and alone.peer.linger()
    assert alone.peer.record.counts(None).merged + alone.peer.record.counts(None).late > 0
    until(alone, lambda: any("Nobody answers" in text for text in alone.notices))


def test_leaving_by_an_exception_leaves_nothing(tmp_path: Path, small: Small, blocks: Any, nothing_left: None) -> None:
    model = blocks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    peer = potluck.join(model, optimizer, tokens_per_step=1, manifest=small(), settings=potluck.Settings(out=tmp_path))
    with pytest.raises(ZeroDivisionError), peer:
        raise ZeroDivisionError
    assert not optimizer._optimizer_step_post_hooks
    peer.close()
    with pytest.raises(potluck.NetworkFailed):
        peer.outer_state()


def test_a_renewed_presence_record_counts_from_the_same_step(swarm: Any, small: Small) -> None:
    """A record that named a later step at each renewal took every peer out of the ranking until then."""
    replica = swarm.add(small(), merge_wait=5.0)
    swarm.run(steps=7)

    async def renew() -> tuple[bytes, ...]:
        replica.peer.outer.presence()
        chunks = replica.peer.outer.node.chunks_of(0)
        ranking: dict[int, tuple[bytes, ...]] = replica.peer.outer.node.roster.ranked(chunks, replica.peer.step + 1)
        return ranking[chunks[0]]

    assert replica.peer.network.call(renew()) == (replica.peer.network.identity.key,)


def test_an_opening_is_skipped_while_the_outer_thread_is_behind(swarm: Any, small: Small) -> None:
    replica = swarm.add(small())
    replica.peer.outer.pending[0] = 1
    replica.peer._open(Window(0, 6))
    assert [line["reason"] for line in lines(replica.peer, "missed_whole")] == ["outer thread behind"]
    replica.peer.outer.pending[0] = 0
