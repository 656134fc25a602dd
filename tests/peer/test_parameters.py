"""Reading slices of a model and writing them back, whatever its layout, its dtypes and its strides."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from aggregation.fragments import Layout, partition
from peer.parameters import ModuleParameters


class Tied(nn.Module):
    """Two blocks, an embedding that is also the head, a frozen parameter, and one that is stored transposed."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.conv = nn.Conv2d(3, 2, 3)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen = nn.Parameter(torch.zeros(5), requires_grad=False)
        self.conv.weight.data = self.conv.weight.data.contiguous(memory_format=torch.channels_last)
        self.turned = nn.Parameter(torch.arange(6.0).reshape(2, 3).T)
        self.to(dtype)


def made(fragments: int = 2, dtype: torch.dtype = torch.float32) -> tuple[Tied, Layout, ModuleParameters]:
    model = Tied(dtype)
    layout = partition(model, fragments=fragments)
    return model, layout, ModuleParameters(model, layout)


def as_read(model: nn.Module, layout: Layout, fragment: int) -> Tensor:
    """The definition: the fragment's parameters in order, each row by row."""
    named = dict(model.named_parameters())
    return torch.cat([named[name].detach().contiguous().flatten().float() for name in layout.fragments[fragment].names])


@settings(max_examples=40)
@given(st.data())
def test_what_is_written_is_read_and_nothing_else_changes(data: st.DataObject) -> None:
    fragments = data.draw(st.integers(1, 2))
    model, layout, parameters = made(fragments)
    fragment = data.draw(st.integers(0, fragments - 1))
    numel = layout.fragments[fragment].numel
    start = data.draw(st.integers(0, numel - 1))
    stop = data.draw(st.integers(start + 1, numel))
    expected = [as_read(model, layout, index) for index in range(fragments)]
    values = torch.arange(stop - start, dtype=torch.float32) + 100
    expected[fragment][start:stop] = values
    frozen = model.frozen.detach().clone()
    parameters.write(fragment, start, values)
    for index in range(fragments):
        assert torch.equal(parameters.read(index), expected[index])
        assert torch.equal(as_read(model, layout, index), expected[index])
    assert torch.equal(parameters.view(fragment, start, stop), values)
    assert torch.equal(model.frozen, frozen)
    assert model.head.weight is model.embedding.weight


def test_tied_parameters_are_one_and_frozen_ones_none() -> None:
    model, layout, _ = made()
    trainable = {id(p): p.numel() for p in model.parameters() if p.requires_grad}
    assert layout.numel == sum(trainable.values())


def test_what_is_read_is_a_copy() -> None:
    model, layout, parameters = made()
    numel = layout.fragments[0].numel
    for copy in (parameters.read(0), parameters.view(0, 0, numel), parameters.view(0, 0, 1)):
        before = as_read(model, layout, 0)
        copy.fill_(-1)
        assert torch.equal(as_read(model, layout, 0), before)


def test_the_optimizer_still_steps_what_was_written() -> None:
    model, layout, parameters = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    parameters.write(0, 0, torch.zeros(layout.fragments[0].numel))
    before = parameters.read(0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert torch.equal(parameters.read(0), before - 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_are_rounded_once(dtype: torch.dtype) -> None:
    _, layout, parameters = made(dtype=dtype)
    values = torch.linspace(-1, 1, layout.fragments[1].numel)
    parameters.write(1, 0, values)
    assert parameters.read(1).dtype == torch.float32
    assert torch.equal(parameters.read(1), values.to(dtype).float())
