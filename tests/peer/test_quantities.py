import math

import pytest

from peer.quantities import announce_needs, format_bytes, format_count, sparkline


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (12_345, "12.3 kB"),
        (999_400, "999 kB"),
        (999_600, "1.00 MB"),
        (1_234_567, "1.23 MB"),
        (5e9, "5.00 GB"),
        (5e19, "50000 PB"),
        (math.nan, "-"),
    ],
)
def test_sizes(count: float, text: str):
    assert format_bytes(count) == text


def test_counts():
    assert [format_count(count) for count in (0, 558_208, 1_000_000)] == ["0", "558k", "1.00M"]


def test_a_sparkline_runs_from_the_lowest_to_the_highest():
    assert sparkline([5.0, 3.0, 1.0]) == "█▅▁"
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([1.0, math.nan, 2.0]) == "▁ █"
    assert sparkline([math.inf]) == " "
    assert sparkline([]) == ""


def test_what_a_peer_will_need():
    needs = announce_needs(
        parameters=1_000_000, largest_fragment=250_000, sent_per_round=500_000, received_per_round=600_000
    )
    assert needs == (
        "This run needs, for 1.00M parameters:\n"
        "  16.0 MB on the training device for weights, gradients and Adam's moments\n"
        "  1.00 MB there for a snapshot of the largest fragment\n"
        "  8.00 MB in the host's memory for anchors and momentum\n"
        "  500 kB sent and 600 kB received in each round"
    )
    more = announce_needs(parameters=1, largest_fragment=1, sent_per_round=1, received_per_round=1, download=4_000_000)
    assert more.splitlines()[-1] == "  4.00 MB to download before training starts"
