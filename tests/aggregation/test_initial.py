"""Initial parameters: specified by bytes, of the right shape of distribution, filled by the documented rule."""

import hashlib

import numpy as np
import pytest
import torch
from torch import nn

from aggregation.initial import initialize, normal, parameters_digest


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.mlp = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embedding.weight


def test_the_generator_is_what_its_specification_says() -> None:
    header = b"potluck initial 1\0" + (7).to_bytes(8, "little") + (0).to_bytes(8, "little") + b"w"
    stream = hashlib.shake_128(header).digest(8 * 6)
    sums = [sum(int.from_bytes(stream[8 * i + 2 * j :][:2], "little") for j in range(4)) - 131070 for i in range(6)]
    scale = np.float32(0.02 / ((2**32 - 1) / 3) ** 0.5)
    assert normal(7, "w", (2, 3), 0.02).flatten().tolist() == [float(np.float32(s) * scale) for s in sums]


def test_mean_spread_and_tails_are_as_asked() -> None:
    values = normal(1, "w", (400, 1000), 0.5)
    assert values.dtype == torch.float32 and values.shape == (400, 1000)
    assert abs(values.mean()) < 0.005
    assert abs(values.std() - 0.5) < 0.005
    assert 1.2 < values.abs().max() < 0.5 * 3.47
    assert 0.30 < (values.abs() > 0.5).float().mean() < 0.34


def test_seed_name_and_position_all_matter() -> None:
    drawn = [normal(1, "a", (100,), 1.0), normal(2, "a", (100,), 1.0), normal(1, "b", (100,), 1.0)]
    assert len({tuple(values.tolist()) for values in drawn}) == 3
    long = normal(1, "a", (2**18 + 100,), 1.0)
    assert torch.equal(long[:100], drawn[0]) and not torch.equal(long[-100:], drawn[0])


def test_parameters_are_filled_by_kind() -> None:
    module = Small()
    module.mlp.bias.data.fill_(3)
    module.norm.weight.data.fill_(3)
    initialize(module, 4)
    assert torch.equal(module.embedding.weight, normal(4, "embedding.weight", (16, 8), 0.02))
    assert module.head.weight is module.embedding.weight
    assert torch.equal(module.norm.weight, torch.ones(8)) and torch.equal(module.norm.bias, torch.zeros(8))
    assert torch.equal(module.mlp.bias, torch.zeros(8))


def test_given_deviations_win_and_frozen_parameters_stay() -> None:
    module = Small()
    module.norm.weight.data.fill_(3)
    module.norm.weight.requires_grad_(False)
    initialize(module, 4, {"mlp.weight": 0.1, "mlp.bias": 0.3})
    assert torch.equal(module.mlp.weight, normal(4, "mlp.weight", (8, 8), 0.1))
    assert torch.equal(module.mlp.bias, normal(4, "mlp.bias", (8,), 0.3))
    assert torch.equal(module.norm.weight, torch.full((8,), 3.0))


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"stds names 'mlp.wieght': must be a trainable parameter"):
        initialize(Small(), 4, {"mlp.wieght": 0.1})
    with pytest.raises(ValueError, match="seed = -1: must be between 0 and"):
        normal(-1, "w", (1,), 1.0)
    with pytest.raises(ValueError, match="std of w = nan: must be finite"):
        normal(1, "w", (1,), float("nan"))


def test_the_digest_covers_names_shapes_and_values() -> None:
    module = Small()
    initialize(module, 4)
    digest = parameters_digest(module)
    assert len(digest) == 32
    named = list(module.named_parameters())
    assert parameters_digest(named) == digest
    assert parameters_digest(named[::-1]) != digest
    assert parameters_digest([("x" + name, p) for name, p in named]) != digest
    assert parameters_digest([(name, p.unsqueeze(0)) for name, p in named]) != digest
    initialize(module, 5)
    assert parameters_digest(module) != digest
