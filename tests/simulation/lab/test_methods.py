"""Every method of the lab against a case computed by hand, or a straight line of plain arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from protocol.errors import UserError
from protocol.schedule import Window
from simulation.lab.descent import Descent, walked
from simulation.lab.engine import Run
from simulation.lab.methods import METHODS, method
from simulation.lab.methods.delayed import Delayed
from simulation.lab.methods.exchange import Contribution, Setting
from simulation.lab.methods.noloco import Pairs
from simulation.lab.methods.subsets import Subsets
from simulation.lab.recipe import Away, Recipe

EXACT: dict[str, Any] = {"up": "none", "down": "none"}
WHOLE: dict[str, Any] = {**EXACT, "fragments": 1, "overlap": (0,), "mixing": (0.0,)}


def run(recipe: Recipe) -> Run:
    made = Run(recipe, Descent(), 0)
    made.run()
    return made


def outer(made: Run, fragment: int = 0) -> float:
    """All values of a fragment are the same number here."""
    values = made.outer()[fragment]
    assert torch.equal(values, values[0].expand_as(values))
    return float(values[0])


def test_data_parallel_takes_the_mean_gradient_at_every_step() -> None:
    made = run(method("data-parallel", Recipe(replicas=3, steps=7)))
    assert outer(made) == pytest.approx(walked(0.0, 2.0, 7))  # the mean of the points 1, 2 and 3
    assert made.history.bits_up == 7 * 32 * 32
    alone = run(method("data-parallel", Recipe(replicas=1, steps=7)))
    assert outer(alone) == pytest.approx(walked(0.0, 1.0, 7)) and alone.history.bits_up == 0


@pytest.mark.parametrize("name", ["fedavg", "local-sgd"])
def test_fedavg_is_the_mean_of_the_replicas(name: str) -> None:
    expected = 0.0
    for _ in range(3):
        expected = (walked(expected, 1.0, 4) + walked(expected, 2.0, 4)) / 2
    assert outer(run(method(name, Recipe(steps=12, sync_every=4)))) == pytest.approx(expected)


def test_fedavg_weighs_by_tokens() -> None:
    recipe = method("fedavg", Recipe(steps=4, sync_every=4, speeds=(1.0, 0.5), batch=3))
    expected = (4 * walked(0.0, 1.0, 4) + 2 * walked(0.0, 2.0, 2)) / 6
    assert outer(run(recipe)) == pytest.approx(expected)
    equal = (walked(0.0, 1.0, 4) + walked(0.0, 2.0, 2)) / 2
    assert outer(run(replace(recipe, weighting="equal"))) == pytest.approx(equal)


def test_fedopt_sgd_goes_a_part_of_the_way() -> None:
    mean = (walked(0.0, 1.0, 4) + walked(0.0, 2.0, 4)) / 2
    assert outer(run(method("fedopt-sgd", Recipe(steps=4, sync_every=4)))) == pytest.approx(0.7 * mean)


def test_fedopt_adam_by_hand() -> None:
    delta = -(walked(0.0, 1.0, 4) + walked(0.0, 2.0, 4)) / 2
    first, second = 0.1 * delta, 0.01 * delta**2
    expected = -0.01 * first / (second**0.5 + 1e-3)
    assert outer(run(method("fedopt-adam", Recipe(steps=4, sync_every=4)))) == pytest.approx(expected, rel=1e-5)


def test_diloco_is_nesterov_on_the_mean() -> None:
    anchor = velocity = 0.0
    for _ in range(4):
        mean = anchor - (walked(anchor, 1.0, 5) + walked(anchor, 2.0, 5)) / 2
        velocity = 0.9 * velocity + mean
        anchor -= 0.4 * (mean + 0.9 * velocity)
    assert outer(run(method("diloco", Recipe(steps=20, sync_every=5)))) == pytest.approx(anchor, rel=1e-5)


def streaming(recipe: Recipe, points: tuple[float, ...]) -> tuple[list[float], list[list[float]]]:
    """A straight line of Algorithm 2 without compression: anchors by fragment, replicas' parameters by fragment."""
    count, h = recipe.fragments, recipe.sync_every
    theta = [[0.0] * count for _ in points]
    anchors, velocities = [0.0] * count, [0.0] * count
    sent: dict[tuple[int, int], list[float]] = {}
    new: dict[tuple[int, int], float] = {}
    for step in range(1, recipe.steps + 1):
        theta = [[walked(value, point, 1) for value in values] for values, point in zip(theta, points, strict=True)]
        for p in range(count):
            offset = p * h // count

            def due(at: int, offset: int = offset) -> bool:
                return at - offset >= h and (at - offset) % h == 0 and at + max(recipe.overlap) <= recipe.steps

            if due(step):
                sent[p, step] = [anchors[p] - values[p] for values in theta]
            for m in sorted(range(len(points)), key=recipe.overlap_of):
                opened = step - recipe.overlap_of(m)
                if due(opened):
                    if (p, opened) not in new:
                        mean = sum(sent[p, opened]) / len(points)
                        velocities[p] = recipe.outer_momentum * velocities[p] + mean
                        anchors[p] -= recipe.outer_lr * (mean + recipe.outer_momentum * velocities[p])
                        new[p, opened] = anchors[p]
                    alpha = recipe.mixing[0]
                    theta[m][p] = alpha * theta[m][p] + (1 - alpha) * new[p, opened]
    return anchors, theta


