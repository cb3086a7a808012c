"""A tensor of the mesh on the controller: its shape and type, and the place of its values. Operations on it
are passed to its engine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.utils import _pytree as pytree

from monarch_nb._rank.tensor.private import make_wrapper, no_torch_function, tensor_text, wrapper_maker
from monarch_nb._tensor import reads
from monarch_nb._tensor import reduction as reduction_of
from monarch_nb._tensor.drawing import html_of
from monarch_nb._tensor.metadata import Grid, Meta, contiguous
from monarch_nb._tensor.operators import binary
from monarch_nb._tensor.plan import only_numbers
from monarch_nb._tensor.slots import DroppedHandle
from monarch_nb.exceptions import MeshError, WrongTensor

if TYPE_CHECKING:
    from monarch_nb._tensor.controller import Engine
    from monarch_nb._tensor.slots import Handle

SHOWN_NUMBERS = 1000
"""Maximum number of elements of a tensor whose values are displayed."""
_DATA = torch.Tensor.data
_aten = torch.ops.aten
_detach = _aten.detach.default

_is_inference_mode = torch.is_inference_mode_enabled


class Tensor(torch.Tensor):  # type: ignore[misc]
    """A tensor whose values are on the ranks of a mesh. Made by `monarch_nb.distribute`, by operations, and
    in `with mesh.activate()`.

    Whatever PyTorch does with tensors can be done with it. What needs its numbers here waits for the ranks:
    `item()`, `tolist()`, `full()`, `print`.

    Attributes:
        mesh_meta: its shape and layout.
        mesh_handle: the slot of its values in the ranks' tables.

    Example:
        >>> dt = monarch_nb.distribute(torch.randn(8, 6), mesh, ["data_parallel", None])  # doctest: +SKIP
        >>> (dt @ dt.T).full().shape  # doctest: +SKIP
        torch.Size([8, 8])
    """

    __slots__ = ("mesh_handle", "mesh_meta")  # an operation makes one of these, and needn't make a dict
    mesh_meta: Meta
    mesh_handle: Handle

    @staticmethod
    def __new__(cls, meta: Meta, handle: Handle, requires_grad: bool = False) -> Self:
        made = make_wrapper(
            cls, meta.size, strides=meta.stride, storage_offset=meta.offset, dtype=meta.dtype,
            device=meta.grid.device_mesh.device_type, requires_grad=requires_grad,
        )  # fmt: skip
        made.mesh_meta = meta
        made.mesh_handle = handle
        return made  # type: ignore[no-any-return]

    __torch_function__ = no_torch_function
    __hash__ = torch.Tensor.__hash__
    __add__ = __radd__ = binary("__add__", _aten.add.Tensor)
    __sub__ = binary("__sub__", _aten.sub.Tensor)
    __mul__ = __rmul__ = binary("__mul__", _aten.mul.Tensor)
    __truediv__ = binary("__truediv__", _aten.div.Tensor)
    __matmul__ = binary("__matmul__", _aten.mm.default)
    add = binary("add", _aten.add.Tensor)
    sub = binary("sub", _aten.sub.Tensor)
    mul = binary("mul", _aten.mul.Tensor)
    div = binary("div", _aten.div.Tensor)
    matmul = binary("matmul", _aten.mm.default)

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Pass an operation to its mesh's engine; torch calls this for each operation, below autograd."""
        if _is_inference_mode():
            return _as_outside(func, args, kwargs)
        first = args[0] if args else None
        if type(first) is not cls:
            if type(first) is list and len(args) < 3 and not kwargs:  # `cat` and the like
                found = _done_before(func, first, args)
                if found is not None:
                    return found[0].command(found[1], first, ())
            return engine_in(args, kwargs).dispatch(func, args, kwargs)
        meta = first.mesh_meta
        engine = meta.grid.engine
        if not kwargs:  # most operations have one or two tensors, and were done before
            num, plan, tensors = len(args), None, args
            if num == 1:
                plan = engine.plans.get((id(func), meta))
            elif num == 2 and type(args[1]) is cls:
                plan = engine.plans.get((id(func), meta, args[1].mesh_meta))
            elif id(func) in only_numbers:
                plan, tensors = engine.plans.get(short_key(id(func), args)), (first,)
            if plan is not None:
                return engine.command(plan, tensors, ())
            if func is _detach:
                return first.without_history()
        return engine.dispatch(func, args, kwargs)

    def without_history(self) -> Tensor:
        """Return another tensor of the same values. Ranks keep no histories: there's nothing to do there.

        Autograd makes one of each result that an operation's backward needs.
        """
        self.mesh_handle.slot  # noqa: B018  # raises if it was dropped or lost
        made: Tensor = (self.mesh_meta.make or maker_of(self.mesh_meta))()
        made.mesh_meta, made.mesh_handle = self.mesh_meta, self.mesh_handle
        return made

    # --- placement

    @property
    def engine(self) -> Engine:
        """The engine that sends the tensor's operations."""
        found: Engine = self.mesh_meta.grid.engine
        return found

    @property
    def is_global(self) -> bool:
        """Whether the tensor is one over all ranks; else each rank has a value of its own."""
        return self.mesh_meta.placements is not None

    @property
    def placements(self) -> tuple[Any, ...] | None:
        """Its layout as torch's placements, one for each axis of the mesh; None if each rank has a value
        of its own.
        """
        return self.mesh_meta.placements

    @property
    def sharding_spec(self) -> list[Any]:
        """The axis, or axes, over which each dimension is sharded; None where it isn't.

        Example:
            >>> dt.sharding_spec  # doctest: +SKIP
            ['data_parallel', None]
        """
        names: list[list[str]] = [[] for _ in self.shape]
        for name, placement in zip(self.mesh_meta.grid.names, self.placements or (), strict=False):
            if placement.is_shard():
                names[placement.dim].append(name)
        return [each[0] if len(each) == 1 else tuple(each) or None for each in names]

    @property
    def mesh(self) -> Grid:
        """The mesh that it's on, as a grid of ranks. `to_mesh` takes it."""
        return self.mesh_meta.grid.base

    @property
    def stream(self) -> str:
        """The name of the `Stream` that it's on."""
        return self.mesh_meta.grid.stream

    # --- each rank's own values

    def reduce(
        self,
        dims: Sequence[str] | str = (),
        reduction: str = "sum",
        scatter: bool = False,
        mesh: Any = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Reduce the ranks' own values along axes; see `monarch_nb.reduce`."""
        return reduction_of.reduce(self, dims, reduction, scatter, mesh, out)

    def reduce_(
        self, dims: Sequence[str] | str = (), reduction: str = "sum", scatter: bool = False, mesh: Any = None
    ) -> Tensor:
        """Reduce as `reduce` does; this tensor becomes the result."""
        return reduction_of.reduce_(self, dims, reduction, scatter, mesh)

    def slice_mesh(self, **coordinates: int | slice) -> reduction_of.MeshSliceTensor:
        """Return the values on a part of the mesh; see `monarch_nb.slice_mesh`."""
        return reduction_of.slice_mesh(self, **coordinates)

    def to_mesh(self, mesh: Any, stream: Any = None) -> Tensor:
        """Bring the ranks' own values to another mesh; see `monarch_nb.to_mesh`."""
        return reduction_of.to_mesh(self, mesh, stream)

    def drop(self) -> None:
        """Free its memory on the ranks now, rather than when no reference is left; what other tensors share
        of it lives on. Later uses, including a backward, raise an error that says DROPPED.
        """
        self.mesh_handle = self.mesh_handle.dropped()

    @property
    def dropped(self) -> bool:
        """Whether the tensor's memory was freed."""
        return isinstance(self.mesh_handle, DroppedHandle)

    # --- values fetched to this process

    def full(self) -> torch.Tensor:
        """Return the whole tensor as a plain one on this machine, after all operations on it.

        Raises:
            RemoteException: if an operation that it depends on has failed.
            WrongTensor: if each rank has a value of its own.
        """
        found: torch.Tensor = self._read(reads.to_itself)
        return found

    def _read(self, convert: reads.Convert) -> Any:
        """Return what is made of the whole tensor. A method calls it, whose value that is."""
        engine = self.engine
        value = convert(engine.full(self))
        if engine.recorder is not None:
            engine.recorder.gave(value, convert, sys._getframe(1))
        return value

    def item(self) -> Any:
        """Return the value of a tensor with one element, after all operations on it."""
        if self.numel() != 1:
            return super().item()
        return self._read(torch.Tensor.item)

    def tolist(self) -> Any:
        """Return the values as nested lists."""
        return self._read(torch.Tensor.tolist)

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        """Return the whole tensor as a plain one, like `full`."""
        found: torch.Tensor = self._read(reads.to_itself)
        return found

    def numpy(self, *, force: bool = False) -> Any:
        """Return the whole tensor as a numpy array."""
        return self.full().numpy(force=True) if force else self._read(torch.Tensor.numpy)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.full().__array__(dtype) if dtype is not None else self.full().__array__()

    def __bool__(self) -> bool:
        if self.numel() != 1:
            return bool(super().__bool__())
        found: bool = self._read(bool)
        return found

    def __float__(self) -> float:
        found: float = self._read(reads.to_float)
        return found

    def __int__(self) -> int:
        found: int = self._read(reads.to_int)
        return found

    def __index__(self) -> int:
        return int(self.full().__index__())

    def __format__(self, spec: str) -> str:
        with self._shown() as is_known:
            return format(self.item() if self.dim() == 0 and is_known else repr(self), spec)

    # --- methods that must not reach torch

    def _data(self) -> Tensor:
        return Tensor(self.mesh_meta, self.mesh_handle)

    def _set_data(self, other: Any) -> None:
        if not isinstance(other, Tensor) or other.engine is not self.engine:
            raise WrongTensor(
                "LOCAL_TENSOR: .data of a tensor of the mesh can only be another one of the same mesh: "
                "monarch_nb.distribute(t, mesh, ...) makes one; or t.copy_(plain) under torch.no_grad()"
            )
        _DATA.__set__(self, other)
        self.mesh_meta, self.mesh_handle = other.mesh_meta, other.mesh_handle

    data = property(_data, _set_data)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) in memo:
            found: Tensor = memo[id(self)]
            return found
        with torch.no_grad():
            made = self.detach().clone()
        made = torch.nn.Parameter(made, self.requires_grad) if isinstance(self, torch.nn.Parameter) else made
        made.requires_grad_(self.requires_grad)
        memo[id(self)] = made
        return made  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.engine.recorder is not None:
            self.engine.recorder.needs()
        return (
            self.full().detach().requires_grad_(self.requires_grad and self.is_leaf).__reduce_ex__(protocol)
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        kind = "Parameter" if isinstance(self, torch.nn.Parameter) else "Tensor"
        about = f"shape={list(self.shape)}, {self.dtype}, {self.mesh_meta.layout}"
        return f"{kind}({self._numbers()}{about})"

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook: the values of a small tensor, and the location of its parts."""
        return html_of(self.mesh_meta, "dropped" if self.dropped else repr(self))

    def _shown(self) -> AbstractContextManager[bool]:
        """Return a context in which numbers are made text; it says whether they can be had."""
        recorder = self.engine.recorder
        return nullcontext(True) if recorder is None else recorder.shows()

    def _numbers(self) -> str:
        if not self.is_global or self.numel() > SHOWN_NUMBERS:
            return ""
        try:
            with self._shown() as is_known:
                if not is_known:
                    return ""
                text = tensor_text(self.full(), 7)
        except MeshError as error:
            return f"lost: {str(error).splitlines()[0]}; "
        return f"{text},\n       " if "\n" in text else f"{text}, "


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of a mesh."""
    return isinstance(value, Tensor)


def short_key(number: int, args: Sequence[Any]) -> tuple[Any, ...]:
    """Return the key of the plan of an operation of `only_numbers`.

    Args:
        number: the operation's id.
    """
    return (number, args[0].mesh_meta, *[tuple(each) if type(each) is list else each for each in args[1:]])


def maker_of(meta: Meta) -> Callable[[], Any]:
    """Return the factory of tensors with this metadata, like the class `Tensor`, but without recording their
    places in the source.
    """
    is_plain = meta.stride == contiguous(meta.size) and not meta.offset
    meta.make = wrapper_maker(
        Tensor, meta.size, None if is_plain else meta.stride, meta.offset, meta.dtype,
        meta.grid.device_mesh.device_type,
    )  # fmt: skip
    return meta.make


def _done_before(func: Any, tensors: list[Any], args: Sequence[Any]) -> tuple[Engine, Any] | None:
    """Return the engine and the plan of an operation on a list of tensors, and an integer at most, that was
    done before; the key is `Engine.dispatch`'s.
    """
    try:
        key = [id(func), len(tensors), list, *[each.mesh_meta for each in tensors]]
    except AttributeError:  # a plain tensor is among them
        return None
    if len(args) == 2:
        key += (args[1], type(args[1]))
    engine: Engine = tensors[0].mesh_meta.grid.engine
    try:
        plan = engine.plans.get(tuple(key))
    except TypeError:  # another list
        return None
    return None if plan is None else (engine, plan)


def _as_outside(func: Any, args: Any, kwargs: Any) -> Any:
    """Do an operation as outside of torch.inference_mode. There, torch demands that a view of a tensor made
    before it can be used after it, too; and no tensor made so takes longer.
    """
    with torch.inference_mode(False), torch.no_grad():
        return engine_in(args, kwargs).dispatch(func, args, kwargs)


def engine_in(args: Any, kwargs: Any) -> Engine:
    """Return the engine of the first tensor of a mesh among the arguments."""
    for each in args:
        if isinstance(each, Tensor):
            return each.engine
        if isinstance(each, (list, tuple)) and each and isinstance(each[0], Tensor):  # `cat` and the like
            return each[0].engine
    for each in pytree.tree_leaves((args, kwargs)):
        if isinstance(each, Tensor):
            return each.engine
    raise AssertionError("no tensor of a mesh")
