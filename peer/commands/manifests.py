"""Manifests that are written to files, and the changes to one that flags ask for."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from protocol.errors import UserError
from protocol.manifest import Manifest, changed
from protocol.manifest_toml import dumps
from protocol.presets import PRESETS

UNSEALED = {"model.parameters": 0, "model.layout": "", "model.initial": "", "data.validation": ""}
"""What `peer.sealing.seal` fills in. A manifest in which anything else changes must lose it first."""


def write_preset(preset: str, model: str | None, out: Path | None) -> int:
    """`potluck init`: write a preset's manifest to `out`, or to standard output. Never replaces a file."""
    if preset not in PRESETS:
        raise UserError.field("--preset", preset, f"must be one of {', '.join(PRESETS)}")
    manifest = with_model(PRESETS[preset], model) if model else PRESETS[preset]
    if out is None:
        print(dumps(manifest), end="")
        return 0
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(dumps(manifest))
    except FileExistsError:
        raise UserError.field("--out", str(out), "exists already; give another name, or move it away") from None
    except OSError as error:
        raise UserError.field("--out", str(out), f"cannot be written: {error.strerror}") from error
    print(f"Wrote {out}. Edit it, then: potluck bootstrap --manifest {out}")
    return 0


def with_model(manifest: Manifest, name: str) -> Manifest:
    """The manifest with another model, and with what must fit it: number of layers, length of a sequence."""
    from peer.models import preset

    config = preset(name)
    sequence = min(manifest.data.sequence, config.context)
    return changed(manifest, {"model.name": name, "model.layers": config.layers, "data.sequence": sequence})


def seal_with(manifest: Manifest, spec: str | None) -> Manifest:
    """The manifest with model and validation bytes fixed by digest, for the text `spec` (default: its own)."""
    from peer.data import load_corpus
    from peer.sealing import seal

    corpus = load_corpus(manifest.data.name if spec is None else spec)
    # A manifest allows fewer characters than a file system does.
    named = replace(corpus, name=re.sub(r"[^A-Za-z0-9._-]", "_", corpus.name)[:64])
    return seal(changed(manifest, UNSEALED), named)
