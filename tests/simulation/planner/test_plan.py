"""A user's plan: sizes of the real models, what is solved for, and sums done by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from aggregation.fragments import partition
from peer.models import PRESETS, Decoder
from protocol.errors import UserError
from simulation.planner.document import document, solved
from simulation.planner.exchange import PAYLOAD_SHARE
from simulation.planner.plan import (
    Plan,
    awaited,
    factor_needed,
    memory,
    reaches,
    round_bytes,
    smallest_overlap,
    smallest_sync_every,
)
from simulation.planner.shapes import SHAPES, parse_model

SMALL = Plan(
    shape=parse_model("8e6,8"),
    method="streaming",
    step_seconds=1.0,
    up=1e6,
    down=1e6,
    latency=0.05,
    peers=2,
    fragment_layers=2,
    overlap=0,
)


@pytest.mark.parametrize("name", ["tiny", "35m"])
def test_our_own_models_have_their_real_sizes(name: str) -> None:
    with torch.device("meta"):
        model = Decoder(PRESETS[name])
    shape = SHAPES[name]
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    for fragments in (1, 2, 4):
        real = [fragment.numel for fragment in partition(model, fragments=fragments).fragments]
        assert sorted(shape.fragment_sizes(fragments)) == pytest.approx(sorted(real), rel=0.005)
        assert sum(shape.fragment_sizes(fragments)) == shape.parameters


def test_models_that_are_given_by_numbers() -> None:
    shape = parse_model("7e9,32")
    assert (shape.parameters, shape.layers, shape.layer) == (7e9, 32, 7e9 / 32)
    assert parse_model("DeepSeek-V3").active == 35e9
    for wrong in ("7e9", "7e9,", "7e9,0", "many,3", "2,3", "nan,3", "inf,3", "1e9,1001"):
        with pytest.raises(UserError, match="--model"):
            parse_model(wrong)


def test_a_window_by_hand() -> None:
    """Two million values, 31 chunks: half of both hops of all, at 118,750 bytes a second."""
    sent = SMALL.owners.sent(2e6)
    assert sent == pytest.approx(2e6 * (0.5 + 1 / 256) + 31 * 325, rel=0.01)
    found = awaited(SMALL)
    a_window = found.exposed[0] / 4
    assert a_window == pytest.approx(sent / (1e6 * PAYLOAD_SHARE / 8) + 0.05, rel=0.15)
    assert found.utilization[0] == pytest.approx(100 / (100 + 4 * a_window))


def test_overlap_hides_what_fits() -> None:
    exposed = [float(awaited(replace(SMALL, overlap=overlap)).exposed[0]) for overlap in (0, 4, 8, 12)]
    assert exposed[0] - exposed[1] == pytest.approx(16) and exposed[1] - exposed[2] == pytest.approx(16)
    assert exposed[3] == 0


def test_the_smallest_of_what_is_free() -> None:
    overlap = smallest_overlap(SMALL, 0.95)
    assert overlap is not None and overlap > 0
    assert reaches(replace(SMALL, overlap=overlap), 0.95) and not reaches(replace(SMALL, overlap=overlap - 1), 0.95)
    rounds = smallest_sync_every(SMALL, 0.95)
    assert rounds is not None and rounds > 100
    assert reaches(replace(SMALL, sync_every=rounds), 0.95) and not reaches(replace(SMALL, sync_every=rounds - 1), 0.95)


def test_what_cannot_be_reached() -> None:
    slow = replace(SMALL, up=1e3, sync_every=20)
    assert smallest_overlap(slow, 0.95) is None
    far = replace(SMALL, latency=50.0, sync_every=50)
    assert factor_needed(far, 0.95) is None
    plan, said = solved(slow, 0.95, "overlap")
    assert plan == slow and said["value"] is None and not said["reached"] and said["bandwidth_needed"]["up_mbit"] > 1


def test_the_bandwidth_needed_is_the_least() -> None:
    factor = factor_needed(SMALL, 0.95)
    assert factor is not None
    around = awaited(SMALL, np.array([factor * 0.99, factor])).utilization
    assert around[0] < 0.95 <= around[1]


def test_data_parallel_pays_at_every_step() -> None:
    parallel = replace(SMALL, method="data-parallel", codec="bf16", sync_every=1, peers=4)
    assert round_bytes(parallel) == 8e6 * 2 * 1.5
    found = awaited(parallel)
    assert found.wall[0] == pytest.approx(8e6 * 2 * 1.5 / 118_750, rel=0.02)
    assert document(parallel)["potluck"] is None


def test_diloco_waits_for_the_whole_model() -> None:
    whole = replace(SMALL, method="diloco")
    assert whole.sizes == (8e6,)
    assert awaited(whole).exposed[0] == pytest.approx(awaited(SMALL).exposed[0], rel=0.05)


def test_memory() -> None:
    needs = memory(replace(SMALL, overlap=5))
    assert needs.device == 16 * 8e6 + 4 * 2e6
    packed = 0.5 + 1 / 256
    assert needs.host == pytest.approx(8 * 8e6 + packed * 8e6 + 2 * packed * 2e6, rel=0.01)


def test_the_document_is_consistent() -> None:
    found = document(replace(SMALL, overlap=5))
    seconds = found["round"]
    assert seconds["hidden_seconds"] + seconds["exposed_seconds"] == pytest.approx(seconds["exchange_seconds"])
    assert found["utilization"] == pytest.approx(100 / seconds["seconds"])
    assert found["bytes"]["sent_per_hour"] == pytest.approx(
        found["bytes"]["sent_per_round"] * 3600 / seconds["seconds"]
    )
    shares = found["potluck"]
    assert shares["utilization"] == 1.0
    assert shares["in_time"] + shares["late"] + shares["skipped"] == pytest.approx(1.0)
