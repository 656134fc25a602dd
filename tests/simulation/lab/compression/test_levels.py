"""The tables of levels and the sign against numbers computed by hand."""

import math
from itertools import pairwise
from statistics import NormalDist

import pytest
import torch

from simulation.lab.compression import Sent, compression
from simulation.lab.compression.lloyd_max import ThreeBit, TwoBit
from simulation.lab.compression.nf4 import NF4


def sent(name: str, values: list[float]) -> Sent:
    return compression(name).compress(torch.tensor(values), memory={}, generator=torch.Generator().manual_seed(0))


def test_two_bit_has_lloyd_and_maxs_levels_in_units_of_the_root_mean_square() -> None:
    # Mean square (16 + 0 + 0 + 0) / 4 = 4, so the scale is 2; zero is a tie between ±0.4528, upwards.
    result = sent("two-bit", [4.0, 0.0, 0.0, 0.0])
    assert result.values.tolist() == pytest.approx([3.02, 0.9056, 0.9056, 0.9056])
    assert result.bits == 4 * 2 + 16


def test_two_bit_changes_level_at_0_98() -> None:
    # The levels' middle is (1.510 + 0.4528) / 2 = 0.9814. Mean square (0.99² + 0.97² + 1.0198²·2) / 4 = 1.00 (0.99999).
    rest = math.sqrt((4 - 0.99**2 - 0.97**2) / 2)
    result = sent("two-bit:scale=fp32", [0.99, -0.97, rest, -rest])
    assert result.values.tolist() == pytest.approx([1.510, -0.4528, 1.510, -1.510], rel=1e-6)


def test_a_short_last_block_has_the_root_mean_square_of_its_own_values() -> None:
    # Four values of 1, then two of 2 in a block that has room for four: a scale of 2, not of sqrt(8 / 4).
    result = sent("two-bit:4", [1.0] * 4 + [2.0] * 2)
    assert result.values.tolist() == pytest.approx([1.510] * 4 + [3.02] * 2)
    assert result.bits == 6 * 2 + 2 * 16


def test_three_bit_has_eight_levels() -> None:
    # The scale is sqrt((1.8² + 1.1² + 0.45² + 0.3² + 0.52²) / 5) = sqrt(5.0129 / 5) = 1.0013. In its units the values
    # are 1.798, -1.0986, 0.449, -0.300 and 0.519; the levels' middles are 0.50055, 1.05 and 1.748.
    values = [1.8, -1.1, 0.45, -0.3, 0.52]
    scale = math.sqrt(5.0129 / 5)
    result = sent("three-bit:scale=fp32", values)
    levels = [2.152, -1.344, 0.2451, -0.2451, 0.7560]
    assert result.values.tolist() == pytest.approx([level * scale for level in levels], rel=1e-6)
    assert result.bits == 5 * 3 + 32


def test_the_lloyd_max_levels_are_the_means_of_a_normal_distribution_between_their_middles() -> None:
    """What makes them the best: for each level, (φ(a) - φ(b)) / (Φ(b) - Φ(a)) between its neighbours' middles a, b."""

    def density(x: float) -> float:
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    def below(x: float) -> float:
        return (1 + math.erf(x / math.sqrt(2))) / 2

    for table in (TwoBit.table, ThreeBit.table):
        edges = [-math.inf, *((a + b) / 2 for a, b in pairwise(table)), math.inf]
        means = [(density(a) - density(b)) / (below(b) - below(a)) for a, b in pairwise(edges)]
        assert means == pytest.approx(table, abs=2e-3)


def test_nf4_goes_to_the_nearest_of_sixteen_quantiles() -> None:
    # Times the greatest, 2. Middles: (1 + 0.7230) / 2 = 0.861; (0.5251 + 0.3949) / 2 = 0.460; 0.0796 / 2 = 0.0398.
    result = sent("nf4", [2.0, 2 * 0.75, -2 * 0.5, 2 * 0.04, 2 * 0.039])
    assert result.values.tolist() == pytest.approx([2.0, 1.44591, -1.05015, 0.15916, 0.0], rel=1e-5)
    assert result.bits == 5 * 4 + 16


def test_nf4s_levels_are_the_quantiles_that_its_authors_describe() -> None:
    """Appendix E: 8 quantiles of the upper half, 7 of the lower, evenly spaced up to 0.9677083, over the greatest."""
    offset = 0.9677083
    upper = [NormalDist().inv_cdf(offset + (0.5 - offset) * i / 8) for i in range(8)]
    lower = [-NormalDist().inv_cdf(offset + (0.5 - offset) * i / 7) for i in range(7)]
    assert NF4.table == pytest.approx([x / upper[0] for x in (*lower, 0.0, *reversed(upper))], abs=1e-5)


def test_e2m1_has_one_mantissa_bit() -> None:
    # The greatest, 12, is 6 units of 2: 6, 2.4, -2.6, 0.2, 5.1 go to 6, 2, -3, 0, 6.
    result = sent("e2m1", [12.0, 4.8, -5.2, 0.4, 10.2])
    assert result.values.tolist() == [12.0, 4.0, -6.0, 0.0, 12.0]
    assert result.bits == 5 * 4 + 16


def test_e2m0_has_three_powers_of_two() -> None:
    # The greatest, 4, is 4 units of 1; middles are 0.5, 1.5 and 3.
    result = sent("e2m0", [4.0, 1.4, -3.1, 0.6, 0.4])
    assert result.values.tolist() == [4.0, 1.0, -4.0, 1.0, 0.0]
    assert result.bits == 5 * 3 + 16


def test_mxfp4_is_e2m1_with_a_power_of_two_for_32_values() -> None:
    # 7 units need a scale of 7/6, so 2: 3.5, 1.2 and -0.2 units go to 4 (a tie upwards), 1 and 0.
    result = sent("e2m1:block=32,scale=e8m0", [7.0, 2.4, -0.4])
    assert result.values.tolist() == [8.0, 2.0, 0.0]
    assert result.bits == 3 * 4 + 8


@pytest.mark.parametrize("name", ["nf4", "e2m1", "e2m0", "int4"])
def test_stochastic_levels_have_no_bias(name: str) -> None:
    row = torch.tensor([1.0, 0.83, -0.41, 0.02, -0.001])
    draws = 10_000
    method = compression(f"{name}:block=5,rounding=stochastic")
    rounded = method.compress(row.repeat(draws), memory={}, generator=torch.Generator().manual_seed(2)).values
    rounded = rounded.view(draws, 5)
    assert all(len(set(column.tolist())) <= 2 for column in rounded.T)
    assert ((rounded.mean(dim=0) - row).abs() <= 5 * rounded.std(dim=0) / draws**0.5 + 1e-6).all()


def test_sign_is_the_blocks_mean_magnitude_with_each_values_sign() -> None:
    # Blocks [1, -2, 3, -6] of mean 3 and [0, -1] of mean 0.5; zero counts as positive.
    result = sent("sign:4", [1.0, -2.0, 3.0, -6.0, 0.0, -1.0])
    assert result.values.tolist() == [3.0, -3.0, 3.0, -3.0, 0.5, -0.5]
    assert result.bits == 6 + 2 * 16
