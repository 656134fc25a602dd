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
            # Rounds as short as a demo needs: in 200 steps replicas are far apart after twenty, and the outer
            # momentum of long runs has no time to pay. So the outer step is the plain mean (docs/experiments.md).
            "schedule.sync_every": 6,
            "schedule.overlap": 2,
            "schedule.fragments": 4,
            "merge.mixing": 0.25,
            "merge.outer_lr": 1.0,
            "merge.outer_momentum": 0.0,
            "codec.chunk": 131_072,
            "training.lr": 5e-3,
            "training.warmup": 40,
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
