"""Runs a forward without values: it determines the outputs, the cost, and the layers that mix rows of the
batch.

The module is run twice over shapes alone. Once as one rank sees it, on its part of the batch (`local`); once
as one tensor over all ranks (`whole`), with DTensor's rules. Where both do the same operations with the same
numbers, and no rule asks for another layout, each rank can do its part by itself. A layer where that isn't so
looks across the batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import Partial, Replicate
from torch.func import functional_call
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from monarch_nb._parallel.attributes import Left, attributes_kept
from monarch_nb._parallel.numbers import as_in_training, split_dims
from monarch_nb._parallel.rules import (
    is_by_rows,
    is_part,
    is_shaping,
    is_uniform,
    is_view,
    reason_of,
    row_dim,
    row_layout,
)
from monarch_nb._rank.tensor.inside import Template, is_constant, tensors_of
from monarch_nb._rank.tensor.losses import SUM, is_mean_of_rows
from monarch_nb._rank.tensor.own_losses import counts_rows, means_by
from monarch_nb._rank.tensor.private import make_wrapper, no_torch_function, restride
from monarch_nb._tensor.arguments import plain_arguments
from monarch_nb._tensor.metadata import Grid, Meta, intern
from monarch_nb._tensor.place import Place, users_frame
from monarch_nb._tensor.plan import IN_PLACE_VIEWS
from monarch_nb._tensor.propagation import Propagation


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape and dtype of a tensor, without values."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def __repr__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.size)}"


@dataclass(frozen=True, slots=True)
class Finding:
    """A layer whose result for one row depends on other rows of the batch.

    Attributes:
        path: path of the layer.
        kind: class of the layer.
        op: the operation that mixes rows.
        reason: the reason in words.
        place: line of the user's code.
        num_bytes: bytes that every rank has to receive from the others, per forward.
    """

    path: str
    kind: str
    op: str
    reason: str
    place: Place
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Out:
    """An output tensor of a dry run.

    Attributes:
        shape: shape of the whole tensor.
        layout: layout over the data axis: Shard(0), Replicate or Partial.
        wants_gradient: whether it has an autograd history.
    """

    shape: Shape
    layout: Any
    wants_gradient: bool


@dataclass(frozen=True, slots=True)
class DryRun:
    """The result of a dry run: everything known about a module's forward.

    Attributes:
        outputs: its tensors, flat, and `structure` and `leaves` of what it returns.
        findings: layers that mix rows of the batch.
        used: names of parameters that contribute to the result.
        num_flops: floating-point operations of one rank's forward.
        saved_bytes: bytes that one rank keeps for the backward.
        counts_rows: whether a loss is the mean over rows that count: ranks have to add these up.
        assigned: names of buffers that are replaced by other tensors.
    """

    outputs: tuple[Out, ...]
    leaves: tuple[Any, ...]
    structure: Any
    findings: tuple[Finding, ...]
    used: frozenset[str]
    num_flops: int = 0
    saved_bytes: int = 0
    counts_rows: bool = False
    assigned: tuple[str, ...] = ()

    @property
    def has_objects(self) -> bool:
        """Whether the result has objects with tensors, which layers get and change in other ways than by
        their own results.
        """
        return any(isinstance(each, Template) for each in self.leaves)


class CantFollow(Exception):
    """The error of a forward that can't be followed without values; its text says what prevents that."""


@dataclass(slots=True)
class Step:
    """One operation of a dry run, on one rank's part."""

    func: Any
    scalars: tuple[Any, ...]
    sizes: tuple[tuple[int, ...], ...]


class Found(Exception):
    """The signal that a layer mixing rows was found; the dry run is repeated with that layer on the whole
    batch.
    """

    def __init__(self, path: str, op: str, reason: str, place: Place) -> None:
        super().__init__(reason)
        self.path, self.op, self.reason, self.place = path, op, reason, place


class LooksAcross(Exception):
    """The error of a layer that mixes rows of the batch without permission.

    Attributes:
        finding: the layer, and where it mixes rows.
    """

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.reason)
        self.finding = finding


