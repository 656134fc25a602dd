"""n-bit integers against numbers computed by hand."""

import pytest
import torch

from simulation.lab.compression import Sent, compression
from simulation.lab.compression.blocks import stored


def sent(name: str, values: list[float]) -> Sent:
    return compression(name).compress(torch.tensor(values), memory={}, generator=torch.Generator().manual_seed(0))


def test_int8_rounds_in_units_of_the_greatest_over_127() -> None:
    result = sent("int8", [127.0, -64.2, 0.4, 0.6])  # a scale of 1
    assert result.values.tolist() == [127.0, -64.0, 0.0, 1.0]
    assert result.bits == 4 * 8 + 16


def test_int3_has_seven_levels_and_takes_ties_to_even() -> None:
    result = sent("int3", [6.0, -1.0, 3.0, 2.8])  # a scale of 2: 3, -0.5, 1.5, 1.4
    assert result.values.tolist() == [6.0, 0.0, 4.0, 2.0]
    assert result.bits == 4 * 3 + 16


def test_int2_is_ternary_in_blocks() -> None:
    # The first block's scale is 1, the second's 8; a padded third value of the second changes nothing.
    result = sent("int2:3", [1.0, 0.4, -0.6, 8.0, 3.0])
    assert result.values.tolist() == [1.0, 0.0, -1.0, 8.0, 0.0]
    assert result.bits == 5 * 2 + 2 * 16


def test_the_scale_has_the_bits_that_were_asked_for() -> None:
    assert sent("int4:block=2,scale=fp32", [1.0] * 5).bits == 5 * 4 + 3 * 32
    assert sent("int4:block=2,scale=e8m0", [1.0] * 5).bits == 5 * 4 + 3 * 8
    # The greatest is 5, so the scale wanted is 5/7, and the power of two above it 1.
    assert sent("int4:scale=e8m0", [5.0, 3.4, -0.6]).values.tolist() == [5.0, 3.0, -1.0]


def test_a_stored_scale_is_never_smaller() -> None:
    scales = torch.tensor([1.0, 1 + 2**-20, 3.0, 0.0, 1e-40])
    assert stored(scales, "fp32").tolist() == [1.0, 1 + 2**-20, 3.0, 0.0, 0.0]
    assert stored(scales, "bf16").tolist() == [1.0, 1 + 2**-7, 3.0, 0.0, 0.0]
    assert stored(scales, "e8m0").tolist() == [1.0, 2.0, 4.0, 0.0, 0.0]


def test_stochastic_rounding_has_no_bias() -> None:
    row = torch.tensor([7.0, 1.3, -4.9, 0.05])
    draws = 10_000
    method = compression("int4:block=4,rounding=stochastic")
    rounded = method.compress(row.repeat(draws), memory={}, generator=torch.Generator().manual_seed(1)).values
    rounded = rounded.view(draws, 4)
    assert [set(column.tolist()) for column in rounded.T] == [{7.0}, {1.0, 2.0}, {-5.0, -4.0}, {0.0, 1.0}]
    assert ((rounded.mean(dim=0) - row).abs() <= 5 * rounded.std(dim=0) / draws**0.5).all()


def test_settings_out_of_range_are_refused() -> None:
    for name, problem in [
        ("int8:0", "block = 0: must be at least 1"),
        ("int8:scale=fp8", "scale = 'fp8': must be one of fp32, bf16, e8m0"),
        ("int8:rounding=up", "rounding = 'up': must be one of nearest, stochastic"),
    ]:
        with pytest.raises(ValueError, match=problem):
            compression(name)
