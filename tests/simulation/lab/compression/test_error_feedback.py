"""Error feedback and SparseLoCo over rounds, by hand."""

import pytest
import torch
from torch import Tensor

from simulation.lab.compression import compression, error_feedback
from simulation.lab.compression.error_feedback import RESIDUAL

GENERATOR = torch.Generator()


def test_what_was_not_sent_comes_with_the_next() -> None:
    method, memory = error_feedback(compression("sign")), dict[str, Tensor]()
    # Round 1: the mean magnitude of [1, -3] is 2, so [2, -2] is sent and [-1, -1] kept.
    sent = method.compress(torch.tensor([1.0, -3.0]), memory=memory, generator=GENERATOR)
    assert sent.values.tolist() == [2.0, -2.0]
    assert memory[RESIDUAL].tolist() == [-1.0, -1.0]
    # Round 2: [4, 3] + [-1, -1] = [3, 2], of mean 2.5, which leaves [0.5, -0.5].
    sent = method.compress(torch.tensor([4.0, 3.0]), memory=memory, generator=GENERATOR)
    assert sent.values.tolist() == [2.5, 2.5]
    assert memory[RESIDUAL].tolist() == [0.5, -0.5]
    assert sent.bits == 2 + 16


def test_decay_forgets() -> None:
    method, memory = compression("top-k:0.5+ef:0.5"), dict[str, Tensor]()
    # [8, 6]: 8 is sent, 6 kept. Then [1, 1] + 0.5 · [0, 6] = [1, 4]: 4 is sent, 1 kept.
    assert method.compress(torch.tensor([8.0, 6.0]), memory=memory, generator=GENERATOR).values.tolist() == [8, 0]
    assert method.compress(torch.tensor([1.0, 1.0]), memory=memory, generator=GENERATOR).values.tolist() == [0, 4]
    assert memory[RESIDUAL].tolist() == [1.0, 0.0]


def test_sparse_loco_by_hand() -> None:
    method, memory = compression("sparse-loco:kept=3,chunk=4,decay=0.5,alpha=2"), dict[str, Tensor]()
    # e = 2Δ = [16, -4, 1, 6]. The three greatest: 16, 4, 6, of mean 26/3: 16 is above, and 4 and 6 below, of mean 5.
    first = method.compress(torch.tensor([8.0, -2.0, 0.5, 3.0]), memory=memory, generator=GENERATOR)
    assert first.values.tolist() == [16.0, -5.0, 0.0, 5.0]
    assert memory[RESIDUAL].tolist() == [0.0, 1.0, 1.0, 1.0]
    # e = 0.5 e + 2 · [0, 0, 0.25, -1] = [0, 0.5, 1, -1.5]: 1.5, 1 and 0.5 of mean 1; 1 is at the mean, so above.
    second = method.compress(torch.tensor([0.0, 0.0, 0.25, -1.0]), memory=memory, generator=GENERATOR)
    assert second.values.tolist() == [0.0, 0.5, 1.25, -1.25]
    assert first.bits == second.bits == 3 * (2 + 2) + 2 * 16


def test_sparse_loco_sends_64_of_each_4096() -> None:
    delta = torch.randn(2 * 4096 + 1000, generator=torch.Generator().manual_seed(0))
    sent = compression("sparse-loco").compress(delta, memory={}, generator=GENERATOR)
    kept = [int((part != 0).sum()) for part in (sent.values[:4096], sent.values[4096:8192], sent.values[8192:])]
    assert kept == [64, 64, 16]  # 1,000 · 64 / 4,096 = 15.6, rounded up
    assert sent.bits == (64 + 64 + 16) * (2 + 12) + 3 * 32
    for part, magnitudes in ((sent.values[:4096], delta[:4096].abs()), (sent.values[8192:], delta[8192:].abs())):
        number = int((part != 0).sum())
        assert set(part.nonzero().flatten().tolist()) == set(magnitudes.topk(number).indices.tolist())
        assert len(part[part != 0].abs().unique()) == 2


def test_a_method_with_feedback_of_its_own_is_not_wrapped_again() -> None:
    for name in ("sparse-loco+ef", "power-sgd+ef", "cocktail+ef", "sign+ef+ef"):
        with pytest.raises(ValueError, match="has error feedback already"):
            compression(name)


def test_numbers_out_of_range_are_refused() -> None:
    for name in ("sign+ef:1.5", "sign+ef:-0.1", "sign+ef:nan", "sparse-loco:decay=2"):
        with pytest.raises(ValueError, match="must be between 0 and 1"):
            compression(name)
    with pytest.raises(ValueError, match="kept = 9: must be between 1 and the chunk, 8"):
        compression("sparse-loco:kept=9,chunk=8")
    with pytest.raises(ValueError, match="gain = 0"):
        compression("sparse-loco:alpha=0")
