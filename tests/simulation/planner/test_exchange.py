"""Bytes against the real codecs, messages and frames; owners' shares against the real ranking; seconds by hand."""

import hashlib
from statistics import mean

import numpy as np
import pytest

from aggregation.codecs import codec
from peer.frames import ACK_BYTES, PREFIX_BYTES
from protocol.messages import HEADER_LIMITS, LinkMessage
from protocol.roster import Roster
from simulation.planner.exchange import FRAME, PACKED, Owners, Wire, ring_factor


@pytest.mark.parametrize("name", ["e3m0", "fp32"])
@pytest.mark.parametrize("numel", [1, 255, 256, 257, 65_536, 131_071])
def test_packed_bytes_are_the_codecs(name: str, numel: int) -> None:
    assert PACKED[name](numel, 256) == pytest.approx(codec(name).packed_bytes(numel), abs=0.5)


def test_headers_are_those_of_real_messages() -> None:
    assert FRAME == PREFIX_BYTES + ACK_BYTES
    few, many = Owners(peers=2), Owners(peers=200)
    contribution, link = few.contribution(256) - 129, few.result(256) - 129
    assert 250 < contribution < 400 and 400 < link < 900
    part = (many.result(256) - few.result(256)) / 198
    assert 138 < part < 145  # a key, tokens, a digest, a signature
    assert many.result(256) < HEADER_LIMITS[LinkMessage.__struct_config__.tag]  # type: ignore[index]


@pytest.mark.parametrize("peers", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("chunks", [1, 2, 4, 8, 40])
def test_the_busiest_owner_has_what_the_real_ranking_gives_it(peers: int, chunks: int) -> None:
    def busiest(seed: int) -> int:
        keys = [hashlib.sha256(f"{seed} {peer}".encode()).digest() for peer in range(peers)]
        ranking = Roster(run=bytes([seed]) * 32, key=keys[0])._rank(range(chunks), keys)
        first = [ranked[0] for ranked in ranking.values()]
        return max(first.count(key) for key in keys)

    assert Owners(peers=peers).busiest(chunks) == pytest.approx(mean(map(busiest, range(30))), rel=0.25, abs=0.35)


def wire(up: float, down: float, latency: float = 0.0) -> Wire:
    return Wire(up=np.array([up]), down=np.array([down]), latency=latency)


def test_one_chunk_goes_there_and_back() -> None:
    owners = Owners(peers=2)
    sent, back = owners.contribution(1000), owners.result(1000)
    found = owners.transfer(1000, wire(100.0, 100.0, latency=3.0))
    # One peer owns the chunk: the contribution must be there before the result leaves.
    assert found.taken[0] == pytest.approx(sent / 100 + 3 + back / 100 + 3)


def test_four_peers_and_one_chunk() -> None:
    owners = Owners(peers=4)
    sent, back = owners.contribution(1000), owners.result(1000)
    found = owners.transfer(1000, wire(100.0, 50.0))
    # Three contributions come down the owner's link, three results go up it.
    assert found.taken[0] == pytest.approx(3 * sent / 50 + 3 * back / 100)


def test_many_chunks_use_both_directions_at_once() -> None:
    owners = Owners(peers=4)
    numel = 1000 * 65_536
    found = owners.transfer(numel, wire(1e6, 1e6))
    assert found.occupied[0] == pytest.approx(owners.sent(numel) / 1e6, rel=0.05)
    assert found.taken[0] == pytest.approx(found.occupied[0], rel=0.01)
    slow_up = owners.transfer(numel, wire(1e6, 1e9))
    assert slow_up.occupied[0] == pytest.approx(owners.sent(numel) / 1e6, rel=0.05)


def test_latency_is_paid_twice() -> None:
    owners, numel = Owners(peers=2), 1000 * 65_536
    near, far = (owners.transfer(numel, wire(1e6, 1e6, latency)).taken[0] for latency in (0.0, 0.5))
    assert 0.5 <= far - near <= 1.0


def test_bytes_grow_with_peers_up_to_both_hops_of_the_whole() -> None:
    numel = 64 * 65_536
    two, many = Owners(peers=2).sent(numel), Owners(peers=64).sent(numel)
    both_ways = numel / 2 + numel / 256
    assert two == pytest.approx(both_ways, rel=0.05)
    assert 1.9 < many / two < 2.6  # the links of 64 contributors are long


def test_a_ring_sends_the_whole_once_with_two() -> None:
    assert (ring_factor(2), ring_factor(4)) == (1.0, 1.5)
