"""Home computers behind routers, machines that own without training, and two machines as in the README."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from protocol.schedule import Schedule, spread

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 60
LISTEN = ("--listen", "/ip4/0.0.0.0/tcp/4001")


def finish(peers: Sequence[Any]) -> None:
    """Everyone ends with success and the same outer parameters, and every window has a link for every chunk."""
    for peer in peers:
        assert peer.running.wait() == 0, (peer.notices, peer.other)
    assert len({peer.summary["outer_digest"] for peer in peers}) == 1
    schedule = Schedule(steps=STEPS, sync_every=10, overlap=3, offsets=spread(4, 10))
    expected = {(window.fragment, window.due) for window in schedule.windows()}
    for peer in peers:
        links = {(line["chunk"], line["due"]): line for line in peer.lines("link")}
        chunks = {(line["fragment"], line["chunk"]) for line in links.values()}
        whole = {(chunk, due) for fragment, due in expected for owner, chunk in chunks if owner == fragment}
        assert links.keys() == whole and len(chunks) == peer.summary["model"]["chunks"]


def owners(peer: Any) -> set[str]:
    return {line["owner"] for line in peer.lines("link")}


def node_id(address: str) -> str:
    return address.rpartition("/")[2]


def test_three_home_computers_and_one_server(chaos: Any) -> None:
    server, homes = chaos.internet.server(1), [chaos.internet.home(number) for number in (1, 2, 3)]
    manifest = str(chaos.manifest(peers=3, steps=STEPS))
    _, join = chaos.bootstrap(server, *LISTEN, "--aggregate", "--manifest", manifest)
    # They listen, and have a port of their own: what keeps others out is the router.
    peers = [chaos.peer(home, [join], "--listen", "/ip4/0.0.0.0/tcp/4002") for home in homes]
    finish(peers)
    for number, peer in enumerate(peers, 1):
        assert f"they see it as 45.0.1.{number}" in peer.notices[0] and "owns nothing" in peer.notices[0]
        assert owners(peer) == {node_id(join)}
    for peer in peers:
        assert any(len(line["contributors"]) == 3 for line in peer.lines("link"))
        assert not any("Not all peers came" in text for text in peer.notices)


def test_one_of_two_servers_is_killed(chaos: Any) -> None:
    first_at, second_at = chaos.internet.server(1), chaos.internet.server(2)
    homes = [chaos.internet.home(number) for number in (1, 2, 3)]
    manifest = str(chaos.manifest(peers=3, steps=STEPS))
    first, one = chaos.bootstrap(first_at, *LISTEN, "--aggregate", "--manifest", manifest)
    second, two = chaos.bootstrap(second_at, *LISTEN, "--aggregate", "--join", one)
    second.event("notice", lambda event: "owns chunks" in event["text"])
    peers = [chaos.peer(home, [one, two]) for home in homes]
    peers[0].event("row", lambda event: event["step"] >= STEPS // 2)
    first.running.kill()
    finish(peers)
    for peer in peers:
        assert owners(peer) == {node_id(one), node_id(two)}
        late = {line["owner"] for line in peer.lines("link") if line["due"] >= STEPS - 10}
        assert late == {node_id(two)}


def test_two_machines_as_in_the_readme(chaos: Any) -> None:
    here, there = chaos.internet.server(1), chaos.internet.server(2)
    manifest = str(chaos.manifest(peers=2, steps=STEPS))
    entry, join = chaos.bootstrap(here, *LISTEN, "--manifest", manifest)
    peers = [chaos.peer(here, [join]), chaos.peer(there, [join])]
    finish(peers)
    assert len(owners(peers[0])) == 2, "both own, and the entry node does not"
    for number, peer in enumerate(peers, 1):
        assert f"Others can dial this peer at /ip4/45.0.0.{number}/tcp/" in peer.notices[0]
    assert not entry.notices


def test_the_entry_node_dies_for_good(chaos: Any) -> None:
    here, there, entry_at = (chaos.internet.server(number) for number in (1, 2, 3))
    entry, join = chaos.bootstrap(entry_at, *LISTEN, "--manifest", str(chaos.manifest(peers=2, steps=STEPS)))
    peers = [chaos.peer(here, [join]), chaos.peer(there, [join])]
    peers[0].event("row", lambda event: event["step"] >= STEPS // 3)
    entry.running.kill()
    finish(peers)
    for peer in peers:
        told = [text for text in peer.notices if "does not answer" in text or "Nobody answers" in text]
        assert len(told) <= 1, "one line, not one for every attempt"