class LocalMismatch(Exception):
    """The error of an operation that one rank can't do on its part, though one process can on the whole
    batch.

    Attributes:
        path: path of the layer, `op` its operation, `place` its line.
        inputs: the operation's tensors: name, for a parameter, and shape on one rank.
        error: torch's message.
    """

    def __init__(
        self, path: str, op: str, place: Place, inputs: Sequence[tuple[str, Shape]], error: Exception
    ) -> None:
        super().__init__(str(error))
        self.path, self.op, self.place, self.inputs, self.error = path, op, place, tuple(inputs), error


class Dry(torch.Tensor):  # type: ignore[misc]
    """A tensor over all ranks, with a layout and without values."""

    mesh_meta: Meta

    @staticmethod
    def __new__(cls, meta: Meta, requires_grad: bool = False) -> Dry:
        made = make_wrapper(
            cls, meta.size, strides=meta.stride, storage_offset=meta.offset, dtype=meta.dtype, device="cpu",
            requires_grad=requires_grad,
        )  # fmt: skip
        made.mesh_meta = meta
        return made  # type: ignore[no-any-return]

    __torch_function__ = no_torch_function

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """What `isinstance` takes it for, too: models ask so whether a tensor has numbers."""
        return FakeTensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Raise `CantFollow`: this is called only outside of a dry run, where the tensor supports no
        operations.
        """
        raise CantFollow(f"{func} after the dry run")

    def __deepcopy__(self, memo: Any) -> Any:
        raise CantFollow("a tensor lies where it isn't found")


def is_dry(value: Any) -> bool:
    """Return whether a value is a tensor of a dry run."""
    return type(value) is Dry


class DryRunner:
    """The dry runs of one module for a given number of ranks.

    Args:
        module: the user's module; only the shapes of its parameters are used.
        num_ranks: number of ranks over which a batch is split.
        replicate: layers that run on the whole batch because the user says so.
    """

    def __init__(self, module: nn.Module, num_ranks: int, replicate: Sequence[str] = ()) -> None:
        self.module, self.num_ranks = module, num_ranks
        self.replicate = tuple(replicate)
        self.grid = Grid(None, (num_ranks,), ("data",), range(num_ranks), "cpu")
        self.propagation = Propagation(is_dry)
        self.paths = {layer: path for path, layer in module.named_modules()}
        self.outcomes: dict[Any, Any] = {}
        self.fine: dict[str, list[int | None]] = {}
        """Layers that rules can't follow, but that handle each row separately, as a test with values has
        shown: how their results are split.
        """
        self._known: list[Finding] = []

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any], rows: int, *, finds: bool = True) -> DryRun:
        """Run the module's forward without values, and return the result.

        Args:
            args, kwargs: the module's arguments. Tensors may be plain or fake; only their shapes matter.
            rows: size of the batch; tensors whose first dimension has this size are split.
            finds: whether layers that mix rows run on the whole batch; otherwise they are an error.

        Raises:
            LocalMismatch, CantFollow: see there. Errors of the module in one process are raised, too.
        """
        while True:
            whole = tuple(dict.fromkeys([*self.replicate, *(f.path for f in self._known)]))
            try:
                local = LocalRun(self, whole, rows)
                result = self.run_in(local, args, kwargs)
                used = _used(result, local.parameters)
                over_all = WholeRun(self, whole, rows, local.steps, local.strides)
                return self._known_by(local, over_all, self.run_in(over_all, args, kwargs), used, result)
            except LocalMismatch as error:
                # raises the same error as one process would
                self.run_in(WholeRun(self, (), rows, None), args, kwargs)
                if not finds:
                    raise
                self._note(Found(error.path, error.op, "shapes don't fit on a part of it", error.place))
            except Found as found:
                if self._is_fine(found, over_all):
                    continue
                if not finds:
                    raise LooksAcross(self._finding(found)) from None
                self._note(found)

    def _is_fine(self, found: Found, over_all: WholeRun) -> bool:
        """Test the layer with random values; if it has no layout that can be split, test the layers around
        it.
        """
        if found.path in self.fine or found.path not in over_all.inputs:
            return False
        args, kwargs = over_all.inputs[found.path]
        dims = split_dims(self.module.get_submodule(found.path), args, kwargs, self.num_ranks)
        if dims is None:
            return False
        self.fine[found.path] = dims
        return True

    def run_in(self, mode: _Mode, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the module with tensors of a mode, which follows it."""
        state = mode.state(self.module)
        buffers = {name: state[name] for name, _ in self.module.named_buffers()}
        given = pytree.tree_map(mode.given, (tuple(args), dict(kwargs)))
        with attributes_kept(self.paths) as left, mode.following():
            result = functional_call(self.module, state, *given, tie_weights=True)
        mode.left(left, [name for name, each in buffers.items() if state[name] is not each], state)
        return result

    def _note(self, found: Found) -> None:
        if "" in (f.path for f in self._known) or found.path in (f.path for f in self._known):
            raise CantFollow(f"{found.op}: {found.reason}")
        layer = self.module.get_submodule(found.path)
        alike = [layer]
        if type(layer).__module__.startswith("torch.nn."):
            alike = [m for m in self.paths if type(m) is type(layer) and m.training == layer.training]
        self._known = [
            f for f in self._known if not f.path.startswith(f"{found.path}." if found.path else "")
        ]
        self._known += [replace(self._finding(found), path=self.paths[each]) for each in alike]

    def _finding(self, found: Found) -> Finding:
        kind = type(self.module.get_submodule(found.path)).__name__
        return Finding(found.path, kind, found.op, found.reason, found.place)

    def _known_by(
        self, local: LocalRun, over_all: WholeRun, result: Any, used: frozenset[str], on_rank: Any
    ) -> DryRun:
        leaves, structure = pytree.tree_flatten(result)
        pairs = zip(tensors_of(result), tensors_of(on_rank), strict=True)
        outputs = tuple(over_all.out(x, p) for x, p in pairs)
        holes = tuple(map(_hole, leaves))
        findings = tuple(replace(f, num_bytes=local.gathered.get(f.path, 0)) for f in self._known)
        return DryRun(
            outputs, holes, structure, findings, used, local.num_flops, local.saved_bytes,
            over_all.counts_rows, over_all.assigned,
        )  # fmt: skip


