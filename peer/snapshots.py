"""One peer's snapshots: taken at a step boundary, written behind training's back, found again after a restart.

The training thread copies parameters and optimizer state to the host, and that is all that it does. What the outer
thread owns never changes in place, so it hands over references. A thread of its own hashes, writes and flushes;
while one snapshot is being written the next one is left out.

Nothing here is trusted to restore the outer state: `Ledger.adopt_state` proves every chunk by its link's digests and
signature, exactly as if a stranger had sent it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from math import prod
from typing import Any, Final, Protocol

import msgspec
import torch
from torch import Tensor

from aggregation.fragments import Layout
from aggregation.outer import ChunkState
from peer import clock
from peer.disk import DiskTrouble, words_of
from peer.packing import NotPlain, pack, unpack
from peer.snapshot_files import Damaged, Index, Snapshot, SnapshotFolder
from protocol.errors import ProtocolError
from protocol.ledger import Entry, Ledger
from protocol.messages import StateMessage, decode, encode
from protocol.node import Node

log = logging.getLogger(__name__)

FINAL_SECONDS: Final = 8.0
"""Longest wait for the last snapshot when a peer leaves."""
PARAMETERS, OUTER, OPTIMIZER = "parameters", "outer", "optimizer"


class Kept(Protocol):
    """What a training loop wants back after a restart: its place in the data, a learning-rate schedule, a generator.

    `state_dict` is called at step boundaries and may hold numbers, texts, tensors, and lists and dictionaries of them.
    """

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


@dataclass(frozen=True)
class Taken:
    """The training thread's part of a snapshot. All tensors are copies."""

    index: Index
    fragments: Sequence[Tensor]
    """The parameters: of each fragment its flat fp32 values."""
    state: Mapping[str, Tensor]
    """Tensors of the optimizer's and the loop's states."""
    copy_seconds: float


@dataclass(frozen=True)
class OuterPart:
    """The outer thread's part: of every chunk with a link its base and newest link; the tokens that links name."""

    chunks: Mapping[int, tuple[ChunkState, Entry]]
    marks: tuple[int, ...]

    @classmethod
    def of(cls, node: Node) -> OuterPart:
        """References to what the node holds now. Called in the outer thread."""
        chains = enumerate(node.ledger.chains)
        return cls({chunk: (c.base, c.newest) for chunk, c in chains if c.newest}, tuple(node.marks()))

    @property
    def heads(self) -> tuple[bytes, ...]:
        """Of the chunks with a link."""
        return tuple(newest.head for _, newest in self.chunks.values())

    def tensors(self) -> dict[str, Tensor]:
        """As `outer.safetensors` holds them."""
        found: dict[str, Tensor] = {}
        for chunk, (base, newest) in self.chunks.items():
            message = StateMessage(newest.message.link, newest.message.owner, newest.message.signature)
            found |= {
                f"anchor.{chunk}": base.anchor.contiguous(),
                f"momentum.{chunk}": base.momentum.contiguous(),
                f"link.{chunk}": _bytes(encode(message)),
                f"result.{chunk}": _bytes(newest.payload),
            }
        return found


