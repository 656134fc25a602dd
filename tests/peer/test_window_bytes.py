"""What windows cost is counted, in bounded memory."""

from __future__ import annotations

from peer.window_bytes import WINDOWS_COUNTED, WindowBytes


def test_bytes_of_windows_are_bounded() -> None:
    counted = WindowBytes()
    for due in range(1, 10 * WINDOWS_COUNTED):
        counted.add(due, 10)
        counted.add(due, 5)
    assert counted.total == 15 * (10 * WINDOWS_COUNTED - 1)
    assert counted.peak == 15
    assert len(counted._by_due) <= WINDOWS_COUNTED
