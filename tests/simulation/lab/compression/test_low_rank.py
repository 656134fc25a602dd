"""PowerSGD against a straight-line reference in numpy, and what it must find exactly."""

import numpy as np
import pytest
import torch
from torch import Tensor

from simulation.lab.compression import compression
from simulation.lab.compression.low_rank import LowRank


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_a_matrix_of_that_rank_comes_through() -> None:
    # [1, 2, 3]ᵀ · [2, 0, -1, 4, 1], and in one step, from any start that is not orthogonal to it.
    delta = torch.outer(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 0.0, -1.0, 4.0, 1.0]))
    sent = LowRank(rank=1).compress(delta, memory={}, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(sent.values, delta, atol=1e-5)
    assert sent.bits == 32 * 1 * (3 + 5)


def test_two_rounds_as_the_paper_writes_them() -> None:
    first, second = normal(8, 12, seed=1), normal(8, 12, seed=2)
    method, memory = compression("power-sgd:2"), dict[str, Tensor]()
    generator = torch.Generator().manual_seed(3)
    sent = [method.compress(delta, memory=memory, generator=generator).values for delta in (first, second)]

    q = torch.randn((12, 2), generator=torch.Generator().manual_seed(3)).double().numpy()
    error = np.zeros((8, 12))
    for delta, got in zip((first, second), sent, strict=True):
        m = delta.double().numpy() + error
        p = m @ q
        a = p[:, 0] / np.linalg.norm(p[:, 0])  # Gram and Schmidt
        b = p[:, 1] - a * (a @ p[:, 1])
        p = np.stack([a, b / np.linalg.norm(b)], axis=1)
        q = m.T @ p
        error = m - p @ q.T
        np.testing.assert_allclose(got.numpy(), p @ q.T, atol=1e-5)
    np.testing.assert_allclose(memory["residual"].numpy(), error, atol=1e-5)


def test_a_warm_start_converges_to_the_best_approximation() -> None:
    delta = normal(20, 30, seed=4)
    singular = torch.linalg.svdvals(delta)
    best = float(singular[3:].square().sum().sqrt())
    warm, memory, generator = LowRank(rank=3), dict[str, Tensor](), torch.Generator().manual_seed(5)
    errors = [
        float((delta - warm.compress(delta, memory=memory, generator=generator).values).norm()) for _ in range(200)
    ]
    assert errors[0] > best * 1.05
    assert errors[-1] == pytest.approx(best, rel=1e-3)


def test_more_than_two_axes_are_the_first_against_the_rest() -> None:
    delta = normal(6, 3, 4, seed=6)
    folded = LowRank(rank=1).compress(delta.reshape(6, 12), memory={}, generator=torch.Generator().manual_seed(0))
    sent = LowRank(rank=1).compress(delta, memory={}, generator=torch.Generator().manual_seed(0))
    assert torch.equal(sent.values, folded.values.view(6, 3, 4))
    assert sent.bits == 32 * (6 + 12)


def test_what_would_not_get_smaller_goes_as_it_is() -> None:
    for delta in (normal(100, seed=0), normal(3, 4, seed=0), torch.zeros(0, 4)):
        sent = compression("power-sgd:2").compress(delta, memory={}, generator=torch.Generator())
        assert torch.equal(sent.values, delta)
        assert sent.bits == 32 * delta.numel()


def test_zeros_stay_zeros_and_do_not_stop_what_follows() -> None:
    method, memory = LowRank(rank=2), dict[str, Tensor]()
    generator = torch.Generator().manual_seed(0)
    assert not method.compress(torch.zeros(8, 9), memory=memory, generator=generator).values.any()
    delta = torch.outer(torch.arange(8.0), torch.arange(9.0))
    for _ in range(3):
        sent = method.compress(delta, memory=memory, generator=generator)
    assert torch.allclose(sent.values, delta, atol=1e-4)


def test_factors_of_four_bits_are_nearly_as_good() -> None:
    # A matrix of rank 4 and a little noise: error feedback makes up for the four bits over rounds of the same Δ.
    delta = normal(32, 4, seed=1) @ normal(4, 64, seed=2)
    method, memory = compression("power-sgd-4bit:4"), dict[str, Tensor]()
    generator = torch.Generator().manual_seed(0)
    sent = [method.compress(delta, memory=memory, generator=generator) for _ in range(20)]
    # 4 · 32 and 4 · 64 values of 4 bits, with a scale of 16 bits for each 64
    assert sent[0].bits == 4 * (32 + 64) * 4 + (2 + 4) * 16
    assert float((sent[0].values - delta).norm() / delta.norm()) < 0.4
    total = torch.stack([one.values for one in sent]).sum(dim=0)
    assert float((total - 20 * delta).norm() / (20 * delta).norm()) < 0.05


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="rank = 0: must be at least 1"):
        compression("power-sgd:0")
    with pytest.raises(ValueError, match="factors = 'int9': must be one of none, e3m0, int8, int4"):
        compression("power-sgd:factors=int9")
