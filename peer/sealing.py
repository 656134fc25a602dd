"""Fixing a run's model and validation bytes by digest, and building the model that a manifest names.

A manifest is sealed once, by whoever starts the run; everyone else checks what they built against it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import torch
from torch import nn

from aggregation.fragments import Chunk, Layout, num_blocks, partition
from aggregation.initial import initialize, parameters_digest
from peer.data import Corpus
from peer.models import Decoder, DecoderConfig, preset
from protocol.errors import UserError
from protocol.manifest import Manifest, changed, sealed

Patterns = Sequence[Sequence[str]]


def build_model(manifest: Manifest) -> Decoder:
    """The decoder of the manifest's preset with its initial parameters: the same bytes on every machine."""
    model = Decoder(_config(manifest), z_loss=manifest.training.z_loss)
    initialize(model, manifest.run.seed, model.initial_stds())
    return model


def planned_layout(manifest: Manifest) -> Layout:
    """The layout of the manifest's preset, known before anything of the model is allocated."""
    with torch.device("meta"):
        return layout_of(manifest, Decoder(_config(manifest)))


def _config(manifest: Manifest) -> DecoderConfig:
    if manifest.model.name == "custom":
        right = "is a model of a program of its own: join it from there with potluck.join(model, …)"
        raise UserError.field("model.name", "custom", right)
    return preset(manifest.model.name)


def layout_of(manifest: Manifest, model: nn.Module, patterns: Patterns = ()) -> Layout:
    """How the manifest cuts the model into fragments; UserError if the model has too few blocks for them.

    `patterns`, one list of globs over parameter names for each fragment, replaces the manifest's pattern.
    """
    section = manifest.schedule
    try:
        return partition(model, fragments=section.fragments, pattern=section.pattern, patterns=patterns)  # type: ignore[arg-type]
    except ValueError as error:
        raise UserError(f"the model does not fit the manifest's schedule: {error}") from error


def chunks_of(manifest: Manifest, layout: Layout) -> tuple[Chunk, ...]:
    """The chunks of all fragments, in order."""
    return layout.chunks(manifest.codec.chunk, manifest.codec.block)


def seal(
    manifest: Manifest, corpus: Corpus | None, model: nn.Module | None = None, patterns: Patterns = ()
) -> Manifest:
    """The manifest with model and validation bytes fixed. Without `model`, the preset's is built.

    `corpus` is None for a run whose model and data are the joining programs' own business.
    """
    model = model or build_model(manifest)
    # With patterns the user's fragments are what the schedule has, whatever blocks the model has.
    layers = max(num_blocks(model), len(patterns))
    fragments = len(patterns) or manifest.schedule.fragments
    manifest = changed(manifest, {"model.layers": layers, "schedule.fragments": fragments})
    layout = layout_of(manifest, model, patterns)
    return changed(
        manifest,
        {
            "model.name": manifest.model.name if corpus else "custom",
            "model.parameters": layout.numel,
            "model.layout": layout.digest().hex(),
            "model.initial": parameters_digest(model).hex(),
            "data.validation": corpus.validation_sha256 if corpus else "0" * 64,
            # A manifest allows fewer characters than a file system does.
            "data.name": re.sub(r"[^A-Za-z0-9._-]", "_", corpus.name)[:64] if corpus else "own",
        },
    )


def check(manifest: Manifest, model: nn.Module, corpus: Corpus | None, patterns: Patterns = ()) -> Layout:
    """The layout of `model`, if model and data are exactly those that the manifest fixes; UserError otherwise."""
    if not sealed(manifest):
        raise UserError("manifest: is not sealed: its model and data are not fixed by digest yet")
    layout = layout_of(manifest, model, patterns)
    text = manifest.data.name
    parts: list[tuple[str, str, str, Callable[[], str]]] = [
        (
            "model.layout",
            "the model has other parameters or fragments than the run's",
            "use the run's model, and the same version of potluck",
            lambda: layout.digest().hex(),
        ),
        (
            "model.initial",
            "the model starts from other parameters than the run's",
            "leave the initial parameters to potluck.initialize with the run's seed",
            lambda: parameters_digest(model).hex(),
        ),
    ]
    if corpus:
        other = f"the text here ({corpus.name}) is not the run's ({text}): its held-out end differs"
        todo = f"point --data at the same {text} that the run was started with"
        parts.append(("data.validation", other, todo, lambda: corpus.validation_sha256))
    for name, cause, todo, digest in parts:
        section, key = name.split(".")
        ours, wanted = digest(), getattr(getattr(manifest, section), key)
        if ours != wanted:
            raise UserError(f"{name}: {cause} ({ours[:12]} here, {wanted[:12]} in the run); {todo}")
    return layout
