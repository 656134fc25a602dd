"""One account of a peer that was restarted: the numbers of its lives together, for `summary.json`.

A life is one process. What is spent (bytes, seconds, windows opened) adds up; what is reached (inner steps, tokens,
losses, the exit) is the last life's, which went on from a snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

SPENT: Final = ("bytes_sent", "bytes_received")
SPENT_BY_GROUP: Final[dict[str, tuple[str, ...]]] = {
    "windows": ("opened", "merged", "late", "skipped"),
    "seconds": ("total", "training", "waiting", "hook"),
    "traffic": ("payload_bytes", "bytes_on_wire", "repair_bytes", "dht_bytes"),
}
LARGEST: Final[dict[str, tuple[str, ...]]] = {"seconds": ("wait_max", "merge_wait"), "traffic": ("peak_window_bytes",)}
FIRST: Final[tuple[tuple[str, ...], ...]] = (("train_loss_first",), ("evaluation", "outer_loss_start"))


def earlier_lives(path: Path, run: str) -> dict[str, Any]:
    """The summary that earlier lives in the same run left at `path`; empty if there is none that can be read."""
    try:
        summary = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) and summary.get("run") == run else {}


def together(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of the life of `now` and of all those before it."""
    whole = {name: dict(value) if isinstance(value, dict) else value for name, value in now.items()}
    whole["lives"] = _number(before.get("lives", 0)) + 1
    _combine(whole, before, SPENT, lambda old, new: old + new)
    for group, names in SPENT_BY_GROUP.items():
        _combine(whole[group], before.get(group), names, lambda old, new: old + new)
    for group, names in LARGEST.items():
        _combine(whole[group], before.get(group), names, max)
    for *groups, name in FIRST:
        inner, old = whole, before
        for group in groups:
            inner, old = inner[group], old.get(group) or {}
        inner[name] = old[name] if old.get(name) is not None else inner[name]
    seconds = whole["seconds"]
    whole["utilization"] = seconds["training"] / seconds["total"] if seconds["total"] else now["utilization"]
    return whole


def _combine(now: dict[str, Any], before: Any, names: tuple[str, ...], how: Callable[[Any, Any], Any]) -> None:
    for name in names:
        old = before.get(name) if isinstance(before, dict) else None
        if isinstance(old, int | float) and now.get(name) is not None:
            now[name] = how(old, now[name])


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
