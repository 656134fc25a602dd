import math

import pytest
import torch

from aggregation.initial import initialize
from peer.models import PRESETS, Decoder, DecoderConfig, preset, rotary_turns, rotate
from protocol.errors import UserError

SMALL = DecoderConfig(vocab=32, layers=2, width=32, heads=2, mlp=48, context=16)


def small_model(config: DecoderConfig = SMALL) -> Decoder:
    model = Decoder(config)
    initialize(model, 1, model.initial_stds())
    return model


def tokens(shape: tuple[int, int], vocab: int = 32) -> torch.Tensor:
    return (torch.arange(shape[0] * shape[1]) * 7919 % vocab).view(shape)


def parameters(config: DecoderConfig) -> int:
    return sum(parameter.numel() for parameter in Decoder(config).parameters())


def test_presets_have_heads_of_64_values_and_the_sizes_they_claim():
    assert all(config.head_width == 64 and config.vocab == 256 for config in PRESETS.values())
    tiny = PRESETS["tiny"]
    block = sum(p.numel() for p in Decoder(tiny).blocks[0].parameters())
    assert 500_000 < parameters(tiny) < 800_000
    assert tiny.layers == 4
    assert block == 4 * 128 * 128 + 2 * 128 * 256 + 2 * 128


def test_35m_is_the_papers_smallest_model_but_for_the_vocabulary():
    config = PRESETS["35m"]
    assert (config.layers, config.width, config.mlp, config.heads) == (6, 512, 2048, 8)
    in_matrices = 12 * config.layers * config.width**2
    norms = (2 * config.layers + 1) * config.width
    assert parameters(config) == in_matrices + config.vocab * config.width + norms
    assert round((in_matrices + 32_000 * config.width) / 1e6, 1) == 35.3


def test_an_unknown_preset_is_the_users_mistake_and_lists_the_known():
    with pytest.raises(UserError, match=r"model\.name = 'huge': must be one of 35m, tiny"):
        preset("huge")


@pytest.mark.parametrize(("change", "message"), [({"layers": 0}, r"layers = 0"), ({"heads": 3}, r"width = 32")])
def test_an_impossible_shape_names_the_field(change: dict[str, int], message: str):
    with pytest.raises(UserError, match=message):
        DecoderConfig(**{"vocab": 32, "layers": 2, "width": 32, "heads": 2, "mlp": 48, "context": 16} | change)


def test_a_fresh_model_knows_nothing():
    loss = small_model().cross_entropy(tokens((4, 17)))
    assert loss.item() == pytest.approx(math.log(32), abs=0.05)


def test_a_position_sees_only_what_came_before():
    model = small_model()
    text = tokens((1, 16))
    changed = text.clone()
    changed[0, 9] = (changed[0, 9] + 1) % 32
    before, after = model(text), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9], after[:, 9])
    assert not torch.allclose(before[:, 15], after[:, 15])


def test_the_order_of_the_past_matters():
    model = small_model(DecoderConfig(vocab=32, layers=1, width=32, heads=2, mlp=48, context=16))
    swapped = tokens((1, 8))[:, [1, 0, 2, 3, 4, 5, 6, 7]]
    assert not torch.allclose(model(tokens((1, 8)))[:, -1], model(swapped)[:, -1], atol=1e-6)


def test_rotation_keeps_lengths_and_depends_on_distance_alone():
    turns = rotary_turns(8, 4)
    query, key = torch.tensor([1.0, 2.0, -1.0, 0.5]), torch.tensor([0.3, -2.0, 1.0, 1.5])
    both = torch.stack((query, key)).view(1, 1, 2, 1, 4).expand(1, 8, 2, 1, 4)
    turned_queries, turned_keys = rotate(both, turns)[0, :, :, 0].unbind(1)  # each (8, 4)
    assert torch.allclose(turned_queries.norm(dim=-1), query.norm())
    scores = turned_queries @ turned_keys.T
    assert torch.allclose(scores[3, 1], scores[7, 5], atol=1e-5)
    assert not torch.allclose(scores[3, 1], scores[3, 2], atol=1e-3)


def test_loss_is_cross_entropy_plus_z_loss():
    model, text = small_model(), tokens((2, 9))
    logits = model(text[:, :-1])
    plain = torch.nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
    z = 1e-4 * logits.logsumexp(-1).square().mean()
    assert torch.allclose(model.cross_entropy(text), plain)
    assert torch.allclose(model.loss(text), plain + z)
    assert z > 0


def test_a_sequence_longer_than_the_context_is_refused():
    with pytest.raises(UserError, match=r"data\.sequence = 17: must be at most the context \(16\)"):
        small_model().loss(tokens((1, 18)))


def test_initial_stds_name_every_matrix_once_and_shrink_the_writers():
    model = Decoder(SMALL)
    stds = model.initial_stds()
    assert set(stds) == {name for name, parameter in model.named_parameters() if parameter.dim() > 1}
    assert "head.weight" not in stds  # tied to the embedding
    assert stds["embedding.weight"] == 0.02
    assert stds["blocks.0.attention.qkv.weight"] == pytest.approx(32**-0.5)
    assert stds["blocks.1.mlp_out.weight"] == pytest.approx(48**-0.5 * 4**-0.5)
    assert stds["blocks.1.attention.output.weight"] == pytest.approx(32**-0.5 * 4**-0.5)


def test_a_tied_head_is_one_matrix_and_an_untied_one_two():
    untied = DecoderConfig(vocab=32, layers=2, width=32, heads=2, mlp=48, context=16, tied=False)
    assert parameters(untied) - parameters(SMALL) == 32 * 32
    assert "head.weight" in Decoder(untied).initial_stds()


def test_norms_start_at_one_and_everything_is_trained():
    model = small_model()
    model.loss(tokens((2, 9))).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
        assert parameter.dim() > 1 or bool((parameter == 1).all()), name


def test_buffers_are_not_state():
    assert "turns" not in Decoder(SMALL).state_dict()
