"""The outer step's sign and formula, the merge's ends, the order of accumulation, digests."""

import hashlib
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aggregation.initial import normal
from aggregation.outer import ChunkState, accumulate, fresh, merge, outer_gradient, outer_step, state_digest


def random(name: str, numel: int = 1000) -> Tensor:
    return normal(5, name, (numel,), 1.0)


def trained(theta: Tensor, target: Tensor, steps: int = 5, lr: float = 0.1) -> Tensor:
    """A few steps of gradient descent on ½‖θ − target‖²."""
    for _ in range(steps):
        theta = theta - lr * (theta - target)
    return theta


@pytest.mark.parametrize(("lr", "momentum"), [(0.4, 0.9), (1.0, 0.0), (0.7, 0.5)])
def test_outer_steps_descend_on_a_quadratic(lr: float, momentum: float) -> None:
    """Peers with targets of their own: the anchor goes to the mean of the targets. A wrong sign would run away."""
    targets = [random(f"target {peer}") for peer in range(4)]
    centre = accumulate([(1, target) for target in targets])
    state = fresh(random("start"))
    first = distance = (state.anchor - centre).norm()
    for step in range(60):
        deltas = [(1, outer_gradient(state.anchor, trained(state.anchor, target))) for target in targets]
        state = outer_step(state, accumulate(deltas), lr=lr, momentum=momentum)
        if step == 0:
            assert (state.anchor - centre).norm() < first
        distance = (state.anchor - centre).norm()
    assert distance < 0.02 * first


def test_the_outer_gradient_points_back_to_the_anchor() -> None:
    anchor, local = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 3.0], dtype=torch.bfloat16)
    assert outer_gradient(anchor, local).tolist() == [0.5, -1.0]


def test_a_step_of_lr_one_without_momentum_averages_parameters() -> None:
    locals_ = [torch.tensor([1.0, 3.0]), torch.tensor([2.0, 5.0])]
    state = fresh(torch.zeros(2))
    mean = accumulate([(1, outer_gradient(state.anchor, local)) for local in locals_])
    assert outer_step(state, mean, lr=1.0, momentum=0.0).anchor.tolist() == [1.5, 4.0]


def test_the_outer_step_is_torchs_nesterov_sgd() -> None:
    parameter = torch.nn.Parameter(random("anchor"))
    optimizer = torch.optim.SGD([parameter], lr=0.4, momentum=0.9, nesterov=True)
    state = fresh(parameter)
    for step in range(3):
        parameter.grad = random(f"delta {step}")
        optimizer.step()
        state = outer_step(state, parameter.grad, lr=0.4, momentum=0.9)
        torch.testing.assert_close(state.anchor, parameter.detach(), rtol=1e-5, atol=1e-6)


def test_inputs_are_never_changed() -> None:
    state, delta, local = ChunkState(random("a"), random("v")), random("delta"), random("local")
    before = [tensor.clone() for tensor in (state.anchor, state.momentum, delta, local)]
    outer_step(state, delta, lr=0.4, momentum=0.9)
    accumulate([(1, delta), (2, local)])
    for alpha in (0.0, 0.5, 1.0):
        merge(local, state.anchor, alpha).zero_()
    outer_gradient(state.anchor, local).zero_()
    fresh(local).anchor.zero_()
    assert all(map(torch.equal, before, (state.anchor, state.momentum, delta, local)))


def test_the_ends_of_the_merge_are_exact_and_the_middle_moves() -> None:
    local, anchor = random("local"), random("anchor")
    local[:2] = torch.tensor([1e-40, -0.0])
    anchor[:2] = torch.tensor([-0.0, 1e-40])
    assert torch.equal(merge(local, anchor, 1.0).view(torch.int32), local.view(torch.int32))
    assert torch.equal(merge(local, anchor, 0.0).view(torch.int32), anchor.view(torch.int32))
    for alpha in (0.25, 0.5, 0.9):
        merged = merge(local, anchor, alpha)
        assert (merged != local).float().mean() > 0.99
        assert ((merged - anchor).abs() <= (local - anchor).abs() * alpha + 1e-6).all()


def test_the_merge_keeps_shape_and_dtype() -> None:
    local = random("local", 12).reshape(3, 4).to(torch.bfloat16)
    for alpha in (0.0, 0.5, 1.0):
        merged = merge(local, random("anchor", 12), alpha)
        assert merged.shape == (3, 4) and merged.dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"alpha = 1.5: must be between 0 and 1"):
        merge(local, random("anchor", 12), 1.5)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=6))
def test_accumulation_is_the_weighted_mean(weights: list[int]) -> None:
    deltas = [random(f"delta {index}", 50) for index in range(len(weights))]
    mean = accumulate(list(zip(weights, deltas, strict=True)))
    expected = sum(delta.double() * weight for weight, delta in zip(weights, deltas, strict=True)) / sum(weights)
    assert mean.dtype == torch.float32
    torch.testing.assert_close(mean.double(), expected, rtol=1e-5, atol=1e-6)


def test_one_contribution_is_its_own_mean() -> None:
    delta = random("delta")
    assert torch.equal(accumulate([(123, delta)]), delta)


def test_accumulation_refuses_what_has_no_mean() -> None:
    delta = random("delta")
    with pytest.raises(ValueError, match="at least one"):
        accumulate([])
    for weight in (0, -5):
        with pytest.raises(ValueError, match=rf"weight = {weight}: must be at least 1"):
            accumulate([(10, delta), (weight, delta)])
    with pytest.raises(ValueError, match="shape"):
        accumulate([(1, delta), (1, delta[:1])])


def test_the_state_digest_covers_anchor_and_momentum() -> None:
    state = ChunkState(torch.tensor([1.0, -2.0]), torch.tensor([0.5, 0.0]))
    assert state_digest(state) == hashlib.sha256(struct.pack("<4f", 1.0, -2.0, 0.5, 0.0)).digest()
    assert state_digest(ChunkState(state.momentum, state.anchor)) != state_digest(state)
