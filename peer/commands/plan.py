"""`potluck plan`: how busy a model's accelerators stay on given links, before anything is started (docs/planner.md).

With peer/commands/simulate.py the only module here that imports `simulation` (docs/decisions/0013, 0017).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from math import inf
from typing import Any, Final

from peer.commands.plan_options import PlanOptions
from peer.commands.plan_text import charts_text, paper_text, plan_text
from peer.exit_codes import DONE
from peer.output import write_line
from peer.screen import width_of
from peer.units import parse_bandwidth, parse_flops, parse_seconds
from protocol.errors import UserError
from simulation.charts import Chart, check_plot, save_charts
from simulation.json_numbers import finite
from simulation.planner import paper
from simulation.planner.document import BOTH, document, solved
from simulation.planner.exchange import MOST_PARTS, PACKED
from simulation.planner.figures import FIGURES, of_plan
from simulation.planner.plan import LONGEST_ROUND, METHODS, Plan
from simulation.planner.shapes import Shape, parse_model

OF_PAPER: Final = ("paper", "figure", "at", "target", "plot", "json")
"""What may be given with --paper or --figure."""
SLOWEST_LINK, FASTEST_LINK = 1.0, 1e15
"""Bits a second."""
LONGEST_LATENCY: Final = 3600.0
SYNC_EVERY: Final = 100
OVERLAP: Final = 5
MFU: Final = 0.4
STEP_SECONDS: Final = (1e-6, 1e6)
FRAGMENT_LAYERS: Final = 3


def run_plan(options: PlanOptions) -> int:
    """Print the plan, the paper's table or a figure; the exit code. UserError for flags that make no plan."""
    _check_kind(options)
    if options.plot:
        check_plot(options.plot)
    if options.paper:
        _print(options, _paper(options), paper_text)
    elif options.figure is not None:
        _figure(options)
    else:
        _plan(options)
    return DONE


def _check_kind(options: PlanOptions) -> None:
    """One of a plan, the table and a figure."""
    if options.paper and options.figure is not None:
        raise UserError.field("--figure", options.figure, "must not be together with --paper")
    if options.at is not None and not options.paper:
        raise UserError.field("--at", options.at, "is for --paper; a plan's own link is --bandwidth")
    if options.figure is not None and options.figure not in FIGURES:
        raise UserError.field("--figure", options.figure, f"must be one of {', '.join(map(str, FIGURES))}")
    if options.paper and options.plot:
        raise UserError.field("--plot", str(options.plot), "is not for --paper: use --figure 4 or --figure 16")
    if options.target is not None and not 0 < options.target < 1:
        raise UserError.field("--target", options.target, "must be above 0 and below 1")
    if not options.paper and options.figure is None:
        return
    if options.target is not None and not options.paper:
        raise UserError.field("--target", options.target, "must be left out with --figure")
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name not in OF_PAPER and value != field.default:
            flag = f"--{field.name.replace('_', '-')}"
            raise UserError.field(flag, value, "must be left out with --paper and --figure: they have theirs")


def _print(options: PlanOptions, found: dict[str, Any], text: Callable[[Mapping[str, Any], int | None], str]) -> None:
    write_line(sys.stdout, json.dumps(found, indent=1) if options.json else text(found, width_of(sys.stdout)))


def _paper(options: PlanOptions) -> dict[str, Any]:
    wanted = paper.UTILIZATIONS if options.target is None else (options.target,)
    found: dict[str, Any] = {
        "cells": paper.as_json(paper.table(wanted)),
        "figure16": paper.as_json(paper.figure16(wanted)),
    }
    if options.at is not None:
        found["at"] = paper.at(parse_bandwidth("--at", options.at) / 1e9)
    return found


def _figure(options: PlanOptions) -> None:
    assert options.figure is not None
    charts = FIGURES[options.figure]()
    if options.figure == 14 and not (options.plot or options.json):
        raise UserError.field("--figure", 14, "is a picture: give --plot FILE, or --json for its numbers")
    found = {"figure": options.figure, "charts": [_chart_as_json(chart) for chart in charts]}
    if options.json or options.figure != 14:
        _print(options, found, charts_text)
    if options.plot:
        save_charts(options.plot, charts)
    if options.plot and not options.json:
        write_line(sys.stdout, f"Drawn into {options.plot}.")


def _chart_as_json(chart: Chart) -> dict[str, Any]:
    lines = [
        {"label": line.label, "xs": list(map(finite, line.xs)), "ys": list(map(finite, line.ys))}
        for line in chart.series
    ]
    return {"title": chart.title, "x": chart.x_label, "y": chart.y_label, "note": chart.note, "series": lines}


def _plan(options: PlanOptions) -> None:
    plan, target = make_plan(options), None
    if options.target is not None:
        plan, target = solved(plan, options.target, _free(options))
    found = document(plan)
    if target:
        found["target"] = target
    _print(options, found, plan_text)
    if options.plot:
        save_charts(options.plot, of_plan(plan))
    if options.plot and not options.json:
        write_line(sys.stdout, f"Drawn into {options.plot}.")


def _free(options: PlanOptions) -> str | None:
    """What --target may choose: H and, where nothing was said of it, τ; τ if H is given; nothing if both are."""
    if options.method == "data-parallel":
        return None
    if options.sync_every is None:
        return BOTH if options.method == "streaming" and options.overlap is None else "sync_every"
    return "overlap" if options.overlap is None else None


