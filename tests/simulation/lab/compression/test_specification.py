"""How compressions are written, and what is said about what is not one."""

import pytest

from simulation.lab.compression import COMPRESSIONS, compression
from simulation.lab.compression.e3m0 import E3M0
from simulation.lab.compression.error_feedback import ErrorFeedback
from simulation.lab.compression.random_k import RandomK
from simulation.lab.compression.top_k import TopK


def test_parameters_by_key_or_the_first_alone() -> None:
    assert compression("top-k:0.01") == TopK(0.01, name="top-k:0.01")
    assert compression("e3m0:block=64,rounding=stochastic") == E3M0(
        64, "stochastic", "e3m0:block=64,rounding=stochastic"
    )
    assert compression("random-k:0.2,rescale=true") == RandomK(0.2, True, "random-k:0.2,rescale=true")
    feedback = compression("e3m0:64+ef:0.9")
    assert isinstance(feedback, ErrorFeedback)
    assert (feedback.inner, feedback.decay) == (E3M0(64, name="e3m0:64"), 0.9)


@pytest.mark.parametrize("name", [*COMPRESSIONS, "e3m0:block=64", "sign+ef", "sign:64+ef:0.95", "ties:0.1+ef"])
def test_a_name_makes_a_compression_of_that_name(name: str) -> None:
    assert compression(name).name == name
    assert compression(name) == compression(name)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("gzip", "compression = 'gzip': must be one of bf16, cocktail, dare"),
        ("", "compression = '': must be one of"),
        ("top-k:size=3", "top-k: parameter 'size=3': must be KEY=VALUE with a KEY of share"),
        ("none:3", "none: parameter '3': must be KEY=VALUE with a KEY of none"),
        ("int8:bits=3", "int8: parameter 'bits=3': must be KEY=VALUE with a KEY of block, scale, rounding"),
        ("top-k:name=x", "parameter 'name=x'"),
        ("int8:many", "int8: block = 'many': must be a whole number"),
        ("top-k:many", "top-k: share = 'many': must be a number"),
        ("random-k:rescale=yes", "random-k: rescale = 'yes': must be true or false"),
        ("e3m0:512", "block = 512: must be between 1 and 256"),
        ("sign+feedback", r"compression = 'sign\+feedback': after a \+ must come ef or ef:DECAY"),
        ("sign+ef:much", "ef: decay = 'much': must be a number"),
    ],
)
def test_a_mistake_is_told_with_what_would_be_right(name: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        compression(name)
