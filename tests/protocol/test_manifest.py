"""The manifest: one encoding, clear errors, and a TOML file that round-trips."""

import contextlib
import hashlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError, UserError
from protocol.manifest import (
    MAX_ENCODED_BYTES,
    Manifest,
    changed,
    decode,
    encode,
    fields,
    run_id,
    schedule_of,
    sealed,
    validate,
)
from protocol.manifest_fields import CODECS, FIELDS, MODELS, PATTERNS
from protocol.manifest_toml import dumps, loads
from protocol.presets import PRESETS
from protocol.schedule import Schedule

DIGEST = st.one_of(st.just(""), st.binary(min_size=32, max_size=32).map(bytes.hex))
FRACTION = st.floats(0, 1, exclude_max=True)
POSITIVE = st.floats(0, 1, exclude_min=True)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    layers = draw(st.integers(1, 40))
    sync_every = draw(st.integers(1, 1000))
    fragments = draw(st.integers(1, layers))
    block = 2 ** draw(st.integers(0, 8))
    offset = st.integers(0, sync_every - 1)
    values: dict[str, st.SearchStrategy[Any]] = {
        "run.name": st.from_regex(r"[a-z0-9-]{1,64}", fullmatch=True),
        "run.seed": st.integers(0, 2**63 - 1),
        "run.steps": st.integers(1, 10**9),
        "model.name": st.sampled_from(MODELS),
        "model.layers": st.just(layers),
        "model.parameters": st.integers(0, 2**40),
        "model.layout": DIGEST,
        "model.initial": DIGEST,
        "data.validation": DIGEST,
        "schedule.sync_every": st.just(sync_every),
        "schedule.overlap": offset,
        "schedule.fragments": st.just(fragments),
        "schedule.pattern": st.sampled_from(PATTERNS),
        "schedule.offsets": st.one_of(st.just(()), st.tuples(*[offset] * fragments)),
        "merge.mixing": st.floats(0, 1),
        "merge.outer_lr": POSITIVE,
        "merge.outer_momentum": FRACTION,
        "codec.contributions": st.sampled_from(CODECS),
        "codec.results": st.sampled_from(CODECS),
        "codec.block": st.just(block),
        "codec.chunk": st.integers(4, 16).map(lambda blocks: blocks * 256),
        "training.lr": POSITIVE,
        "training.clip": st.floats(1e-300, 1e6),
        "training.beta2": FRACTION,
        "limits.presence_ttl": st.floats(3, 3600),
    }
    return changed(Manifest(), {name: draw(strategy) for name, strategy in values.items()})


@given(manifests())
def test_the_encoding_round_trips(manifest: Manifest) -> None:
    data = encode(manifest)
    assert decode(data) == manifest
    assert encode(decode(data)) == data
    assert len(data) <= MAX_ENCODED_BYTES
    assert run_id(manifest) == hashlib.sha256(data).digest()


@given(manifests())
def test_toml_round_trips(manifest: Manifest) -> None:
    assert loads(dumps(manifest)) == manifest
    assert encode(loads(dumps(manifest))) == encode(manifest)


@given(manifests(), manifests())
def test_different_manifests_are_different_runs(one: Manifest, other: Manifest) -> None:
    assert (run_id(one) == run_id(other)) == (one == other)


@given(st.binary(max_size=200))
def test_garbage_raises_the_protocol_error_only(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(data)


@given(st.data())
def test_damaged_encodings_raise_the_protocol_error_only(data: st.DataObject) -> None:
    encoded = bytearray(encode(Manifest()))
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] ^= data.draw(st.integers(1, 255))
    damaged = bytes(encoded[: data.draw(st.sampled_from([len(encoded), position]))])
    with contextlib.suppress(ProtocolError):
        assert encode(decode(damaged)) == damaged  # another valid manifest, such as another seed


def recoded(**sections: dict[str, Any]) -> bytes:
    """The default manifest's encoding with some raw values replaced, unchecked."""
    raw = msgspec.msgpack.decode(encode(Manifest()))
    for section, values in sections.items():
        raw[section].update(values)
    return msgspec.msgpack.encode(raw, order="sorted")


