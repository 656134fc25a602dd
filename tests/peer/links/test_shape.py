"""What an emulated link is like, as arithmetic."""

import pytest

from peer.links.shape import (
    RETRANSMISSION_TIMEOUT,
    SEGMENT,
    LinkShape,
    Path,
    most_under_loss,
    path_between,
    stall_by_loss,
)


def test_a_path_goes_through_both_links() -> None:
    path = path_between(LinkShape(mbit=8, latency=0.01, loss=0.5), LinkShape(mbit=16, latency=0.02, loss=0.5))
    assert path.delay == pytest.approx(0.03) and path.round_trip == pytest.approx(0.06)
    assert path.loss == 0.75
    assert path.rate == 1_000_000
    assert path_between(LinkShape(), LinkShape()) == Path()
    assert path_between(LinkShape(), LinkShape(mbit=8)).rate == 1_000_000


def test_loss_bounds_a_connection_s_rate() -> None:
    assert most_under_loss(Path()) is None
    # 50 ms and 0.1%, with cubic: 1.3 MB/s was measured on a real path.
    assert most_under_loss(Path(delay=0.025, loss=0.001)) == pytest.approx(1.12e6, rel=0.01)
    near = most_under_loss(Path(loss=0.01))
    assert near is not None and near > 10e6


def test_a_lost_segment_holds_back_what_follows() -> None:
    path = Path(delay=0.05, loss=0.01)
    assert stall_by_loss(100 * SEGMENT, Path(delay=0.05), lambda: 0.0) == 0.0
    assert stall_by_loss(10 * SEGMENT, path, lambda: 0.999) == 0.0
    draws = iter([0.0, 0.5])
    assert stall_by_loss(100 * SEGMENT, path, lambda: next(draws)) == pytest.approx(0.1)
    # A small frame has nothing behind it, so only a timeout tells that it was lost.
    assert stall_by_loss(200, path, lambda: 0.0) == pytest.approx(0.1 + RETRANSMISSION_TIMEOUT)


def test_losses_come_as_often_as_asked_for() -> None:
    from random import Random

    chance = Random(1)
    stalls = sum(stall_by_loss(SEGMENT, Path(loss=0.02), chance.random) > 0 for _ in range(10_000))
    assert 140 <= stalls <= 260
