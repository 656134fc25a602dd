"""Error feedback: what a compression did not send is added to what it is given next.

    e ← decay · e + gain · Δ;   send C(e);   e ← e − C(e)

Karimireddy et al. 2019 (arXiv 1901.09847), with decay = gain = 1: then all that was sent, and e, add up to all that
was given, to rounding. A decay below 1 forgets (SparseLoCo, arXiv 2508.15706). Bits: the wrapped compression's.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from simulation.lab.compression.base import Compression, Sent, checked

RESIDUAL = "residual"


@dataclass(frozen=True)
class ErrorFeedback:
    """A compression with a memory of its errors. Its own memory, if it has one, lies in the same dict."""

    inner: Compression
    decay: float = 1.0
    gain: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.inner, ErrorFeedback) or getattr(self.inner, "feedback", False):
            raise ValueError(f"{self.inner.name} has error feedback already: must be wrapped at most once")
        if not 0 <= self.decay <= 1:
            raise ValueError(f"ef: decay = {self.decay}: must be between 0 and 1")
        if not 0 < self.gain < math.inf:
            raise ValueError(f"ef: gain = {self.gain}: must be a positive number")

    @property
    def name(self) -> str:
        return f"{self.inner.name}+ef" + ("" if self.decay == 1 else f":{self.decay:g}")

    def compress(self, delta: Tensor, *, memory: dict[str, Tensor], generator: torch.Generator) -> Sent:
        residual = checked(delta).view(delta.shape) * self.gain
        if RESIDUAL in memory:
            residual += memory[RESIDUAL] * self.decay
        sent = self.inner.compress(residual, memory=memory, generator=generator)
        memory[RESIDUAL] = residual - sent.values
        return sent


def error_feedback(inner: Compression, *, decay: float = 1.0) -> ErrorFeedback:
    """`inner` with error feedback."""
    return ErrorFeedback(inner, decay)


class WithFeedback(ABC):
    """A method that is another one under error feedback. A subclass is a dataclass that says which."""

    feedback: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.method()  # which checks its settings

    @abstractmethod
    def method(self) -> ErrorFeedback:
        """What it is made of. Raises ValueError for settings that it refuses."""

    def compress(self, delta: Tensor, *, memory: dict[str, Tensor], generator: torch.Generator) -> Sent:
        return self.method().compress(delta, memory=memory, generator=generator)
