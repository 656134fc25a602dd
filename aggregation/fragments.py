"""Which parameters form which fragment, and how a fragment is cut into chunks (arXiv 2501.18512, section 2.2).

A model is seen as units. Its repeated blocks (the layers of a transformer) are one unit each; every parameter outside
them (embeddings, head, final norm) is a unit of its own and joins, largest first, the fragment that then has the fewest
elements. A fragment is also a flat fp32 vector: its parameters, each in row-major order, one after the other in the
module's parameter order. Chunks are slices of that vector. All of it follows from names and shapes only, so every peer
gets the same layout.
"""

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import Literal, get_args

from torch import nn

Pattern = Literal["strided", "sequential", "balanced"]
Unit = tuple[str, ...]  # names of parameters that stay together


@dataclass(frozen=True)
class Fragment:
    """The parameters that are synchronized together, in the module's parameter order, and their number of elements."""

    index: int
    names: tuple[str, ...]
    numel: int


@dataclass(frozen=True)
class Chunk:
    """Elements start..stop of a fragment's flat vector; `index` counts over the whole model."""

    index: int
    fragment: int
    start: int
    stop: int

    @property
    def numel(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Layout:
    """Every trainable element of a module in exactly one fragment; `shapes` has the shape of each parameter."""

    fragments: tuple[Fragment, ...]
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def numel(self) -> int:
        return sum(fragment.numel for fragment in self.fragments)

    def digest(self) -> bytes:
        """SHA-256 (32 bytes) of names, shapes and assignment: equal on two peers that cut the same model alike."""
        rows = [[[name, self.shapes[name]] for name in fragment.names] for fragment in self.fragments]
        return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).digest()

    def starts(self, fragment: int) -> tuple[int, ...]:
        """Where each parameter of the fragment begins in its flat vector, in the order of `names`."""
        starts, end = [], 0
        for name in self.fragments[fragment].names:
            starts.append(end)
            end += prod(self.shapes[name])
        return tuple(starts)

    def chunks(self, elements: int, block: int = 256) -> tuple[Chunk, ...]:
        """Cuts every fragment into even chunks of at most `elements` values, numbered over the model in fragment order.

        All but a fragment's last chunk hold whole quantization blocks of `block` values. A chunk ends with a whole
        row of a parameter where that costs at most a quarter of its length. Raises ValueError unless `elements` is a
        multiple of `block`.
        """
        if elements < 1 or block < 1 or elements % block:
            raise ValueError(f"chunk elements = {elements}: must be a positive multiple of the block ({block})")
        slices = (piece for fragment in self.fragments for piece in self._slices(fragment, elements, block))
        return tuple(Chunk(index, *piece) for index, piece in enumerate(slices))

    def _slices(self, fragment: Fragment, elements: int, block: int) -> Iterator[tuple[int, int, int]]:
        starts, start = self.starts(fragment.index), 0
        while start < fragment.numel:
            left = fragment.numel - start
            # Even pieces: a short last chunk would cost as many headers and signatures as a full one.
            even = -(-left // -(-left // elements))
            stop = min(start + -(-even // block) * block, fragment.numel)
            if stop < fragment.numel:
                lowest = stop - even // 4
                ends = (end for end in range(stop, lowest, -block) if self._ends_row(fragment, starts, end))
                stop = next(ends, stop)
            yield fragment.index, start, stop
            start = stop

    def _ends_row(self, fragment: Fragment, starts: Sequence[int], position: int) -> bool:
        at = bisect_right(starts, position) - 1
        shape = self.shapes[fragment.names[at]]
        row = prod(shape[1:]) if len(shape) > 1 else prod(shape)
        return (position - starts[at]) % row == 0


def partition(
    module: nn.Module, *, fragments: int, pattern: Pattern = "strided", patterns: Sequence[Sequence[str]] = ()
) -> Layout:
    """Assigns every trainable parameter of any torch module to one of `fragments` fragments.

    `strided` puts block i into fragment i mod P (the paper's choice, section 2.2), `sequential` makes contiguous
    runs, `balanced` makes the largest fragment small. `patterns`, one list of globs for each fragment, replaces all
    that. Tied parameters count once, frozen ones not at all. Raises ValueError, naming what would be right.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters() if parameter.requires_grad}
    sizes = {name: prod(shape) for name, shape in shapes.items() if prod(shape)}
    if not sizes:
        raise ValueError("module: has no trainable parameters, so there is nothing to share")
    groups = _matched(sizes, fragments, patterns) if patterns else _assigned(module, sizes, fragments, pattern)
    order = {name: position for position, name in enumerate(sizes)}
    named = [tuple(sorted(group, key=order.__getitem__)) for group in groups]
    made = tuple(Fragment(index, names, sum(sizes[n] for n in names)) for index, names in enumerate(named))
    return Layout(made, {name: shapes[name] for name in sizes})


def num_blocks(module: nn.Module) -> int:
    """How many repeated blocks `partition` sees in the module: the most fragments that it can have."""
    return len(_blocks(module, [name for name, p in module.named_parameters() if p.requires_grad and p.numel()]))


def _assigned(module: nn.Module, sizes: Mapping[str, int], fragments: int, pattern: Pattern) -> list[list[str]]:
    blocks = _blocks(module, list(sizes))
    if not 1 <= fragments <= len(blocks):
        raise ValueError(f"fragments = {fragments}: must be between 1 and {len(blocks)}, the number of repeated blocks")
    inside = {name for block in blocks for name in block}
    rest: list[Unit] = [(name,) for name in sizes if name not in inside]
    groups: list[list[str]] = [[] for _ in range(fragments)]
    if pattern == "balanced":
        rest = blocks + rest
    elif pattern in get_args(Pattern):
        place: Callable[[int], int] = _strided(fragments) if pattern == "strided" else _runs(fragments, len(blocks))
        for index, block in enumerate(blocks):
            groups[place(index)].extend(block)
    else:
        raise ValueError(f"pattern = {pattern!r}: must be one of {', '.join(get_args(Pattern))}")
    _fill(groups, rest, sizes)
    return groups


def _strided(fragments: int) -> Callable[[int], int]:
    return lambda block: block % fragments


def _runs(fragments: int, blocks: int) -> Callable[[int], int]:
    return lambda block: block * fragments // blocks


def _fill(groups: list[list[str]], units: Sequence[Unit], sizes: Mapping[str, int]) -> None:
    """Adds each unit, largest first, to the group that then has the fewest elements; the lowest index wins a tie."""
    totals = [sum(sizes[name] for name in group) for group in groups]
    for unit in sorted(units, key=lambda unit: -sum(sizes[name] for name in unit)):
        smallest = totals.index(min(totals))
        groups[smallest].extend(unit)
        totals[smallest] += sum(sizes[name] for name in unit)


def _matched(names: Iterable[str], fragments: int, patterns: Sequence[Sequence[str]]) -> list[list[str]]:
    if len(patterns) != fragments:
        raise ValueError(f"fragments = {fragments}: must be {len(patterns)}, the number of lists in patterns")
    groups: list[list[str]] = [[] for _ in patterns]
    for name in names:
        hits = [i for i, globs in enumerate(patterns) if any(fnmatchcase(name, glob) for glob in globs)]
        if len(hits) != 1:
            found = f"patterns {hits}" if hits else "none of the patterns"
            raise ValueError(f"patterns: parameter {name!r} is matched by {found}, must be matched by exactly one")
        groups[hits[0]].append(name)
    for index, group in enumerate(groups):
        if not group:
            raise ValueError(f"patterns[{index}] = {list(patterns[index])}: must match a trainable parameter")
    return groups


def _blocks(module: nn.Module, names: Sequence[str]) -> list[Unit]:
    """The repeated blocks, in order, as the names of their parameters.

    A family is a module's numbered children of one class (`h.0`, `h.1`, … or `layer1`, `layer2`, …). The one with the
    most parameters is the model's: experts within a layer, say, are always fewer than the layers. A module without a
    family falls back on one block for each submodule that has parameters of its own.
    """
    families = [_units(prefixes, names) for prefixes in _families(module)]
    families = [family for family in families if len(family) > 1]
    if not families:
        owners = dict.fromkeys(name.rpartition(".")[0] for name in names)
        return [tuple(name for name in names if name.rpartition(".")[0] == owner) for owner in owners]
    parameters = dict(module.named_parameters())
    return max(families, key=lambda family: sum(parameters[name].numel() for unit in family for name in unit))


def _families(module: nn.Module) -> Iterator[list[str]]:
    for path, parent in module.named_modules():
        members: dict[tuple[str, type], list[tuple[int, str]]] = {}
        for name, child in parent.named_children():
            numbered = re.fullmatch(r"(\D*)(\d+)", name)
            if numbered:
                full = f"{path}.{name}." if path else f"{name}."
                members.setdefault((numbered[1], type(child)), []).append((int(numbered[2]), full))
        yield from ([full for _, full in sorted(family)] for family in members.values())


def _units(prefixes: Sequence[str], names: Sequence[str]) -> list[Unit]:
    units = (tuple(name for name in names if name.startswith(prefix)) for prefix in prefixes)
    return [unit for unit in units if unit]
