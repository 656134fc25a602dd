"""The manifest: the immutable record of every number that all peers of a run must share.

Its canonical encoding is MessagePack: a map of sections, each a map of fields, keys sorted, every field present,
real numbers as 64-bit floats. The run id is the SHA-256 of these bytes, so two manifests that differ anywhere are
two runs. What each field means and allows is in manifest_fields.py; rules between two fields are here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import msgspec

from protocol.errors import ProtocolError, UserError
from protocol.manifest_fields import FIELDS
from protocol.schedule import Schedule, spread

MAX_ENCODED_BYTES = 16 * 1024


class RunSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Name, seed and length of the run."""

    protocol: int = 1
    name: str = "potluck"
    seed: int = 0
    steps: int = 10_000
    start_peers: int = 1


class ModelSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model, and digests of its layout and its initial parameters once these are known."""

    name: str = "35m"
    layers: int = 6
    parameters: int = 0
    layout: str = ""
    initial: str = ""


class DataSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The text that is trained on and the text that is held out."""

    name: str = "bible"
    sequence: int = 512
    validation: str = ""


class ScheduleSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When each fragment is synchronised."""

    sync_every: int = 100
    overlap: int = 5
    fragments: int = 2
    pattern: str = "strided"
    offsets: tuple[int, ...] = ()


class MergeSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The outer optimizer and how its result enters the local parameters."""

    mixing: float = 0.5
    outer_lr: float = 0.4
    outer_momentum: float = 0.9
    late_steps: int = 10


class CodecSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How numbers travel."""

    contributions: str = "e3m0"
    results: str = "e3m0"
    block: int = 256
    chunk: int = 65_536


class TrainingSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The inner optimizer. The learning rate falls along a cosine over the run's steps."""

    lr: float = 4e-4
    warmup: int = 1000
    weight_decay: float = 0.1
    clip: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.99
    z_loss: float = 1e-4


class LimitsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds that protect the peers from each other."""

    weight_cap: int = 4
    presence_ttl: float = 60.0


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every shared number. Making the struct checks nothing: `validate` does, and `changed` and `decode` call it."""

    run: RunSection = RunSection()
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    schedule: ScheduleSection = ScheduleSection()
    merge: MergeSection = MergeSection()
    codec: CodecSection = CodecSection()
    training: TrainingSection = TrainingSection()
    limits: LimitsSection = LimitsSection()


def fields(manifest: Manifest) -> Iterator[tuple[str, object]]:
    """All fields as (dotted name, value), in order."""
    for section in manifest.__struct_fields__:
        values = getattr(manifest, section)
        for key in values.__struct_fields__:
            yield f"{section}.{key}", getattr(values, key)


def changed(manifest: Manifest, values: Mapping[str, object]) -> Manifest:
    """A valid manifest with the given fields, by dotted name, replaced: `changed(m, {"schedule.overlap": 3})`.

    An integer given for a real number becomes a float, a list a tuple. Raises UserError if the outcome is not
    valid, KeyError for a name that is no field.
    """
    by_section: dict[str, dict[str, object]] = {}
    for name, value in values.items():
        section, key = name.split(".")
        by_section.setdefault(section, {})[key] = _normal(name, value)
    sections = {
        section: msgspec.structs.replace(getattr(manifest, section), **replaced)
        for section, replaced in by_section.items()
    }
    outcome = msgspec.structs.replace(manifest, **sections)
    validate(outcome)
    return outcome


def validate(manifest: Manifest) -> None:
    """Raise UserError, naming the field, its value and what would be right, for the first value that is not right."""
    for name, value in fields(manifest):
        rule = FIELDS[name]
        if not rule.allows(_normal(name, value)):
            shown = list(value) if isinstance(value, tuple) else value
            raise UserError.field(name, shown, f"must be {rule.right}")
    _validate_schedule(manifest)
    codec = manifest.codec
    if codec.chunk % codec.block:
        raise UserError.field("codec.chunk", codec.chunk, f"must be a multiple of block ({codec.block})")


def encode(manifest: Manifest) -> bytes:
    """The canonical encoding of a valid manifest; equal manifests have equal bytes. Raises UserError if not valid."""
    validate(manifest)
    nested: dict[str, dict[str, object]] = {}
    for name, value in fields(manifest):
        section, key = name.split(".")
        nested.setdefault(section, {})[key] = _normal(name, value)
    return msgspec.msgpack.encode(nested, order="sorted")


def decode(data: bytes) -> Manifest:
    """The manifest with this canonical encoding. Raises ProtocolError for any other bytes."""
    if len(data) > MAX_ENCODED_BYTES:
        raise ProtocolError(f"a manifest of {len(data)} bytes; at most {MAX_ENCODED_BYTES} are allowed")
    try:
        manifest = msgspec.msgpack.decode(data, type=Manifest)
        canonical = encode(manifest)
    except (msgspec.MsgspecError, UserError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("not a manifest of this version") from error
    if canonical != data:
        raise ProtocolError("not the canonical encoding of a manifest")
    return manifest


def run_id(manifest: Manifest) -> bytes:
    """The run's identity: SHA-256 of the canonical encoding, 32 bytes."""
    return hashlib.sha256(encode(manifest)).digest()


def sealed(manifest: Manifest) -> bool:
    """Whether model and validation bytes are fixed by digest, as they must be before anyone can join the run."""
    model = manifest.model
    return bool(model.parameters and model.layout and model.initial and manifest.data.validation)


def schedule_of(manifest: Manifest) -> Schedule:
    """The schedule of a valid manifest."""
    section = manifest.schedule
    offsets = section.offsets or spread(section.fragments, section.sync_every)
    return Schedule(section.sync_every, section.overlap, offsets, manifest.run.steps)


def _normal(name: str, value: object) -> object:
    """The one value that stands for all that are equal to it: 1.0 for 1, 0.0 for -0.0, a tuple for a list."""
    if FIELDS[name].is_float and type(value) in (int, float):
        assert isinstance(value, int | float)
        return _float(value)
    return tuple(value) if isinstance(value, list) else value


def _float(value: int | float) -> float:
    """As a float, without a negative zero; infinite where the integer is too large for one."""
    try:
        return float(value) + 0.0
    except OverflowError:
        return float("inf")


def _validate_schedule(manifest: Manifest) -> None:
    schedule, layers = manifest.schedule, manifest.model.layers
    if schedule.overlap >= schedule.sync_every:
        right = f"must be below sync_every ({schedule.sync_every})"
        raise UserError.field("schedule.overlap", schedule.overlap, right)
    if schedule.fragments > layers:
        raise UserError.field("schedule.fragments", schedule.fragments, f"must be at most model.layers ({layers})")
    if schedule.offsets and len(schedule.offsets) != schedule.fragments:
        right = f"must be [] or have one value for each of the {schedule.fragments} fragments"
        raise UserError.field("schedule.offsets", list(schedule.offsets), right)
    if not all(0 <= offset < schedule.sync_every for offset in schedule.offsets):
        right = f"every value must be at least 0 and below sync_every ({schedule.sync_every})"
        raise UserError.field("schedule.offsets", list(schedule.offsets), right)
