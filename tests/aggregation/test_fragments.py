"""Every trainable element in exactly one fragment and one chunk, whatever the module looks like."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from aggregation.fragments import Fragment, Layout, Pattern, num_blocks, partition

PATTERNS: Sequence[Pattern] = ("strided", "sequential", "balanced")


class Block(nn.Module):
    def __init__(self, width: int, experts: int = 0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Linear(width, 2 * width)
        self.experts = nn.ModuleList(nn.Linear(2, 2) for _ in range(experts))


class Transformer(nn.Module):
    """GPT-2's shape: an embedding tied to the head, numbered blocks, a final norm."""

    def __init__(self, widths: Sequence[int], vocab: int = 32, tied: bool = True, experts: int = 0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, 8)
        self.h = nn.ModuleList(Block(width, experts) for width in widths)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, vocab, bias=False)
        if tied:
            self.head.weight = self.embedding.weight


def blocks_of(fragment: Fragment) -> list[int]:
    return sorted({int(name.split(".")[1]) for name in fragment.names if name.startswith("h.")})


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


@settings(max_examples=60, deadline=None)
@given(st.data(), st.lists(st.integers(1, 9), min_size=2, max_size=9), st.sampled_from(PATTERNS), st.booleans())
def test_every_trainable_element_is_in_one_fragment_and_one_chunk(
    data: st.DataObject, widths: list[int], pattern: Pattern, tied: bool
) -> None:
    model = Transformer(widths, tied=tied)
    model.norm.weight.requires_grad_(data.draw(st.booleans()))
    layout = partition(model, fragments=data.draw(st.integers(1, len(widths))), pattern=pattern)
    names = [name for fragment in layout.fragments for name in fragment.names]
    assert sorted(names) == sorted(trainable(model))
    for fragment in layout.fragments:
        assert fragment.numel == sum(trainable(model)[name].numel() for name in fragment.names) > 0
        assert list(fragment.names) == [name for name in trainable(model) if name in fragment.names]
    check_chunks(layout, elements=data.draw(st.integers(1, 8)) * 16, block=16)


def check_chunks(layout: Layout, elements: int, block: int) -> None:
    chunks = layout.chunks(elements, block)
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    for fragment in layout.fragments:
        mine = [chunk for chunk in chunks if chunk.fragment == fragment.index]
        assert [chunk.start for chunk in mine] == [0, *(chunk.stop for chunk in mine[:-1])]
        assert mine[-1].stop == fragment.numel
        assert all(chunk.numel <= elements for chunk in mine)
        assert all(chunk.numel % block == 0 and chunk.numel > elements // 2 for chunk in mine[:-1])
    assert [chunk.fragment for chunk in chunks] == sorted(chunk.fragment for chunk in chunks)


def test_strided_sequential_and_balanced_place_the_blocks() -> None:
    model = Transformer([4] * 5)
    strided = partition(model, fragments=2)
    assert [blocks_of(fragment) for fragment in strided.fragments] == [[0, 2, 4], [1, 3]]
    sequential = partition(model, fragments=2, pattern="sequential")
    assert [blocks_of(fragment) for fragment in sequential.fragments] == [[0, 1, 2], [3, 4]]
    lopsided = Transformer([9, 1, 9, 1], vocab=1)
    assert blocks_of(partition(lopsided, fragments=2).fragments[0]) == [0, 2]
    first, second = partition(lopsided, fragments=2, pattern="balanced").fragments
    assert abs(first.numel - second.numel) <= 8


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=2, max_size=9), st.integers(1, 4))
def test_balanced_is_within_one_unit_of_the_mean(widths: list[int], fragments: int) -> None:
    model = Transformer(widths, tied=False)
    layout = partition(model, fragments=min(fragments, len(widths)), pattern="balanced")
    largest_unit = max(8 * 32, *(sum(p.numel() for p in block.parameters()) for block in model.h))
    assert max(f.numel for f in layout.fragments) <= layout.numel / len(layout.fragments) + largest_unit


def test_parameters_outside_the_blocks_join_the_smallest_fragment_largest_first() -> None:
    layout = partition(Transformer([4, 4, 4], vocab=100, tied=False), fragments=3)
    names = [set(fragment.names) for fragment in layout.fragments]
    assert "embedding.weight" in names[0] and "head.weight" in names[1]
    assert {"norm.weight", "norm.bias"} <= names[2]


def test_tied_parameters_count_once() -> None:
    layout = partition(Transformer([4, 4]), fragments=2)
    assert "embedding.weight" in layout.shapes and "head.weight" not in layout.shapes


def test_experts_within_a_layer_are_not_taken_for_the_layers() -> None:
    assert num_blocks(Transformer([4, 4, 4], experts=16)) == 3