_Hole: Any = object()


def _hole(leaf: Any) -> Any:
    """Return what stands for a leaf of a result.

    Raises:
        CantFollow: if it holds tensors that can't be replaced.
    """
    if isinstance(leaf, torch.Tensor):
        return _Hole
    if is_constant(leaf):
        return leaf
    made = Template(leaf)
    try:
        made.filled(made.marks)
    except Exception as error:
        raise CantFollow(f"it returns a {type(leaf).__name__}, which can't be copied: {error}") from None
    return made


def filled(leaf: Any, parts: Iterator[Any]) -> Any:
    """Return a leaf of a result with the next tensors in place of what stands for them."""
    if leaf is _Hole:
        return next(parts)
    return leaf.filled(parts) if isinstance(leaf, Template) else leaf


def _used(result: Any, parameters: Mapping[str, torch.Tensor]) -> frozenset[str]:
    """Return the names of the parameters in a result's autograd history."""
    names = {id(each): name for name, each in parameters.items()}
    seen: set[Any] = set()
    results = [x for x in tensors_of(result) if x.requires_grad]
    found = {names[id(each)] for each in results if id(each) in names}
    todo = [each.grad_fn for each in results]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) in names:
            found.add(names[id(variable)])
        todo += [each for each, _ in node.next_functions]
    return frozenset(found)


