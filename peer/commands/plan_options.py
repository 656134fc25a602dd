"""The flags of `potluck plan`, as the command line reads them. Light to import: for `--help`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What to plan for (docs/planner.md)."""

    model: Annotated[str | None, Parameter(help="1b, 10b, 100b, llama-405b, deepseek-v3, tiny, 35m, or 7e9,32.")] = None
    step_time: Annotated[float | None, Parameter(help="Seconds of an inner step.")] = None
    flops: Annotated[str | None, Parameter(help="Or the peak flops of a peer's devices, as 989e12 or 989tflops.")] = (
        None
    )
    mfu: Annotated[float | None, Parameter(help="Share of --flops that is used, 0.4.")] = None
    tokens_per_step: Annotated[float | None, Parameter(help="Tokens of one peer's inner step, with --flops.")] = None
    active: Annotated[float | None, Parameter(help="Parameters that one token uses, if not all: with --flops.")] = None
    bandwidth: Annotated[str | None, Parameter(help="A peer's link, both ways, as 50mbit or 1gbit.")] = None
    upload: Annotated[str | None, Parameter(help="Its upload, if it is another.")] = None
    download: Annotated[str | None, Parameter(help="Its download, if it is another.")] = None
    latency: Annotated[str, Parameter(help="One way, half of a ping, as 20ms.", show_default=True)] = "0ms"
    peers: Annotated[int, Parameter(help="M: peers that train.", show_default=True)] = 2
    method: Annotated[str, Parameter(help="data-parallel, diloco or streaming.", show_default=True)] = "streaming"
    sync_every: Annotated[int | None, Parameter(help="H: steps between two windows of a fragment, 100.")] = None
    overlap: Annotated[int | None, Parameter(help="τ: steps from sending to merging, 5; with diloco 0.")] = None
    fragment_layers: Annotated[int | None, Parameter(help="Layers of a fragment, 3.")] = None
    codec: Annotated[str | None, Parameter(help="e3m0, bf16 or fp32, both ways; e3m0, or bf16 for data-parallel.")] = (
        None
    )
    result_codec: Annotated[str | None, Parameter(help="That of results, if it is another.")] = None
    merge_wait: Annotated[float | None, Parameter(help="Longest wait for a merge in seconds, as of potluck peer.")] = (
        None
    )
    target: Annotated[
        float | None,
        Parameter(help="Utilization to reach: finds the smallest H, or with --sync-every the smallest τ."),
    ] = None
    paper: Annotated[bool, Parameter(help="The paper's Table 4 and Figure 16, from its own conventions.")] = False
    at: Annotated[str | None, Parameter(help="With --paper: utilizations at this bandwidth.")] = None
    figure: Annotated[int | None, Parameter(help="The paper's Figure 4, 7, 9, 14 or 16.")] = None
    plot: Annotated[Path | None, Parameter(help="Draw it into this .svg or .png (extra 'plots').")] = None
    json: Annotated[bool, Parameter(help="As one JSON object.")] = False
