"""When a settled chunk is mixed into the parameters (Algorithm 2, line 12; design: late merges and αⁿ).

All counts are the peer's *own* inner steps: what a result's lateness costs is what was trained in the meantime. The
class only decides; the arithmetic and the tensors are the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from protocol.schedule import Window


@dataclass(frozen=True, slots=True)
class Mix:
    """θ ← αⁿ·θ + (1−αⁿ)·anchor for one chunk, with n = `power`. `late` is in own steps after the due merge."""

    chunk: int
    due: int
    power: int
    late: int


@dataclass(frozen=True, slots=True)
class TooLate:
    """A chunk whose anchor moved after `late_steps`: its difference enters the next outer gradient instead."""

    chunk: int
    due: int
    late: int


@dataclass(slots=True)
class _Pending:
    due: int
    links: int
    mix: bool


class Merges:
    """The merges of one peer that are still to come."""

    def __init__(self, *, overlap: int, late_steps: int, fragment_of: tuple[int, ...]) -> None:
        """`overlap` (τ) and `late_steps` in own inner steps; `fragment_of` gives each chunk's fragment."""
        self._overlap = overlap
        self._late_steps = late_steps
        self._fragment_of = fragment_of
        self._opened: dict[Window, int] = {}
        self._pending: dict[int, _Pending] = {}

    def opened(self, window: Window, own_step: int) -> None:
        """The fragment was snapshot for this window after `own_step` inner steps."""
        older = [one for one in self._opened if one.fragment == window.fragment]
        for one in older[:-1]:  # one older window may still settle late
            del self._opened[one]
        self._opened[window] = own_step

    @property
    def snapshots(self) -> list[tuple[Window, int]]:
        """The windows that may still settle, each with its snapshot's own step, in the order of `opened`."""
        return list(self._opened.items())

    def settled(self, chunk: int, due: int, links: int, mix: bool) -> None:
        """The chunk's newest anchor is that of the link of `due`, `links` links after the one before."""
        known = self._pending.get(chunk)
        if known:
            known.due, known.links, known.mix = due, known.links + links, known.mix or mix
        else:
            self._pending[chunk] = _Pending(due, links, mix)

    def waiting(self, window: Window) -> list[int]:
        """The chunks of a window that have not settled yet; none of a window that was never opened."""
        if window not in self._opened:
            return []
        chunks = [chunk for chunk, fragment in enumerate(self._fragment_of) if fragment == window.fragment]
        return [c for c in chunks if c not in self._pending or self._pending[c].due < window.due]

    def take(self, own_step: int, chunks: Iterable[int] | None = None) -> list[Mix | TooLate]:
        """What is to be done at the boundary after `own_step` inner steps, in chunk order; each at most once."""
        done: list[Mix | TooLate] = []
        for chunk in sorted(self._pending if chunks is None else self._pending.keys() & set(chunks)):
            pending = self._pending[chunk]
            snapshot = self._opened.get(Window(self._fragment_of[chunk], pending.due))
            late = 0 if snapshot is None else own_step - snapshot - self._overlap
            if late < 0:
                continue
            del self._pending[chunk]
            if not pending.mix:
                continue
            if late > self._late_steps:
                done.append(TooLate(chunk, pending.due, late))
            else:
                power = 1 if snapshot is not None else max(1, pending.links)
                done.append(Mix(chunk, pending.due, power, late))
        return done
