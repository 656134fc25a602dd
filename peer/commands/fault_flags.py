"""Reads faults from the flags of `potluck swarm`: `--kill 2@60`, `--partition 0,1|2,3@60:20`, `--latency all:25`, ….

Every mistake is a UserError that names the flag, what was given, and what would be right.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from peer.commands.faults import (
    Faults,
    Freeze,
    Group,
    Join,
    Kill,
    Leave,
    Partition,
    Restart,
    Slow,
)
from peer.links.shape import LinkShape
from protocol.errors import UserError

_NUMBER = r"(\d{1,9}(?:\.\d{1,9})?)"
_AT_STEP = re.compile(r"(\d{1,9})@(\d{1,9})")
_AT_STEP_FOR = re.compile(rf"(\d{{1,9}})@(\d{{1,9}}):{_NUMBER}")
_AT_STEP_PERHAPS_FOR = re.compile(rf"(\d{{1,9}})@(\d{{1,9}})(?::{_NUMBER})?")
_GROUPS = re.compile(rf"(\d{{1,9}}(?:[,|]\d{{1,9}})*)@(\d{{1,9}}):{_NUMBER}")
_OF_PEER = re.compile(rf"(\d{{1,9}}|all):{_NUMBER}")
_OF_ONE = re.compile(rf"(\d{{1,9}}):{_NUMBER}")


@dataclass(frozen=True)
class _Run:
    """What the flags must fit."""

    num_peers: int
    steps: int

    def peer(self, flag: str, text: str, peer: str) -> int:
        if int(peer) >= self.num_peers:
            raise UserError.field(flag, text, f"peers count from 0, so PEER must be at most {self.num_peers - 1}")
        return int(peer)

    def step(self, flag: str, text: str, step: str) -> int:
        if not 1 <= int(step) <= self.steps:
            raise UserError.field(flag, text, f"STEP must be from 1 to the run's last step ({self.steps})")
        return int(step)


def parse_faults(
    *,
    num_peers: int,
    steps: int,
    kill: Sequence[str] = (),
    freeze: Sequence[str] = (),
    slow: Sequence[str] = (),
    leave: Sequence[str] = (),
    restart: Sequence[str] = (),
    join: Sequence[str] = (),
    partition: Sequence[str] = (),
    bandwidth: Sequence[str] = (),
    latency: Sequence[str] = (),
    loss: Sequence[str] = (),
) -> Faults:
    """The faults that the flags ask for. UserError for one that cannot be read, or that the run does not have."""
    run = _Run(num_peers, steps)
    faults = Faults(
        kills=tuple(Kill(*_at_step(run, "--kill", text)) for text in kill),
        freezes=tuple(_freeze(run, text) for text in freeze),
        slows=tuple(_slow(run, text) for text in slow),
        leaves=tuple(Leave(*_at_step(run, "--leave", text)) for text in leave),
        restarts=tuple(_restart(run, text) for text in restart),
        joins=tuple(Join(*_at_step(run, "--join", text)) for text in join),
        partitions=tuple(_partition(run, text) for text in partition),
        links=_links(run, bandwidth, latency, loss),
    )
    _check_together(faults, num_peers)
    return faults


def _match(flag: str, pattern: re.Pattern[str], text: str, right: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if not match:
        raise UserError.field(flag, text, f"must be {right}")
    return match


def _at_step(run: _Run, flag: str, text: str) -> tuple[int, int]:
    match = _match(flag, _AT_STEP, text, "PEER@STEP, like 2@60")
    return run.peer(flag, text, match[1]), run.step(flag, text, match[2])


def _seconds(flag: str, text: str, value: str) -> float:
    if not float(value) > 0:
        raise UserError.field(flag, text, "SECONDS must be above 0")
    return float(value)


def _freeze(run: _Run, text: str) -> Freeze:
    flag = "--freeze"
    match = _match(flag, _AT_STEP_FOR, text, "PEER@STEP:SECONDS, like 1@60:20")
    peer, step = run.peer(flag, text, match[1]), run.step(flag, text, match[2])
    return Freeze(peer, step, _seconds(flag, text, match[3]))


def _restart(run: _Run, text: str) -> Restart:
    flag = "--restart"
    match = _match(flag, _AT_STEP_PERHAPS_FOR, text, "PEER@STEP or PEER@STEP:SECONDS, like 2@60:10")
    return Restart(run.peer(flag, text, match[1]), run.step(flag, text, match[2]), float(match[3] or 0))


def _slow(run: _Run, text: str) -> Slow:
    match = _match("--slow", _OF_ONE, text, "PEER:FACTOR, like 3:4")
    peer, factor = run.peer("--slow", text, match[1]), float(match[2])
    if factor < 1:
        raise UserError.field("--slow", text, "FACTOR must be at least 1")
    return Slow(peer, factor)


def _partition(run: _Run, text: str) -> Partition:
    flag = "--partition"
    match = _match(flag, _GROUPS, text, "PEERS|PEERS@STEP:SECONDS, like 0,1|2,3@60:20 (in quotes, for the shell)")
    groups = tuple(_group(run, text, group) for group in match[1].split("|"))
    if len(groups) < 2:
        raise UserError.field(flag, text, "needs at least two groups with | between them, like 0,1|2,3@60:20")
    twice = [peer for peer, times in Counter(peer for group in groups for peer in group).items() if times > 1]
    if twice:
        raise UserError.field(flag, text, f"peer {twice[0]} is named twice, must be in one group")
    # Who is not named is in the first group, so that one cannot be empty.
    return Partition(groups, run.step(flag, text, match[2]), _seconds(flag, text, match[3]))


def _group(run: _Run, text: str, group: str) -> Group:
    return tuple(run.peer("--partition", text, peer) for peer in group.split(","))


# Links


def _links(run: _Run, bandwidth: Sequence[str], latency: Sequence[str], loss: Sequence[str]) -> tuple[LinkShape, ...]:
    shapes = [LinkShape()] * run.num_peers
    for peer, mbit in _by_peer(run, "--bandwidth", bandwidth, "MBIT, like 3:20 or all:100", _positive("MBIT")):
        shapes[peer] = replace(shapes[peer], mbit=mbit)
    for peer, milliseconds in _by_peer(run, "--latency", latency, "MS, like 3:25 or all:25", _any):
        shapes[peer] = replace(shapes[peer], latency=milliseconds / 1000)
    for peer, percent in _by_peer(run, "--loss", loss, "PERCENT, like 3:1 or all:0.1", _percent):
        shapes[peer] = replace(shapes[peer], loss=percent / 100)
    return tuple(shapes) if any(shape != LinkShape() for shape in shapes) else ()


def _by_peer(
    run: _Run, flag: str, texts: Sequence[str], right: str, check: Callable[[float], str]
) -> list[tuple[int, float]]:
    """(peer, value) for each peer that the flag names. A peer's own value goes over that of `all`."""
    named: dict[str, float] = {}
    for text in texts:
        match = _match(flag, _OF_PEER, text, f"PEER:{right}")
        who = match[1] if match[1] == "all" else str(run.peer(flag, text, match[1]))
        if who in named:
            raise UserError.field(flag, text, f"is given twice for {who}, must be given at most once")
        if problem := check(float(match[2])):
            raise UserError.field(flag, text, problem)
        named[who] = float(match[2])
    everyone = [(peer, named["all"]) for peer in range(run.num_peers)] if "all" in named else []
    return everyone + [(int(who), value) for who, value in named.items() if who != "all"]


