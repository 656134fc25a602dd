"""Numbers for people: sizes, counts, a loss curve in one line, and what a peer will need before it takes it."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def format_bytes(count: float) -> str:
    """1234567 is "1.23 MB"; units are powers of 1000."""
    return _scaled(count, ("B", "kB", "MB", "GB", "TB", "PB"))


def format_count(count: float) -> str:
    """1234567 is "1.23M"; units are powers of 1000."""
    return _scaled(count, ("", "k", "M", "G", "T")).replace(" ", "")


def _scaled(value: float, units: Sequence[str]) -> str:
    if not math.isfinite(value):
        return "-"
    power = 0
    while abs(value) >= 999.5 and power < len(units) - 1:
        value /= 1000
        power += 1
    digits = 0 if power == 0 or abs(value) >= 99.95 else (1 if abs(value) >= 9.995 else 2)
    return f"{value:.{digits}f} {units[power]}"


def sparkline(values: Sequence[float]) -> str:
    """A bar for each finite value, from the lowest to the highest of them; a blank for the others."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return " " * len(values)
    low, span = min(finite), max(finite) - min(finite)
    return "".join(_bar(value, low, span) for value in values)


def _bar(value: float, low: float, span: float) -> str:
    if not math.isfinite(value):
        return " "
    return _BARS[round((value - low) / span * (len(_BARS) - 1)) if span else 0]


def announce_needs(
    *, parameters: int, largest_fragment: int, sent_per_round: int, received_per_round: int, download: int = 0
) -> str:
    """What a peer says before it downloads or allocates anything big, in a few lines.

    Counts are of parameters; the last three are bytes. All state is fp32: weights, gradients and Adam's two moments
    take 16 bytes a parameter on the training device; anchors and momentum 8 on the host; a snapshot is one fragment.
    """
    lines = [
        f"This run needs, for {format_count(parameters)} parameters:",
        f"  {format_bytes(16 * parameters)} on the training device for weights, gradients and Adam's moments",
        f"  {format_bytes(4 * largest_fragment)} there for a snapshot of the largest fragment",
        f"  {format_bytes(8 * parameters)} in the host's memory for anchors and momentum",
        f"  {format_bytes(sent_per_round)} sent and {format_bytes(received_per_round)} received in each round",
    ]
    if download:
        lines.append(f"  {format_bytes(download)} to download before training starts")
    return "\n".join(lines)
