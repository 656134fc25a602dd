"""Faults of a local swarm, done to real processes: `--kill 2@60`, `--freeze 1@60:20`, `--slow 3:4`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.errors import UserError

_KILL = re.compile(r"(\d{1,9})@(\d{1,9})")
_FREEZE = re.compile(r"(\d{1,9})@(\d{1,9}):(\d+(?:\.\d+)?)")
_SLOW = re.compile(r"(\d{1,9}):(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Kill:
    """SIGKILL to peer `peer` when it reports swarm step `step`."""

    peer: int
    step: int


@dataclass(frozen=True)
class Freeze:
    """SIGSTOP to peer `peer` and its libp2p daemon when it reports swarm step `step`, SIGCONT `seconds` later."""

    peer: int
    step: int
    seconds: float


@dataclass(frozen=True)
class Slow:
    """Every inner step of peer `peer` takes `factor` times as long."""

    peer: int
    factor: float


@dataclass(frozen=True)
class Faults:
    """All faults of one local swarm. Peers count from 0."""

    kills: tuple[Kill, ...] = ()
    freezes: tuple[Freeze, ...] = ()
    slows: tuple[Slow, ...] = ()

    def slowdown(self, peer: int) -> float:
        """The factor by which a peer is slowed down; 1 for none."""
        return next((slow.factor for slow in self.slows if slow.peer == peer), 1.0)


def parse_faults(
    *, kill: Sequence[str], freeze: Sequence[str], slow: Sequence[str], num_peers: int, steps: int
) -> Faults:
    """The faults that the flags ask for. UserError for one that cannot be read, or that the run does not have."""
    faults = Faults(
        kills=tuple(_parse_kill(text) for text in kill),
        freezes=tuple(_parse_freeze(text) for text in freeze),
        slows=tuple(_parse_slow(text) for text in slow),
    )
    checks: list[tuple[str, Sequence[str], Sequence[Kill | Freeze | Slow]]] = [
        ("kill", kill, faults.kills),
        ("freeze", freeze, faults.freezes),
        ("slow", slow, faults.slows),
    ]
    for flag, texts, parsed in checks:
        for text, fault in zip(texts, parsed, strict=True):
            _check(flag, text, fault, num_peers, steps)
    for flag, once in (("kill", faults.kills), ("slow", faults.slows)):
        _check_once(flag, [fault.peer for fault in once])
    return faults


def _parse_kill(text: str) -> Kill:
    match = _KILL.fullmatch(text)
    if not match:
        raise UserError.field("--kill", text, "must be PEER@STEP, like 2@60")
    return Kill(int(match[1]), int(match[2]))


def _parse_freeze(text: str) -> Freeze:
    match = _FREEZE.fullmatch(text)
    if not match:
        raise UserError.field("--freeze", text, "must be PEER@STEP:SECONDS, like 1@60:20")
    return Freeze(int(match[1]), int(match[2]), float(match[3]))


def _parse_slow(text: str) -> Slow:
    match = _SLOW.fullmatch(text)
    if not match:
        raise UserError.field("--slow", text, "must be PEER:FACTOR, like 3:4")
    return Slow(int(match[1]), float(match[2]))


def _check(flag: str, text: str, fault: Kill | Freeze | Slow, num_peers: int, steps: int) -> None:
    if fault.peer >= num_peers:
        raise UserError.field(f"--{flag}", text, f"peers count from 0, so PEER must be at most {num_peers - 1}")
    if isinstance(fault, Slow):
        if not (1 <= fault.factor < math.inf):
            raise UserError.field(f"--{flag}", text, "FACTOR must be at least 1")
        return
    if not 1 <= fault.step <= steps:
        raise UserError.field(f"--{flag}", text, f"STEP must be from 1 to the run's last step ({steps})")
    if isinstance(fault, Freeze) and not 0 < fault.seconds < math.inf:
        raise UserError.field(f"--{flag}", text, "SECONDS must be above 0")


def _check_once(flag: str, peers: list[int]) -> None:
    twice = next((peer for peer in peers if peers.count(peer) > 1), None)
    if twice is not None:
        raise UserError.field(f"--{flag}", twice, "is given twice for this peer, must be given at most once")