class Snapshots:
    """When to take them, and the thread that writes them. All but `put` is called in the training thread."""

    def __init__(
        self,
        folder: SnapshotFolder,
        *,
        interval: int,
        layout: Layout,
        manifest: str,
        notice: Callable[[str], None],
        disk: DiskTrouble,
        written: Callable[..., None],
    ) -> None:
        """`interval` in swarm steps, 0 for none; `manifest` as TOML; `disk` hears of those that fail; `written` takes
        what the record says of one."""
        self.folder = folder
        self._interval = interval
        self._layout = layout
        self._manifest = manifest
        self._notice = notice
        self._disk = disk
        self._written = written
        self._idle = threading.Event()
        self._idle.set()
        self._reached = 0
        self._failing = False
        self._last: object = None
        self._said: set[str] = set()

    @property
    def enabled(self) -> bool:
        """Whether any are written."""
        return self._interval > 0

    def started(self, step: int, own_step: int, node: Node) -> None:
        """Training begins, or goes on from a snapshot of these steps that says what `node` has now."""
        self._reached = step
        self._last = (own_step, OuterPart.of(node).heads)

    def is_due(self, step: int) -> bool:
        """Whether a multiple of the interval was passed, and nothing is being written. A late one is taken late."""
        return self.enabled and step // self._interval > self._reached // self._interval and self._idle.is_set()

    def begin(self) -> None:
        """A snapshot is being taken: `put` or `abandon` follows."""
        self._idle.clear()

    def abandon(self) -> None:
        """It will not be written."""
        self._idle.set()

    def say_once(self, text: str) -> None:
        """A sentence for the user, the first time that it is true."""
        if text not in self._said:
            self._said.add(text)
            self._notice(text)

    def put(self, taken: Taken, outer: OuterPart) -> None:
        """Write a snapshot in the background; one that says nothing new is left out. Called in any thread."""
        new = (taken.index.own_step, outer.heads)
        if new == self._last:
            self._idle.set()
            return
        self._reached = taken.index.step
        # Not one that the process must wait for: what is half written at its end is rubbish, not damage.
        writing = threading.Thread(target=self._write, args=(taken, outer, new), name="potluck-snapshot", daemon=True)
        try:
            writing.start()
        except RuntimeError as error:  # no more threads
            self._failed(taken.index.step, str(error))
            self._idle.set()

    def wait(self, seconds: float = FINAL_SECONDS) -> bool:
        """Until the one under way is written; False if it takes longer."""
        return self._idle.wait(seconds)

    def _write(self, taken: Taken, outer: OuterPart, new: object) -> None:
        step = taken.index.step
        try:
            began, troubles = clock.monotonic(), self._disk.troubles
            if not all(bool(values.isfinite().all()) for values in taken.fragments):
                self._failed(step, "the parameters are not finite")
                return
            index = msgspec.structs.replace(taken.index, marks=outer.marks)
            files = {
                PARAMETERS: named_parameters(taken.fragments, self._layout),
                OUTER: outer.tensors(),
                OPTIMIZER: taken.state,
            }
            path = self.folder.write(files, self._manifest, index)
            size = sum(file.stat().st_size for file in path.iterdir())
            self._failing, self._last = False, new
            self._disk.over(troubles)
            seconds = clock.monotonic() - began
            self._written("snapshot", step=step, copy_seconds=taken.copy_seconds, write_seconds=seconds, bytes=size)
        except OSError as error:
            self._disk.refused(self._lost(step, words_of(error)))
        except Exception as error:
            log.exception("could not write the snapshot of step %d", step)
            self._failed(step, repr(error))
        finally:
            self._idle.set()

    def _failed(self, step: int, why: str) -> None:
        """One line, until one succeeds again. The disk is not to blame."""
        if not self._failing:
            self._notice(self._lost(step, why))
        self._failing = True

    def _lost(self, step: int, why: str) -> str:
        return (
            f"The snapshot of step {step} could not be written to {self.folder.path}: {why}. "
            "Training goes on; the snapshots before it stay, and the next one is tried again."
        )


# What the training thread copies


def named_parameters(fragments: Sequence[Tensor], layout: Layout) -> dict[str, Tensor]:
    """The parameters by name and in their shapes, out of the flat values of each fragment."""
    found: dict[str, Tensor] = {}
    for fragment, flat in zip(layout.fragments, fragments, strict=True):
        for name, start in zip(fragment.names, layout.starts(fragment.index), strict=True):
            shape = layout.shapes[name]
            found[name] = flat[start : start + prod(shape)].reshape(shape)
    return found