@pytest.mark.parametrize("alpha", [0.0, 0.5])
@pytest.mark.parametrize("overlap", [(0,), (1,), (3,), (1, 4)])
@pytest.mark.parametrize("fragments", [1, 2])
def test_streaming_is_algorithm_2(fragments: int, overlap: tuple[int, ...], alpha: float) -> None:
    recipe = Recipe(steps=23, sync_every=6, fragments=fragments, overlap=overlap, mixing=(alpha,), **EXACT)
    made = run(recipe)
    anchors, theta = streaming(recipe, (1.0, 2.0))
    for fragment in range(fragments):
        assert outer(made, fragment) == pytest.approx(anchors[fragment], rel=1e-4)
        for replica in range(2):
            local = float(made._replicas[replica].trainee.read(fragment)[0])
            assert local == pytest.approx(theta[replica][fragment], rel=1e-4)


def test_alpha_goes_along_a_line_and_one_is_nothing() -> None:
    recipe = Recipe(steps=10, mixing=(1.0, 0.5))
    assert [recipe.alpha(step) for step in (0, 5, 10)] == pytest.approx([1.0, 0.75, 0.5])
    alone = run(Recipe(steps=12, sync_every=4, mixing=(1.0,), **EXACT))
    assert float(alone._replicas[0].trainee.read(0)[0]) == pytest.approx(walked(0.0, 1.0, 12))


def test_fedpart_trains_only_what_is_due_next() -> None:
    """Fragment 0 is due at 4, 8, …, fragment 1 at 6, 10, …: 0 trains in steps 1 to 4, 1 in 5 and 6, 0 in 7 and 8."""
    recipe = method("fedpart", Recipe(steps=6, sync_every=4, replicas=1, overlap=(0,), mixing=(0.0,), **EXACT))
    made = run(replace(recipe, outer_lr=1.0, outer_momentum=0.0))
    assert outer(made, 0) == pytest.approx(walked(0.0, 1.0, 4))
    assert outer(made, 1) == pytest.approx(walked(0.0, 1.0, 2))


def received(window: Window, mean: torch.Tensor, receivers: int) -> torch.Tensor:
    return mean


def setting(recipe: Recipe, *, initial: float = 0.0) -> Setting:
    layout = Descent().layout(recipe)
    chunks = layout.chunks(256)
    return Setting(recipe, [torch.full((32,), initial)], [list(chunks)], received, lambda *_: None, 0)


def contribution(delta: float, tokens: int = 1) -> Contribution:
    values = torch.full((32,), delta)
    return Contribution((tokens,), tokens, values, values, (True,))


def met_by_hand(a: int, b: int, deltas: Sequence[float], anchors: list[float], velocities: list[float]) -> float:
    """The velocity of replica a after it met b."""
    mean, middle = (deltas[a] + deltas[b]) / 2, (anchors[a] + anchors[b]) / 2
    return 0.5 * velocities[a] + 0.7 * mean + 0.25 * (anchors[a] - middle)


