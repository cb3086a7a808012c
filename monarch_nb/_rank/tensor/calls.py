"""Calls of functions of the user's on values of the ranks: as they are sent, and as they are done.

A call is what its function and its arguments were when it was made: a program's variables, an object's
attributes, an array's numbers may be others at the next one. So they are encoded with each call, and made
anew on the rank for each.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor.experimental import implicit_replication
from torch.utils import _pytree as pytree

from monarch_nb._rank.tensor.protocol import GroupHole, Hole, Poison
from monarch_nb._wire.codec import encode, from_bytes, to_bytes

_PARTS = ("the function", "its arguments", "its named arguments")
Frozen = tuple[bytes, ...]
"""A function, its arguments and its named ones, encoded; with `Hole`s for tensors of the mesh."""


def freeze(function: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Frozen:
    """Return a call as it is now.

    Raises:
        CannotPickle: for what can't be sent; it names the part.
    """
    parts = (function, tuple(args), dict(named))
    return tuple(to_bytes(encode(each, what)) for each, what in zip(parts, _PARTS, strict=True))


def as_tensor(call: Frozen) -> torch.Tensor:
    """Return a call as a tensor of bytes, for one that's too large to be kept."""
    return torch.frombuffer(bytearray(pickle.dumps(call, 5)), dtype=torch.uint8)


def do(call: Frozen | torch.Tensor, tensors: Sequence[Any], group_of: Callable[[GroupHole], Any]) -> Any:
    """Do a call on a rank; tensors among the results have no history.

    Args:
        tensors: the values for its holes.
        group_of: returns a process group.

    Raises:
        ValueError: if one of the values was lost by a failure.
    """
    if any(isinstance(each, Poison) for each in (call, *tensors)):
        raise ValueError("what it depends on has failed")  # the command's failure is that one's

    def filled(value: Any) -> Any:
        if isinstance(value, Hole):
            return tensors[value.index]
        return group_of(value) if isinstance(value, GroupHole) else value

    parts = pickle.loads(call.cpu().numpy().tobytes()) if isinstance(call, torch.Tensor) else call
    function, args, named = map(from_bytes, parts)
    args, named = pytree.tree_map(filled, (args, named))
    with torch.enable_grad(), implicit_replication():
        result = function(*args, **named)
    return pytree.tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, result)
