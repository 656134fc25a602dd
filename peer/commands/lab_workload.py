"""What the lab trains: the product's decoder, inner optimizer and text (`simulation.lab.workload.Workload`)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

from aggregation.fragments import Layout, partition
from aggregation.initial import initialize
from peer.data import Batches, Corpus, load_corpus
from peer.evaluation import evaluate
from peer.models import PRESETS, Decoder, DecoderConfig
from peer.parameters import ModuleParameters
from peer.training import InnerConfig, make_optimizer, resolve_device, train_step
from protocol.errors import UserError
from simulation.lab.recipe import Recipe

SMALL = DecoderConfig(vocab=256, layers=6, width=32, heads=1, mlp=64, context=128)
"""The lab's own model, 58 thousand parameters in six layers: fragments of one to three layers, and 10 ms a step."""
MODELS = {"small": SMALL, **PRESETS}
RATES = {"small": 5e-3, "tiny": 5e-3, "35m": 1e-3}
"""Peak inner learning rates."""
SEQUENCE: Final = 64


@dataclass(frozen=True, kw_only=True)
class TextWorkload:
    """A decoder on text. `inner` gives the inner optimizer's numbers for a run of so many steps."""

    model: DecoderConfig
    corpus: Corpus
    sequence: int
    inner: Callable[[int], InnerConfig]
    device: torch.device
    evaluation_tokens: int = 8192
    z_loss: float = 1e-4

    def layout(self, recipe: Recipe) -> Layout:
        """See Workload."""
        with torch.device("meta"):
            model = Decoder(self.model)
        try:
            if recipe.sizes:
                return partition(
                    model, fragments=len(recipe.sizes), patterns=_patterns(recipe.sizes, self.model.layers)
                )
            return partition(model, fragments=recipe.fragments, pattern=recipe.pattern)  # type: ignore[arg-type]
        except ValueError as error:
            raise UserError(f"the model does not fit the recipe: {error}") from error

    def trainee(self, recipe: Recipe, seed: int, seats: Sequence[int]) -> TextTrainee:
        """See Workload."""
        return TextTrainee(self, recipe, seed, seats)

    def evaluate(self, recipe: Recipe, parameters: Sequence[Tensor]) -> float:
        """See Workload."""
        model = Decoder(self.model, z_loss=self.z_loss).to(self.device)
        view = ModuleParameters(model, self.layout(recipe))
        for fragment, values in enumerate(parameters):
            view.write(fragment, 0, values)
        tokens = self.evaluation_tokens
        return evaluate(model, self.corpus.validation, sequence=self.sequence, max_tokens=tokens)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """All that a result depends on besides recipe and seed, in words: another process makes the same workload of it."""

    model: str
    """A name of MODELS."""
    data: str
    """As `load_corpus` takes it."""
    device: str = "cpu"
    evaluation_tokens: int = 8192

    def described(self) -> dict[str, Any]:
        """What results are known by: the text itself, not its name."""
        workload = workload_for(self)
        return {
            "model": self.model,
            "text": hashlib.sha256(workload.corpus.train.numpy().tobytes()).hexdigest(),
            "held_out": workload.corpus.validation_sha256,
            "sequence": workload.sequence,
            "evaluated": self.evaluation_tokens,
            "device": str(workload.device),
        }


@cache
def workload_for(setting: Setting) -> TextWorkload:
    """The workload, built once in a process. UserError for text or a device that is not there."""
    model = MODELS[setting.model]
    return TextWorkload(
        model=model,
        corpus=load_corpus(setting.data),
        sequence=min(SEQUENCE, model.context),
        inner=lambda steps: InnerConfig(total_steps=steps, lr=RATES[setting.model], warmup_steps=steps // 10),
        device=resolve_device(setting.device),
        evaluation_tokens=setting.evaluation_tokens,
    )


class TextTrainee:
    """See Trainee. The same steps as a peer's."""

    def __init__(self, workload: TextWorkload, recipe: Recipe, seed: int, seats: Sequence[int]) -> None:
        self._model = Decoder(workload.model, z_loss=workload.z_loss)
        initialize(self._model, seed, self._model.initial_stds())
        self._model.to(workload.device)
        layout = workload.layout(recipe)
        self._view = ModuleParameters(self._model, layout)
        named = dict(self._model.named_parameters())
        self._by_fragment = [[named[name] for name in fragment.names] for fragment in layout.fragments]
        inner = workload.inner(recipe.steps)
        self._config = replace(inner, lr=recipe.inner_lr) if recipe.inner_lr else inner
        self._optimizer = _optimizer(self._model, self._config, recipe)
        self._batches = [_batches(workload, recipe, seed, seat) for seat in seats]
        self._position = 0

    def train(self, step: int) -> float:
        """See Trainee."""
        batch = torch.cat([batches.at(self._position) for batches in self._batches])
        self._position += 1
        return train_step(self._model, self._optimizer, batch, self._config, step).loss

    def read(self, fragment: int) -> Tensor:
        """See Trainee."""
        return self._view.read(fragment)

    def write(self, fragment: int, start: int, values: Tensor) -> None:
        """See Trainee."""
        self._view.write(fragment, start, values)

    def train_only(self, fragments: Collection[int]) -> None:
        """See Trainee. What has no gradient is left alone by the optimizer, weight decay included."""
        for index, parameters in enumerate(self._by_fragment):
            for parameter in parameters:
                parameter.requires_grad_(index in fragments)


def _optimizer(model: Decoder, config: InnerConfig, recipe: Recipe) -> torch.optim.Optimizer:
    if recipe.inner == "adamw":
        return make_optimizer(model, config)
    return torch.optim.SGD(model.parameters(), lr=config.lr)


def _batches(workload: TextWorkload, recipe: Recipe, seed: int, seat: int) -> Batches:
    corpus, place = workload.corpus, seat
    if recipe.shards == "own":  # a part of the text that no other replica reads: other books, other words
        length = corpus.train.numel() // recipe.replicas
        corpus, place = replace(corpus, train=corpus.train[seat * length : (seat + 1) * length]), 0
    return Batches(corpus, seed=seed, seat=place, batch=recipe.batch, sequence=workload.sequence)


def _patterns(sizes: Sequence[int], layers: int) -> list[list[str]]:
    """Globs for fragments of so many layers in the order of depth; what is outside the layers joins the first."""
    if sum(sizes) != layers:
        raise UserError.field("recipe.sizes", list(sizes), f"must add up to the model's layers ({layers})")
    patterns, start = [], 0
    for size in sizes:
        patterns.append([f"blocks.{index}.*" for index in range(start, start + size)])
        start += size
    patterns[0] += ["embedding.*", "final_norm.*", "head.*"]
    return patterns
