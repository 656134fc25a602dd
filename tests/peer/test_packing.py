"""Trees of values and tensors come back as they were, through real JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from peer.packing import NotPlain, pack, unpack

LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5))
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.integers(), st.text(max_size=5)), inner, max_size=3),
    ),
    max_leaves=8,
)


def there_and_back(tree: Any) -> Any:
    tensors: dict[str, torch.Tensor] = {}
    packed = pack(tree, tensors, "root")
    return unpack(json.loads(json.dumps(packed, allow_nan=False)), tensors)


@given(TREES)
def test_a_tree_comes_back_with_its_types(tree: Any) -> None:
    back = there_and_back(tree)
    assert back == tree and repr(back) == repr(tree)


def test_not_a_number_comes_back() -> None:
    assert math.isnan(there_and_back([math.nan])[0])


def test_tensors_are_copied_and_named_after_their_place() -> None:
    original = torch.arange(6.0).reshape(2, 3).t()
    tensors: dict[str, torch.Tensor] = {}
    packed = pack({"state": {0: {"step": original}}}, tensors, "optimizer")
    original.zero_()
    assert list(tensors) == ["optimizer.state.0.step"]
    back = unpack(packed, tensors)["state"][0]["step"]
    assert torch.equal(back, torch.arange(6.0).reshape(2, 3).t()) and back.is_contiguous()


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "RAdam"])
def test_torch_s_optimizers_go_on_exactly(kind: str) -> None:
    def made() -> tuple[nn.Parameter, torch.optim.Optimizer]:
        parameter = nn.Parameter(torch.arange(4.0))
        return parameter, getattr(torch.optim, kind)([parameter], lr=0.1)

    def step(parameter: nn.Parameter, optimizer: torch.optim.Optimizer) -> None:
        (parameter * torch.tensor([1.0, 2.0, 3.0, 4.0])).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    one, its_optimizer = made()
    for _ in range(3):
        step(one, its_optimizer)
    other, fresh = made()
    other.data.copy_(one.data)
    fresh.load_state_dict(there_and_back(its_optimizer.state_dict()))
    for _ in range(3):
        step(one, its_optimizer)
        step(other, fresh)
    assert torch.equal(one, other)


class Sharded(torch.Tensor):
    """Like a DTensor: a tensor that is more than what this process holds."""


@pytest.mark.parametrize("value", [object(), torch.eye(2).to_sparse(), Sharded([1.0]), {(1, 2): 3}, {1.0}])
def test_what_is_not_plain_is_refused(value: object) -> None:
    with pytest.raises(NotPlain, match="root"):
        pack({"deep": [value]}, {}, "root")


@pytest.mark.parametrize(
    "packed", [[1], {"tensor": "missing"}, {"pickle": "x"}, {}, {"int": 3}, {"dict": [[1]]}, {"int": "x", "float": "y"}]
)
def test_other_json_is_refused(packed: Any) -> None:
    with pytest.raises(ValueError):
        unpack(packed, {})
