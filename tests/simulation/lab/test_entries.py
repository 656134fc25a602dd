"""Entries of the lab: their cases can be run, and their verdicts are what the rows say."""

from __future__ import annotations

import json
import random
from math import isinf, isnan
from typing import Any

import pytest

from protocol.errors import UserError
from simulation.lab import presenting
from simulation.lab.compression import compression
from simulation.lab.entries import ENTRIES, Scale, entry
from simulation.lab.entries.entry import Entry, Judge, value
from simulation.lab.entries.judging import (
    NOT_HERE,
    NOT_REPRODUCED,
    REPRODUCED,
    TOO_FEW,
    WITHIN_NOISE,
    Bound,
    Claim,
    Judged,
    best,
    best_for_bytes,
    judged,
)

ASKED = {
    "table3",
    "table6",
    "table7",
    "fig5",
    "fig6",
    "fig8",
    "fig10",
    "fig11",
    "fig12",
    "fig13",
    "fig17",
    "fig18",
    "random-subsets",
    "low-rank",
    "alpha",
    "alpha-annealed",
    "alpha-tau-lr",
    "outer-lr",
    "fragment-size",
    "sync-every",
    "adaptive",
    "shards-differ",
    "skips",
    "stress",
    "rounding",
    "block-size",
    "error-feedback",
    "results-bits",
    "token-weighting",
    "first-rounds",
}
QUICK, FULL = [Scale(18, 6, 2, layers, 8) for layers in (6, 4)], Scale(960, 20, 4, 6)


def losses(*values: float | None) -> list[dict[str, Any]]:
    return [{"loss": number} for number in values]


def test_every_question_has_its_entry() -> None:
    assert set(ENTRIES) >= ASKED
    with pytest.raises(UserError, match="fig99"):
        entry("fig99")


@pytest.mark.parametrize("name", ENTRIES)
def test_cases_can_be_made_at_any_size(name: str) -> None:
    for scale in (*QUICK, Scale(12, 4, 4, 6), FULL):
        cases = ENTRIES[name].cases(scale)
        assert cases and len({case.label for case in cases}) == len(cases)
        for case in cases:
            compression(case.recipe.up)
            compression(case.recipe.down)


def test_sync_every_reaches_a_thousand() -> None:
    chosen = ENTRIES["sync-every"]
    assert [case.x for case in chosen.cases(Scale(960 * chosen.longer, 20, 4, 6))][-1] == 1000


@pytest.mark.parametrize("name", [e.name for e in ENTRIES.values() if isinstance(e.judge, Judged)])
def test_claims_are_about_rows_that_exist(name: str) -> None:
    chosen = ENTRIES[name]
    assert isinstance(chosen.judge, Judged)
    labels = {case.label for case in chosen.cases(FULL)}
    assert {label for claim in chosen.judge.claims for label in claim.rows} <= labels
    outcome = {"loss": 1.0, "first": 1.0, "average": 1.0, "cosine": {"0": [[1, 0.5]], "1": [[1, 0.5]], "all": [[1, 0]]}}
    outcomes = {case.label: [outcome] * 3 for case in chosen.cases(FULL)}
    assert chosen.judge(outcomes).verdict in (WITHIN_NOISE, REPRODUCED)


def test_the_other_judges_look_for_the_best() -> None:
    others = {e.judge for e in ENTRIES.values() if not isinstance(e.judge, Judged)}
    assert others == {best, best_for_bytes}


def test_a_verdict_is_about_differences_seed_by_seed() -> None:
    claim = judged(Claim("a", "b"))
    apart = {"a": losses(1.0, 2.0, 3.0), "b": losses(1.1, 2.1, 3.1)}
    assert claim(apart).verdict == REPRODUCED  # though seeds differ by far more than the rows do
    assert claim({"a": apart["b"], "b": apart["a"]}).verdict == NOT_REPRODUCED
    assert claim({"a": losses(1.0, 1.1, 1.0), "b": losses(1.05, 1.0, 1.02)}).verdict == WITHIN_NOISE
    assert claim({"a": losses(1.0, 1.0), "b": losses(2.0, 2.0)}).verdict == TOO_FEW
    assert claim({"a": losses(1.0, 1.0, 1.0)}).verdict == NOT_HERE


def test_a_tolerance_is_a_share_of_the_other() -> None:
    near = {"a": losses(1.009, 1.008, 1.009), "b": losses(1.0, 1.0, 1.0)}
    assert judged(Claim("a", "b", within=0.01))(near).verdict == REPRODUCED
    assert judged(Claim("a", "b", within=0.001))(near).verdict == NOT_REPRODUCED


