"""Manifests out of TOML files."""

from __future__ import annotations

from pathlib import Path

from protocol.errors import UserError
from protocol.manifest import Manifest
from protocol.manifest_toml import loads


def read_manifest(path: Path) -> Manifest:
    """The manifest in a TOML file. UserError if the file cannot be read or is not right."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"manifest {path}: cannot be read: {reason}") from error
    try:
        return loads(text)
    except UserError as error:
        raise UserError(f"manifest {path}: {error}") from error
