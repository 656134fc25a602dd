"""Snapshots on disk: directories that are whole or not there, and that prove to be what was written.

    snapshots/00000240/
        snapshot.json            run, peer, steps, what is small, and size and SHA-256 of every other file
        manifest.toml            the run's manifest
        parameters.safetensors   the model's parameters by name, fp32
        outer.safetensors        for a chunk N with a link: `anchor.N` and `momentum.N` below it, `link.N`, `result.N`
        optimizer.safetensors    tensors of the inner optimizer's state, and of the training loop's own

A directory is written under a name that starts with a dot, every file of it flushed to the disk, and then renamed. So
a kill at any moment leaves the snapshots before it and some rubbish, which the next start removes. `snapshot.json` ends
in the digest of itself and must be exactly what we would write: a flipped byte anywhere is found.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from protocol.errors import UserError

VERSION: Final = 1
INDEX: Final = "snapshot.json"
_NAME = re.compile(r"\d{8,16}")
_REPLACED = re.compile(r"\.old-(\d{8,16})-\w+")
_LARGEST_INDEX: Final = 64 << 20
"""Bytes. More is no index of ours, and is not read."""


class Damaged(Exception):
    """A snapshot that is not what was written; the words say what is wrong."""


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size and SHA-256 of one file."""

    bytes: int
    sha256: str


class Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`snapshot.json`."""

    snapshot: int = VERSION
    """Version of the format."""
    potluck: str
    """Version of the program."""
    run: str
    """Run id, hex."""
    peer: str
    """Public key of the peer, hex."""
    step: int
    """Swarm step."""
    own_step: int
    tokens: int
    from_step: int
    """First due step for which the peer's presence counts."""
    seat: int
    """The peer's part of the data."""
    mixed: tuple[int, ...]
    """Of each chunk the due step of the newest link that the parameters have seen."""
    opened: tuple[tuple[int, int, int], ...]
    """Windows that may still merge: fragment, due step, own step at the opening."""
    marks: tuple[int, ...]
    """Of each chunk the tokens at the last contribution that a link names."""
    optimizer: Any
    """The inner optimizer's class and state (peer/packing.py), or null."""
    loop: Any
    """What the training loop keeps for itself, such as its place in the data; or null."""
    files: dict[str, FileEntry] = {}
    digest: str = ""
    """SHA-256 of this file with an empty digest."""


@dataclass(frozen=True)
class Snapshot:
    """A snapshot whose files are what was written."""

    path: Path
    index: Index

    def tensors(self, name: str) -> dict[str, Tensor]:
        """One of its safetensors files, copied into memory. Damaged if it is none."""
        try:
            # Copies: the file stays mapped behind what load_file returns, and the snapshot may be deleted.
            return {key: tensor.clone() for key, tensor in load_file(self.path / f"{name}.safetensors").items()}
        except (OSError, SafetensorError, ValueError) as error:
            raise Damaged(f"{name}.safetensors: {error}") from error


