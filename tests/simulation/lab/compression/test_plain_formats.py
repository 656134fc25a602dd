"""fp32, bf16 and E3M0, nearest and stochastic."""

import torch
from torch import Tensor

from simulation.lab.compression import Sent, compression


def sent(name: str, values: list[float] | Tensor, seed: int = 0) -> Sent:
    delta = torch.tensor(values) if isinstance(values, list) else values
    return compression(name).compress(delta, memory={}, generator=torch.Generator().manual_seed(seed))


def test_none_sends_the_values_themselves() -> None:
    delta = torch.tensor([[1.0, -2.5], [1e-30, 0.0]])
    result = sent("none", delta)
    assert torch.equal(result.values, delta)
    assert result.values.data_ptr() != delta.data_ptr()
    assert result.bits == 4 * 32


def test_bf16_keeps_eight_significant_bits_and_takes_ties_to_even() -> None:
    # Above 1 bf16 has steps of 2^-7. 1 + 2^-8 lies between 1 and 1 + 2^-7, and 1 has the even last bit; 1 + 3·2^-8
    # lies between 1 + 2^-7 and 1 + 2^-6, which is the even one.
    result = sent("bf16", [1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-7), 0.0])
    assert result.values.tolist() == [1.0, 1 + 2**-6, -(1 + 2**-7), 0.0]
    assert result.bits == 4 * 16


def test_e3m0_rounds_to_powers_of_two_within_64_of_the_greatest() -> None:
    # The greatest, 1.5, is a tie between 1 and 2: upwards, so the codes are 2, 1, ... 2^-5 and zero. 0.75 is a tie
    # between 0.5 and 1; 0.3 is nearest to 0.25; 0.01 is below half of 2^-5 = 0.03125, so zero; 0.02 is above it.
    result = sent("e3m0", [1.0, 0.75, 0.3, 0.01, 0.02, -1.5])
    assert result.values.tolist() == [1.0, 1.0, 0.25, 0.0, 0.03125, -2.0]
    assert result.bits == 8 * (1 + 3)  # a scale and six half bytes


def test_e3m0_has_one_scale_a_block() -> None:
    # 2^-10 is too small beside 1, and the greatest in a block of its own.
    values = [1.0, 2**-10, 2**-10, 2**-10]
    assert sent("e3m0:4", values).values.tolist() == [1.0, 0.0, 0.0, 0.0]
    halves = sent("e3m0:block=2", values)
    assert halves.values.tolist() == [1.0, 0.0, 2**-10, 2**-10]
    assert halves.bits == 8 * (2 + 2)


def test_stochastic_e3m0_chooses_between_the_two_neighbours() -> None:
    values = torch.tensor([4.0, 3.0, -0.7, 0.03, 0.0]).repeat(2000)
    rounded = sent("e3m0:block=5,rounding=stochastic", values).values.view(2000, 5)
    # 4 is representable: codes are 4 ... 2^-4 = 0.0625 and zero, and 0.03 is between zero and the smallest.
    neighbours = [{4.0}, {2.0, 4.0}, {-0.5, -1.0}, {0.0, 0.0625}, {0.0}]
    assert [set(column.tolist()) for column in rounded.T] == neighbours


def test_stochastic_e3m0_has_no_bias_even_where_the_scale_is_drawn_too() -> None:
    # The greatest is rounded to 2 or 4, so the smallest code is 2^-5 or 2^-4: 0.04 is above the one, below the other.
    row = torch.tensor([3.0, 2.9, -1.1, 0.3, 0.04, 0.01])
    draws = 20_000
    rounded = sent("e3m0:block=6,rounding=stochastic", row.repeat(draws)).values.view(draws, 6)
    deviation = rounded.std(dim=0) / draws**0.5
    assert ((rounded.mean(dim=0) - row).abs() < 5 * deviation).all()
    nearest = sent("e3m0:block=6", row).values
    assert (nearest - row).abs().sum() > 0


def test_stochastic_e3m0_takes_tiny_and_huge_blocks() -> None:
    tiny = sent("e3m0:rounding=stochastic", torch.full((1000,), 2.0**-127)).values
    assert set(tiny.tolist()) == {0.0, 2.0**-125}  # the codec's smallest code, a quarter of the time
    assert 150 < int((tiny > 0).sum()) < 350
    huge = sent("e3m0:rounding=stochastic", torch.full((8,), 2.0**96)).values
    assert huge.tolist() == [2.0**96] * 8