def test_blocks_are_found_by_numbered_names_of_one_class() -> None:
    sequential = nn.Sequential(nn.Embedding(9, 4), Block(4), Block(4), Block(4), nn.LayerNorm(4))
    assert num_blocks(sequential) == 3
    resnet = nn.Module()
    for stage in range(1, 5):
        resnet.add_module(f"layer{stage}", nn.Sequential(nn.Conv2d(2, 2, 3), nn.ReLU()))
    assert num_blocks(resnet) == 4


def test_more_than_ten_blocks_keep_their_number_order() -> None:
    layout = partition(Transformer([2] * 12), fragments=12)
    assert [blocks_of(fragment) for fragment in layout.fragments] == [[i] for i in range(12)]


def test_without_repeated_blocks_each_owning_submodule_is_one() -> None:
    model = nn.Module()
    model.encoder = nn.Linear(3, 4)
    model.decoder = nn.Linear(4, 3)
    layout = partition(model, fragments=2)
    assert [fragment.names for fragment in layout.fragments] == [
        ("encoder.weight", "encoder.bias"),
        ("decoder.weight", "decoder.bias"),
    ]


def test_a_transformers_style_module_from_torch() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, num_layers=6, enable_nested_tensor=False)
    layout = partition(model, fragments=3)
    assert layout.numel == sum(parameter.numel() for parameter in model.parameters())
    assert len({fragment.numel for fragment in layout.fragments}) == 1


@pytest.mark.parametrize("fragments", [0, 4])
def test_too_many_or_no_fragments_is_an_error_that_says_what_is_right(fragments: int) -> None:
    with pytest.raises(ValueError, match=rf"fragments = {fragments}: must be between 1 and 3"):
        partition(Transformer([4] * 3), fragments=fragments)


def test_an_unknown_pattern_and_a_frozen_module_are_errors() -> None:
    with pytest.raises(ValueError, match="pattern = 'zigzag': must be one of strided, sequential, balanced"):
        partition(Transformer([4] * 3), fragments=2, pattern="zigzag")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no trainable parameters"):
        partition(Transformer([4]).requires_grad_(False), fragments=1)


def test_a_user_may_give_patterns() -> None:
    model = Transformer([4] * 3)
    layout = partition(model, fragments=2, patterns=[["h.0.*", "h.1.*"], ["h.2.*", "embedding.*", "norm.*"]])
    assert [blocks_of(fragment) for fragment in layout.fragments] == [[0, 1], [2]]
    assert sorted(name for fragment in layout.fragments for name in fragment.names) == sorted(trainable(model))


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ([["h.*"], ["norm.*"]], "'embedding.weight' is matched by none"),
        ([["*"], ["norm.*"]], r"'norm.weight' is matched by patterns \[0, 1\]"),
        ([["*"], ["decoder.*"]], r"patterns\[1\] = .*must match a trainable"),
        ([["*"]], "fragments = 2: must be 1"),
    ],
)
def test_patterns_that_do_not_fit_are_errors(patterns: list[list[str]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        partition(Transformer([4] * 2), fragments=2, patterns=patterns)


def test_chunks_end_at_whole_rows_where_that_costs_little() -> None:
    model = nn.ModuleList([nn.Linear(48, 100, bias=False), nn.Linear(48, 100, bias=False)])
    layout = partition(model, fragments=2)
    chunks = [chunk for chunk in layout.chunks(512, 16) if chunk.fragment == 0]
    assert all(chunk.stop % 48 == 0 for chunk in chunks)
    assert {chunk.numel for chunk in chunks[:-1]} == {480}


def test_rows_that_no_block_boundary_meets_are_cut() -> None:
    layout = partition(nn.ModuleList([nn.Linear(1000, 3), nn.Linear(1000, 3)]), fragments=2)
    assert [chunk.numel for chunk in layout.chunks(256, 256)][:12] == [256] * 11 + [3003 - 11 * 256]


def test_chunk_elements_must_be_whole_blocks() -> None:
    layout = partition(Transformer([4] * 2), fragments=2)
    for elements in (0, -256, 300):
        with pytest.raises(ValueError, match=rf"elements = {elements}: must be .* multiple of the block \(256\)"):
            layout.chunks(elements)


def test_the_digest_depends_on_names_shapes_and_assignment_only() -> None:
    model = Transformer([4] * 4)
    digest = partition(model, fragments=2).digest()
    assert len(digest) == 32
    with torch.no_grad():
        model.norm.weight.add_(1)
    assert partition(model, fragments=2).digest() == digest
    assert partition(model, fragments=2, pattern="sequential").digest() != digest
    assert partition(model, fragments=4).digest() != digest
    assert partition(Transformer([4, 4, 4, 5]), fragments=2).digest() != digest
