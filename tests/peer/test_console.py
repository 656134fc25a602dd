import io
from itertools import pairwise

import pytest
from rich.console import Console as Terminal

from peer.console import Console, Curve, PeerRow, format_line, swarm_table

ROW = PeerRow(
    peer="ada",
    step=120,
    loss=2.3456,
    tokens_per_second=12_345.6,
    merged=7,
    late=1,
    skipped=2,
    bytes_sent=1_234_567,
    bytes_received=89,
    utilization=0.987,
)


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Time:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_line_says_everything():
    assert format_line(ROW) == (
        "ada: step 120  loss 2.346  12.3k tokens/s  windows 7 merged, 1 late, 2 skipped  "
        "sent 1.23 MB, received 89 B  utilization 99%"
    )
    assert "loss -" in format_line(PeerRow(peer="bob", step=0))


def test_the_table_has_a_row_for_each_peer_with_its_curve():
    screen = io.StringIO()
    terminal = Terminal(file=screen, width=120)
    terminal.print(swarm_table([ROW, PeerRow(peer="[bob]", step=3)], {"ada": "█▁"}, 120))
    heading, first, second = screen.getvalue().splitlines()
    assert [word in heading for word in ("peer", "tokens/s", "skipped", "utilization")] == [True] * 4
    assert first.split() == ["ada", "120", "2.346", "█▁", "12.3k", "7", "1", "2", "1.23", "MB", "89", "B", "99%"]
    assert second.startswith("[bob]")  # a name is text, not markup


def test_plain_lines_come_every_few_seconds_for_each_peer_and_at_the_end():
    stream, time = io.StringIO(), Time()
    with Console(stream=stream, now=time) as console:
        console.update(PeerRow(peer="ada", step=1))
        console.update(PeerRow(peer="bob", step=1))
        console.update(PeerRow(peer="ada", step=2))
        time.now += 5.0
        console.update(PeerRow(peer="ada", step=3))
        console.event("bob left")
        console.update(PeerRow(peer="ada", step=4))
    shown = [line.split("  ")[0] for line in stream.getvalue().splitlines()]
    assert shown == ["ada: step 1", "bob: step 1", "ada: step 3", "bob left", "ada: step 4"]


def test_a_terminal_gets_the_live_table(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    screen, time = Screen(), Time()
    with Console(stream=screen, now=time) as console:
        console.update(PeerRow(peer="ada", step=111, loss=3.0))
        console.update(PeerRow(peer="ada", step=222, loss=2.0))  # too soon to draw
        console.event("[bob] left")
        time.now += 1.0
        console.update(PeerRow(peer="ada", step=333, loss=1.0))
        console.update(PeerRow(peer="ada", step=444, loss=1.0))
    text = screen.getvalue()
    assert "[bob] left" in text
    assert "222" not in text
    assert all(step in text for step in ("111", "333", "444"))
    console.close()  # a second time does nothing


def test_a_curve_stays_short_and_spans_the_whole_run():
    curve = Curve(limit=8)
    for step in range(1000):
        curve.add(step, float(step))
    assert 4 <= len(curve.values) <= 8
    assert curve.values[0] == 0.0
    assert curve.values[-1] > 800.0
    gaps = [later - earlier for earlier, later in pairwise(curve.values)]
    assert max(gaps) <= 2 * min(gaps) + 1
