"""Manifests to start from, by the name that `potluck init --preset` takes."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.manifest import Manifest, changed

_DEFAULT = Manifest()

PRESETS: Mapping[str, Manifest] = {
    "demo": changed(
        _DEFAULT,
        {
            "run.name": "demo",
            "run.steps": 200,
            "run.start_peers": 4,
            "model.name": "tiny",
            "model.layers": 4,
            "data.sequence": 128,
            # Short rounds, so that every fragment merges several times within a few hundred steps, and a long
            # overlap beside them, so that two windows are in flight at once: 24 / 4 < 8.
            "schedule.sync_every": 24,
            "schedule.overlap": 8,
            "schedule.fragments": 4,
            "codec.chunk": 65_536,
            "training.lr": 3e-3,
            "training.warmup": 20,
        },
    ),
    "default": _DEFAULT,
    "paper": changed(
        _DEFAULT,
        {
            "run.name": "paper",
            "run.start_peers": 2,  # the paper's M
            "schedule.overlap": 1,
        },
    ),
}
"""`demo` is what `potluck swarm` runs; `default` is for links of the internet; `paper` has the paper's M, τ and H."""
