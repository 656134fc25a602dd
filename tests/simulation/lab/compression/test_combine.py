"""The mean and the election of signs, by hand."""

import pytest
import torch
from torch import Tensor

from aggregation.outer import accumulate
from simulation.lab.compression import combine, combine_for, elect_and_mean, mean


def of(*rows: list[float]) -> list[Tensor]:
    return [torch.tensor(row) for row in rows]


def test_the_elected_sign_alone_is_averaged() -> None:
    # Sums: 1 - 3 + 1 = -1, so -3 alone; 2, so 2 alone (zeros do not count); -2 - 1 + 1 = -2, so the mean of -2 and -1;
    # 1 - 1 = 0, so nothing.
    sent = of([1.0, 0.0, -2.0, 1.0], [-3.0, 2.0, -1.0, -1.0], [1.0, 0.0, 1.0, 0.0])
    assert elect_and_mean(sent, [1, 1, 1]).tolist() == [-3.0, 2.0, -1.5, 0.0]


def test_weights_count_in_the_election_and_in_the_mean() -> None:
    # 3·1 - 1·3 + 1·2 = 2, so the positive ones: (3·1 + 1·2) / (3 + 1). Unweighted the sum would be zero.
    sent = of([1.0], [-3.0], [2.0])
    assert elect_and_mean(sent, [3, 1, 1]).item() == pytest.approx(5 / 4)


def test_mean_is_the_networks() -> None:
    values = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    weights = [3, 1, 7]
    expected = accumulate(list(zip(weights, values, strict=True)))
    assert torch.equal(mean(list(values), weights), expected)


def test_combining_needs_a_positive_weight_for_each() -> None:
    sent = of([1.0], [2.0])
    for combined in (mean, elect_and_mean):
        for weights in ([1.0], [1.0, 0.0], [1.0, -1.0], [1.0, float("nan")], [1.0, float("inf")]):
            with pytest.raises(ValueError, match="must be"):
                combined(sent, weights)
        with pytest.raises(ValueError, match="at least one"):
            combined([], [])


def test_each_compression_has_its_way() -> None:
    assert combine("elect") is combine_for("ties:0.3") is combine_for("ties+ef") is elect_and_mean
    assert combine("mean") is combine_for("top-k:0.3") is combine_for("e3m0") is mean
    with pytest.raises(ValueError, match="must be one of mean, elect"):
        combine("median")