def _positive(name: str) -> Callable[[float], str]:
    return lambda value: "" if value > 0 else f"{name} must be above 0"


def _any(value: float) -> str:
    return ""


def _percent(value: float) -> str:
    return "" if value <= 50 else "PERCENT must be at most 50"


# What does not go together


def _check_together(faults: Faults, num_peers: int) -> None:
    _once("--slow", [slow.peer for slow in faults.slows])
    _once("--kill", [kill.peer for kill in faults.kills])
    _once("--leave", [leave.peer for leave in faults.leaves])
    _once("--join", [join.peer for join in faults.joins])
    if len(faults.joins) == num_peers:
        raise UserError("--join: names every peer, must leave at least one to start the run")
    steps = Counter(partition.step for partition in faults.partitions)
    for step in (step for step, times in steps.items() if times > 1):
        raise UserError.field("--partition", f"…@{step}", "is given twice for this step, must be one with all groups")
    for peer in range(num_peers):
        _check_life(faults, peer)


def _once(flag: str, peers: list[int]) -> None:
    twice = next((peer for peer in peers if peers.count(peer) > 1), None)
    if twice is not None:
        raise UserError.field(flag, twice, "is given twice for this peer, must be given at most once")


def _check_life(faults: Faults, peer: int) -> None:
    """A peer can be hurt only between its coming and its end."""
    every: tuple[Kill | Leave, ...] = (*faults.kills, *faults.leaves)
    ends = [fault for fault in every if fault.peer == peer]
    if len(ends) > 1:
        raise UserError.field("--leave", f"{peer}@{ends[1].step}", f"is killed too (--kill {peer}@{ends[0].step})")
    last = ends[0].step if ends else math.inf
    join = faults.join_of(peer)
    for fault in faults.of_peer(peer):
        given = f"{peer}@{fault.step}"
        if join and fault.step <= join.step:
            raise UserError.field(f"--{fault.kind}", given, f"must be after --join {peer}@{join.step}")
        if fault not in ends and fault.step >= last:
            end = f"--{ends[0].kind} {peer}@{ends[0].step}"
            raise UserError.field(f"--{fault.kind}", given, f"must be before the peer's end ({end})")
