"""The cases that the lab's entries compare: they can be made, and cost what the entry says."""

import pytest
import torch

from simulation.lab.compression import compression
from simulation.lab.compression.compared import COMPARED, Case


def bits(name: str) -> float:
    """A parameter, of a tensor of 2^18."""
    delta = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
    sent = compression(name).compress(delta, memory={}, generator=torch.Generator().manual_seed(1))
    return sent.bits / delta.numel()


@pytest.mark.parametrize("entry", COMPARED)
def test_every_case_can_be_made_and_is_one_of_a_kind(entry: str) -> None:
    cases = COMPARED[entry]
    for case in cases:
        compression(case.up)
        compression(case.down)
    assert len({case.label for case in cases}) == len({(case.up, case.down) for case in cases}) == len(cases)
    assert any(case.up == case.down == "none" for case in cases)  # what the others are measured against


@pytest.mark.parametrize("entry", COMPARED)
def test_matrix_methods_get_matrices(entry: str) -> None:
    def wants_matrices(case: Case) -> bool:
        return "power-sgd" in case.up + case.down

    assert all(case.per_tensor for case in COMPARED[entry] if wants_matrices(case))
    assert len({case.per_tensor for case in COMPARED[entry]}) == 1


def test_figure_11_compares_at_equal_bytes() -> None:
    cases = [case.up for case in COMPARED["fig11"]]
    assert [bits(name) for name in cases[3:8]] == pytest.approx([4.03] * 5, rel=0.01)
    assert [bits(name) for name in cases[8:]] == pytest.approx([16] * 4, rel=0.01)


def test_equal_bytes_are_equal() -> None:
    """Each way, or over both ways and as many steps."""
    for case in COMPARED["equal-bytes"][1:]:
        if case.rounds == 1:
            assert bits(case.up) == bits(case.down) == pytest.approx(4.031, abs=0.001)
        else:
            assert (bits(case.up) + bits(case.down)) / case.rounds == pytest.approx(2 * 4.031, rel=0.01)