def test_noloco_pairs_pull_their_anchors_together() -> None:
    recipe = Recipe(replicas=4, exchange="pairs", outer_lr=0.7, outer_momentum=0.5, pull=0.25, fragments=1)
    pairs = Pairs(setting(recipe))
    anchors, velocities = [0.0] * 4, [0.0] * 4
    for deltas in ((1.0, 2.0, 3.0, 4.0), (-1.0, 0.0, 2.0, 5.0)):
        pairs.close(Window(0, 1), {m: contribution(delta) for m, delta in enumerate(deltas)})
        found = [float(pairs.base(m, 0)[0]) for m in range(4)]
        met = {
            (a, b): velocity
            for a in range(4)
            for b in range(4)
            if a != b
            and anchors[a] - (velocity := met_by_hand(a, b, deltas, anchors, velocities)) == pytest.approx(found[a])
        }
        assert len(met) == 4 and all((b, a) in met for a, b in met)  # everyone met one other
        velocities, anchors = [velocity for _, velocity in sorted(met.items())], found
    assert float(pairs.outer(0)[0]) == pytest.approx(sum(anchors) / 4)


def test_delayed_nesterov_by_hand() -> None:
    """Two replicas, the second at half speed: the fast one's contribution comes first, momentum after both."""
    recipe = Recipe(steps=8, sync_every=4, exchange="arrivals", speeds=(1.0, 0.5), **WHOLE)
    anchor = velocity = 0.0
    pulled = [0.0, 0.0]
    for _ in range(2):
        deltas = [pulled[0] - walked(pulled[0], 1.0, 4), pulled[1] - walked(pulled[1], 2.0, 2)]
        anchor -= 0.4 * deltas[0] / 2
        pulled[0] = anchor
        velocity = 0.9 * velocity + (deltas[0] + deltas[1]) / 2
        anchor -= 0.4 * deltas[1] / 2 + 0.4 * 0.9 * velocity
        pulled[1] = anchor
    assert outer(run(recipe)) == pytest.approx(anchor, rel=1e-5)


