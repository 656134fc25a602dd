"""What the ledger sees of the tensor work: bytes in, bytes out."""

import math

import pytest
import torch

from aggregation.arithmetic import Arithmetic
from aggregation.codecs import codec
from aggregation.initial import normal
from aggregation.outer import ChunkState, accumulate, fresh, outer_step

SIZES = (512, 300)
NAMES = [("e3m0", "e3m0"), ("e3m0", "fp32"), ("fp32", "e3m0"), ("fp32", "fp32")]


def arithmetic(contributions: str = "e3m0", results: str = "e3m0") -> Arithmetic:
    return Arithmetic(SIZES, contribution_codec=codec(contributions), result_codec=codec(results), lr=0.4, momentum=0.9)


def state(chunk: int) -> ChunkState:
    return ChunkState(normal(1, "anchor", (SIZES[chunk],), 0.02), normal(1, "momentum", (SIZES[chunk],), 0.01))


def local(peer: int, chunk: int) -> torch.Tensor:
    return state(chunk).anchor + normal(2, f"peer {peer}", (SIZES[chunk],), 0.01)


@pytest.mark.parametrize(("contributions", "results"), NAMES)
@pytest.mark.parametrize("chunk", [0, 1])
def test_a_round_is_decode_accumulate_encode_once_and_step(contributions: str, results: str, chunk: int) -> None:
    ours = arithmetic(contributions, results)
    before = state(chunk)
    sent = [(100 + peer, ours.contribution(chunk, before, local(peer, chunk))) for peer in range(3)]
    for _, payload in sent:
        ours.check_contribution(chunk, payload)
        assert len(payload) == ours.contribution_bytes(chunk)
    result = ours.mean(chunk, sent)
    ours.check_result(chunk, result)
    assert len(result) == ours.result_bytes(chunk)
    theirs, mine = codec(contributions), codec(results)
    mean = accumulate([(weight, theirs.decode(payload, SIZES[chunk])) for weight, payload in sent])
    expected = outer_step(before, mine.decode(mine.encode(mean), SIZES[chunk]), lr=0.4, momentum=0.9)
    after = ours.apply(chunk, before, result)
    assert ours.digest(after) == ours.digest(expected) != ours.digest(before)


def test_dump_and_load_are_inverse() -> None:
    ours = arithmetic()
    data = ours.dump(state(1))
    assert len(data) == 8 * SIZES[1]
    assert ours.digest(ours.load(1, data)) == ours.digest(state(1))
    assert ours.dump(ours.load(1, data)) == data


def test_a_state_of_wrong_size_or_not_finite_is_refused() -> None:
    ours = arithmetic()
    with pytest.raises(ValueError, match="must have 2400"):
        ours.load(1, ours.dump(state(0)))
    broken = state(1)
    broken.momentum[-1] = math.inf
    with pytest.raises(ValueError, match="finite"):
        ours.load(1, ours.dump(broken))


def test_a_local_value_that_is_not_finite_is_not_contributed() -> None:
    bad = local(0, 0)
    bad[7] = math.nan
    for name in ("e3m0", "fp32"):
        with pytest.raises(ValueError, match="finite"):
            arithmetic(name).contribution(0, state(0), bad)


@pytest.mark.parametrize(("contributions", "results"), NAMES)
def test_the_mean_of_the_greatest_payloads_can_be_packed(contributions: str, results: str) -> None:
    """Rounded weights may sum to more than one."""
    ours = arithmetic(contributions, results)
    payload = codec(contributions).encode(torch.full((SIZES[0],), 2.0**127))
    for weights in ([1] * 3, [1] * 7, [3, 5, 7, 11, 13]):
        result = ours.mean(0, [(weight, payload) for weight in weights])
        ours.check_result(0, result)


def test_a_result_that_would_overflow_the_state_is_refused() -> None:
    ours = arithmetic()
    huge = codec("e3m0").encode(torch.full((SIZES[0],), 2.0**127))
    once = ours.apply(0, fresh(torch.zeros(SIZES[0])), huge)
    with pytest.raises(ValueError, match="finite"):
        ours.apply(0, ours.apply(0, once, huge), huge)
