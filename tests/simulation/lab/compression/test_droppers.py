"""The methods that drop values, against numbers computed by hand or the same draw in a straight line."""

import pytest
import torch

from simulation.lab.compression import Sent, compression


def sent(name: str, values: torch.Tensor, seed: int = 0) -> Sent:
    return compression(name).compress(values, memory={}, generator=torch.Generator().manual_seed(seed))


def test_fed_dropout_zeroes_at_random_and_dare_rescales_the_rest() -> None:
    delta = torch.arange(1.0, 101.0)
    kept = torch.rand(100, generator=torch.Generator().manual_seed(0)) >= 0.75
    dropped = sent("fed-dropout:0.75", delta)
    rescaled = sent("dare:0.75", delta)
    assert torch.equal(dropped.values, torch.where(kept, delta, 0.0))
    assert torch.equal(rescaled.values, torch.where(kept, delta * 4, 0.0))
    assert dropped.bits == rescaled.bits == 32 * int(kept.sum()) + 64
    assert 10 < int(kept.sum()) < 40


def test_dare_keeps_the_mean() -> None:
    assert float(sent("dare:0.9", torch.ones(100_000)).values.mean()) == pytest.approx(1, abs=0.05)
    assert float(sent("fed-dropout:0.9", torch.ones(100_000)).values.mean()) == pytest.approx(0.1, abs=0.005)


def test_random_k_sends_exactly_its_share() -> None:
    delta = torch.arange(1.0, 11.0)
    result = sent("random-k:0.3", delta)
    kept = result.values != 0
    assert int(kept.sum()) == 3
    assert torch.equal(result.values[kept], delta[kept])
    assert result.bits == 3 * 32 + 64
    # 10 values of which 3 are sent, each times 10 / 3
    assert torch.allclose(sent("random-k:share=0.3,rescale=true", delta).values, result.values * 10 / 3)


def test_replicas_with_equal_generators_choose_the_same_values() -> None:
    first = sent("random-k:0.1", torch.ones(1000), seed=5).values
    second = sent("random-k:0.1", torch.full((1000,), 7.0), seed=5).values
    other = sent("random-k:0.1", torch.ones(1000), seed=6).values
    assert torch.equal(first * 7, second)
    assert not torch.equal(first, other)


def test_top_k_sends_the_greatest_magnitudes() -> None:
    delta = torch.tensor([[0.1, -5.0, 0.2, 3.0], [1.0, -0.5, 0.0, 4.0]])
    result = sent("top-k:0.375", delta)  # 3 of 8
    assert result.values.tolist() == [[0.0, -5.0, 0.0, 3.0], [0.0, 0.0, 0.0, 4.0]]
    # Three values, and which: three indices of 3 bits would be 9, a bitmap is 8.
    assert result.bits == 3 * 32 + 8
    # One of 1,000: an index of 10 bits.
    assert sent("top-k:0.001", torch.arange(1.0, 1001.0)).bits == 32 + 10


def test_top_k_never_sends_more_than_everything() -> None:
    delta = torch.tensor([3.0, -1.0, 2.0])
    result = sent("top-k:1", delta)
    assert torch.equal(result.values, delta)
    assert result.bits == 3 * 32


def test_ties_trims_to_a_fifth() -> None:
    delta = torch.tensor([1.0, -9.0, 2.0, 3.0, 8.0, 4.0, -5.0, 1.0, 0.0, 0.5])
    assert sent("ties", delta).values.nonzero().flatten().tolist() == [1, 4]
    assert sent("ties:0.3", delta).values.nonzero().flatten().tolist() == [1, 4, 6]


def test_cocktail_is_random_then_greatest_then_four_bits() -> None:
    """In a straight line: the half with the greatest random numbers, of it the quarter of greatest magnitudes, int4."""
    delta = torch.randn(64, generator=torch.Generator().manual_seed(3))
    result = sent("cocktail:random=0.5,top=0.25,block=8", delta, seed=4)
    chances = torch.rand(64, generator=torch.Generator().manual_seed(4)).tolist()
    half = sorted(range(64), key=lambda i: -chances[i])[:32]
    kept = sorted(half, key=lambda i: -abs(float(delta[i])))[:8]
    scale = max(abs(float(delta[i])) for i in kept) / 7
    for i in range(64):
        wanted = round(float(delta[i]) / scale) * scale if i in kept else 0.0
        assert float(result.values[i]) == pytest.approx(wanted, abs=scale * 0.06)  # the scale itself is rounded to bf16
    # A seed; which 8 of the 32, for which a bitmap of 32 is less than 8 · 5; eight int4 with one scale.
    assert result.bits == 64 + 32 + (8 * 4 + 16)


def test_shares_out_of_range_are_refused() -> None:
    for name in ("top-k:0", "top-k:1.5", "random-k:-1", "ties:0", "cocktail:top=0", "cocktail:random=nan"):
        with pytest.raises(ValueError, match="must be above 0 and at most 1"):
            compression(name)
    for name in ("dare:1", "fed-dropout:-0.1", "dare:nan"):
        with pytest.raises(ValueError, match="must be at least 0 and below 1"):
            compression(name)
