"""How a compression is written in one string, in an experiment's data or on a command line.

    NAME [: PARAMETER {, PARAMETER}] [+ef [: DECAY]]      PARAMETER = KEY=VALUE, or the VALUE alone of the first one

Such as "top-k:0.05", "e3m0:block=64,rounding=stochastic", "sign:64+ef:0.95". The parameters are the fields of the
compression's dataclass, and a value has the type of its field's default.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from simulation.lab.compression.base import Compression
from simulation.lab.compression.error_feedback import ErrorFeedback

FEEDBACK = "ef"


@dataclass(frozen=True)
class Row:
    """One compression of the registry."""

    build: Callable[..., Compression]
    """A dataclass whose fields all have defaults; `name` is one of them."""
    first: str = ""
    """The parameter that may be written without its key."""
    preset: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that belong to the name and cannot be chosen."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Parameters whose default under this name differs from the dataclass's."""
    common: bool = False
    """All replicas are to draw the same random numbers in one window."""


def made(text: str, rows: Mapping[str, Row]) -> Compression:
    """What `text` describes. Raises ValueError that says what would be right."""
    base, *wrappers = text.split("+")
    inner = _base(base, rows)
    for wrapper in wrappers:
        inner = _wrapped(inner, wrapper, text)
    return inner


def base_name(text: str) -> str:
    """The NAME alone."""
    return text.split("+")[0].split(":")[0]


def _base(text: str, rows: Mapping[str, Row]) -> Compression:
    name, _, parameters = text.partition(":")
    if name not in rows:
        raise ValueError(f"compression = {name!r}: must be one of {', '.join(sorted(rows))}")
    row = rows[name]
    defaults = {f.name: f.default for f in fields(row.build) if f.name != "name"}  # type: ignore[arg-type]
    assert MISSING not in defaults.values(), row.build
    known = {key: default for key, default in defaults.items() if key not in row.preset}
    given = dict(_parameter(part, name, row.first, known) for part in parameters.split(",") if part)
    return row.build(**{**row.defaults, **row.preset, **given}, name=text)


def _parameter(part: str, name: str, first: str, known: Mapping[str, Any]) -> tuple[str, Any]:
    key, equals, value = part.partition("=")
    if not equals:
        key, value = first, key
    if key not in known:
        right = ", ".join(known) or "none"
        raise ValueError(f"{name}: parameter {part!r}: must be KEY=VALUE with a KEY of {right}")
    return key, _value(f"{name}: {key}", value, type(known[key]))


def _value(what: str, text: str, kind: type) -> Any:
    """`text` as an int, a float, a bool or a str."""
    if kind is bool:
        if text not in ("true", "false"):
            raise ValueError(f"{what} = {text!r}: must be true or false")
        return text == "true"
    try:
        return kind(text)
    except ValueError:
        right = "a whole number" if kind is int else "a number"
        raise ValueError(f"{what} = {text!r}: must be {right}") from None


def _wrapped(inner: Compression, wrapper: str, text: str) -> Compression:
    name, _, decay = wrapper.partition(":")
    if name != FEEDBACK:
        raise ValueError(f"compression = {text!r}: after a + must come {FEEDBACK} or {FEEDBACK}:DECAY")
    return ErrorFeedback(inner, _value("ef: decay", decay, float) if decay else 1.0)
