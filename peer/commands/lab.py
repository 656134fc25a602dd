"""`potluck lab`: the paper's ablations, its open questions and ours, on a small model in one process (docs/lab.md).

It and its neighbours `lab_*.py` import `simulation` (docs/decisions/0018).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from peer.commands.lab_manifest import recipe_of, workload_of
from peer.commands.lab_results import Planned, Results
from peer.commands.lab_running import run_all
from peer.commands.lab_workload import MODELS, Setting
from peer.commands.places import usable_folder
from peer.data import load_corpus
from peer.disk import write_atomically
from peer.exit_codes import DONE, FAILED, INTERRUPTED
from peer.manifest_file import read_manifest
from peer.output import complain, write_line
from peer.screen import Column, broken, fitting, rendered, width_of
from peer.signals import stoppable
from peer.training import resolve_device, set_threads
from protocol.errors import UserError
from protocol.manifest import changed
from simulation.charts import save_charts
from simulation.lab import presenting
from simulation.lab.engine import Run
from simulation.lab.entries import ENTRIES, Case, Entry, Outcomes, Scale, entry
from simulation.processes import resolve_jobs

STEPS, QUICK_STEPS, FEWEST_STEPS = 960, 18, 12
"""At 240 steps the small model is still on its first plateau, where any noise helps (docs/experiments.md)."""
ROUND: Final = 20
"""H, or a third of the steps where that is less."""
MODEL: Final = "small"
WIDTH: Final = 80
MOST_OUTER_LR: Final = 10.0


@dataclass(frozen=True, kw_only=True)
class LabOptions:
    """The command's flags, as given."""

    name: str
    model: str | None = None
    steps: int | None = None
    seeds: int | None = None
    quick: bool = False
    out: Path | None = None
    data: str | None = None
    device: str = "cpu"
    outer: str | None = None
    jobs: int | None = None
    json: bool = False
    manifest: Path | None = None
    peers: int | None = None
    seed: int | None = None


def run_lab(options: LabOptions) -> int:
    """Run what `name` says; the exit code. UserError for flags that make no sense."""
    set_threads(1)  # the same sums on every machine, and as a peer of a local swarm has
    if options.name in ("list", "swarm"):
        _refuse(options, ("quick", "seeds", "out", "jobs", "outer", "model"), "the entries")
        if options.name == "swarm":
            return _swarm(options)
        _refuse(options, ("steps", "data", "manifest", "peers", "seed"), "entries and `potluck lab swarm`")
        return _list(as_json=options.json)
    chosen = list(ENTRIES.values()) if options.name == "all" else [entry(options.name)]
    _check(options)
    with stoppable():
        try:
            return _Lab(options).run(chosen)
        except KeyboardInterrupt:
            complain("stopped; the same command goes on from here")
            return INTERRUPTED
        except BrokenProcessPool:
            complain("a process of the lab was killed; is there enough memory? The same command goes on from here")
            return FAILED


def _check(options: LabOptions) -> None:
    _refuse(options, ("manifest", "peers", "seed"), "`potluck lab swarm`")
    if (options.model or MODEL) not in MODELS:
        raise UserError.field("--model", options.model, f"must be one of {', '.join(MODELS)}")
    if options.steps is not None and options.steps < FEWEST_STEPS:
        raise UserError.field("--steps", options.steps, f"must be at least {FEWEST_STEPS}")
    if options.seeds is not None and options.seeds < 1:
        raise UserError.field("--seeds", options.seeds, "must be at least 1")


def _outer(text: str) -> tuple[float, float]:
    """`1,0` as learning rate and momentum."""
    try:
        lr, momentum = map(float, text.split(","))
    except ValueError:
        lr, momentum = 0.0, 0.0
    if not (0 < lr <= MOST_OUTER_LR and 0 <= momentum < 1):
        raise UserError.field("--outer", text, "must be a learning rate and a momentum below 1, such as 0.4,0.9")
    return lr, momentum


def _refuse(options: LabOptions, names: Sequence[str], of_what: str) -> None:
    for name in names:
        value = getattr(options, name)
        if value is not None and value is not False:  # 0 is a value
            raise UserError(f"--{name}: is for {of_what}")


def _list(*, as_json: bool) -> int:
    if as_json:
        made = [{"entry": e.name, "title": e.title, "statement": e.statement} for e in ENTRIES.values()]
        print(json.dumps({"entries": made}, indent=1))
    else:
        print("\n".join(f"{e.name:16} {e.title}" for e in ENTRIES.values()))
    return DONE


