"""Ways to compress an outer gradient. The table of all of them, with their bits, is docs/compression.md."""

from simulation.lab.compression.base import Compression, Sent
from simulation.lab.compression.bf16 import BFloat16
from simulation.lab.compression.e3m0 import E3M0
from simulation.lab.compression.none import Uncompressed
from simulation.lab.compression.specification import Row, made

__all__ = ["COMPRESSIONS", "Compression", "Sent", "compression"]

COMPRESSIONS: dict[str, Row] = {
    "none": Row(Uncompressed),
    "bf16": Row(BFloat16),
    "e3m0": Row(E3M0, first="block"),
}


def compression(name: str) -> Compression:
    """The compression of that name, such as "top-k:0.05", "e3m0:block=64,rounding=stochastic" or "sign+ef:0.95".

    Raises ValueError on an unknown name, listing the known ones, and on a parameter that is unknown or out of range.
    """
    return made(name, COMPRESSIONS)