def make_plan(options: PlanOptions) -> Plan:
    """The plan that the flags ask for; UserError for what makes no sense."""
    if options.model is None:
        raise UserError("--model: say what is to be planned for, as --model 1b or --model 7e9,32 (or --paper)")
    _check_method(options)
    shape = parse_model(options.model)
    up, down = _link(options)
    parallel, streaming = options.method == "data-parallel", options.method == "streaming"
    codec = options.codec or ("bf16" if parallel else "e3m0")
    plan = Plan(
        shape=shape,
        method=options.method,
        step_seconds=_step_seconds(options, shape),
        up=up,
        down=down,
        latency=_latency(options.latency),
        peers=options.peers,
        sync_every=1 if parallel else _or(options.sync_every, SYNC_EVERY),
        overlap=_or(options.overlap, OVERLAP if streaming else 0),
        fragment_layers=_or(options.fragment_layers, min(FRAGMENT_LAYERS, shape.layers)),
        codec=codec,
        result_codec=options.result_codec or codec,
        merge_wait=options.merge_wait,
    )
    _check(plan, options)
    return plan


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _check_method(options: PlanOptions) -> None:
    """That there is such a method, and that it has what was given."""
    if options.method not in METHODS:
        raise UserError.field("--method", options.method, f"must be one of {', '.join(METHODS)}")
    of_parallel = ("sync_every", "overlap", "result_codec", "merge_wait") if options.method == "data-parallel" else ()
    of_whole = ("fragment_layers",) if options.method != "streaming" else ()
    for name in (*of_parallel, *of_whole):
        if (value := getattr(options, name)) is not None:
            raise UserError.field(f"--{name.replace('_', '-')}", value, f"must be left out with {options.method}")


def _link(options: PlanOptions) -> tuple[float, float]:
    """Bits a second up and down."""
    if options.bandwidth is not None and options.upload is not None and options.download is not None:
        raise UserError.field("--bandwidth", options.bandwidth, "must be left out with --upload and --download")
    both = _bandwidth("--bandwidth", options.bandwidth)
    up = both if options.upload is None else _bandwidth("--upload", options.upload)
    down = both if options.download is None else _bandwidth("--download", options.download)
    if up is None or down is None:
        raise UserError(
            "--bandwidth: say what a peer's link carries, as --bandwidth 50mbit; or --upload and --download"
        )
    return up, down


def _bandwidth(flag: str, text: str | None) -> float | None:
    if text is None:
        return None
    found = parse_bandwidth(flag, text)
    if not SLOWEST_LINK <= found <= FASTEST_LINK:
        raise UserError.field(flag, text, f"must be between 1bit and {FASTEST_LINK / 1e12:g}tbit")
    return found


def _latency(text: str) -> float:
    found = parse_seconds("--latency", text)
    if not found <= LONGEST_LATENCY:
        raise UserError.field("--latency", text, f"must be at most {LONGEST_LATENCY:g}s")
    return found


def _step_seconds(options: PlanOptions, shape: Shape) -> float:
    for name in ("mfu", "tokens_per_step", "active"):
        if options.flops is None and (value := getattr(options, name)) is not None:
            raise UserError.field(f"--{name.replace('_', '-')}", value, "must be left out without --flops")
    if options.step_time is not None:
        if options.flops is not None:
            raise UserError.field("--flops", options.flops, "must not be together with --step-time")
        _within("--step-time", options.step_time, *STEP_SECONDS, "seconds, from 1e-06 to 1e+06")
        return options.step_time
    if options.flops is not None:
        return _from_flops(options, options.flops, shape)
    if shape.step_seconds is not None:
        return shape.step_seconds
    raise UserError("--step-time: say how long an inner step takes, in seconds; or --flops and --tokens-per-step")


def _from_flops(options: PlanOptions, flops: str, shape: Shape) -> float:
    if options.tokens_per_step is None:
        raise UserError("--tokens-per-step: say on how many tokens a peer trains in one inner step")
    mfu = MFU if options.mfu is None else options.mfu
    _within("--tokens-per-step", options.tokens_per_step, 1, 1e12, "from 1 to 1e+12")
    _within("--mfu", mfu, 1e-6, 1, "above 0 and at most 1")
    active = shape.active if options.active is None else options.active
    _within("--active", active, 1, shape.parameters, f"from 1 to the model's parameters ({shape.parameters:g})")
    speed = parse_flops("--flops", flops) * mfu
    seconds = 6 * active * options.tokens_per_step / speed if speed else inf
    if not STEP_SECONDS[0] <= seconds <= STEP_SECONDS[1]:
        right = f"must give a step between 1e-06 and 1e+06 seconds, not {seconds:g}"
        raise UserError.field("--flops", flops, right)
    return seconds


def _check(plan: Plan, options: PlanOptions) -> None:
    """The ranges of what is in a plan."""
    _within("--peers", plan.peers, 2, MOST_PARTS, f"between 2 and {MOST_PARTS}")
    _within("--sync-every", plan.sync_every, 1, LONGEST_ROUND, f"between 1 and {LONGEST_ROUND}")
    if options.sync_every is None and options.target is not None and options.method != "data-parallel":
        _within("--overlap", plan.overlap, 0, LONGEST_ROUND - 1, f"between 0 and {LONGEST_ROUND - 1}")
    else:
        _within(
            "--overlap", plan.overlap, 0, plan.sync_every - 1, f"at least 0 and below --sync-every ({plan.sync_every})"
        )
    _within("--fragment-layers", plan.fragment_layers, 1, plan.shape.layers, f"between 1 and {plan.shape.layers}")
    for flag, name in (("--codec", plan.codec), ("--result-codec", plan.result_codec)):
        if name not in PACKED:
            raise UserError.field(flag, name, f"must be one of {', '.join(PACKED)}")
    if plan.merge_wait is not None:
        _within("--merge-wait", plan.merge_wait, 0, 1e6, "seconds, from 0 to 1e+06")


def _within(flag: str, value: float, low: float, high: float, right: str) -> None:
    if not low <= value <= high:
        raise UserError.field(flag, value, f"must be {right}")
