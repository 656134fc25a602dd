"""`potluck lab`: its flags, what it leaves behind, how it goes on after a stop, and whether it agrees with a swarm."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch

from peer.cli import run
from peer.commands import lab_running
from peer.commands.lab_results import Planned, Results
from peer.commands.lab_workload import SMALL, TextWorkload
from peer.data import Corpus, split
from peer.manifest_file import read_manifest
from peer.training import InnerConfig
from protocol.manifest import changed
from protocol.manifest_toml import dumps
from simulation.json_numbers import finite_throughout
from simulation.lab import presenting
from simulation.lab.engine import Run
from simulation.lab.entries import entry
from simulation.lab.entries.judging import best
from simulation.lab.history import History
from simulation.lab.methods import method
from simulation.lab.recipe import Recipe

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """One, as the command sets it: several threads of a tiny model wait for each other where others need the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def text() -> Corpus:
    return split("abc", bytes(range(97, 123)) * 400)


def workload() -> TextWorkload:
    return TextWorkload(
        model=SMALL,
        corpus=text(),
        sequence=32,
        inner=lambda steps: InnerConfig(total_steps=steps, lr=5e-3, warmup_steps=2),
        device=torch.device("cpu"),
        evaluation_tokens=256,
    )


def test_list_names_every_entry(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lab", "list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("table3", "fig18", "error-feedback", "stress"))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["fig99"], "fig99"),
        (["fig8", "--model", "huge"], "--model"),
        (["fig8", "--steps", "3"], "--steps"),
        (["fig8", "--seeds", "0"], "--seeds"),
        (["fig8", "--jobs", "0"], "--jobs"),
        (["fig8", "--outer", "0.4"], "--outer"),
        (["fig8", "--outer", "0.4,1"], "--outer"),
        (["fig8", "--outer", "nan,0"], "--outer"),
        (["fig8", "--peers", "3"], "--peers"),
        (["swarm"], "--manifest"),
        (["swarm", "--seeds", "2"], "--seeds"),
        (["list", "--quick"], "--quick"),
    ],
)
def test_mistakes_are_named(flags: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = [] if flags[0] in ("swarm", "list") else ["--out", str(tmp_path)]
    assert run(["lab", *flags, *out]) == 2
    captured = capsys.readouterr()
    assert words in captured.err and len(captured.err.splitlines()) == 1


def test_training_learns_and_all_layers_move() -> None:
    made = Run(Recipe(steps=16, sync_every=5, batch=2), workload(), 0)
    before = [made.exchange.outer(fragment).clone() for fragment in range(2)] if made.exchange else []
    history = made.run()
    assert history.train[-1] < history.train[0] - 0.5
    assert all(not torch.equal(old, new) for old, new in zip(before, made.outer(), strict=True))
    assert set(history.cosine) == {"embedding", "final_norm", "all", *map(str, range(6))}
    assert len(history.digest) == 64


def test_data_parallel_is_one_model_on_all_batches() -> None:
    """The mean gradient of equal batches is the gradient of them all."""
    both = Run(method("data-parallel", Recipe(steps=3, batch=2)), workload(), 0)
    both.run()
    replicas = [workload().trainee(Recipe(steps=3, batch=2, fragments=1), 0, (seat,)) for seat in (0, 1)]
    models = [replica._model for replica in replicas]
    optimizer = replicas[0]._optimizer
    for step in range(3):
        for replica in replicas:
            replica._model.zero_grad()
            replica._model.loss(replica._batches[0].at(step)).backward()
        for mine, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
            assert mine.grad is not None and other.grad is not None
            mine.grad.add_(other.grad).div_(2)
        torch.nn.utils.clip_grad_norm_(models[0].parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * min(1.0, (step + 1) / 2) if step < 2 else 5e-3
        optimizer.step()
        models[1].load_state_dict(models[0].state_dict())
    wanted = dict(models[0].named_parameters())
    for name, parameter in both._replicas[0].trainee._model.named_parameters():  # type: ignore[attr-defined]
        # Not the greatest difference: Adam makes a whole step of a gradient that is nothing but rounding.
        assert float((parameter - wanted[name]).detach().abs().mean()) < 1e-5, name


def test_replicas_with_their_own_part_read_nothing_else() -> None:
    half = text().train.numel() // 2
    shared, own = (Recipe(shards=how, batch=4) for how in ("shared", "own"))
    trainees = [workload().trainee(own, 0, (seat,)) for seat in (0, 1)]
    assert [len(trainee._batches[0]._text) for trainee in trainees] == [half, half]
    assert len(workload().trainee(shared, 0, (1,))._batches[0]._text) == text().train.numel()


def test_sizes_are_runs_of_layers_in_order_of_depth() -> None:
    layout = workload().layout(Recipe(sizes=(1, 5)))
    assert "embedding.weight" in layout.fragments[0].names and "blocks.0.mlp_in.weight" in layout.fragments[0].names
    assert {name.split(".")[1] for name in layout.fragments[1].names} == {"1", "2", "3", "4", "5"}


def test_results_are_found_again_by_what_was_run(tmp_path: Path) -> None:
    results, planned = Results(tmp_path, {"model": "small"}), Planned(Recipe(), 0, 12)
    assert results.find(planned) is None
    kept = results.keep(planned, History(loss=float("nan"), train=[1.0, float("inf")], outer=[(1, 2.0)]))
    assert kept["loss"] is None and kept["train"] == [1.0, None] and kept["outer"] == [[1, 2.0]]
    assert results.find(planned) == kept and results.find(replace(planned, seed=1)) is None
    assert results.find(replace(planned, evaluations=48)) is None  # another curve
    assert Results(tmp_path, {"model": "tiny"}).find(planned) is None
    (path,) = (tmp_path / "results").iterdir()
    path.write_text(path.read_text()[:40])
    assert results.find(planned) is None


@pytest.mark.parametrize(
    "history",
    [
        {},
        [],
        {**asdict(History()), "loss": "x"},
        {**asdict(History()), "cosine": []},
        {**asdict(History()), "cosine": {"all": 5}},
        {**asdict(History()), "outer": 5},
        {**asdict(History()), "outer": [[1]]},
        {**asdict(History()), "norms": [[1, 2, 3]]},
        {**asdict(History()), "train": ["1"]},
        {**asdict(History()), "more": 1},
        {name: number for name, number in asdict(History()).items() if name != "first"},
    ],
)
def test_a_file_that_is_no_result_is_none(tmp_path: Path, history: object) -> None:
    results, planned = Results(tmp_path, {}), Planned(Recipe(), 0, 12)
    results.keep(planned, History())
    (path,) = (tmp_path / "results").iterdir()
    stored = json.loads(path.read_text())
    assert results.find(planned) is not None
    path.write_text(json.dumps({**stored, "history": history}))
    assert results.find(planned) is None
    path.write_text("[" * 100_000)
    assert results.find(planned) is None


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("fig5", "--seed", "0"), "--seed: is for"),
        (("fig5", "--peers", "0"), "--peers: is for"),
        (("list", "--steps", "5"), "--steps: is for"),
        (("swarm", "--manifest", "x.toml", "--seeds", "0"), "--seeds: is for"),
        (("swarm", "--manifest", "x.toml", "--model", "tiny"), "--model: is for"),
    ],
)
def test_a_flag_of_another_form_is_refused(capsys: pytest.CaptureFixture[str], flags: tuple[str], words: str) -> None:
    assert run(["lab", *flags]) == 2
    assert words in capsys.readouterr().err