def pack_state(
    optimizer: torch.optim.Optimizer, kept: Kept | None, notice: Callable[[str], None]
) -> tuple[dict[str, Tensor], Any, Any]:
    """Tensors of optimizer and loop, and both as JSON. A state that cannot be kept is null, and said to be."""
    tensors: dict[str, Tensor] = {}
    packed: list[Any] = []
    for what, state in (
        ("optimizer", lambda: {"class": type(optimizer).__name__, "state": optimizer.state_dict()}),
        ("loop", kept.state_dict if kept else lambda: None),
    ):
        mine: dict[str, Tensor] = {}
        try:
            packed.append(pack(state(), mine, what))
            tensors |= mine
        except NotPlain as error:
            packed.append(None)
            notice(f"The state of the {what} is not part of snapshots: {error}. A restart begins it afresh.")
    return tensors, packed[0], packed[1]


# What a restart puts back


def newest_good(
    folder: SnapshotFolder,
    layout: Layout,
    ledger: Ledger[ChunkState],
    dump: Callable[[ChunkState], bytes],
    notice: Callable[[str], None],
) -> tuple[Snapshot, list[Tensor]] | None:
    """The newest snapshot that is whole, and the parameters of each fragment. Its links are in the ledger then."""
    for snapshot in folder.good(notice):
        try:
            fragments = restore_parameters(snapshot, layout)
            restore_ledger(snapshot, ledger, dump)
            return snapshot, fragments
        except Damaged as error:
            notice(f"The snapshot {snapshot.path} is passed over: {error}.")
    return None


def restore_parameters(snapshot: Snapshot, layout: Layout) -> list[Tensor]:
    """The flat fp32 values of each fragment. Damaged if they are not those of the layout."""
    tensors = snapshot.tensors(PARAMETERS)
    flat = []
    for fragment in layout.fragments:
        for name in fragment.names:
            tensor = tensors.get(name)
            if tensor is None or tuple(tensor.shape) != layout.shapes[name] or tensor.dtype != torch.float32:
                raise Damaged(f"parameters.safetensors does not hold the model's {name}")
        flat.append(torch.cat([tensors[name].reshape(-1) for name in fragment.names]))
    return flat


def restore_ledger(snapshot: Snapshot, ledger: Ledger[ChunkState], dump: Callable[[ChunkState], bytes]) -> None:
    """Let the ledger take every chunk's state. Damaged if one does not prove itself.

    Chunks taken before that stay: each is proved on its own, and may be newer than those of an older snapshot.
    """
    tensors = snapshot.tensors(OUTER)
    for name in tensors:
        kind, _, chunk = name.partition(".")
        if kind != "link":
            continue
        try:
            message = decode(_raw(tensors[name]))
            if not isinstance(message, StateMessage) or str(message.link.chunk) != chunk:
                raise ProtocolError("a link of another chunk")
            state = ChunkState(tensors[f"anchor.{chunk}"], tensors[f"momentum.{chunk}"])
            ledger.adopt_state(message, dump(state) + _raw(tensors[f"result.{chunk}"]))
        except (ProtocolError, KeyError, AssertionError) as error:
            raise Damaged(f"chunk {chunk} of outer.safetensors does not prove itself: {error}") from error


def restore_state(
    snapshot: Snapshot, optimizer: torch.optim.Optimizer, kept: Kept | None, notice: Callable[[str], None]
) -> None:
    """Give optimizer and loop their states back. What does not fit starts afresh, and the user hears of it."""
    index, tensors = snapshot.index, snapshot.tensors(OPTIMIZER)
    try:
        packed = unpack(index.optimizer, tensors)
        if packed is not None:
            if packed["class"] != type(optimizer).__name__:
                raise ValueError(f"it is of {packed['class']}, and this is {type(optimizer).__name__}")
            optimizer.load_state_dict(packed["state"])
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        notice(f"The optimizer's state in {snapshot.path} does not fit, so it starts afresh: {error}.")
    loop = unpack(index.loop, tensors)
    if kept is not None and loop is not None:
        kept.load_state_dict(loop)


def program_version() -> str:
    """Of potluck, for those who look at a snapshot later."""
    try:
        return version("potluck-train")
    except PackageNotFoundError:
        return "unknown"


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _raw(tensor: Tensor) -> bytes:
    if tensor.dtype != torch.uint8 or tensor.dim() != 1:
        raise ProtocolError("bytes of another type")
    return bytes(tensor.numpy())
