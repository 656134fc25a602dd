"""Reading a fragment's values out of a model, and writing a merge back: the one place where potluck touches a model.

`ModuleParameters` serves any torch module on one device. A sharded replica implements `Parameters` with collectives
of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod

import torch
from torch import Tensor, nn

from aggregation.fragments import Layout


class Parameters(ABC):
    """A model's trainable values, as flat fragments. Called in the training thread, between two inner steps."""

    layout: Layout

    @abstractmethod
    def read(self, fragment: int) -> Tensor:
        """A copy of the fragment's values, flat fp32 on the host, in the layout's order."""

    @abstractmethod
    def write(self, fragment: int, start: int, values: Tensor) -> None:
        """Replace the values of the fragment from `start` on by `values` (flat fp32; any device)."""

    @abstractmethod
    def view(self, fragment: int, start: int, stop: int) -> Tensor:
        """A copy of a slice of the fragment, flat fp32, on the model's own device."""


class ModuleParameters(Parameters):
    """The parameters of one module in one process."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        self.layout = layout
        named = dict(module.named_parameters())
        self._parameters = [[named[name] for name in fragment.names] for fragment in layout.fragments]
        self._starts = [layout.starts(fragment.index) for fragment in layout.fragments]

    def read(self, fragment: int) -> Tensor:
        flat = [parameter.detach().reshape(-1).float() for parameter in self._parameters[fragment]]
        return torch.cat(flat).cpu()

    def view(self, fragment: int, start: int, stop: int) -> Tensor:
        pieces = []
        for parameter, low, high in self._overlaps(fragment, start, stop):
            pieces.append(parameter.detach().reshape(-1)[low:high].float())
        return torch.cat(pieces)

    def write(self, fragment: int, start: int, values: Tensor) -> None:
        offset = 0
        with torch.no_grad():
            for parameter, low, high in self._overlaps(fragment, start, start + values.numel()):
                _write_flat(parameter.data, low, high, values[offset : offset + high - low])
                offset += high - low

    def _overlaps(self, fragment: int, start: int, stop: int) -> list[tuple[nn.Parameter, int, int]]:
        """The parts of parameters that a slice of the fragment covers: (parameter, from, to)."""
        parts = []
        for parameter, begin in zip(self._parameters[fragment], self._starts[fragment], strict=True):
            low, high = max(start - begin, 0), min(stop - begin, prod(parameter.shape))
            if low < high:
                parts.append((parameter, low, high))
        return parts


def _write_flat(target: Tensor, low: int, high: int, values: Tensor) -> None:
    """Replace elements low..high of `target`, counted in row-major order whatever its strides are."""
    if target.is_contiguous():
        target.view(-1)[low:high].copy_(values)
        return
    flat = target.reshape(-1)  # a copy: channels-last and transposed parameters have no flat view
    flat[low:high].copy_(values)
    target.copy_(flat.view(target.shape))