class SnapshotFolder:
    """The snapshots of one run in one directory, which need not exist yet. For one process at a time."""

    def __init__(self, path: Path, *, run: bytes, kept: int) -> None:
        self.path = path
        self._run = run.hex()
        self._kept = kept

    def check_run(self) -> None:
        """UserError if there are snapshots of another run here: they must not be mixed, or deleted unasked."""
        for path in self._named():
            with suppress(Damaged, OSError):
                index = read_index(path)
                if index.run != self._run:
                    right = f"holds snapshots of another run ({index.run[:12]}); this one is {self._run[:12]}"
                    raise UserError.field("out", str(self.path.parent), f"{right}: give it a directory of its own")

    def clean(self) -> None:
        """Remove what lives before us left half-written or half-deleted, and put back what they had not replaced."""
        with suppress(OSError):
            for left in self.path.glob(".*"):
                replaced = _REPLACED.fullmatch(left.name)
                if replaced and not (self.path / replaced[1]).exists():
                    left.rename(self.path / replaced[1])
                else:
                    shutil.rmtree(left, ignore_errors=True)

    def good(self, notice: Callable[[str], None]) -> Iterator[Snapshot]:
        """The snapshots that are whole, newest first; a line through `notice` for each damaged one that is passed."""
        for path in self._named():
            try:
                yield verified(path)
            except (Damaged, OSError) as error:
                notice(f"The snapshot {path} is passed over: {error}.")

    def write(self, tensors: Mapping[str, Mapping[str, Tensor]], manifest: str, index: Index) -> Path:
        """Write a snapshot and drop the oldest beyond the number kept. OSError leaves everything as it was.

        `tensors` are by file, then by name; `manifest` is the run's, as TOML.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        part = self.path / f".part-{secrets.token_hex(4)}"
        part.mkdir()
        try:
            (part / "manifest.toml").write_text(manifest, encoding="utf-8")
            for name, group in tensors.items():
                _save(dict(group), part / f"{name}.safetensors")
            files = {path.name: _entry(path) for path in sorted(part.iterdir())}
            (part / INDEX).write_bytes(encode_index(msgspec.structs.replace(index, files=files)))
            for path in [*part.iterdir(), part]:
                _flush(path)
            placed = self._place(part, self.path / f"{index.step:08d}")
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        self._prune(placed)
        return placed

    def _place(self, part: Path, target: Path) -> Path:
        """A snapshot of the same step, of before a restart from an older one, stays until the new one is in place."""
        before = self._hide(target, f".old-{target.name}-") if target.exists() else None
        try:
            part.rename(target)
        except OSError:
            if before:
                before.rename(target)
            raise
        _flush(self.path)
        if before:
            shutil.rmtree(before, ignore_errors=True)
        return target

    def _prune(self, placed: Path) -> None:
        """Those of later steps are what this life has passed over: they go before any that it wrote."""
        later = [path for path in self._named() if int(path.name) > int(placed.name)]
        others = [path for path in self._named() if path not in later]
        for path in [*others, *later][self._kept :]:
            with suppress(OSError):  # under another name first: a kill in between leaves no half snapshot behind
                shutil.rmtree(self._hide(path, ".gone-"), ignore_errors=True)

    def _hide(self, path: Path, prefix: str) -> Path:
        return path.rename(path.with_name(prefix + secrets.token_hex(4)))

    def _named(self) -> list[Path]:
        try:
            found = [path for path in self.path.iterdir() if _NAME.fullmatch(path.name)]
        except OSError:
            return []
        return sorted(found, key=lambda path: int(path.name), reverse=True)


def verified(path: Path) -> Snapshot:
    """The snapshot in a directory. Damaged, or an OSError, if any of it is not what was written."""
    index = read_index(path)
    for name, entry in index.files.items():
        if not (path / name).is_file():
            raise Damaged(f"{name} is missing")
        if (path / name).stat().st_size != entry.bytes:
            raise Damaged(f"{name} does not have the size that was written")
        if _entry(path / name) != entry:
            raise Damaged(f"{name} does not have the bytes that were written")
    return Snapshot(path, index)


def read_index(path: Path) -> Index:
    """The index of a snapshot's directory. Damaged if it is not exactly what we would have written."""
    try:
        with (path / INDEX).open("rb") as file:
            data = file.read(_LARGEST_INDEX)
    except FileNotFoundError:
        raise Damaged(f"{INDEX} is missing") from None
    try:
        index = msgspec.json.decode(data, type=Index)
        same = encode_index(index) == data
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Damaged(f"{INDEX} cannot be read") from error
    if index.snapshot != VERSION:
        raise Damaged(f"it has format {index.snapshot}, and this is a potluck of format {VERSION}")
    if not same:
        raise Damaged(f"{INDEX} is not what was written")
    if not all(Path(name).name == name for name in index.files):
        raise Damaged(f"{INDEX} names files elsewhere")
    return index


def encode_index(index: Index) -> bytes:
    """The bytes of `snapshot.json`, its digest filled in."""
    empty = _json(msgspec.structs.replace(index, digest=""))
    return _json(msgspec.structs.replace(index, digest=hashlib.sha256(empty).hexdigest()))


def _json(index: Index) -> bytes:
    return msgspec.json.format(msgspec.json.encode(index), indent=1) + b"\n"


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    try:
        save_file(tensors, path)
    except SafetensorError as error:  # its word for a full disk
        raise OSError(f"{path.name}: {error}") from error


def _entry(path: Path) -> FileEntry:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileEntry(file.tell(), digest.hexdigest())


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
