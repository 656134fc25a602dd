"""The flags of `potluck swarm` and `potluck peer`, as the command line reads them. Light to import: for `--help`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


@dataclass(frozen=True, kw_only=True)
class SwarmOptions:
    """The local swarm. What is not given comes from the manifest."""

    peers: Annotated[int, Parameter(help="Peers to start.", show_default=True)] = 4
    steps: Annotated[int | None, Parameter(help="Length of the run in swarm steps.")] = None
    manifest: Annotated[Path | None, Parameter(help="Manifest to start from; without it, a demo's.")] = None
    model: Annotated[str | None, Parameter(help="tiny or 35m.")] = None
    data: Annotated[str | None, Parameter(help="bible, stdlib, or text files and directories.")] = None
    sync_every: Annotated[int | None, Parameter(help="H: steps between two windows of a fragment.")] = None
    overlap: Annotated[int | None, Parameter(help="τ: steps from sending to merging.")] = None
    mixing: Annotated[float | None, Parameter(help="α: weight of the local parameters in a merge.")] = None
    fragments: Annotated[int | None, Parameter(help="P: fragments of the model.")] = None
    codec: Annotated[str | None, Parameter(help="e3m0 or fp32, both ways.")] = None
    seed: Annotated[int | None, Parameter(help="Seed of initial parameters and data order.")] = None
    report: Annotated[Path | None, Parameter(help="Where the report goes; without it, OUT/report.json.")] = None
    out: Annotated[Path | None, Parameter(help="Directory of the run; without it, a new one below runs/.")] = None
    snapshot_every: Annotated[
        int | None, Parameter(help="Rounds (of H steps) between two snapshots, 1 if not given; 0 keeps none.")
    ] = None
    snapshots_kept: Annotated[int | None, Parameter(help="Newest snapshots to keep, 3 if not given.")] = None
    lockstep: Annotated[bool, Parameter(help="Merges wait for everyone: two runs are equal to the byte.")] = False
    local_only: Annotated[bool, Parameter(help="The same training without swarm and outer optimizer.")] = False
    kill: Annotated[
        tuple[str, ...], Parameter(help="PEER@STEP: kill -9 at that step. May repeat; peers count from 0.")
    ] = ()
    freeze: Annotated[tuple[str, ...], Parameter(help="PEER@STEP:SECONDS: stop the process, then let it go on.")] = ()
    slow: Annotated[tuple[str, ...], Parameter(help="PEER:FACTOR: every inner step takes FACTOR times as long.")] = ()
    leave: Annotated[tuple[str, ...], Parameter(help="PEER@STEP: SIGTERM at that step: it says goodbye.")] = ()
    restart: Annotated[
        tuple[str, ...], Parameter(help="PEER@STEP[:SECONDS]: kill -9, and start it again SECONDS later.")
    ] = ()
    join: Annotated[
        tuple[str, ...], Parameter(help="PEER@STEP: start this peer only when the swarm is at that step.")
    ] = ()
    partition: Annotated[
        tuple[str, ...], Parameter(help="'0,1|2,3@STEP:SECONDS': nothing passes between these groups for a while.")
    ] = ()
    bandwidth: Annotated[tuple[str, ...], Parameter(help="PEER:MBIT, or all:MBIT: speed of its link each way.")] = ()
    latency: Annotated[tuple[str, ...], Parameter(help="PEER:MS, or all:MS: one-way delay of its link.")] = ()
    loss: Annotated[tuple[str, ...], Parameter(help="PEER:PERCENT, or all:PERCENT: segments lost on its link.")] = ()


@dataclass(frozen=True, kw_only=True)
class PeerOptions:
    """One peer. What is not given comes from POTLUCK_* variables, then from the defaults."""

    join: Annotated[
        tuple[str, ...], Parameter(consume_multiple=True, help="Addresses of bootstrap servers or peers of the run.")
    ] = ()
    run: Annotated[str | None, Parameter(help="Run id, or its first digits, if the swarm has several runs.")] = None
    manifest: Annotated[Path | None, Parameter(help="The run's manifest; without it, it is fetched.")] = None
    data: Annotated[str | None, Parameter(help="Where this peer has the run's text.")] = None
    out: Annotated[Path | None, Parameter(help="Directory for everything the peer writes.")] = None
    name: Annotated[str | None, Parameter(help="How others see this peer in tables; else this machine's name.")] = None
    batch: Annotated[int | None, Parameter(help="Samples of an inner step.")] = None
    threads: Annotated[int | None, Parameter(help="Threads of torch; 0 leaves its own choice.")] = None
    device: Annotated[str | None, Parameter(help="auto, cpu or cuda.")] = None
    upload: Annotated[float | None, Parameter(help="Cap on what is sent, in Mbit/s.")] = None
    give: Annotated[float | None, Parameter(help="Cap on what newcomers are given, in Mbit/s.")] = None
    merge_wait: Annotated[float | None, Parameter(help="Longest wait for a merge in seconds; else one step.")] = None
    linger: Annotated[float | None, Parameter(help="Seconds that a finished peer goes on serving, at most.")] = None
    snapshot_every: Annotated[
        int | None, Parameter(help="Rounds (of H steps) between two snapshots, 1 if not given; 0 keeps none.")
    ] = None
    snapshots_kept: Annotated[int | None, Parameter(help="Newest snapshots to keep, 3 if not given.")] = None
    listen: Annotated[str | None, Parameter(help="Address to be dialled at, like /ip4/0.0.0.0/tcp/4002.")] = None
    announce: Annotated[str | None, Parameter(help="Address that others shall dial, if it is another.")] = None
    json: Annotated[bool | None, Parameter(help="Report progress as JSON lines.")] = None
    lockstep: Annotated[bool | None, Parameter(help="Merges wait for everyone. For tests.")] = None
    slowdown: Annotated[float | None, Parameter(help="Stretch every inner step by this factor. For tests.")] = None
    local_only: Annotated[bool | None, Parameter(help="Train without a swarm.")] = None
