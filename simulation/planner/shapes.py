"""The models that are planned for: layers, parameters and seconds of an inner step. All sizes are counts of parameters.

`tiny` and `35m` are the ones of peer/models.py (a test compares them); the others are the paper's (arXiv 2501.18512,
Table 4 and Figure 16): nominal sizes, spread evenly over the layers, and the step times that reproduce its table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from protocol.errors import UserError

MOST_LAYERS: Final = 1000
MOST_PARAMETERS: Final = 1e15


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the planner knows of a model."""

    name: str
    layers: int
    parameters: float
    """All that are synchronised and kept, experts that a token does not use included."""
    active: float
    """Those that one token uses: what an inner step's flops follow from."""
    outside: float = 0.0
    """Of `parameters` those in no layer: embeddings, head, last norm."""
    step_seconds: float | None = None
    """Of one inner step, where the paper gives it."""

    @property
    def layer(self) -> float:
        """Parameters of one layer."""
        return (self.parameters - self.outside) / self.layers

    def fragment_sizes(self, fragments: int) -> tuple[float, ...]:
        """Parameters of each strided fragment: layer i is in fragment i mod P, the rest in one of the smallest."""
        sizes = [self.layer * len(range(index, self.layers, fragments)) for index in range(fragments)]
        sizes[sizes.index(min(sizes))] += self.outside
        return tuple(sizes)

    def flops(self, tokens: float) -> float:
        """Of one inner step of so many tokens: 6 a parameter and token (Kaplan et al. 2020)."""
        return 6.0 * self.active * tokens


def _dense(name: str, layers: int, parameters: float, step_seconds: float) -> Shape:
    return Shape(name=name, layers=layers, parameters=parameters, active=parameters, step_seconds=step_seconds)


def _own(name: str, layers: int, width: int, mlp: int, vocab: int) -> Shape:
    """One of our decoders: two norms, four attention and two MLP matrices a layer; a tied embedding and a last norm."""
    layer = 2 * width + 4 * width * width + 2 * width * mlp
    outside = vocab * width + width
    parameters = float(layers * layer + outside)
    return Shape(name=name, layers=layers, parameters=parameters, active=parameters, outside=float(outside))


PAPER_SCALES: Final[Mapping[str, Shape]] = {
    "1B": _dense("1B", 24, 1e9, 0.0985),
    "10B": _dense("10B", 48, 1e10, 0.79),
    "100B": _dense("100B", 108, 1e11, 4.916),
}
"""The columns of Table 4."""
PAPER_MODELS: Final[Mapping[str, Shape]] = {
    "llama-405b": _dense("Llama 405B", 126, 405e9, 26.9),
    "deepseek-v3": Shape(
        name="DeepSeek-V3", layers=61, parameters=671e9, active=35e9, step_seconds=20.1
    ),  # a mixture of experts: all are synchronised
}
"""Figure 16."""
SHAPES: Final[Mapping[str, Shape]] = {
    "tiny": _own("tiny", 4, 128, 256, 256),
    "35m": _own("35m", 6, 512, 2048, 256),
    **{name.lower(): shape for name, shape in PAPER_SCALES.items()},
    **PAPER_MODELS,
}


def parse_model(text: str) -> Shape:
    """The model of that name, or of `PARAMETERS,LAYERS` such as 7e9,32; UserError for anything else."""
    if shape := SHAPES.get(text.lower()):
        return shape
    first, comma, second = text.partition(",")
    try:
        parameters, layers = float(first), int(second)
    except ValueError:
        parameters, layers = 0.0, 0
    if not comma or not (1 <= layers <= MOST_LAYERS and layers <= parameters <= MOST_PARAMETERS):
        known = ", ".join(SHAPES)
        raise UserError.field("--model", text, f"must be one of {known}, or PARAMETERS,LAYERS such as 7e9,32")
    return Shape(name=text, layers=layers, parameters=parameters, active=parameters)