def _swarm(options: LabOptions) -> int:
    """What `potluck swarm --lockstep` does with this manifest, without a network."""
    if options.manifest is None:
        raise UserError("--manifest: must be given: a run's manifest, such as OUT/manifest.toml of `potluck swarm`")
    manifest = read_manifest(options.manifest)
    given = {"run.seed": options.seed, "run.steps": options.steps}
    manifest = changed(manifest, {name: value for name, value in given.items() if value is not None})
    peers = manifest.run.start_peers if options.peers is None else options.peers
    if peers < 1:
        raise UserError.field("--peers", peers, "must be at least 1")
    recipe = recipe_of(manifest, peers)
    corpus = load_corpus(manifest.data.name if options.data is None else options.data)
    workload = workload_of(manifest, corpus, resolve_device(options.device))
    history = Run(recipe, workload, manifest.run.seed).run()
    if options.json:
        print(json.dumps({"outer_digest": history.digest, "loss": history.loss, "peers": peers}))
    else:
        print(f"outer digest {history.digest}\nheld-out loss of the outer parameters {history.loss:.4f}")
    return DONE


class _Lab:
    """One call of the command on entries."""

    def __init__(self, options: LabOptions) -> None:
        self._options = options
        self._seeds = options.seeds or (1 if options.quick else 3)
        self._out = usable_folder("--out", options.out or Path("runs/lab"))
        self._model = options.model or MODEL
        self._config = MODELS[self._model]
        self._setting = Setting(
            model=self._model,
            data="bible" if options.data is None else options.data,
            device=options.device,
            evaluation_tokens=1024 if options.quick else 8192,
        )
        self._jobs = resolve_jobs(options.jobs)
        self._scale: dict[str, Any] = {} if options.outer is None else {"outer": _outer(options.outer)}
        usable_folder("--out", self._out / "results")
        self._results = Results(self._out, self._setting.described())
        self._can_plot = True

    def run(self, chosen: Sequence[Entry]) -> int:
        """All runs of these entries that are not there yet, entry by entry, each followed by its answer."""
        cases = {each.name: self._cases(each) for each in chosen}
        plans = {each.name: [run for case in cases[each.name] for run in self._runs(each, case)] for each in chosen}
        answers: list[dict[str, Any]] = []
        ready = run_all(plans, self._setting, self._results, jobs=self._jobs, quiet=self._options.json)
        with closing(ready):
            answers.extend(self._answer(entry(name), cases[name]) for name in ready)
        if self._options.json:
            print(json.dumps({"entries": answers}, indent=1))
        return DONE

    def _cases(self, chosen: Entry) -> list[Case]:
        quick, layers = self._options.quick, self._config.layers
        steps = self._options.steps or (QUICK_STEPS if quick else STEPS * chosen.longer)
        return chosen.cases(
            Scale(
                steps=steps,
                sync_every=min(ROUND, steps // 3),
                batch=2 if quick else 4,
                layers=layers,
                most_replicas=8 if quick else 32,
                **self._scale,
            )
        )

    def _runs(self, chosen: Entry, case: Case) -> list[Planned]:
        return [Planned(case.recipe, seed, chosen.evaluations) for seed in range(self._seeds)]

    def _answer(self, chosen: Entry, cases: Sequence[Case]) -> dict[str, Any]:
        outcomes: Outcomes = {
            case.label: [history for run in self._runs(chosen, case) if (history := self._results.find(run))]
            for case in cases
        }
        answer = {**self._about(), **presenting.as_json(chosen, cases, outcomes)}
        folder = self._out / chosen.name
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "result.json", json.dumps(answer, indent=1) + "\n")
        write_atomically(folder / "table.md", presenting.markdown(chosen, outcomes, answer))
        self._plot(folder / "plot.svg", chosen, cases, outcomes)
        if not self._options.json:
            write_line(sys.stdout, self._text(chosen, outcomes, answer))
        return answer

    def _about(self) -> dict[str, Any]:
        about = {"model": self._model, "seeds": self._seeds, "quick": self._options.quick}
        return about | self._scale

    def _plot(self, path: Path, chosen: Entry, cases: Sequence[Case], outcomes: Outcomes) -> None:
        if not self._can_plot:
            return
        try:
            save_charts(path, [presenting.chart(chosen, cases, outcomes, f"{self._model}, {self._seeds} seeds")])
        except UserError as error:
            self._can_plot = False
            complain(f"no plots: {error}")

    def _text(self, chosen: Entry, outcomes: Outcomes, answer: dict[str, Any]) -> str:
        headings, rows = presenting.rows(chosen, outcomes)
        columns = [Column(heading, drop=max(0, index - 2), left=not index) for index, heading in enumerate(headings)]
        width = min(width_of(sys.stdout) or WIDTH, WIDTH)
        words = [f"{chosen.name}: {chosen.title}", f"Stated or asked: {chosen.statement}"]
        verdict = [f"Verdict: {answer['verdict']}", *(f"  {line}" for line in answer["findings"])]
        table = rendered(fitting(columns, rows, width), width_of(sys.stdout) and width)
        return "\n".join([*(broken(line, WIDTH) for line in words), table, *(broken(v, WIDTH) for v in verdict), ""])
