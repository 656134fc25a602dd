"""The lab's results on disk: one small file for each run, found again by what the run was."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Final

from peer.disk import write_atomically
from simulation.json_numbers import finite_throughout
from simulation.lab.history import History
from simulation.lab.recipe import Recipe

VERSION: Final = 4
"""Raised when the same recipe would give other numbers: results of before are then not taken for ours."""


@dataclass(frozen=True)
class Planned:
    """A run to do."""

    recipe: Recipe
    seed: int
    evaluations: int
    """Of the outer parameters during the run."""

    @property
    def cost(self) -> float:
        """Inner steps."""
        speeds = [self.recipe.speeds[min(index, len(self.recipe.speeds) - 1)] for index in range(self.recipe.replicas)]
        return self.recipe.steps * sum(speeds)


class Results:
    """Runs that ended, in the folder `results` of the lab's output. Entries that have a run in common share it."""

    def __init__(self, out: Path, setting: dict[str, Any]) -> None:
        """`setting` is all that a result depends on besides the run."""
        self._folder = out / "results"
        self._setting = setting
        self._folder.mkdir(parents=True, exist_ok=True)

    def find(self, run: Planned) -> dict[str, Any] | None:
        """The history of that run, if it ended before. A file that cannot be read counts as none."""
        try:
            stored = json.loads(self._path(run).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        history = stored.get("history") if isinstance(stored, dict) else None
        return history if _is_history(history) else None

    def keep(self, run: Planned, history: History) -> dict[str, Any]:
        """Write a run that ended, and return its history as it will be read."""
        plain: dict[str, Any] = json.loads(json.dumps(finite_throughout(asdict(history))))
        whole = {"setting": self._setting, **asdict(run), "history": plain}
        write_atomically(self._path(run), json.dumps(whole) + "\n")
        return plain

    def _path(self, run: Planned) -> Path:
        what = json.dumps([VERSION, self._setting, asdict(run)], sort_keys=True)
        return self._folder / f"{hashlib.sha256(what.encode()).hexdigest()[:24]}.json"


def _is_history(found: object) -> bool:
    """Whether it has a history's fields, in their shapes: the file may have been written by anyone."""
    empty = asdict(History())
    if not isinstance(found, dict) or set(found) != set(empty):
        return False
    if not all(_is_like(found[name], empty[name]) for name in empty):
        return False
    curves = [found["outer"], *found["cosine"].values()]
    return (
        all(map(_is_number, [*found["train"], *found["steps_taken"]]))
        and all(isinstance(curve, list) and all(_is_row(point, 2) for point in curve) for curve in curves)
        and all(_is_row(norm, 4) for norm in found["norms"])
    )


def _is_like(value: object, example: object) -> bool:
    if isinstance(example, float):
        return _is_number(value)
    return isinstance(value, type(example))


def _is_row(value: object, length: int) -> bool:
    return isinstance(value, list) and len(value) == length and all(map(_is_number, value))


def _is_number(value: object) -> bool:
    """As JSON has it: finite, or null for what is not."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value))