@pytest.mark.parametrize(
    "sections",
    [
        {"merge": {"mixing": float("nan")}},
        {"merge": {"mixing": -0.0}},
        {"merge": {"mixing": 1}},
        {"merge": {"mixing": True}},
        {"run": {"steps": "10000"}},
        {"run": {"steps": 10_000.0}},
        {"run": {"protocol": 2}},
        {"run": {"extra": 1}},
        {"schedule": {"overlap": 100}},
        {"schedule": {"offsets": [0] * 3}},
        {"data": {"name": "x" * MAX_ENCODED_BYTES}},
    ],
)
def test_a_remote_manifest_that_is_not_canonical_or_not_valid_is_refused(sections: dict[str, Any]) -> None:
    assert decode(recoded()) == Manifest()
    with pytest.raises(ProtocolError):
        decode(recoded(**sections))


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decode(b"\x81\xa1a" * 5000 + b"\xc0")


def test_the_encoding_never_changes() -> None:
    """Golden: another value means that peers of two versions would not meet. Changed on purpose only."""
    manifest = changed(Manifest(), {"schedule.offsets": (0, 60), "run.seed": 2**40, "merge.outer_lr": 0.7})
    assert encode(manifest).startswith(
        b"\x88\xa5codec\x84\xa5block\xcd\x01\x00\xa5chunk\xce\x00\x01\x00\x00\xadcontributions"
    )
    assert run_id(manifest).hex() == "14f7ec36f66fb30f6949b022745d77dcaa42e950852cf2fc4d9158283a3ca359"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("schedule.overlap", 100, "schedule.overlap = 100: must be below sync_every (100)"),
        ("schedule.overlap", -1, "schedule.overlap = -1: must be an integer from 0"),
        ("schedule.fragments", 7, "schedule.fragments = 7: must be at most model.layers (6)"),
        ("schedule.offsets", [0], "schedule.offsets = [0]: must be [] or have one value for each of the 2 fragments"),
        (
            "schedule.offsets",
            [0, 100],
            "schedule.offsets = [0, 100]: every value must be at least 0 and below sync_every",
        ),
        ("schedule.offsets", [0, 0.5], "schedule.offsets = [0, 0.5]: must be a list with one integer a fragment"),
        ("schedule.pattern", "round", "schedule.pattern = 'round': must be one of \"strided\""),
        ("merge.mixing", 1.5, "merge.mixing = 1.5: must be a number of at least 0 and at most 1"),
        ("merge.mixing", float("nan"), "merge.mixing = nan: must be"),
        ("merge.outer_momentum", 1, "merge.outer_momentum = 1.0: must be a number of at least 0 and below 1"),
        ("merge.outer_lr", 0, "merge.outer_lr = 0.0: must be a number above 0"),
        ("training.lr", 10**400, "training.lr = inf: must be a number above 0"),
        ("codec.results", "int8", 'codec.results = \'int8\': must be one of "e3m0", "fp32"'),
        ("codec.block", 96, "codec.block = 96: must be a power of two from 1 to 256"),
        ("codec.chunk", 1025, "codec.chunk = 1025: must be a multiple of block (256)"),
        ("run.name", "My run", "run.name = 'My run': must be 1 to 64 of the characters"),
        ("run.name", "a\n", "run.name = 'a\\n': must be 1 to 64"),
        ("run.steps", True, "run.steps = True: must be an integer from 1"),
        ("run.steps", "9" * 500, f"run.steps = '{'9' * 96}...: must be an integer from 1"),
        ("model.layout", "AB", "model.layout = 'AB': must be 64 hexadecimal digits"),
        ("limits.presence_ttl", 0, "limits.presence_ttl = 0.0: must be a number of at least 3"),
    ],
)
def test_errors_name_the_field_the_value_and_what_is_right(name: str, value: object, message: str) -> None:
    with pytest.raises(UserError) as caught:
        changed(Manifest(), {name: value})
    assert str(caught.value).startswith(message)


def test_a_manifest_made_by_hand_is_checked_before_it_is_encoded() -> None:
    wrong = msgspec.structs.replace(Manifest(), run=msgspec.structs.replace(Manifest().run, steps=0))
    for check in (validate, encode, run_id):
        with pytest.raises(UserError, match=r"run\.steps = 0"):
            check(wrong)


