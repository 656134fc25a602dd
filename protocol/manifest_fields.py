"""Every field of the manifest: what it means, and which values are right by themselves.

One table, so that the comments of the TOML file, the checks and the error messages cannot disagree. Rules that
relate two fields are in manifest.py. Upper bounds are far above any use: they keep a hostile manifest from
costing memory or overflowing a 64-bit integer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Field:
    """The meaning of one field and the rule for its value."""

    what: str
    """What it means, with its unit."""
    right: str
    """What is right, as in "an integer from 1 to 8"."""
    allows: Callable[[object], bool]
    """Whether a value, of any type, is right."""
    is_float: bool = False
    """Whether it is a real number: an integer is then read as the float of the same value."""


def _integer(what: str, low: int, high: int) -> Field:
    def allows(value: object) -> bool:
        return type(value) is int and low <= value <= high  # a bool is no integer here

    return Field(what, f"an integer from {low} to {high}", allows)


def _number(what: str, low: float, high: float, *, open_low: bool = False, open_high: bool = False) -> Field:
    def allows(value: object) -> bool:
        if type(value) is not float or not math.isfinite(value):
            return False
        return (low < value if open_low else low <= value) and (value < high if open_high else value <= high)

    first = f"above {low:g}" if open_low else f"of at least {low:g}"
    last = f"below {high:g}" if open_high else f"at most {high:g}"
    return Field(what, f"a number {first} and {last}", allows, is_float=True)


def _choice(what: str, *known: str) -> Field:
    names = ", ".join(f'"{name}"' for name in known)
    return Field(what, f"one of {names}", lambda value: type(value) is str and value in known)


def _text(what: str, pattern: str, right: str) -> Field:
    return Field(what, right, lambda value: type(value) is str and re.fullmatch(pattern, value) is not None)


def _digest(what: str) -> Field:
    return _text(what, r"([0-9a-f]{64})?", '64 hexadecimal digits in lower case, or "" while not sealed')


def _power_of_two(what: str, high: int) -> Field:
    def allows(value: object) -> bool:
        return type(value) is int and 1 <= value <= high and value & (value - 1) == 0

    return Field(what, f"a power of two from 1 to {high}", allows)


def _offsets(what: str) -> Field:
    def allows(value: object) -> bool:
        return type(value) is tuple and all(type(offset) is int for offset in value)

    return Field(what, "a list with one integer a fragment, each of at least 0 and below sync_every, or []", allows)


CODECS = ("e3m0", "fp32")
MODELS = ("tiny", "35m", "custom")
PATTERNS = ("strided", "sequential", "balanced")
MAX_FRAGMENTS = 1024

FIELDS: Mapping[str, Field] = {
    "run.protocol": Field(
        "version of the protocol and of this record", "the integer 1", lambda value: type(value) is int and value == 1
    ),
    "run.name": _text("the run's name in the swarm", r"[a-z0-9-]{1,64}", "1 to 64 of the characters a-z, 0-9 and -"),
    "run.seed": _integer("seed of the initial parameters and of everyone's data order", 0, 2**63 - 1),
    "run.steps": _integer("length of the run in swarm steps", 1, 10**9),
    "run.start_peers": _integer("peers that the run waits for before its first step", 1, 10**4),
    "model.name": _choice("the model; custom is one that each peer brings in its own code", *MODELS),
    "model.layers": _integer("number of the model's repeated blocks", 1, 10**4),
    "model.parameters": _integer("number of trainable parameters, 0 while not sealed", 0, 2**48),
    "model.layout": _digest("SHA-256 of the parameters' names, shapes and fragments"),
    "model.initial": _digest("SHA-256 of the initial parameters"),
    "data.name": _text(
        "the data set", r"[A-Za-z0-9._-]{1,64}", "1 to 64 of the characters A-Z, a-z, 0-9, dot, underscore and -"
    ),
    "data.sequence": _integer("length of a training sequence in tokens", 1, 2**20),
    "data.validation": _digest("SHA-256 of the validation bytes; a peer with others is refused"),
    "schedule.sync_every": _integer("H, swarm steps from one window of a fragment to its next", 1, 10**6),
    "schedule.overlap": _integer("tau, inner steps from sending to merging; below sync_every", 0, 10**6 - 1),
    "schedule.fragments": _integer("P, number of fragments; at most model.layers", 1, MAX_FRAGMENTS),
    "schedule.pattern": _choice("how the blocks are dealt to the fragments", *PATTERNS),
    "schedule.offsets": _offsets("due step of each fragment within a round; [] spreads them evenly"),
    "merge.mixing": _number("alpha, weight of the local parameters in the merge; 1 ignores the swarm", 0, 1),
    "merge.outer_lr": _number("learning rate of the outer optimizer", 0, 10, open_low=True),
    "merge.outer_momentum": _number("Nesterov momentum of the outer optimizer", 0, 1, open_high=True),
    "merge.late_steps": _integer("inner steps after which a late result moves only the anchor", 0, 10**6),
    "codec.contributions": _choice("encoding of what peers send to a chunk's owner", *CODECS),
    "codec.results": _choice("encoding of an owner's average", *CODECS),
    "codec.block": _power_of_two("elements that share one scale", 256),
    "codec.chunk": _integer("elements in a chunk; a multiple of block", 1024, 2**22),
    "training.lr": _number("peak learning rate of the inner optimizer, AdamW", 0, 1, open_low=True),
    "training.warmup": _integer("steps of linear warm-up", 0, 10**9),
    "training.weight_decay": _number("decoupled weight decay of the inner optimizer", 0, 1),
    "training.clip": _number("largest norm of a gradient; a larger one is scaled down to it", 0, 1e6, open_low=True),
    "training.beta1": _number("AdamW's decay of the mean gradient", 0, 1, open_high=True),
    "training.beta2": _number("AdamW's decay of the mean squared gradient", 0, 1, open_high=True),
    "training.z_loss": _number("weight of the squared log-normalizer in the loss", 0, 1),
    "limits.weight_cap": _integer("a contribution counts at most this multiple of its window's median", 1, 10**6),
    "limits.presence_ttl": _number("life of a presence record in seconds", 3, 3600),
}
"""Rules by dotted name, in the order in which the TOML file lists them."""
