"""What `potluck plan` says of one plan, as plain numbers: the JSON object of docs/planner.md."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from simulation.planner.boundaries import Rounds
from simulation.planner.plan import (
    Plan,
    awaited,
    factor_needed,
    memory,
    reaches,
    round_bytes,
    skipping,
    smallest_overlap,
    smallest_overlap_for_any_round,
    smallest_sync_every,
)

BOTH: Final = "both"


def document(plan: Plan) -> dict[str, Any]:
    """Everything about one plan."""
    rounds, sent, needs = awaited(plan), round_bytes(plan), memory(plan)
    wall = float(rounds.wall[0])
    return {
        "model": {
            "name": plan.shape.name,
            "layers": plan.shape.layers,
            "parameters": plan.shape.parameters,
            "active_parameters": plan.shape.active,
        },
        "method": plan.method,
        "peers": plan.peers,
        "step_seconds": plan.step_seconds,
        "sync_every": plan.sync_every,
        "overlap": plan.overlap,
        "fragments": plan.fragments,
        "codec": plan.codec,
        "result_codec": plan.result_codec,
        "link": {"up_mbit": plan.up / 1e6, "down_mbit": plan.down / 1e6, "latency_seconds": plan.latency},
        "utilization": float(rounds.utilization[0]),
        "round": _seconds(rounds),
        "potluck": None if plan.method == "data-parallel" else _potluck(plan),
        "bytes": {
            "sent_per_round": sent,
            "received_per_round": sent,
            "sent_per_hour": sent * 3600 / wall,
            "received_per_hour": sent * 3600 / wall,
            "largest_window": sent if plan.method == "data-parallel" else plan.owners.sent(max(plan.sizes)),
        },
        "memory": {"device": needs.device, "host": needs.host},
    }


def _seconds(rounds: Rounds) -> dict[str, float]:
    return {
        "seconds": float(rounds.wall[0]),
        "exchange_seconds": float(rounds.exchange[0]),
        "hidden_seconds": float(rounds.hidden[0]),
        "exposed_seconds": float(rounds.exposed[0]),
    }


def _potluck(plan: Plan) -> dict[str, float]:
    rounds = skipping(plan)
    return {
        "merge_wait_seconds": plan.longest_wait,
        "utilization": float(rounds.utilization[0]),
        "in_time": float(rounds.in_time[0]),
        "late": float(rounds.late[0]),
        "skipped": float(rounds.skipped[0]),
    }


def solved(plan: Plan, target: float, free: str | None) -> tuple[Plan, dict[str, Any]]:
    """The plan with the smallest value of what is left free (`sync_every`, `overlap`, both or nothing) that reaches the
    target, and what is to be said of it. If none does, the plan as it is. Of both, τ grows only if no H is enough."""
    found = None
    if free == BOTH and smallest_sync_every(plan, target) is None:
        overlap = smallest_overlap_for_any_round(plan, target)
        plan = plan if overlap is None else replace(plan, overlap=overlap)
    if free in (BOTH, "sync_every") and (found := smallest_sync_every(plan, target)) is not None:
        plan = replace(plan, sync_every=found)
    elif free == "overlap" and (found := smallest_overlap(plan, target)) is not None:
        plan = replace(plan, overlap=found)
    factor = factor_needed(plan, target)
    needed = None if factor is None else {"up_mbit": plan.up * factor / 1e6, "down_mbit": plan.down * factor / 1e6}
    return plan, {
        "utilization": target,
        "free": "sync_every" if free == BOTH else free,
        "value": found,
        "reached": reaches(plan, target),
        "bandwidth_needed": needed,
    }