def test_an_answer_survives_a_plot_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "table3" / "plot.svg").mkdir(parents=True)
    assert run(["lab", "table3", *QUICK, "--steps", "12", "--out", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert "no plots: --plot" in captured.err and "Verdict" in captured.out


QUICK = ("--quick", "--data", "stdlib", "--jobs", "1")


def test_an_entry_leaves_its_answer_and_is_not_run_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["lab", "table3", *QUICK, "--steps", "12", "--out", str(tmp_path)]
    assert run(command) == 0
    captured = capsys.readouterr()
    assert "Verdict: too few seeds" in captured.out and "outer parameters" in captured.out.lower()
    assert max(map(len, captured.out.splitlines())) <= 80
    assert "Runs: 1, done before: 0;" in captured.err
    answer = json.loads((tmp_path / "table3" / "result.json").read_text())
    assert (tmp_path / "table3" / "table.md").read_text().startswith("## `table3`: ")
    assert answer["verdict"] == "too few seeds" and answer["seeds"] == 1 and len(answer["rows"]) == 1

    def no_run(*_: object, **__: object) -> None:
        raise AssertionError("it was there")

    monkeypatch.setattr(lab_running, "Run", no_run)
    assert run([*command, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["entries"] == [answer] and "Runs" not in captured.err


def test_a_stopped_lab_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the second of two seeds: the first stays done."""
    keep, kept = Results.keep, []

    def interrupted(self: Results, planned: Planned, history: History) -> dict[str, Any]:
        if kept:
            raise KeyboardInterrupt
        kept.append(planned)
        return keep(self, planned, history)

    command = ["lab", "table3", *QUICK, "--steps", "12", "--seeds", "2", "--out", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(Results, "keep", interrupted)
        assert run(command) == 130
    assert "goes on from here" in capsys.readouterr().err
    assert run(command) == 0
    assert "Runs: 2, done before: 1;" in capsys.readouterr().err


def test_the_outer_numbers_of_the_usual_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["lab", "table3", *QUICK, "--steps", "12", "--json", "--outer", "1,0", "--out", str(tmp_path)]
    assert run(command) == 0
    (answer,) = json.loads(capsys.readouterr().out)["entries"]
    recipe = answer["rows"][0]["recipe"]
    assert (recipe["outer_lr"], recipe["outer_momentum"]) == (1.0, 0.0) and answer["outer"] == [1.0, 0.0]


def test_two_processes_give_what_one_gives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for jobs in ("1", "2"):
        flags = ["--steps", "12", "--seeds", "2", "--out", str(tmp_path / jobs), "--jobs", jobs, "--json"]
        assert run(["lab", "fig17", *QUICK[:3], *flags]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[1]
    assert len(answers[0]["entries"][0]["rows"][0]["numbers"]["loss"]["seeds"]) == 2


def test_a_run_that_diverges_is_a_row_that_says_so() -> None:
    """Δ grows until no codec takes it; the run ends all the same, and the others of its entry are shown."""
    wild = Run(Recipe(steps=18, sync_every=5, batch=2, outer_lr=1e30), workload(), 0).run()
    calm = Run(Recipe(steps=18, sync_every=5, batch=2), workload(), 0).run()
    outcomes = {
        name: [json.loads(json.dumps(finite_throughout(asdict(history))))]
        for name, history in (("wild", wild), ("calm", calm))
    }
    assert not isfinite(wild.loss) and isfinite(calm.loss)
    for chosen in ("outer-lr", "fig17"):
        _, cells = presenting.rows(entry(chosen), outcomes)
        assert [row[1] == "diverged" for row in cells] == [True, False]
    assert best(outcomes).lines[0] == "lowest: calm"


def test_a_manifest_in_the_lab(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A few steps of it: which digest it is, a real swarm says (below)."""
    path = tmp_path / "run.toml"
    assert run(["init", "--preset", "demo", "--model", "tiny", "--out", str(path)]) == 0
    path.write_text(path.read_text().replace("steps = 200", "steps = 3").replace("start_peers = 4", "start_peers = 1"))
    capsys.readouterr()
    assert run(["lab", "swarm", "--manifest", str(path), "--data", "stdlib", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["peers"] == 1 and len(answer["outer_digest"]) == 64
    sealed = changed(read_manifest(path), {"data.validation": "0" * 64})
    path.write_text(dumps(sealed))
    assert run(["lab", "swarm", "--manifest", str(path), "--data", "stdlib"]) == 2
    assert "is not the run's" in capsys.readouterr().err


@pytest.mark.parametrize(("seconds", "words"), [(0.2, "1 s"), (75, "75 s"), (600, "10 min"), (12_000, "3 h 20 min")])
def test_durations_for_people(seconds: float, words: str) -> None:
    assert lab_running.duration(seconds) == words


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_lab_and_the_network_agree_to_the_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same manifest, seed and data by three real peers in lock-step and by the lab: equal outer parameters."""
    out = tmp_path / "swarm"
    flags = ["--peers", "3", "--steps", "18", "--sync-every", "6", "--overlap", "2", "--seed", "3", "--data", "stdlib"]
    command = [sys.executable, "-m", "peer.cli", "swarm", *flags, "--lockstep", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((out / "report.json").read_text())
    digests = {peer["outer_digest"] for peer in report["peers"]}
    manifest = ["--manifest", str(out / "manifest.toml"), "--peers", "3", "--data", "stdlib"]
    assert run(["lab", "swarm", *manifest, "--json"]) == 0
    assert digests == {json.loads(capsys.readouterr().out)["outer_digest"]}
    assert run(["lab", "swarm", *manifest, "--json", "--seed", "4"]) == 0
    assert digests != {json.loads(capsys.readouterr().out)["outer_digest"]}