class _Mode(TorchDispatchMode):  # type: ignore[misc]
    """A dispatch mode that follows operations, and knows the layer in which each runs."""

    def __init__(self, runner: DryRunner, whole: Sequence[str], rows: int) -> None:
        super().__init__()
        self._runner, self._whole, self._rows = runner, frozenset(whole), rows
        self._layers: list[str] = []
        self._depth = 0
        """Number of enclosing layers that run on the whole batch."""
        self._is_unseen = False
        self.parameters: dict[str, torch.Tensor] = {}

    @property
    def path(self) -> str:
        """The path of the layer whose forward runs now."""
        return self._layers[-1] if self._layers else ""

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow the operations of a `with` block."""
        with ExitStack() as stack:
            for layer, path in self._runner.paths.items():
                hooks = (
                    layer.register_forward_pre_hook(self._entering(path), with_kwargs=True, prepend=True),
                    layer.register_forward_hook(self._leaving(path), always_call=True),
                )
                for each in hooks:
                    stack.callback(each.remove)
            stack.enter_context(self._around())
            stack.enter_context(self)
            yield

    @contextmanager
    def _around(self) -> Iterator[None]:
        with _quiet():
            yield

    def _entering(self, path: str) -> Callable[..., Any]:
        def enter(_layer: Any, args: Any, kwargs: Any) -> Any:
            self._layers.append(path)
            self.enter(path, args, kwargs)
            if path not in self._whole:
                return None
            self._depth += 1
            for each in pytree.tree_leaves((args, kwargs)):
                if not isinstance(each, torch.Tensor) and not is_constant(each):
                    raise CantFollow(
                        f"{path or 'it'} mixes rows of the batch, and gets a {type(each).__name__}, which it "
                        "may change"
                    )
            return args if self._depth > 1 else self._unseen(self.gather, (args, kwargs))

        def enter_all(layer: Any, args: Any, kwargs: Any) -> Any:
            found = enter(layer, args, kwargs)
            return (args, kwargs) if found is None or found is args else found

        return enter_all

    def _leaving(self, path: str) -> Callable[..., Any]:
        def leave(_layer: Any, _args: Any, output: Any) -> Any:
            if self._layers:
                self._layers.pop()
            output = self.leave(path, output)
            if path not in self._whole:
                return output
            self._depth -= 1
            return output if self._depth else self._unseen(self.own, output)

        return leave

    def _unseen(self, function: Callable[..., Any], values: Any) -> Any:
        """Apply a function to values without following it, because it isn't an operation of the module."""
        self._is_unseen = True
        try:
            return pytree.tree_map(function, values)
        finally:
            self._is_unseen = False

    def state(self, module: nn.Module) -> dict[str, torch.Tensor]:
        """Return the module's parameters and buffers as tensors of this run."""
        made: dict[int, torch.Tensor] = {}
        for each in module.parameters():
            made[id(each)] = self.value(each).requires_grad_(each.requires_grad)
        for each in module.buffers():
            made[id(each)] = self.value(each)
        named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]
        state = {name: made[id(each)] for name, each in named}
        self.parameters = {name: made[id(each)] for name, each in module.named_parameters()}
        return state

    def name_of(self, value: Any) -> str:
        """Return the name of a parameter, or of the parameter that a view belongs to; "" for other values."""
        for name, each in self.parameters.items():
            if value is each or (value._is_view() and value._base is each):
                return name
        return ""

    # the differences

    def left(self, attributes: Left, buffers: Sequence[str], state: Mapping[str, torch.Tensor]) -> None:
        """Handle what the forward has set: attributes of layers, and buffers; the base class does nothing."""

    def enter(self, path: str, args: Any, kwargs: Any) -> None:
        """Handle the start of a layer's forward; the base class does nothing."""

    def leave(self, path: str, output: Any) -> Any:
        """Handle the end of a layer's forward, and return its output; the base class returns it unchanged."""
        return output

    def value(self, plain: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def given(self, value: Any) -> Any:
        raise NotImplementedError

    def gather(self, value: Any) -> Any:
        raise NotImplementedError

    def own(self, value: Any) -> Any:
        raise NotImplementedError

    def _is_batch(self, value: Any, rows: int) -> bool:
        return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[0] == rows


class LocalRun(_Mode):
    """The dispatch mode that follows the forward as one rank sees it."""

    def __init__(self, runner: DryRunner, whole: Sequence[str], rows: int) -> None:
        super().__init__(runner, whole, rows)
        self.steps: list[Step] = []
        self.num_flops = 0
        self.saved_bytes = 0
        self.gathered: dict[str, int] = {}
        self.strides: dict[str, list[list[tuple[int, ...]]]] = {}
        """Of results of layers that rules can't follow, call by call."""
        self._seen: set[int] = set()
        self._kept: list[Any] = []
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)

    @contextmanager
    def _around(self) -> Iterator[None]:
        with (
            super()._around(),
            means_by(self._loss),
            self._fake,
            torch.autograd.graph.saved_tensors_hooks(self._save, lambda x: x),
        ):
            yield

    def _loss(self, by_torch: Any, given: dict[str, Any]) -> Any:
        return by_torch(**{**given, "reduction": SUM})  # the same operations as `WholeRun`

    def _save(self, value: torch.Tensor) -> torch.Tensor:
        storage = value.untyped_storage()
        if storage._cdata not in self._seen:
            self._seen.add(storage._cdata)
            self._kept.append(storage)
            if not self.name_of(value):
                self.saved_bytes += storage.nbytes()
        return value

    def leave(self, path: str, output: Any) -> Any:
        """Record how the results of a layer lie in memory."""
        if path in self._runner.fine:
            results = [x for x in pytree.tree_leaves(output) if isinstance(x, torch.Tensor)]
            self.strides.setdefault(path, []).append([x.stride() for x in results])
        return output

    def value(self, plain: torch.Tensor) -> torch.Tensor:
        with self._fake:
            return torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype, device="cpu")

    def given(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        made, dim = self.value(value), row_dim(value, self._rows)
        if dim is None:
            return made
        with self._fake:
            size = list(value.shape)
            size[dim] //= self._runner.num_ranks
            return torch.empty(size, dtype=value.dtype, device="cpu")

    def gather(self, value: Any) -> Any:
        if not self._is_batch(value, self._rows // self._runner.num_ranks):
            return value
        more = value.numel() * (self._runner.num_ranks - 1) * value.element_size()
        self.gathered[self.path] = self.gathered.get(self.path, 0) + more
        return _Gather.apply(value, self._runner.num_ranks)

    def own(self, value: Any) -> Any:
        rows = self._rows // self._runner.num_ranks
        if not self._is_batch(value, self._rows):
            return value
        return value.narrow(0, 0, rows).clone()  # of a view that is changed in place, torch makes another one

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._is_unseen:
            return func(*args, **kwargs)
        try:
            result = func(*args, **kwargs)
        except (LocalMismatch, CantFollow):
            raise
        except Exception as error:
            raise self._mismatch(func, args, kwargs, error) from error
        counter = flop_registry.get(getattr(func, "overloadpacket", None))
        if counter is not None:
            self.num_flops += counter(*args, **kwargs, out_val=result)
        if not _is_bookkeeping(func):
            sizes = tuple(tuple(x.shape) for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor))
            self.steps.append(Step(func, _scalars(args, kwargs), sizes))
        return result

    def _mismatch(self, func: Any, args: Any, kwargs: Any, error: Exception) -> Exception:
        if type(error).__name__.startswith(("DataDependent", "DynamicOutput")):
            place = Place(*users_frame(), "")
            return CantFollow(f"{func} needs numbers that only ranks have ({place})")
        inputs = [
            (self.name_of(x), Shape(tuple(x.shape), tuple(x.stride()), x.dtype))
            for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)
        ]  # fmt: skip
        return LocalMismatch(self.path, str(func), Place(*users_frame(), ""), inputs, error)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's log about fake tensors: this package reports the operations that they don't support."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.disabled
    logger.disabled = True
    try:
        with as_in_training():
            yield
    finally:
        logger.disabled = before


