"""The lab's results on disk: one small file for each run, found again by what the run was."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
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
        except (OSError, ValueError):
            return None
        history = stored.get("history") if isinstance(stored, dict) else None
        return history if isinstance(history, dict) else None

    def keep(self, run: Planned, history: History) -> dict[str, Any]:
        """Write a run that ended, and return its history as it will be read."""
        plain: dict[str, Any] = json.loads(json.dumps(finite_throughout(asdict(history))))
        whole = {"setting": self._setting, **asdict(run), "history": plain}
        write_atomically(self._path(run), json.dumps(whole) + "\n")
        return plain

    def _path(self, run: Planned) -> Path:
        what = json.dumps([VERSION, self._setting, asdict(run)], sort_keys=True)
        return self._folder / f"{hashlib.sha256(what.encode()).hexdigest()[:24]}.json"
