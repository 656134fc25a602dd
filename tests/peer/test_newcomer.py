"""A newcomer to a run under way, over real daemons: it begins with the swarm's outer parameters, at its step."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

import potluck
from peer import newcomer
from peer.assembly import GIVE_MBIT, give_rate
from peer.commands.records import read_record
from peer.commands.report_windows import Span, account
from peer.newcomer import JOIN_WARMUP, warm_up
from protocol.manifest import Manifest
from protocol.schedule import Window

pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")

Small = Callable[..., Manifest]


def until(replica: Any, condition: Callable[[], Any]) -> None:
    """Let the outer thread work until the condition holds; the test's deadline ends it."""
    while not condition():
        replica.peer.network.call(asyncio.sleep(0.02))


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def lines(replica: Any, kind: str) -> list[dict[str, Any]]:
    written = map(json.loads, (replica.peer.settings.out / "record.jsonl").read_text().splitlines())
    return [line for line in written if line["kind"] == kind]


def under_way(swarm: Any, manifest: Manifest) -> Any:
    """A run of one peer that has merged every fragment twice."""
    first = swarm.add(manifest, merge_wait=5.0)
    first.peer.gather()
    for _ in range(14):
        first.train()
    chains = first.peer.outer.node.ledger.chains
    until(first, lambda: all(chain.newest for chain in chains))
    return first


def test_a_newcomer_begins_with_the_outer_parameters_and_contributes(swarm: Any, small: Small, blocks: Any) -> None:
    first = under_way(swarm, small(run__steps=60))
    second = swarm.add(None, merge_wait=5.0)
    initial = flat(second.model)
    second.peer.gather()
    outer = blocks()
    digest = second.peer.write_outer(potluck.ModuleParameters(outer, second.peer.layout))
    assert torch.equal(flat(second.model), flat(outer)) and not torch.equal(flat(second.model), initial)
    assert digest == first.digest()
    joined = second.peer.joined
    assert joined and joined.from_step == second.peer.step == first.peer.step and joined.donors == 1
    assert joined.state_bytes > 0 and joined.bytes < 1.5 * joined.state_bytes + 20_000
    assert any("fetching the outer parameters" in text for text in second.notices)
    assert first.peer.joined is None

    before = second.peer.step
    second.train()
    assert second.peer.step == before + 1 and second.peer.own_step == 1
    swarm.run()
    assert swarm.linger() == [True, True]
    assert first.digest() == second.digest()
    contributed = lines(second, "contributed")
    assert contributed and min(line["due"] for line in contributed) >= before + second.peer.schedule.overlap
    named = {part["peer"] for line in lines(first, "link") for part in line["contributors"]}
    assert second.peer.peer_id in named
    found = account(1, second.peer.peer_id, "finished", [Span(0, 60)], read_record(second.peer.settings.out).events)
    assert found.spans == (Span(before + 1, 60),)
    assert not found.was_there(Window(0, 6)) and found.was_there(Window(0, 54))


def test_what_has_not_come_in_time_is_taken_later_and_not_contributed_before(
    swarm: Any, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = under_way(swarm, small(run__steps=60))
    first.peer.outer.node.repair.giving.rate = 1.0  # the first chunk at once, the next in an hour
    monkeypatch.setattr(newcomer, "STALLED", 2.0)
    second = swarm.add(None)
    second.peer.gather()
    assert any("the rest is fetched meanwhile" in text for text in second.notices)
    (chunk, *more) = sorted(second.peer._mixing.bare)
    assert not more, "one chunk came"
    while not lines(second, "missed_whole") or second.peer.own_step < 8:
        second.train()
    late = [line for line in lines(second, "missed_whole") if line["reason"].startswith("has not got")]
    assert late and {line["fragment"] for line in late} == {second.peer.fragment_of[chunk]}
    assert chunk not in {line["chunk"] for line in lines(second, "contributed")}
    first.peer.outer.node.repair.giving.rate = None
    first.peer.outer.node.repair.giving._free_at = 0.0
    second.peer.outer.node.repair._busy.clear()  # it was told to come again in a minute
    until(second, lambda: second.peer.outer.node.ledger.chains[chunk].newest and not second.peer.outer.bare)
    second.train()
    assert not second.peer._mixing.bare
    anchor = second.peer.outer_state()[chunk].anchor
    part = second.peer.chunks[chunk]
    assert torch.equal(second.peer._mixing.parameters.view(part.fragment, part.start, part.stop), anchor)


def test_who_is_there_from_the_start_does_not_fetch(swarm: Any, small: Small) -> None:
    for _ in range(2):
        swarm.add(small(run__start_peers=2), merge_wait=5.0)
    swarm.run(steps=4)
    assert [replica.peer.joined for replica in swarm.replicas] == [None, None]
    assert not any("fetching" in text for replica in swarm.replicas for text in replica.notices)


def test_a_newcomers_rate_rises_to_the_runs() -> None:
    shares = [warm_up(step) for step in range(2 * JOIN_WARMUP)]
    assert shares[0] == 1 / JOIN_WARMUP and shares[JOIN_WARMUP - 1 :] == [1.0] * (JOIN_WARMUP + 1)
    assert shares == sorted(shares)


def test_what_is_given_away_by_default() -> None:
    near, far = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWx", "/ip4/192.0.2.1/tcp/1/p2p/12D3KooWx"
    assert give_rate(potluck.Settings(join=(near,))) is None
    assert give_rate(potluck.Settings(join=(near, far))) == GIVE_MBIT * 125_000
    assert give_rate(potluck.Settings(listen="/ip4/0.0.0.0/tcp/0")) == GIVE_MBIT * 125_000
    assert give_rate(potluck.Settings(join=(far,), upload_mbit=20.0)) == 10 * 125_000
    assert give_rate(potluck.Settings(upload_mbit=20.0, give_mbit=2.0)) == 2 * 125_000
    with pytest.raises(potluck.UserError, match=r"give_mbit = 0\.0: must be above 0"):
        potluck.Settings(give_mbit=0.0)
