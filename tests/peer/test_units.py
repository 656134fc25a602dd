"""Quantities as people write them."""

import pytest

from peer.units import format_bandwidth, format_seconds, parse_bandwidth, parse_flops, parse_seconds
from protocol.errors import UserError


@pytest.mark.parametrize(
    ("text", "bits"),
    [("50mbit", 5e7), ("50 Mbit/s", 5e7), ("50mbps", 5e7), ("1.5gbit", 1.5e9), ("500kbit", 5e5), ("1e3bit", 1e3)],
)
def test_bandwidths(text: str, bits: float) -> None:
    assert parse_bandwidth("--bandwidth", text) == bits


@pytest.mark.parametrize("text", ["", "50", "mbit", "-5mbit", "0mbit", "1.2.3mbit", "50mbyte", "nanmbit", "1e999gbit"])
def test_what_is_no_bandwidth(text: str) -> None:
    with pytest.raises(UserError, match=r"--upload = .*such as 50mbit"):
        parse_bandwidth("--upload", text)


def test_times_and_flops() -> None:
    assert parse_seconds("--latency", "40ms") == pytest.approx(0.04)
    assert parse_seconds("--latency", "0.2s") == 0.2 and parse_seconds("--latency", "0ms") == 0
    assert parse_flops("--flops", "989e12") == parse_flops("--flops", "989 TFLOPS") == 989e12
    for wrong in ("40", "ms", "-1ms", "40m"):
        with pytest.raises(UserError, match="--latency"):
            parse_seconds("--latency", wrong)
    for wrong in ("0", "many", "989watts"):
        with pytest.raises(UserError, match="--flops"):
            parse_flops("--flops", wrong)


def test_formats() -> None:
    assert [format_bandwidth(bits) for bits in (5e7, 1.5e9, 800.0)] == ["50 Mbit/s", "1.5 Gbit/s", "800 bit/s"]
    assert [format_seconds(seconds) for seconds in (0.0, 0.0123, 2.5, 4321.0)] == ["0 s", "12.3 ms", "2.5 s", "4321 s"]