def test_one_failed_claim_is_enough() -> None:
    rows = {"a": losses(1.0, 1.0, 1.0), "b": losses(2.0, 2.0, 2.0)}
    assert judged(Claim("a", "b"), Claim("b", "a"))(rows).verdict == NOT_REPRODUCED


def test_a_run_that_diverged_has_lost() -> None:
    for b in (losses(1.0, None, 1.0), losses(None, 1.0, 1.0), losses(None, None, None)):
        rows = {"a": losses(1.0, 1.0, 1.0), "b": b}
        assert judged(Claim("b", "a"))(rows).verdict == NOT_REPRODUCED
    assert judged(Claim("a", "b"))(rows).verdict == REPRODUCED  # all three of b's diverged
    assert best(rows).verdict == "best: a"
    assert judged(Claim("a", "b", within=0.01))({"a": rows["b"], "b": rows["b"]}).verdict == WITHIN_NOISE


def test_divergence_decides_unless_the_other_seeds_say_the_contrary() -> None:
    rows = {"a": losses(1.0, 1.0, 1.01), "b": losses(None, None, 1.0)}
    assert judged(Claim("a", "b"))(rows).verdict == WITHIN_NOISE
    assert judged(Claim("a", "b"))({**rows, "b": losses(None, None, 1.02)}).verdict == REPRODUCED


def test_a_claim_without_its_rows_is_no_support() -> None:
    rows = {"a": losses(1.0, 1.0, 1.0), "b": losses(2.0, 2.0, 2.0)}
    assert judged(Claim("a", "b"), Claim("b", "c"))(rows).verdict == NOT_HERE
    assert judged(Claim("b", "a"), Claim("b", "c"))(rows).verdict == NOT_REPRODUCED


@pytest.mark.parametrize(
    "judge", [best, best_for_bytes, judged(*(Claim("0", str(n), within=0.0) for n in range(1, 12)))]
)
def test_equal_rows_are_seldom_told_apart(judge: Judge) -> None:
    """Twelve rows that differ by chance alone, three seeds: 400 draws from a fixed seed."""
    chances, told = random.Random(0), 0
    for _ in range(400):
        rows = {str(n): [{"loss": chances.gauss(2.0, 0.03), "bits_up": 1.0, "bits_down": 1.0} for _ in range(3)]
                for n in range(12)}  # fmt: skip
        finding = judge(rows)
        told += finding.verdict.startswith(("best", NOT_REPRODUCED))
    assert told <= 40


def test_noise_is_what_chance_does_to_a_mean_of_so_many() -> None:
    """One-sided, one in twenty: 2.92 standard errors of three seeds, 2.13 of five."""
    three = [-1.0, 0.0, -0.6]  # mean −0.533, standard error 0.291: 1.8 of them
    rows = {"a": losses(*(1 + gap for gap in three)), "b": losses(1.0, 1.0, 1.0)}
    assert judged(Claim("a", "b"))(rows).verdict == WITHIN_NOISE
    more = {"a": losses(*(1 + gap for gap in three * 3)), "b": losses(*[1.0] * 9)}
    assert judged(Claim("a", "b"))(more).verdict == REPRODUCED


def test_a_bound_is_a_number_that_is_given() -> None:
    rows = {"a": [{"cosine": {"all": [[0, cosine]]}} for cosine in (0.30, 0.31, 0.32)]}
    assert judged(Bound("a", "cosine all", 0.4))(rows).verdict == REPRODUCED
    assert judged(Bound("a", "cosine all", 0.1))(rows).verdict == NOT_REPRODUCED
    assert judged(Bound("a", "cosine 3", 0.1))(rows).verdict == NOT_HERE
    assert judged(Bound("a", "cosine all", 1.0, above=0.35))(rows).verdict == NOT_REPRODUCED
    assert judged(Bound("a", "cosine all", 0.4, above=0.2))(rows).verdict == REPRODUCED


def spent(bits: float, *values: float) -> list[dict[str, Any]]:
    return [{"loss": loss, "bits_up": bits, "bits_down": bits} for loss in values]


def test_of_bytes_only_what_is_as_cheap_can_win() -> None:
    rows = {
        "fp32": spent(32e6, 1.0, 1.0, 1.0),
        "four": spent(4e6, 1.1, 1.1, 1.1),
        "four, worse": spent(4.05e6, 1.2, 1.2, 1.2),
        "two": spent(2e6, 1.15, 1.15, 1.15),
    }
    finding = best_for_bytes(rows)
    assert finding.verdict == "a choice"
    assert finding.lines[0] == "not beaten by any as cheap: two (0.5 MB), four (1 MB), fp32 (8 MB)"
    assert finding.lines[1] == "beaten: four, worse by two"
    del rows["fp32"], rows["two"]
    assert best_for_bytes(rows).verdict == "best: four (1 MB)"


