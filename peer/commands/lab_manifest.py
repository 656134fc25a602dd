"""A run's manifest in the lab: the same model, data, schedule and arithmetic as its peers have in lock-step."""

from __future__ import annotations

import torch

from peer.commands.lab_workload import TextWorkload
from peer.data import Corpus
from peer.models import preset
from peer.settings import Settings
from peer.training import inner_config
from protocol.errors import UserError
from protocol.manifest import Manifest
from simulation.lab.recipe import Recipe


def recipe_of(manifest: Manifest, peers: int) -> Recipe:
    """What `peers` peers with the default batch do in a run of this manifest, when nothing is lost or late.

    Replica i is the peer with the i-th smallest key: it has the i-th seat, and is added up i-th.
    """
    schedule, merge, codec = manifest.schedule, manifest.merge, manifest.codec
    return Recipe(
        replicas=peers,
        steps=manifest.run.steps,
        batch=Settings.batch,
        sync_every=schedule.sync_every,
        fragments=schedule.fragments,
        pattern=schedule.pattern,
        offsets=schedule.offsets,
        overlap=(schedule.overlap,),
        mixing=(merge.mixing,),
        outer_lr=merge.outer_lr,
        outer_momentum=merge.outer_momentum,
        up=_compression(codec.contributions, codec.block),
        down=_compression(codec.results, codec.block),
        chunk=codec.chunk,
        block=codec.block,
        weight_cap=manifest.limits.weight_cap,
    )


def workload_of(manifest: Manifest, corpus: Corpus, device: torch.device) -> TextWorkload:
    """The manifest's model on that text. UserError for a model of a program of its own, or a text that is not its."""
    from peer.trainer import EVALUATION_TOKENS  # here, because hivemind comes with it, which entries do without

    if manifest.model.name == "custom":
        raise UserError.field("model.name", "custom", "must be one of potluck's models for the lab")
    if manifest.data.validation not in ("", corpus.validation_sha256):
        name = manifest.data.name
        raise UserError(f"--data: the text here ({corpus.name}) is not the run's ({name}): its held-out end differs")
    inner = inner_config(manifest)
    return TextWorkload(
        model=preset(manifest.model.name),
        corpus=corpus,
        sequence=manifest.data.sequence,
        inner=lambda steps: inner,
        device=device,
        evaluation_tokens=EVALUATION_TOKENS,
        z_loss=manifest.training.z_loss,
    )


def _compression(codec: str, block: int) -> str:
    return "none" if codec == "fp32" else f"{codec}:block={block}"
