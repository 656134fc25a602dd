"""How the demo's outer optimizer and inner learning rate were chosen: four replicas in one process, on real text.

A straight line of Algorithm 2 with the product's arithmetic (4 bits both ways), no network: what `potluck swarm
--lockstep` computes, for many settings. Prints held-out nats per token of the outer parameters and of one replica.

    python benchmarks/outer_settings.py [--steps 200] [--seeds 0] [--quick]

One setting takes four trainings of `--steps` steps, about a minute on one core for the default; --quick does 40 steps.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from aggregation.arithmetic import Arithmetic
from aggregation.codecs import codec
from aggregation.outer import fresh, merge
from peer.data import Batches, Corpus, load_corpus
from peer.evaluation import evaluate
from peer.models import Decoder
from peer.parameters import ModuleParameters
from peer.sealing import build_model, chunks_of, layout_of
from peer.training import InnerConfig, make_optimizer, train_step
from protocol.manifest import Manifest, changed, schedule_of
from protocol.presets import PRESETS


@dataclass(frozen=True)
class Setting:
    """One row of the table. `replicas` = 1 trains alone, without an outer optimizer."""

    inner: float
    warmup: int
    mixing: float = 0.25
    lr: float = 1.0
    momentum: float = 0.0
    sync_every: int = 8
    overlap: int = 2
    replicas: int = 4
    batch: int = 8

    def manifest(self, steps: int, seed: int) -> Manifest:
        values = {
            "run.steps": steps,
            "run.seed": seed,
            "merge.mixing": self.mixing,
            "merge.outer_lr": self.lr,
            "merge.outer_momentum": self.momentum,
            "schedule.sync_every": self.sync_every,
            "schedule.overlap": self.overlap,
            "training.lr": self.inner,
            "training.warmup": self.warmup,
        }
        return changed(PRESETS["demo"], values)


SETTINGS = (
    Setting(5e-3, 40, replicas=1),
    Setting(3e-3, 20, lr=0.4, momentum=0.9, sync_every=24, overlap=8, mixing=0.5),
    Setting(5e-3, 40, momentum=0.5, sync_every=20, overlap=4, mixing=0.5),
    Setting(5e-3, 40, sync_every=20, overlap=0, mixing=0.0),
    Setting(5e-3, 40, mixing=0.0),
    Setting(5e-3, 40, momentum=0.3),
    Setting(5e-3, 40),
    Setting(5e-3, 40, sync_every=4),
    # What four times the batch gives in as many steps: the most that four peers can reach.
    Setting(5e-3, 40, replicas=1, batch=32),
)


class Replicas:
    """M replicas and the outer state that they share."""

    def __init__(self, setting: Setting, manifest: Manifest, corpus: Corpus) -> None:
        self.models = [build_model(manifest) for _ in range(setting.replicas)]
        layout = layout_of(manifest, self.models[0])
        self.chunks = chunks_of(manifest, layout)
        self.parameters = [ModuleParameters(model, layout) for model in self.models]
        section = manifest.training
        self.inner = InnerConfig(total_steps=manifest.run.steps, lr=section.lr, warmup_steps=section.warmup)
        self.optimizers = [make_optimizer(model, self.inner) for model in self.models]
        self.batches = [
            Batches(corpus, seed=manifest.run.seed, seat=index, batch=setting.batch, sequence=128)
            for index in range(setting.replicas)
        ]
        self.arithmetic = Arithmetic(
            [chunk.numel for chunk in self.chunks],
            contribution_codec=codec("e3m0"),
            result_codec=codec("e3m0"),
            lr=setting.lr,
            momentum=setting.momentum,
        )
        self.mixing = setting.mixing
        self.states = [fresh(self._slice(0, index).clone()) for index in range(len(self.chunks))]

    def _slice(self, replica: int, index: int) -> Tensor:
        chunk = self.chunks[index]
        return self.parameters[replica].view(chunk.fragment, chunk.start, chunk.stop)

    def train(self, step: int) -> None:
        """One inner step of every replica (from 0)."""
        for model, optimizer, batches in zip(self.models, self.optimizers, self.batches, strict=True):
            train_step(model, optimizer, batches.at(step), self.inner, step)

    def send(self, fragment: int) -> dict[int, bytes]:
        """The packed mean of every chunk of a fragment, from snapshots taken now."""
        means = {}
        for chunk in self.chunks:
            if chunk.fragment == fragment:
                state = self.states[chunk.index]
                local = [self._slice(replica, chunk.index) for replica in range(len(self.models))]
                packed = [(1, self.arithmetic.contribution(chunk.index, state, values)) for values in local]
                means[chunk.index] = self.arithmetic.mean(chunk.index, packed)
        return means

    def merge(self, means: dict[int, bytes]) -> None:
        """Outer step and merge of what was sent τ steps ago."""
        for index, payload in means.items():
            self.states[index] = state = self.arithmetic.apply(index, self.states[index], payload)
            for replica, parameters in enumerate(self.parameters):
                mixed = merge(self._slice(replica, index), state.anchor, self.mixing)
                parameters.write(self.chunks[index].fragment, self.chunks[index].start, mixed)

    def outer_model(self) -> Decoder:
        """The first replica's model, holding the outer parameters from now on."""
        for chunk, state in zip(self.chunks, self.states, strict=True):
            self.parameters[0].write(chunk.fragment, chunk.start, state.anchor)
        return self.models[0]


def run(setting: Setting, steps: int, seed: int, corpus: Corpus) -> tuple[float, float]:
    """Held-out nats per token of one replica and of the outer parameters, after `steps` steps."""
    manifest = setting.manifest(steps, seed)
    schedule, replicas = schedule_of(manifest), Replicas(setting, manifest, corpus)
    flying: dict[int, dict[int, bytes]] = {}
    for step in range(1, steps + 1):
        replicas.train(step - 1)
        if setting.replicas > 1:
            for window in schedule.opening(step):
                flying.setdefault(step + schedule.overlap, {}).update(replicas.send(window.fragment))
            replicas.merge(flying.pop(step, {}))
    local = evaluate(replicas.models[0], corpus.validation, sequence=128, max_tokens=16_384)
    if setting.replicas == 1:
        return local, local
    return local, evaluate(replicas.outer_model(), corpus.validation, sequence=128, max_tokens=16_384)


def main() -> None:
    """Every setting, for every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    corpus = load_corpus("bible")
    for setting in (SETTINGS[0], SETTINGS[6]) if given.quick else SETTINGS:
        for seed in given.seeds:
            began = time.perf_counter()
            local, outer = run(setting, 40 if given.quick else given.steps, seed, corpus)
            print(f"{setting} seed {seed}: replica {local:.3f} outer {outer:.3f} ({time.perf_counter() - began:.0f} s)")


if __name__ == "__main__":
    main()
