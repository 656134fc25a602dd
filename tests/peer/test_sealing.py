"""Who seals a manifest twice gets the same bytes, and whoever brings something else is told what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from peer.data import Corpus, split
from peer.sealing import build_model, check, layout_of, planned_layout, seal
from protocol.errors import UserError
from protocol.manifest import Manifest, changed, encode, sealed
from protocol.presets import PRESETS

DEMO = PRESETS["demo"]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return split("alphabet", bytes(range(97, 123)) * 400)


@pytest.fixture(scope="module")
def ready(corpus: Corpus) -> Manifest:
    return seal(DEMO, corpus)


def test_sealing_is_a_function_of_its_inputs(corpus: Corpus, ready: Manifest) -> None:
    assert not sealed(DEMO) and sealed(ready)
    assert encode(seal(DEMO, corpus)) == encode(ready) == encode(seal(ready, corpus, build_model(ready)))
    assert (ready.data.name, ready.model.name) == ("alphabet", "tiny")
    assert ready.model.parameters == layout_of(ready, build_model(ready)).numel


def test_what_was_sealed_is_accepted(corpus: Corpus, ready: Manifest) -> None:
    model = build_model(ready)
    assert check(ready, model, corpus).digest().hex() == ready.model.layout
    assert check(ready, model, None).numel == ready.model.parameters


def test_another_seed_is_refused(corpus: Corpus, ready: Manifest) -> None:
    with pytest.raises(
        UserError, match=r"model\.initial: the model starts from other .* \(\w{12} here, \w{12} in the run\); "
    ):
        check(ready, build_model(changed(ready, {"run.seed": 1})), corpus)


def test_other_fragments_are_refused(corpus: Corpus, ready: Manifest) -> None:
    with pytest.raises(
        UserError, match=r"model\.layout: the model has other parameters or fragments than the run's \("
    ):
        check(changed(ready, {"schedule.fragments": 2}), build_model(ready), corpus)


def test_other_validation_bytes_are_refused(corpus: Corpus, ready: Manifest) -> None:
    with pytest.raises(UserError, match=r"data\.validation: the text here .* in the run\); point --data at the same"):
        check(ready, build_model(ready), split("alphabet", bytes(range(65, 91)) * 400))


def test_an_unsealed_manifest_is_refused(corpus: Corpus) -> None:
    with pytest.raises(UserError, match="not sealed"):
        check(DEMO, build_model(DEMO), corpus)


def test_a_model_without_enough_blocks_is_the_users_mistake(blocks: Any, small: Any) -> None:
    with pytest.raises(UserError, match=r"fragments = 2"):
        seal(small(), None, blocks(layers=1))
    with pytest.raises(UserError):
        seal(small(), None, nn.Module())


def test_a_programs_own_model_is_called_custom(blocks: Any, small: Any) -> None:
    manifest = seal(small(), None, blocks())
    assert (manifest.model.name, manifest.data.name) == ("custom", "own")
    assert manifest.model.layers == 4
    with pytest.raises(UserError, match=r"model\.name = 'custom': .*potluck\.join"):
        build_model(manifest)


def test_the_layout_is_known_before_anything_is_allocated() -> None:
    assert planned_layout(DEMO) == layout_of(DEMO, build_model(DEMO))


def test_a_file_name_that_no_manifest_allows_is_rewritten(corpus: Corpus) -> None:
    manifest = seal(DEMO, replace(corpus, name="my text (2).txt:ünlaut" + "x" * 80))
    assert manifest.data.name == ("my_text__2_.txt__nlaut" + "x" * 80)[:64]


def test_a_user_may_cut_the_model_by_hand(blocks: Any, small: Any) -> None:
    model = blocks()
    patterns = [["*.weight"], ["*.bias"]]
    ready = seal(small(), None, model, patterns)
    assert ready.schedule.fragments == 2
    layout = check(ready, model, None, patterns)
    assert all(name.endswith(".weight") for name in layout.fragments[0].names)
    with pytest.raises(UserError, match=r"model\.layout"):
        check(ready, model, None)
    with pytest.raises(UserError, match="does not fit"):
        seal(small(), None, model, [["*.weight"], ["*"]])
