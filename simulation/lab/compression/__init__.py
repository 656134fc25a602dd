"""Ways to compress an outer gradient. The table of all of them, with their bits, is docs/compression.md."""

from simulation.lab.compression.base import Compression, Sent
from simulation.lab.compression.bf16 import BFloat16
from simulation.lab.compression.cocktail import Cocktail
from simulation.lab.compression.combine import Combine, combine, combine_for, elect_and_mean, mean
from simulation.lab.compression.dropout import Dropout
from simulation.lab.compression.e3m0 import E3M0
from simulation.lab.compression.error_feedback import error_feedback
from simulation.lab.compression.integers import Integers
from simulation.lab.compression.lloyd_max import ThreeBit, TwoBit
from simulation.lab.compression.low_rank import PowerSGD
from simulation.lab.compression.nf4 import NF4
from simulation.lab.compression.none import Uncompressed
from simulation.lab.compression.random_k import RandomK
from simulation.lab.compression.sign import Sign
from simulation.lab.compression.small_floats import E2M0, E2M1
from simulation.lab.compression.sparse_loco import SparseLoCo
from simulation.lab.compression.specification import Row, base_name, made
from simulation.lab.compression.top_k import TopK

__all__ = [
    "COMPRESSIONS",
    "Combine",
    "Compression",
    "Sent",
    "combine",
    "combine_for",
    "compression",
    "draws_in_common",
    "elect_and_mean",
    "error_feedback",
    "mean",
]

COMPRESSIONS: dict[str, Row] = {
    "none": Row(Uncompressed),
    "bf16": Row(BFloat16),
    "e3m0": Row(E3M0, first="block"),
    "int8": Row(Integers, first="block", preset={"bits": 8}),
    "int4": Row(Integers, first="block", preset={"bits": 4}),
    "int3": Row(Integers, first="block", preset={"bits": 3}),
    "int2": Row(Integers, first="block", preset={"bits": 2}),
    "nf4": Row(NF4, first="block"),
    "e2m1": Row(E2M1, first="block"),
    "e2m0": Row(E2M0, first="block"),
    "three-bit": Row(ThreeBit, first="block"),
    "two-bit": Row(TwoBit, first="block"),
    "sign": Row(Sign, first="block"),
    "fed-dropout": Row(Dropout, first="drop", preset={"rescale": False}),
    "dare": Row(Dropout, first="drop", preset={"rescale": True}),
    "random-k": Row(RandomK, first="share", common=True),
    "top-k": Row(TopK, first="share"),
    "ties": Row(TopK, first="share", defaults={"share": 0.2}),
    "sparse-loco": Row(SparseLoCo, first="kept"),
    "power-sgd": Row(PowerSGD, first="rank", common=True),
    "power-sgd-4bit": Row(PowerSGD, first="rank", preset={"factors": "int4"}, common=True),
    "cocktail": Row(Cocktail, first="random", common=True),
}


def compression(name: str) -> Compression:
    """The compression of that name, such as "top-k:0.05", "e3m0:block=64,rounding=stochastic" or "sign+ef:0.95".

    Raises ValueError on an unknown name, listing the known ones, and on a parameter that is unknown or out of range.
    """
    return made(name, COMPRESSIONS)


def draws_in_common(name: str) -> bool:
    """Whether all replicas are to draw the same random numbers in one window: the values of random-k and CocktailSGD,
    of which a mean is then one of values that all have sent, and the first basis of PowerSGD."""
    return COMPRESSIONS[base_name(name)].common
