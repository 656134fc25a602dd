"""What is one peer's own business: where it writes, how hard it may use this computer, whom it joins through.

What all peers of a run share is the manifest, never here. The only module of peer/ that reads the environment.
"""

from __future__ import annotations

import math
import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from protocol.errors import UserError
from protocol.presence import MAX_NAME_LENGTH

PREFIX = "POTLUCK_"
DEVICES = ("auto", "cpu", "cuda")

_HOST = r"/(ip4|ip6|dns|dns4|dns6)/[^/\s]+/tcp/\d{1,5}"
_LISTEN = re.compile(_HOST)
_JOIN = re.compile(_HOST + r"/p2p/[1-9A-HJ-NP-Za-km-z]+")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One peer's local settings; UserError from the constructor names the field, the value and what would be right."""

    name: str = "peer"
    """How others see this peer in tables: 1 to 32 printable characters. It identifies nobody."""
    out: Path = Path("potluck-out")
    """The directory for everything that the peer writes."""
    batch: int = 8
    """Samples of an inner step."""
    threads: int = 0
    """Threads of torch; 0 leaves torch's own choice."""
    device: str = "auto"
    """auto, cpu or cuda."""
    upload_mbit: float | None = None
    """Cap on what is sent, in Mbit/s; None is no cap."""
    give_mbit: float | None = None
    """Cap on what is given to newcomers and to peers that lag, in Mbit/s; None is half of `upload_mbit`, or without one
    50, or in a swarm on one machine no cap."""
    merge_wait: float | None = None
    """Longest that training waits for a merge, in seconds; None is one inner step."""
    linger: float = 30.0
    """Longest that a finished peer goes on serving others, in seconds."""
    snapshot_every: int = 1
    """Rounds (of H swarm steps) between two snapshots; 0 keeps none."""
    snapshots_kept: int = 3
    """Newest snapshots that stay on the disk. With more than one, a damaged one costs only the steps since the last."""
    lockstep: bool = False
    """Merges wait for everyone, so that two runs are equal to the byte. For tests."""
    slowdown: float = 1.0
    """Factor by which every inner step is stretched. For tests."""
    local_only: bool = False
    """Train without a swarm and without the outer optimizer. For comparisons."""
    json: bool = False
    """Report progress as JSON lines."""
    listen: str = "auto"
    """The address to be dialled at; port 0 takes a free one. `auto`: every interface, or loopback in a swarm that we
    join through loopback or through nobody."""
    announce: str = ""
    """The address that others shall dial, if it is another: a forwarded port, a public name."""
    join: tuple[str, ...] = ()
    """Addresses of peers or bootstrap servers of the run, each with its peer id."""

    def __post_init__(self) -> None:
        rules: tuple[tuple[str, bool, str], ...] = (
            ("name", 1 <= len(self.name) <= 32 and self.name.isprintable(), "must be 1 to 32 printable characters"),
            ("out", not self.out.exists() or self.out.is_dir(), "must be a directory or not exist yet"),
            ("batch", self.batch >= 1, "must be at least 1"),
            ("threads", self.threads >= 0, "must be at least 0 (0: torch's choice)"),
            ("device", self.device in DEVICES, f"must be one of {', '.join(DEVICES)}"),
            ("upload_mbit", _is_none_or(self.upload_mbit, lambda cap: cap > 0), "must be above 0, in Mbit/s"),
            ("give_mbit", _is_none_or(self.give_mbit, lambda cap: cap > 0), "must be above 0, in Mbit/s"),
            ("merge_wait", _is_none_or(self.merge_wait, lambda wait: wait >= 0), "must be at least 0, in seconds"),
            ("linger", _is_none_or(self.linger, lambda wait: wait >= 0), "must be at least 0, in seconds"),
            ("snapshot_every", self.snapshot_every >= 0, "must be at least 0, in rounds (0: no snapshots)"),
            ("snapshots_kept", self.snapshots_kept >= 1, "must be at least 1"),
            ("slowdown", _is_none_or(self.slowdown, lambda factor: factor >= 1), "must be a factor of at least 1"),
            ("listen", self._listens, "must look like /ip4/127.0.0.1/tcp/0, or be auto"),
            ("announce", self._announces, "must look like /ip4/192.0.2.1/tcp/4002"),
        )
        for name, holds, right in rules:
            if not holds:
                value = getattr(self, name)
                raise UserError.field(name, str(value) if isinstance(value, Path) else value, right)
        for address in self.join:
            if not _is_address(_JOIN, address):
                raise UserError.field("join", address, "must look like /ip4/192.0.2.1/tcp/4711/p2p/12D3KooW…")

    @property
    def _listens(self) -> bool:
        return self.listen == "auto" or _is_address(_LISTEN, self.listen)

    @property
    def _announces(self) -> bool:
        return not self.announce or (_is_address(_LISTEN, self.announce) and not self.announce.endswith("/tcp/0"))


def from_environment(
    flags: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None, **defaults: Any
) -> Settings:
    """The settings of this process: `flags` (None means not given) over POTLUCK_* variables over the defaults.

    `defaults` go before the fields' own.

    A variable is the field's name in capitals, such as POTLUCK_UPLOAD_MBIT=20; POTLUCK_JOIN holds addresses
    separated by spaces. An empty variable counts as not set. Raises UserError for an unknown variable or a value
    that cannot be read, unless a flag overrides it.
    """
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    variables = os.environ if environment is None else environment
    for variable, text in sorted(variables.items()):
        if variable.startswith(PREFIX) and text:
            name = _field_of(variable)
            if name not in given:
                given[name] = _parse(variable, name, text)
    return Settings(**{**defaults, **given})


def host_name() -> str:
    """This machine's name as a peer's: at most 32 printable characters; "peer" if it has none that can be shown."""
    return cleaned_name(socket.gethostname())


def cleaned_name(text: str) -> str:
    """What can be shown of a name, within the limits of a presence record."""
    shown = "".join(character for character in text if character.isprintable()).strip()
    return shown[:MAX_NAME_LENGTH].strip() or "peer"


def _is_none_or(value: float | None, holds: Callable[[float], bool]) -> bool:
    return value is None or (math.isfinite(value) and holds(value))


def _is_address(pattern: re.Pattern[str], address: str) -> bool:
    return pattern.fullmatch(address) is not None and int(address.split("/")[4]) < 2**16


def _flag(text: str) -> bool:
    return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[text.lower()]


# From the annotation of a field to how its variable is read, and how to say what it must be.
_READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "str": (str, "text"),
    "Path": (Path, "a path"),
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "float | None": (float, "a number"),
    "bool": (_flag, "1, true, yes, 0, false or no"),
    "tuple[str, ...]": (lambda text: tuple(text.split()), "addresses separated by spaces"),
}
_TYPES = {field.name: str(field.type) for field in fields(Settings)}


def _field_of(variable: str) -> str:
    name = variable.removeprefix(PREFIX).lower()
    if name not in _TYPES:
        near = get_close_matches(name, _TYPES, n=1) or sorted(_TYPES)
        known = ", ".join(PREFIX + field.upper() for field in near)
        raise UserError(f"environment variable {variable}: no such setting; did you mean {known}?")
    return name


def _parse(variable: str, name: str, text: str) -> Any:
    read, expected = _READERS[_TYPES[name]]
    try:
        return read(text)
    except (ValueError, KeyError):
        raise UserError.field(f"environment variable {variable}", text, f"must be {expected}") from None
