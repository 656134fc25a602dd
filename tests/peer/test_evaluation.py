import pytest
import torch

from aggregation.initial import initialize
from peer.evaluation import evaluate
from peer.models import Decoder, DecoderConfig
from protocol.errors import UserError

TEXT = torch.arange(1000).mul(7919).remainder(251).to(torch.uint8)


@pytest.fixture
def model() -> Decoder:
    model = Decoder(DecoderConfig(vocab=256, layers=1, width=32, heads=2, mlp=48, context=16))
    initialize(model, 3, model.initial_stds())
    return model


def test_it_is_the_mean_over_all_whole_windows(model: Decoder):
    windows = [TEXT[start : start + 17].to(torch.int64)[None] for start in range(0, 1000 - 16, 16)]
    mean = sum(model.cross_entropy(window).item() for window in windows) / len(windows)
    assert len(windows) == 62
    assert evaluate(model, TEXT, sequence=16) == pytest.approx(mean, rel=1e-5)


def test_the_size_of_a_batch_does_not_matter(model: Decoder):
    assert evaluate(model, TEXT, sequence=16, batch=7) == pytest.approx(evaluate(model, TEXT, sequence=16), rel=1e-5)


def test_fewer_tokens_are_spread_over_the_text(model: Decoder):
    windows = torch.stack([TEXT[start : start + 17] for start in (0, 31 * 16)]).to(torch.int64)
    mean = model.cross_entropy(windows).item()
    assert evaluate(model, TEXT, sequence=16, max_tokens=32) == pytest.approx(mean, rel=1e-5)
    assert evaluate(model, TEXT, sequence=16, max_tokens=1) == evaluate(model, TEXT, sequence=16, max_tokens=16)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_restored_and_no_gradient_is_left(model: Decoder, training: bool):
    model.train(training)
    evaluate(model, TEXT, sequence=16)
    assert model.training is training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_mode_is_restored_after_an_error(model: Decoder):
    with pytest.raises(UserError, match="context"):
        evaluate(model, TEXT, sequence=17)
    assert model.training


def test_a_text_shorter_than_a_window_is_refused(model: Decoder):
    with pytest.raises(UserError, match=r"data\.sequence = 16: must be below the 16 bytes"):
        evaluate(model, TEXT[:16], sequence=16)
