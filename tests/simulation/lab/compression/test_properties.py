"""What holds for every compression, whatever the outer gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from simulation.lab.compression import COMPRESSIONS, compression
from simulation.lab.compression.base import LARGEST

NAMES = [
    *COMPRESSIONS,
    "e3m0:block=3,rounding=stochastic",
    "int8:block=5,rounding=stochastic",
    "nf4:block=7,scale=e8m0,rounding=stochastic",
    "sign+ef",
    "two-bit:block=4+ef:0.9",
    "top-k:0.3+ef",
    "dare:0.9+ef",
    "sparse-loco:kept=2,chunk=8",
    "power-sgd:1,factors=e3m0",
    "cocktail:random=0.5,top=0.5,block=3",
]
WITH_MEMORY = ["e3m0+ef", "int2:block=5+ef", "two-bit+ef", "sign:block=3+ef", "top-k:0.2+ef", "random-k:0.2+ef"]
WITH_MEMORY += ["sparse-loco:kept=2,chunk=8,decay=1", "power-sgd:1", "power-sgd-4bit:1", "cocktail:0.5"]

shapes = st.lists(st.integers(0, 7), min_size=1, max_size=3)
extremes = st.sampled_from([0.0, 2.0**-149, -(2.0**-130), 2.0**-126, -1e-20, 1.0, LARGEST, -LARGEST])


@st.composite
def gradients(draw: st.DrawFn) -> Tensor:
    """Normal numbers of some size, among them up to five extreme ones."""
    delta = normal(draw(shapes), draw(st.integers(0, 99))) * draw(st.sampled_from([0.0, 1e-38, 1e-3, 1.0, 2.0**90]))
    if delta.numel():
        for value in draw(st.lists(extremes, max_size=5)):
            delta.view(-1)[draw(st.integers(0, delta.numel() - 1))] = value
    return delta


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(shape: list[int], seed: int) -> Tensor:
    return torch.randn(shape, generator=generator(seed))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@given(delta=gradients(), seed=st.integers(0, 2**32))
def test_finite_in_shape_within_size_and_repeatable(name: str, delta: Tensor, seed: int) -> None:
    before = delta.clone()
    sent = compression(name).compress(delta, memory={}, generator=generator(seed))
    again = compression(name).compress(delta, memory={}, generator=generator(seed))
    assert sent.values.shape == delta.shape
    assert sent.values.dtype == torch.float32
    assert bool(sent.values.isfinite().all())
    assert torch.equal(sent.values, again.values)
    assert sent.bits == again.bits
    assert 0 <= sent.bits <= 32 * delta.numel() + 64  # a seed is the most that comes on top
    assert torch.equal(delta, before)


@pytest.mark.parametrize("name", WITH_MEMORY)
@settings(max_examples=10, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_all_that_was_sent_and_the_residual_add_up_to_all_that_was_given(
    name: str, data: st.DataObject, seed: int
) -> None:
    shape = data.draw(shapes)
    rounds = [normal(shape, seed + i) for i in range(data.draw(st.integers(1, 6)))]
    method, memory, random = compression(name), dict[str, Tensor](), generator(seed)
    sent = [method.compress(delta, memory=memory, generator=random).values for delta in rounds]
    given_all = torch.stack(rounds).double().sum(dim=0)
    sent_all = torch.stack(sent).double().sum(dim=0) + memory["residual"].double()
    assert torch.allclose(sent_all, given_all, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_compressed_is_refused_and_nothing_remembered(name: str) -> None:
    for bad in (float("nan"), float("inf"), -float("inf"), 2 * LARGEST):
        memory: dict[str, Tensor] = {}
        delta = torch.ones(4, 6)
        delta[2, 3] = bad
        with pytest.raises(ValueError, match="every value must be finite and at most 2\\^96"):
            compression(name).compress(delta, memory=memory, generator=generator(0))
        assert not memory


@pytest.mark.parametrize("name", NAMES)
def test_a_part_of_a_tensor_is_as_good_as_a_copy(name: str) -> None:
    wide = normal([6, 16], 1)
    part = wide[:, ::2]
    view = compression(name).compress(part, memory={}, generator=generator(0))
    copy = compression(name).compress(part.contiguous(), memory={}, generator=generator(0))
    assert torch.equal(view.values, copy.values)