def test_equal_manifests_have_equal_bytes_whatever_the_number_types() -> None:
    merge = Manifest().merge
    integer = msgspec.structs.replace(Manifest(), merge=msgspec.structs.replace(merge, mixing=0))
    negative = msgspec.structs.replace(Manifest(), merge=msgspec.structs.replace(merge, mixing=-0.0))
    assert integer == negative
    assert encode(integer) == encode(negative) == encode(changed(Manifest(), {"merge.mixing": 0.0}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[schedule]\noverlapp = 3", "schedule.overlapp = 3: no such key; did you mean schedule.overlap?"),
        ("[schedul]\noverlap = 3", "schedul = {'overlap': 3}: no such section; did you mean schedule?"),
        ("[codec]\nzzz = 3", "codec.zzz = 3: no such key; known are codec.contributions, codec.results"),
        ("[merge]\noverlap = 3", "merge.overlap = 3: no such key; did you mean schedule.overlap?"),
        ("[x]", "x = {}: no such section; known are run, model"),
        ("schedule = 3", "schedule = 3: must be a section, written [schedule]"),
        ("[schedule]\noverlap = 3.0", "schedule.overlap = 3.0: must be an integer from 0"),
        ("[merge]\nmixing = '1'", "merge.mixing = '1': must be a number of at least 0"),
        ("[merge\n", "the manifest is not TOML: "),
    ],
)
def test_mistakes_in_the_file_are_explained(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        loads(text)
    assert str(caught.value).startswith(message)


def test_keys_that_are_left_out_have_their_defaults_and_integers_may_stand_for_reals() -> None:
    assert loads("") == Manifest()
    assert loads("[merge]\nmixing = 1\n") == changed(Manifest(), {"merge.mixing": 1.0})


def test_every_field_has_a_rule_and_a_comment_of_its_own() -> None:
    assert [name for name, _ in fields(Manifest())] == list(FIELDS)
    lines = dumps(Manifest()).splitlines()
    keys = [index for index, line in enumerate(lines) if " = " in line and not line.startswith("#")]
    assert len(keys) == len(FIELDS)
    assert all(lines[index - 1].startswith("# ") and lines[index - 1].endswith(".") for index in keys)


def test_sealed_needs_all_four() -> None:
    digest = "ab" * 32
    values = {"model.parameters": 5, "model.layout": digest, "model.initial": digest, "data.validation": digest}
    assert sealed(changed(Manifest(), values))
    for name in values:
        assert not sealed(changed(Manifest(), {key: value for key, value in values.items() if key != name}))


def test_schedule_of_spreads_offsets_unless_they_are_given() -> None:
    assert schedule_of(Manifest()) == Schedule(sync_every=100, overlap=5, offsets=(0, 50), steps=10_000)
    assert schedule_of(changed(Manifest(), {"schedule.offsets": [7, 9]})).offsets == (7, 9)


def test_presets_are_valid_and_the_default_is_the_design() -> None:
    for manifest in PRESETS.values():
        assert decode(encode(manifest)) == manifest == loads(dumps(manifest))
    default = json.loads(msgspec.json.encode(PRESETS["default"]))
    assert default["schedule"] | default["merge"] | default["codec"] == {
        "sync_every": 100,
        "overlap": 5,
        "fragments": 2,
        "pattern": "strided",
        "offsets": [],
        "mixing": 0.5,
        "outer_lr": 0.4,
        "outer_momentum": 0.9,
        "late_steps": 10,
        "contributions": "e3m0",
        "results": "e3m0",
        "block": 256,
        "chunk": 65_536,
    }
    paper = PRESETS["paper"]
    assert (paper.run.start_peers, paper.schedule.overlap, paper.schedule.sync_every) == (2, 1, 100)


def test_the_demo_has_more_than_five_windows_a_fragment() -> None:
    schedule = schedule_of(PRESETS["demo"])
    dues = [window.fragment for window in schedule.windows()]
    assert [dues.count(fragment) for fragment in range(4)] == [33, 32, 32, 32]