class _Gather(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function that stands for gathering a batch."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, num: int) -> Any:
        return value.new_empty((value.shape[0] * num, *value.shape[1:]))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError


class WholeRun(_Mode):
    """The dispatch mode that follows the forward as one tensor over all ranks."""

    def __init__(
        self,
        runner: DryRunner,
        whole: Sequence[str],
        rows: int,
        steps: Sequence[Step] | None,
        strides: Mapping[str, Sequence[Sequence[tuple[int, ...]]]] | None = None,
    ) -> None:
        super().__init__(runner, whole, rows)
        self._steps = steps
        self._strides = {path: iter(calls) for path, calls in (strides or {}).items()}
        self._at = 0
        self._trusted = 0
        """Number of enclosing layers that were tested with values."""
        self.inputs: dict[str, Any] = {}
        self.assigned: tuple[str, ...] = ()
        self.counts_rows = False

    @contextmanager
    def _around(self) -> Iterator[None]:
        with super()._around(), means_by(self._loss):
            yield

    def _loss(self, by_torch: Any, given: dict[str, Any]) -> Any:
        """Follow a loss that is the mean of rows: ranks have one each, see `own_losses`."""
        total = by_torch(**{**given, "reduction": SUM})
        if not is_dry(total) or not total.mesh_meta.placements[0].is_partial():
            return total
        self.counts_rows |= counts_rows(given)
        return Lay.apply(total, Partial("avg"))

    def left(self, attributes: Left, buffers: Sequence[str], state: Mapping[str, torch.Tensor]) -> None:
        """Check that this program can do without what was set.

        Raises:
            CantFollow: if tensors of the batch, or of parameters, are left in attributes, or in buffers what
                differs between ranks.
        """
        own = [*map(id, state.values())]  # recurrent layers keep a list of their parameters
        for name, tensors in attributes.tensors.items():
            new = [each for each in tensors if id(each) not in own]
            if any(each.requires_grad or not _is_everywhere(each) for each in new):
                raise CantFollow(f"it sets {name} to a tensor, which this program may read")
        for name in buffers:
            if not _is_everywhere(state[name]):
                raise CantFollow(f"it sets the buffer {name} to a tensor of the batch")
        self.assigned = tuple(buffers)

    def enter(self, path: str, args: Any, kwargs: Any) -> None:
        """Record the arguments of a layer."""
        self._trusted += path in self._runner.fine
        self.inputs[path] = pytree.tree_map(_spec, (args, kwargs))

    def leave(self, path: str, output: Any) -> Any:
        """Set the layout of the output of a layer that was tested with random values."""
        dims = self._runner.fine.get(path)
        if dims is None:
            return output
        self._trusted -= 1
        leaves, structure = pytree.tree_flatten(output)
        strides = next(self._strides.get(path, iter(())), [()] * len(dims))
        rest = zip(dims, strides, strict=True)
        return pytree.tree_unflatten([self._as_tried(x, rest) for x in leaves], structure)

    def _as_tried(self, value: Any, rest: Iterator[tuple[int | None, tuple[int, ...]]]) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        dim, stride = next(rest)
        layout = Replicate() if dim is None else row_layout(dim)
        return Lay.apply(value, layout, _in_order(value.shape, stride)) if is_dry(value) else value

    def _dry(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, layout: Any) -> Dry:
        return Dry(intern(size, stride, dtype, self._runner.grid, (layout,)))

    def value(self, plain: torch.Tensor) -> torch.Tensor:
        return self._dry(plain.shape, plain.stride(), plain.dtype, Replicate())

    def given(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        dim = row_dim(value, self._rows)
        layout = Replicate() if dim is None else row_layout(dim)
        return self._dry(value.shape, value.stride(), value.dtype, layout)

    def gather(self, value: Any) -> Any:
        return Lay.apply(value, Replicate()) if is_dry(value) else value

    def own(self, value: Any) -> Any:
        return (
            Lay.apply(value, row_layout()) if self._is_batch(value, self._rows) and is_dry(value) else value
        )

    def out(self, value: torch.Tensor, on_rank: torch.Tensor) -> Out:
        """Return the description of an output tensor."""
        shape = Shape(tuple(value.shape), tuple(value.stride()), value.dtype)
        layout = value.mesh_meta.placements[0] if is_dry(value) else Replicate()
        return Out(shape, layout, on_rank.requires_grad)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        step = None
        if self._steps is not None and not self._is_unseen and not _is_bookkeeping(func):
            step = self._steps[self._at] if self._at < len(self._steps) else None
            self._at += 1
            if step is None or not _is_same(step.func, func):
                self._found(func, "the shape of a part of the batch leads to other operations")
        if not any(map(is_dry, pytree.tree_leaves((args, kwargs)))):
            return self._plain(func, args, kwargs, step)
        return self._follow(func, args, kwargs, step)

    def checks(self) -> bool:
        """Say whether operations are compared with those of a rank."""
        return not self._depth and not self._trusted

    def check(self, func: Any, args: Any, kwargs: Any, parts: Sequence[Meta | None], step: Step) -> None:
        """Check an operation further; the base class does nothing."""

    def _found(self, func: Any, reason: str) -> None:
        raise Found(self.path, str(func), reason, Place(*users_frame(), ""))

    def _plain(self, func: Any, args: Any, kwargs: Any, step: Step | None) -> Any:
        """Execute an operation that creates a tensor without tensors as input. What it makes is without
        numbers, as it is for `LocalRun`; only constants keep theirs.
        """
        result = func(*args, **kwargs)
        if not isinstance(result, torch.Tensor):
            return result
        layout = Replicate() if step is None or not self.checks() else self._plain_layout(func, result, step)
        if result.numel() < 2 and layout.is_replicate():
            return result
        return self._dry(result.shape, result.stride(), result.dtype, layout)

    def _plain_layout(self, func: Any, result: torch.Tensor, step: Step) -> Any:
        dims = [n for n, (a, b) in enumerate(zip(result.shape, step.sizes[0], strict=True)) if a != b]
        if not dims:
            return Replicate()
        is_split = len(dims) == 1 and result.shape[dims[0]] == step.sizes[0][dims[0]] * self._runner.num_ranks
        if not is_split or not is_uniform(func):
            self._found(func, "what it makes depends on the size of the batch")
        return row_layout(dims[0])

    def _follow(self, func: Any, args: Any, kwargs: Any, step: Step | None) -> Any:
        view = IN_PLACE_VIEWS.get(func)
        if view is None or not is_dry(args[0]):
            return self._followed(func, args, kwargs, step)
        changed, meta = args[0], self._followed(view, args, kwargs, step).mesh_meta
        changed.mesh_meta = meta
        restride(changed, meta.size, meta.stride, meta.offset)
        return changed

    def _followed(self, func: Any, args: Any, kwargs: Any, step: Step | None) -> Any:
        args, kwargs = pytree.tree_map(self._adopted, (args, kwargs))
        if func is torch.ops.aten.cat.default:  # torch leaves out what has no dimensions to be joined
            args = ([x for x in args[0] if x.shape != (0,)] or args[0], *args[1:])
        first = next(x for x in pytree.tree_leaves((args, kwargs)) if is_dry(x)).mesh_meta
        parts, moved = self._parts(func, args, kwargs, first)
        if step is not None and self.checks():
            self.check(func, args, kwargs, parts, step)
            if moved:
                self._found(func, moved)
            if not is_shaping(func) and _scalars(args, kwargs) != step.scalars:
                self._found(func, "it's called with another number for a part of the batch")
            sizes = tuple(self._on_rank(p) for p in parts if p is not None)
            if sizes != step.sizes:
                self._found(func, f"a part of the batch gives {step.sizes}, not {sizes}")
        return self._result(func, args, parts)

    def _adopted(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and not is_dry(value):
            return self._dry(value.shape, value.stride(), value.dtype, Replicate())
        return value

    def _parts(self, func: Any, args: Any, kwargs: Any, first: Meta) -> tuple[list[Meta | None], str]:
        """Return the results of an operation, computed once for all identical operations."""
        leaves, structure = pytree.tree_flatten((args, kwargs))
        key = (func, structure, *((x.mesh_meta if is_dry(x) else (type(x), x)) for x in leaves))
        if key not in self._runner.outcomes:
            self._runner.outcomes[key] = self._new_parts(func, args, kwargs, first)
        found: tuple[list[Meta | None], str] = self._runner.outcomes[key]
        return found

    def _new_parts(self, func: Any, args: Any, kwargs: Any, first: Meta) -> tuple[list[Meta | None], str]:
        """Return the results of an operation, and why ranks can't execute it on their parts ("" if they
        can).
        """
        if is_by_rows(func, args, kwargs):
            shapes = self._runner.propagation.per_rank(func, args, kwargs, self._runner.grid).parts
            layout = args[0].mesh_meta.placements
            return [p and p.with_layout(layout) for p in shapes], ""
        outcome = self._runner.propagation.over_grid(func, *plain_arguments(func, args, kwargs), first)
        if is_mean_of_rows(func, args):
            outcome = replace(outcome, parts=tuple(map(_as_mean, outcome.parts)))
        if outcome.is_unknown:
            raise CantFollow(f"{func} gives a shape that depends on numbers ({Place(*users_frame(), '')})")
        if outcome.moves:
            return list(outcome.parts), outcome.moves
        inputs = [x.mesh_meta for x in pytree.tree_leaves((args, kwargs)) if is_dry(x)]
        is_split = any(not m.placements[0].is_replicate() for m in inputs)
        if outcome.is_whole and is_split and not self._runner.propagation.is_random(func, args, kwargs):
            return list(outcome.parts), outcome.reason or reason_of(func)
        return list(outcome.parts), ""

    def _on_rank(self, meta: Meta) -> tuple[int, ...]:
        size, (layout,) = list(meta.size), meta.placements or ()
        if is_part(layout):
            size[layout.dim] //= self._runner.num_ranks
        return tuple(size)

    def _result(self, func: Any, args: Any, parts: Sequence[Meta | None]) -> Any:
        written = func._schema.arguments
        if func._schema.returns and written and written[0].alias_info and written[0].alias_info.is_write:
            return args[0]
        made = [None if p is None else Dry(p) for p in parts]
        returns = func._schema.returns
        if not returns:
            return None
        if len(returns) == 1 and "[]" not in str(returns[0].type) and "List" not in str(returns[0].type):
            return made[0]
        return list(made) if len(returns) == 1 else tuple(made)


def _is_everywhere(value: torch.Tensor) -> bool:
    """Say whether all ranks have the same."""
    return not is_dry(value) or all(each.is_replicate() for each in value.mesh_meta.placements)


def _as_mean(meta: Meta | None) -> Meta | None:
    """Return the metadata of a loss that is computed by torch's operation itself: each rank has its mean."""
    if meta is None or not any(each.is_partial() for each in meta.placements or ()):
        return meta
    return meta.with_layout((Partial("avg"),))


def _spec(value: Any) -> Any:
    """Return a dry tensor as (shape, dtype, sharded dimension), from which random values are made; other
    values unchanged.
    """
    if not is_dry(value):
        return value
    layout = value.mesh_meta.placements[0]
    return tuple(value.shape), value.dtype, layout.dim if layout.is_shard() else None


def _in_order(size: Sequence[int], like: Sequence[int]) -> tuple[int, ...] | None:
    """Return the strides of a tensor without gaps whose dimensions lie in memory in the order of others.

    >>> _in_order((2, 3, 5), (4, 8, 1))
    (5, 10, 1)
    """
    made, step = [0] * len(size), 1
    if len(like) != len(size):
        return None
    for dim in sorted(range(len(size)), key=lambda n: (like[n], -n)):
        made[dim] = step
        step *= size[dim]
    return tuple(made)


class Lay(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function that changes the layout of a tensor, and its strides, if there are any."""

    @staticmethod
    def forward(ctx: Any, value: Dry, layout: Any, stride: tuple[int, ...] | None = None) -> Any:
        meta = value.mesh_meta
        return Dry(intern(meta.size, stride or meta.stride, meta.dtype, meta.grid, (layout,)))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError


def _is_bookkeeping(func: Any) -> bool:
    return str(func).startswith(("aten.detach", "aten.clone", "prim."))


def _is_same(one: Any, other: Any) -> bool:
    """Say whether two operations do the same: how `reshape` is done depends on strides."""
    return one is other or (is_view(one) and is_view(other))


def _scalars(args: Any, kwargs: Any) -> tuple[Any, ...]:
    return tuple(
        x
        for x in pytree.tree_leaves((args, kwargs))
        if isinstance(x, (int, float)) and not isinstance(x, bool)
    )