def test_early_is_after_a_quarter_of_the_run() -> None:
    outcome = {"train": [1.0] * 12, "outer": [[2, 5.0], [4, 4.0], [12, 1.0]]}
    assert value(outcome, "early") == 4.0


def test_the_best_row_and_what_it_does_not_beat() -> None:
    rows = {"a": losses(1.0, 1.1, 1.2), "b": losses(1.0, 1.1, 1.21), "c": losses(2.0, 2.1, 2.2)}
    finding = best(rows)
    assert finding.verdict == WITHIN_NOISE and finding.lines == ("lowest: a", "not beaten beyond noise: b")
    assert best({"a": rows["a"], "c": rows["c"]}).verdict == "best: a"
    assert best({"a": losses(1.0)}).verdict == TOO_FEW
    assert best({"a": rows["a"]}).verdict == NOT_HERE


def test_cosines_of_an_outcome() -> None:
    points = [[step, step / 10] for step in range(8)]
    outcome = {"cosine": {"0": [[0, 0.9]], "1": [[0, 0.2]], "2": [[0, 0.4]], "embedding": [[0, 1.0]], "all": points}}
    assert value(outcome, "cosine start") == pytest.approx(0.05)
    assert value(outcome, "cosine end") == pytest.approx(0.65)
    assert value(outcome, "cosine others") == pytest.approx(0.3)
    assert value(outcome, "cosine 0") == 0.9


def test_a_loss_above_the_first_step_is_divergence() -> None:
    outcome = {"loss": 9.5, "first": 3.0, "train": [5.6, 4.0], "bits_up": 100.0}
    assert isinf(value(outcome, "loss")) and value(outcome, "first") == 3.0 and value(outcome, "bits_up") == 100.0


def test_norms_of_an_outcome() -> None:
    """[step, fragment, mean ‖Δ‖, ‖Δ̄‖] of each window; None where a run had diverged."""
    outcome = {"norms": [[10, 0, 4.0, 2.0], [15, 1, 8.0, 2.0], [20, 0, 2.0, 2.0], [25, 0, None, None]]}
    assert value(outcome, "norm 0") == 3.0 and value(outcome, "norm 1") == 8.0
    assert value(outcome, "norm ratio") == pytest.approx((0.5 + 0.25 + 1.0) / 3)
    assert isnan(value(outcome, "norm 2"))


def test_rows_json_and_chart_of_an_answer() -> None:
    chosen = ENTRIES["fig8"]
    cases = chosen.cases(FULL)
    outcomes = {case.label: losses(1.0, 1.2, 1.4) for case in cases}
    headings, rows = presenting.rows(chosen, outcomes)
    assert headings == ["", "loss", "±"] and rows[0] == ["τ=0 α=0", "1.2000", "0.2000"]
    answer = json.loads(json.dumps(presenting.as_json(chosen, cases, outcomes), allow_nan=False))
    assert answer["verdict"] == REPRODUCED and answer["rows"][0]["numbers"]["loss"]["mean"] == pytest.approx(1.2)
    chart = presenting.chart(chosen, cases, outcomes, "note")
    assert [series.label for series in chart.series] == ["α=0", "α=0.5"]
    assert chart.series[0].xs == [0.0, 1.0, 2.0, 5.0, 10.0]


def test_an_answer_as_markdown() -> None:
    chosen = Entry("an-entry", "A title", "A statement.", lambda _: [], best, columns=("loss", "bits_up"))
    rows = {"one": [{"loss": 1.5, "bits_up": 8e6}], "two": [{"loss": None, "bits_up": 16e6}]}
    page = presenting.markdown(chosen, rows, presenting.as_json(chosen, [], rows))
    assert page.splitlines() == [
        "## `an-entry`: A title",
        "",
        "A statement. **Too few seeds.**",
        "",
        "|  | loss | ± | MB sent |",
        "| --- | --- | --- | --- |",
        "| one | 1.5000 |  | 1 |",
        "| two | diverged |  | 2 |",
        "",
        "- lowest: one",
    ]


def test_a_chart_over_the_run_has_a_curve_for_each_row() -> None:
    chosen: Entry = ENTRIES["stress"]
    outcomes = {"a": [{"outer": [[3, 2.0], [6, 1.0]]}, {"outer": [[3, 4.0], [6, None]]}]}
    chart = presenting.chart(chosen, [], outcomes, "")
    assert [(s.label, list(s.xs), list(s.ys)) for s in chart.series] == [("a", [3], [3.0])]
