"""The manifest as a commented TOML file that people write and read.

`loads(dumps(manifest)) == manifest`. A key that the file leaves out has its default; an unknown one is an error.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterator

from protocol.errors import UserError
from protocol.manifest import Manifest, changed, fields
from protocol.manifest_fields import FIELDS

_HEADER = """\
# A potluck manifest: every number that all peers of a run share.
# The run id is its hash, so a change of any value makes another run. A key that is left out has its default.
"""


def dumps(manifest: Manifest) -> str:
    """TOML with a comment for every key: what it is, its unit, and what is allowed."""
    lines, section = [_HEADER.rstrip()], ""
    for name, value in fields(manifest):
        if not name.startswith(f"{section}."):
            section = name.split(".")[0]
            lines += ["", f"[{section}]"]
        field = FIELDS[name]
        lines += [f"# {_sentence(field.what)} {_sentence(field.right)}", f"{name.split('.')[1]} = {_literal(value)}"]
    return "\n".join(lines) + "\n"


def loads(text: str) -> Manifest:
    """The manifest of a TOML text. Raises UserError, naming the field, for anything that is not right."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"the manifest is not TOML: {error}") from error
    return changed(Manifest(), dict(_flat(document)))


def _flat(document: dict[str, object]) -> Iterator[tuple[str, object]]:
    """The document's keys as (dotted name, value); UserError for one that the manifest does not have."""
    sections = Manifest.__struct_fields__
    for section, table in document.items():
        if section not in sections:
            raise UserError.field(section, table, f"no such section; {_suggest_section(section)}")
        if not isinstance(table, dict):
            raise UserError.field(section, table, f"must be a section, written [{section}]")
        for key, value in table.items():
            name = f"{section}.{key}"
            if name not in FIELDS:
                raise UserError.field(name, value, f"no such key; {_suggest_key(section, key)}")
            yield name, value


def _suggest_section(section: str) -> str:
    nearest = difflib.get_close_matches(section, Manifest.__struct_fields__, n=1)
    return f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(Manifest.__struct_fields__)}"


def _suggest_key(section: str, key: str) -> str:
    """The same key of another section, else the nearest one of this section, else all of this section."""
    elsewhere = [name for name in FIELDS if name.endswith(f".{key}")]
    siblings = [name for name in FIELDS if name.startswith(f"{section}.")]
    meant = elsewhere or difflib.get_close_matches(f"{section}.{key}", siblings, n=1, cutoff=0.8)
    return f"did you mean {meant[0]}?" if meant else f"known are {', '.join(siblings)}"


def _literal(value: object) -> str:
    """A value as TOML. The manifest's strings are plain ASCII, for which JSON's quoting is TOML's."""
    return json.dumps(list(value)) if isinstance(value, tuple) else json.dumps(value, allow_nan=False)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