def late_by_hand(rounds: int, steps: int, *, eager: bool, weights: tuple[float, float] = (0.5, 0.5)) -> list[float]:
    """The anchors of two replicas after rounds of training and as many outer steps, and the one that settles it."""
    points, anchors, velocities, before = (1.0, 2.0), [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
    for round_ in range(rounds + 1):
        trained = round_ < rounds
        now = [a - walked(a, point, steps) if trained else 0.0 for a, point in zip(anchors, points, strict=True)]
        mean = sum(w * delta for w, delta in zip(weights, before, strict=True))
        for m in range(2):
            step = mean + (weights[m] * (now[m] - before[m]) if eager else 0.0)
            velocities[m] = 0.9 * velocities[m] + step
            anchors[m] -= 0.4 * (step + 0.9 * velocities[m])
        before = now
    return anchors


@pytest.mark.parametrize("eager", [False, True])
def test_results_a_round_late_by_hand(eager: bool) -> None:
    recipe = method("eager" if eager else "delayed", Recipe(steps=20, sync_every=5, settle=True))
    made = run(recipe)
    anchors = late_by_hand(4, 5, eager=eager)
    assert outer(made) == pytest.approx(sum(anchors) / 2, rel=1e-5)
    assert (anchors[0] == pytest.approx(anchors[1])) != eager  # eager replicas know more of themselves
    for m in range(2):
        assert float(made._replicas[m].trainee.read(0)[0]) == pytest.approx(anchors[m], rel=1e-5)


@pytest.mark.parametrize("name", ["delayed", "eager"])
def test_no_step_is_lost_where_results_come_late(name: str) -> None:
    """Short steps far from the goal: what all have trained adds up, as if nothing had been late."""
    recipe = replace(method(name, Recipe(steps=40, sync_every=4, settle=True)), outer_lr=1.0, outer_momentum=0.0)
    at_once = outer(run(replace(recipe, exchange="agreed")))
    assert outer(run(recipe)) > 0.9 * at_once


def test_an_eager_replica_that_missed_a_round_takes_the_others() -> None:
    """Of window 2 the first was not there: it applies the mean of window 1 without its own share of it."""
    chosen = replace(Recipe(exchange="eager", fragments=1), outer_lr=1.0, outer_momentum=0.0)
    exchange = Delayed(setting(chosen), eager=True)
    exchange.close(Window(0, 1), {0: contribution(1.0), 1: contribution(3.0)})
    assert [float(exchange.base(m, 0)[0]) for m in range(2)] == [-0.5, -1.5]
    exchange.close(Window(0, 2), {1: contribution(5.0)})
    assert [float(exchange.base(m, 0)[0]) for m in range(2)] == [-0.5 - 1.5, -1.5 - 0.5 - 5.0]


@pytest.mark.parametrize("shuffle", [False, True])
def test_subsets_move_only_their_share(shuffle: bool) -> None:
    recipe = Recipe(replicas=3, share=0.5, fragments=1, mixing=(0.0,))
    subsets = Subsets(setting(recipe), shuffle=shuffle)
    locals_ = [torch.full((32,), float(m)) for m in range(3)]
    subsets.close(Window(0, 1), {m: contribution(-float(m)) for m in range(3)})
    targets = torch.stack([subsets.target(m, 0, locals_[m]) for m in range(3)])
    moved = (targets != torch.stack(locals_)).any(dim=0)
    assert 4 < int(moved.sum()) < 28
    assert torch.allclose(targets.mean(dim=0), torch.ones(32))  # neither changes the mean
    if shuffle:
        assert torch.equal(targets.sort(dim=0).values, torch.stack(locals_))
    else:
        assert torch.allclose(targets[:, moved], torch.ones(3, int(moved.sum())))
    assert torch.allclose(subsets.outer(0), torch.ones(32))


def test_sparta_with_everything_is_fedavg_at_every_step() -> None:
    both = [replace(method(name, Recipe(steps=6)), sync_every=1, share=1.0) for name in ("sparta", "fedavg")]
    sparta, fedavg = map(run, both)
    assert outer(sparta) == pytest.approx(outer(fedavg))
    assert sparta.history.bits_up == fedavg.history.bits_up


def test_a_rate_for_each_fragment_and_a_momentum_that_grows() -> None:
    recipe = Recipe(steps=8, sync_every=4, overlap=(0,), mixing=(0.0,), replicas=1, outer_lr=0.5, **EXACT)
    made = run(replace(recipe, outer_momentum=0.0, steps=6, lr_of_fragment=(1.0, 2.0)))
    assert outer(made, 0) == pytest.approx(0.5 * walked(0.0, 1.0, 4))
    assert outer(made, 1) == pytest.approx(1.0 * walked(0.0, 1.0, 6))
    grown = run(replace(recipe, fragments=1, momentum_rounds=2))
    first = 0.5 * walked(0.0, 1.0, 4)  # momentum 0 in the first round, 0.45 in the second
    delta = first - walked(first, 1.0, 4)
    velocity = 0.45 * -2 * first + delta
    assert outer(grown) == pytest.approx(first - 0.5 * (delta + 0.45 * velocity))


def test_short_rounds_first() -> None:
    made = run(Recipe(steps=24, sync_every=8, fragments=1, overlap=(1,), short_steps=9, short_sync_every=2, **EXACT))
    assert [due for due, *_ in made.history.norms] == [2, 4, 6, 8, 16]


def test_what_is_lost_is_not_in_the_mean() -> None:
    nothing = run(Recipe(steps=12, sync_every=4, drop=1.0, **EXACT))
    assert outer(nothing) == 0.0 and float(nothing._replicas[0].trainee.read(0)[0]) == pytest.approx(walked(0, 1, 12))
    skipped = run(Recipe(steps=12, sync_every=4, skip=1.0, **EXACT))
    assert float(skipped._replicas[0].trainee.read(0)[0]) == pytest.approx(walked(0, 1, 12))
    assert outer(skipped) > 0.5  # anchors move all the same


def test_half_of_the_contributions_are_lost() -> None:
    made = Run(Recipe(replicas=32, steps=5, sync_every=4, drop=0.5, fragments=1, **EXACT), Descent(), 0)
    for _ in range(4):
        made.advance()
    (flight,) = made._flights
    assert 4 < sum(contribution.arrived == (True,) for contribution in flight.sent.values()) < 28


def test_a_replica_that_is_away() -> None:
    base = Recipe(steps=8, sync_every=4, **WHOLE, outer_lr=1.0, outer_momentum=0.0)
    cut_off = run(replace(base, away=(Away(1, 3, 5),)))
    first = walked(0.0, 1.0, 4)  # the first window is replica 0's alone
    both = [walked(first, 1.0, 4), walked(0.0, 2.0, 8)]
    assert outer(cut_off) == pytest.approx((both[0] + 2 * both[1]) / 3)  # with the tokens of eight steps against four
    dead = run(replace(base, away=(Away(1, 1, 8, trains=False),)))
    assert outer(dead) == pytest.approx(walked(0.0, 1.0, 8))
    assert dead.history.steps_taken == [8, 0]


def test_speeds_count_steps() -> None:
    made = run(Recipe(replicas=4, steps=20, speeds=(1.0, 0.5, 0.25, 0.1), **EXACT))
    assert made.history.steps_taken == [20, 10, 5, 2]


@pytest.mark.parametrize("replicas", [1, 2, 32])
def test_any_number_of_replicas(replicas: int) -> None:
    made = run(method("fedavg", Recipe(replicas=replicas, steps=4, sync_every=4)))
    assert outer(made) == pytest.approx(walked(0.0, (1 + replicas) / 2, 4), rel=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_twice_alike(name: str) -> None:
    recipe = method(name, Recipe(replicas=3, steps=12, sync_every=5, settle=True))
    first, second = (run(recipe).history for _ in range(2))
    assert first == second and len(first.train) == 12


def test_bits_are_counted_with_their_peak() -> None:
    history = run(Recipe(steps=11, sync_every=4, **EXACT)).history
    assert history.bits_up == history.bits_down == 4 * 16 * 32  # due at 4, 6, 8, 10
    assert history.peak_bits == 16 * 32


def test_only_who_gets_a_result_counts_its_bits() -> None:
    """One window at step 4 of 32 values: pairs get one mean and an anchor each, arrivals go back to their sender."""
    recipe = Recipe(replicas=4, steps=4, sync_every=4, **WHOLE)
    pairs = run(replace(recipe, exchange="pairs")).history
    assert pairs.bits_up == pairs.bits_down == 2 * 32 * 32
    arrivals = run(replace(recipe, exchange="arrivals")).history
    assert arrivals.bits_up == arrivals.bits_down == 32 * 32
    left_over = run(replace(recipe, exchange="pairs", replicas=3)).history
    assert left_over.bits_down == pytest.approx((1 + 2 / 3) * 32 * 32)


def test_a_run_that_settles_ends_with_what_all_have_trained() -> None:
    """Windows at 4 and 8 of 10 steps: two steps are left, and after a window at the very end none are."""
    recipe = Recipe(steps=10, sync_every=4, outer_lr=1.0, outer_momentum=0.0, settle=True, **WHOLE)
    trained = 0.0
    for steps in (4, 4, 2):
        trained = (walked(trained, 1.0, steps) + walked(trained, 2.0, steps)) / 2
    made = run(recipe)
    assert outer(made) == pytest.approx(trained) and made.history.bits_up == 3 * 32 * 32
    assert outer(run(replace(recipe, settle=False))) != pytest.approx(trained)
    assert run(replace(recipe, steps=8)).history.bits_up == 2 * 32 * 32


def test_what_was_lost_weighs_in_the_next_contribution() -> None:
    """Of two replicas the second's first contribution is lost: in the second window it stands for twice the tokens."""

    class Chances:
        def __init__(self) -> None:
            self.left = [0.1, 0.9, 0.1, 0.1]

        def random(self) -> float:
            return self.left.pop(0)

    recipe = replace(method("fedavg", Recipe(steps=8, sync_every=4)), drop=0.5)
    made = Run(recipe, Descent(), 0)
    made._chance = Chances()  # type: ignore[assignment]
    made.run()
    first = walked(0.0, 1.0, 4)
    assert outer(made) == pytest.approx((walked(first, 1.0, 4) + 2 * walked(first, 2.0, 4)) / 3)


def test_contributions_that_are_gathered_are_all_received() -> None:
    """Three replicas, two windows: each sends its own and gets two others', without a mean's bits."""
    recipe = replace(method("fedavg", Recipe(replicas=3, steps=8, sync_every=4)), gather=True)
    made = run(recipe)
    assert made.history.bits_up == 2 * 32 * 32 and made.history.bits_down == 2 * made.history.bits_up
    assert outer(made) == pytest.approx(outer(run(replace(recipe, gather=False))))
    with pytest.raises(UserError, match=r"recipe\.down"):
        replace(recipe, down="e3m0")


def test_who_shuffles_receives_what_it_sends() -> None:
    history = run(replace(method("wash", Recipe(steps=6)), share=0.5)).history
    assert history.bits_up == history.bits_down > 0


@pytest.mark.parametrize("down", ["none", "random-k:0.5"])
def test_all_replicas_draw_the_same_values_of_random_k(down: str) -> None:
    """So each value moves by the mean of both or not at all; and a result by the same draw loses nothing of it."""
    recipe = replace(method("fedavg", Recipe(steps=4, sync_every=4)), up="random-k:0.5", down=down)
    mean = (walked(0.0, 1.0, 4) + walked(0.0, 2.0, 4)) / 2
    values = run(recipe).outer()[0]
    moved = values != 0
    assert int(moved.sum()) == 16 and torch.allclose(values[moved], torch.full((16,), mean))
    others = run(replace(recipe, up="fed-dropout:0.5", down="none")).outer()[0]
    assert len(others.unique()) == 4  # there each replica draws for itself: both, either, neither


def test_the_common_draw_follows_the_window() -> None:
    """Not how often a replica has sent: the second of them misses the first window, and still draws as the first."""
    recipe = replace(method("fedavg", Recipe(steps=8, sync_every=4)), up="random-k:0.5", down="none", mixing=(1.0,))
    one, two = run(recipe), run(replace(recipe, away=(Away(1, 1, 4),)))
    first = run(replace(recipe, steps=4))
    again = (one.outer()[0] != first.outer()[0]).nonzero()
    assert again.tolist() != first.outer()[0].nonzero().tolist()  # each window has a draw of its own
    alone = run(replace(recipe, steps=4, away=(Away(1, 1, 4),))).outer()[0]
    assert torch.equal((two.outer()[0] != alone).nonzero(), again)
    assert len((two.outer()[0] - alone)[again].unique()) <= 2  # by whether the window before moved it


def test_norms_and_cosines_are_of_what_replicas_sent() -> None:
    history = run(Recipe(steps=4, sync_every=4, overlap=(0,), fragments=1, mixing=(0.0,), **EXACT)).history
    deltas = [walked(0.0, point, 4) for point in (1.0, 2.0)]
    due, fragment, each, mean = history.norms[0]
    assert (due, fragment) == (4, 0)
    assert each == pytest.approx(32**0.5 * sum(deltas) / 2) and mean == pytest.approx(each)
    assert set(history.cosine) == {"0", "1", "all"}
    assert all(points == [(4, pytest.approx(1.0))] for points in history.cosine.values())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"overlap": (20,)}, "recipe.overlap"),
        ({"mixing": (0.5, 2.0)}, "recipe.mixing"),
        ({"speeds": (0.0,)}, "recipe.speeds"),
        ({"drop": 1.5}, "recipe.drop"),
        ({"weighting": "loud"}, "one of tokens, equal"),
        ({"lr_of_fragment": (1.0,)}, "recipe.lr_of_fragment"),
        ({"exchange": "gossip"}, "recipe.exchange"),
        ({"outer": "lion"}, "recipe.outer"),
        ({"up": "zip"}, "zip"),
    ],
)
def test_what_is_wrong_with_a_recipe_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Run(Recipe(**changes), Descent(), 0)
