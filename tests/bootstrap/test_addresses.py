"""Addresses: what is dialled, and what a user is told about a wrong one."""

from __future__ import annotations

import pytest

from bootstrap.addresses import dialable, join_address, most_useful_first, usable, with_peer
from bootstrap.identity import peer_id
from protocol.errors import UserError

KEY = b"k" * 32
FULL = f"/ip4/192.0.2.7/tcp/4001/p2p/{peer_id(KEY)}"


def test_join_address() -> None:
    assert join_address(FULL) == (KEY, "/ip4/192.0.2.7/tcp/4001")
    assert join_address(f"/dns4/example.org/tcp/1/p2p/{peer_id(KEY)}")[1] == "/dns4/example.org/tcp/1"


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "example.org:4001",
        "/ip4/192.0.2.7/tcp/4001",
        "/ip4/192.0.2.7/tcp/4001/p2p/QmSomething",
        f"/ip4/192.0.2.7/udp/4001/quic/p2p/{peer_id(KEY)}",
        f"/ip4/192.0.2/tcp/4001/p2p/{peer_id(KEY)}",
        f"/ip6/192.0.2.7/tcp/4001/p2p/{peer_id(KEY)}",
        f"/ip4/192.0.2.7/tcp/70000/p2p/{peer_id(KEY)}",
        f"/ip4/192.0.2.7/tcp/-1/p2p/{peer_id(KEY)}",
        f"/ip6/fe80::1%eth0/tcp/1/p2p/{peer_id(KEY)}",
        f"/dns4/a..b/tcp/1/p2p/{peer_id(KEY)}",
        f"{FULL}/p2p-circuit",
    ],
)
def test_wrong_join_address_says_what_is_right(bad: str) -> None:
    with pytest.raises(UserError, match=r"join = .*must look like /ip4/"):
        join_address(bad)


def test_only_tcp_is_dialled() -> None:
    quic = "/ip4/192.0.2.7/udp/4001/quic-v1"
    relayed = f"/ip4/192.0.2.7/tcp/4001/p2p/{peer_id(KEY)}/p2p-circuit/ip4/1.2.3.4/tcp/1"
    assert dialable([FULL, quic, FULL, "garbage", "/ip6/::1/tcp/9"]) == ["/ip4/192.0.2.7/tcp/4001", "/ip6/::1/tcp/9"]
    assert dialable([relayed]) == ["/ip4/192.0.2.7/tcp/4001"]


def test_with_peer_replaces_the_id() -> None:
    assert with_peer(f"/ip4/192.0.2.7/tcp/4001/p2p/{peer_id(b'x' * 32)}", KEY) == FULL


def test_most_useful_first() -> None:
    found = ["/ip4/127.0.0.1/tcp/1", "/ip4/10.0.0.1/tcp/1", "/ip4/8.8.8.8/tcp/1", "/dns/example.org/tcp/1"]
    assert most_useful_first(found) == [found[2], found[3], found[1], found[0]]


def test_addresses_that_the_others_of_the_swarm_cannot_use_are_left_out() -> None:
    loopback, private, public = "/ip4/127.0.0.1/tcp/1", "/ip4/10.0.0.1/tcp/1", "/ip4/8.8.8.8/tcp/1"
    ours = [public, private, loopback]
    assert usable(ours, []) == [public, private]
    assert usable([loopback], []) == [loopback]
    assert usable(ours, ["/ip4/127.0.0.1/tcp/4001"]) == ours
    assert usable(ours, ["/ip4/192.168.7.7/tcp/4001"]) == [public, private]
    assert usable(ours, ["/ip4/127.0.0.1/tcp/4001", "/dns4/example.org/tcp/4001"]) == [public]
    assert usable([private, loopback], ["/ip4/9.9.9.9/tcp/4001"]) == []
