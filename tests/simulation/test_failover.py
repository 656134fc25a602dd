"""A killed owner's chunks close within their window, at latencies up to a quarter of what τ hides."""

from __future__ import annotations

import pytest

from simulation.failover import SHARES, killed_owner, measure, table


@pytest.mark.timeout(300)
def test_two_kills_at_a_quarter() -> None:
    total = killed_owner(1 / 4, 2).and_also(killed_owner(1 / 4, 4))
    assert total.owned >= 2
    assert total.share >= 0.95


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_table() -> None:
    rows = {share: measure(share, 40) for share in SHARES}
    print("\n" + table(rows))
    for share, chunks in rows.items():
        assert chunks.owned >= 30
        if share <= 1 / 4:
            assert chunks.share >= 0.95, (share, chunks)
    assert rows[1 / 2].share_in_hand < 0.5, "so the measure does tell latencies apart"
