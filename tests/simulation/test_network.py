"""The virtual network: what happens to frames and streams under each fault."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from simulation.invariants import Broken
from simulation.network import ACK_OVERDUE, LAST_DIAL, MOST_EVENTS, QUEUE, Clock, Endpoint, Network, Weather

A, B, C = b"a" * 32, b"b" * 32, b"c" * 32
HEADER = bytes([0x91, 5])


@dataclass
class Ear:
    """What one peer of the network hears."""

    frames: list[tuple[bytes, bytes, float]] = field(default_factory=list)
    lost: list[bytes] = field(default_factory=list)
    met: list[bytes] = field(default_factory=list)
    woke: int = 0


def network(weather: Weather | None = None) -> tuple[Network, dict[bytes, Ear]]:
    net = Network(Clock(), seed=1, weather=weather or Weather(delay=0.1, jitter=0.0))
    ears = {key: Ear() for key in (A, B, C)}
    for key, ear in ears.items():
        net.join(key, end_of(net, ear))
    return net, ears


def end_of(net: Network, ear: Ear) -> Endpoint:
    def woke() -> None:
        ear.woke += 1

    return Endpoint(
        lambda source, header, bulk: ear.frames.append((source, bulk, net.clock.now)),
        ear.lost.append,
        ear.met.append,
        woke,
    )


def send(net: Network, source: bytes, to: bytes, bulk: bytes = b"x") -> None:
    net.send(source, to, HEADER, bulk)


def test_a_frame_takes_its_time() -> None:
    net, ears = network()
    send(net, A, B)
    assert net.in_flight == 1
    net.clock.run(1.0)
    assert ears[B].frames == [(A, b"x", 0.1)]
    assert net.in_flight == 0


def test_a_dead_peer_is_lost_to_all_and_met_again_when_it_is_back() -> None:
    net, ears = network()
    net.crash(B)
    net.clock.run(1.0)
    assert ears[A].lost == ears[C].lost == [B]
    send(net, A, B)
    net.clock.run(3.0)
    net.join(B, end_of(net, ears[B]), dialling=True)
    net.clock.run(3.0 + LAST_DIAL + 0.1)
    assert ears[A].met == ears[C].met == [B]
    assert sorted(ears[B].met) == [A, C]
    assert ears[B].frames == [], "what was sent meanwhile is gone"


def test_a_frame_to_an_earlier_life_is_gone_with_it() -> None:
    net, ears = network()
    send(net, A, B)
    net.crash(B)
    net.join(B, end_of(net, ears[B]), dialling=True)
    net.clock.run(1.0)
    assert ears[B].frames == []
    assert ears[A].lost == [B]


@pytest.mark.parametrize("keeps", [False, True])
def test_a_frozen_peer_hears_what_waited_when_it_wakes(keeps: bool) -> None:
    net, ears = network()
    net.freeze(B, 2.0, keeps=keeps)
    send(net, A, B)
    net.clock.run(1.9)
    assert not ears[B].frames
    net.clock.run(5.0)
    assert ears[B].woke == 1
    assert ears[B].frames == ([(A, b"x", 2.0)] if keeps else [])
    assert ears[A].lost == [], "shorter than an acknowledgement may take"


def test_a_peer_that_is_frozen_for_long_is_lost_until_it_wakes() -> None:
    net, ears = network()
    net.freeze(B, ACK_OVERDUE + 3.0)
    send(net, A, B)
    net.clock.run(ACK_OVERDUE + 1.0)
    assert ears[A].lost == [B] and ears[C].lost == []
    net.clock.run(ACK_OVERDUE + 3.0 + LAST_DIAL + 0.1)
    assert ears[A].met == [B]


def test_one_way_block() -> None:
    net, ears = network()
    net.block([(A, B)], 10.0)
    send(net, A, B)
    send(net, B, A)
    net.clock.run(9.9)
    assert ears[A].frames and not ears[B].frames
    assert (ears[A].lost, ears[B].lost) == ([B], [])
    assert net.is_down(A, B) and not net.is_down(B, A)
    net.clock.run(10.0 + LAST_DIAL + 0.1)
    assert ears[A].met == [B]


def test_two_cuts_of_one_pair_end_with_the_later_one() -> None:
    net, ears = network()
    net.cut(A, B, 1.0)
    net.cut(A, B, 2.0)
    net.clock.run(1.5)
    send(net, A, B)
    net.clock.run(2.5)
    assert not ears[B].frames
    send(net, A, B)
    net.clock.run(3.0)
    assert ears[B].frames


def test_storms_add_up_and_end() -> None:
    net, _ = network(Weather(delay=0.1, jitter=0.0, loss=0.1))
    net.storm(Weather(0.0, 0.0, 0.2, 0.0), 1.0)
    net.storm(Weather(0.0, 0.5, 0.0, 0.3), 2.0)
    assert net.weather.loss == pytest.approx(0.3) and net.weather.jitter == 0.5
    net.clock.run(1.5)
    assert net.weather.loss == 0.1 and net.weather.duplication == 0.3
    net.clock.run(2.5)
    assert net.weather == Weather(delay=0.1, jitter=0.0, loss=0.1)


def test_a_slow_line_carries_bulk_frames_one_after_the_other_and_not_too_many() -> None:
    net, ears = network()
    net.slow_line(A, 1.0, 1000.0)
    for _ in range(3):
        send(net, A, B)
    send(net, A, B, b"")
    net.clock.run(10.0)
    assert [round(when, 1) for _, _, when in ears[B].frames] == [0.1, 1.1, 2.1, 3.1]
    for _ in range(2 * QUEUE):
        send(net, A, B)
    assert net.in_flight <= QUEUE + 1


def test_another_pair_s_chance_does_not_depend_on_this_one_s() -> None:
    def arrivals(extra: bool) -> list[float]:
        net, ears = network(Weather(delay=0.1, jitter=1.0))
        for _ in range(5):
            send(net, A, B)
            if extra:
                send(net, A, C)
        net.clock.run(5.0)
        return [when for _, _, when in ears[B].frames]

    assert arrivals(False) == arrivals(True)


def test_what_never_ends_is_a_violation() -> None:
    clock = Clock()

    def again() -> None:
        clock.after(1e-9, again)

    again()
    with pytest.raises(Broken, match=f"more than {MOST_EVENTS}"):
        clock.run(1.0)
