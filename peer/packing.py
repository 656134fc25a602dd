"""Plain values and tensors, taken apart into JSON and a flat dictionary of tensors, and put together again.

What optimizers call their state is a tree of dictionaries and lists with numbers and tensors at its leaves. It is kept
without pickle: whoever can write our files must not be able to run a program here.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor, nn

EXACT: Final = 2**53
"""Whole numbers beyond it are written as text: not every reader of JSON keeps them."""
_PLAIN = (Tensor, nn.Parameter)


class NotPlain(ValueError):
    """A value that is neither a tensor nor a number, text, list or dictionary."""


def pack(tree: Any, tensors: dict[str, Tensor], name: str) -> Any:
    """The tree as JSON; its tensors go into `tensors` as copies on the host, their names starting with `name`.

    NotPlain for anything else, sharded and sparse tensors included: the caller's state is then left out as a whole.
    """
    if tree is None or isinstance(tree, bool | str):
        return tree
    if isinstance(tree, int):
        return tree if abs(tree) <= EXACT else {"int": str(tree)}
    if isinstance(tree, float):
        return tree if math.isfinite(tree) else {"float": str(tree)}
    if isinstance(tree, Tensor):
        tensors[name] = host_copy(tree, name)
        return {"tensor": name}
    if isinstance(tree, list | tuple):
        kind = "list" if isinstance(tree, list) else "tuple"
        return {kind: [pack(value, tensors, f"{name}.{index}") for index, value in enumerate(tree)]}
    if isinstance(tree, dict) and all(isinstance(key, str | int) for key in tree):
        return {"dict": [[key, pack(value, tensors, f"{name}.{key}")] for key, value in tree.items()]}
    raise NotPlain(f"{name} is a {type(tree).__name__}")


def host_copy(tensor: Tensor, name: str) -> Tensor:
    """A contiguous copy on the host; NotPlain for a tensor that is not a dense one in one process."""
    if type(tensor) not in _PLAIN or tensor.layout != torch.strided or tensor.is_quantized:
        raise NotPlain(f"{name} is a {type(tensor).__name__} of layout {tensor.layout}")
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def unpack(packed: Any, tensors: dict[str, Tensor]) -> Any:
    """What `pack` was given. ValueError for JSON that `pack` does not write, or a tensor that is missing."""
    if not isinstance(packed, dict):
        if packed is None or isinstance(packed, bool | str | int | float):
            return packed
        raise ValueError(f"a {type(packed).__name__} where a value belongs")
    match list(packed.items()):
        case [("int", str(text))]:
            return int(text)
        case [("float", str(text))]:
            return float(text)
        case [("tensor", str(name))] if name in tensors:
            return tensors[name]
        case [("list", list(values))]:
            return [unpack(value, tensors) for value in values]
        case [("tuple", list(values))]:
            return tuple(unpack(value, tensors) for value in values)
        case [("dict", list(pairs))]:
            return {key: unpack(value, tensors) for key, value in pairs}
    raise ValueError(f"{' '.join(packed)}: no such kind of value")
