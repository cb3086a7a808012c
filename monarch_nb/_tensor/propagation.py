"""Predicts the result of an operation: shapes by fake tensors, layouts by DTensor's own rules. Nothing is
computed, and no process group is needed.

The private names of torch that this needs are in `_rank.tensor.private`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.utils import _pytree as pytree

from monarch_nb._rank.tensor.losses import is_mean_of_rows, rows_added_up
from monarch_nb._rank.tensor.parts import follows_rules, given_and_wanted, is_plain, steps_between
from monarch_nb._rank.tensor.private import dispatcher, num_masked, random_ops, schema_of, without_masks
from monarch_nb._rank.tensor.strategies import has_rule, layout_of_named
from monarch_nb._rank.tensor.sums import Axes
from monarch_nb._tensor.metadata import Grid, Meta, Placements, intern
from monarch_nb._tensor.plan import HIDDEN_WRITES, written_names
from monarch_nb.exceptions import WrongTensor

aten = torch.ops.aten
_WHOLE = frozenset({
    aten.as_strided.default, aten.argmin.default, aten.argmax.default, aten.convolution.default,
    aten.convolution_backward.default, *HIDDEN_WRITES,
})  # fmt: skip
"""Operations that DTensor handles outside of its rules; convolutions with the default process group."""
_NEED_ROWS = frozenset({
    aten.amax.default, aten.amin.default, aten.aminmax.default, aten.max.default, aten.min.default,
    aten.max.dim, aten.min.dim, aten.linalg_vector_norm.default,
})  # fmt: skip
"""Reductions that a rank can't do whose part is empty."""
_FILLS = frozenset({aten.fill_.Scalar, aten.fill_.Tensor, aten.ones_like.default, aten.full_like.default})
_BY_SIZE = frozenset({
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.view_copy.default,
})  # fmt: skip
"""Views for which torch's rule takes the wrong size of parts where a dimension is split over two axes."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The predicted result of an operation.

    Attributes:
        parts: a Meta for each tensor of the flat result, None for missing parts.
        is_whole: whether no layout was found in which ranks can compute it on their shards.
        reason: the reason for that.
        is_unknown: whether only the ranks can determine shapes.
        moves: inputs that must be laid out anew for it, in words; "" if none.
        moved: then, these inputs and their layouts, where ranks are told: what torch chooses depends on what
            its process has done before, and a rank that was started anew has done nothing.
        sums: if each rank does it on its parts: inputs that are summed over ranks before, with the axes; None
            if ranks have to find that out.
        cuts: then, inputs of which each rank takes its part, and their layouts.
    """

    parts: tuple[Meta | None, ...]
    is_whole: bool = False
    reason: str = ""
    is_unknown: bool = False
    moves: str = ""
    moved: tuple[tuple[int, Placements], ...] = ()
    sums: tuple[tuple[int, Axes], ...] | None = None
    cuts: tuple[tuple[int, Placements], ...] = ()


class Propagation:
    """The propagation rules of one engine."""

    def __init__(self, is_tensor: Callable[[Any], bool]) -> None:
        self._is_tensor = is_tensor
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)

    def per_rank(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], grid: Grid) -> Outcome:
        """Return the outcome of an operation on values that differ from rank to rank."""
        return Outcome(tuple(_meta_of(each, grid, None) for each in self._results(func, args, kwargs)))

    def is_random(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return whether an operation draws random numbers; attention does so only with a dropout above 0."""
        if func in random_ops:
            return True
        return (
            torch.Tag.nondeterministic_seeded in func.tags
            and _argument(func, "dropout_p", args, kwargs) != 0.0
        )

    def over_grid(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], first: Meta) -> Outcome:
        """Return the outcome of an operation on global tensors.

        Args:
            first: the metadata of one of the tensors.

        Raises:
            Exception: torch's own error, for arguments that are invalid on one device, too.
        """
        if self.is_random(func, args, kwargs):
            return self._whole(func, args, kwargs, first.grid, _without_partial(first))
        if self._is_uneven(func, args) or self._fills_partial(func, args):
            return self._whole(func, args, kwargs, first.grid, first.grid.replicated)
        if func is aten.embedding_dense_backward.default and args[4]:
            reason = "how often rows are looked up counts on all ranks"
            return self._whole(func, args, kwargs, first.grid, first.grid.replicated, reason)
        if func in _WHOLE or not has_rule(func):
            reason = "" if func in _WHOLE else "torch has no sharding rule for it"
            return self._whole(func, args, kwargs, first.grid, first.grid.replicated, reason)
        try:
            return self._found(func, args, kwargs, first.grid)
        except Exception as error:
            reason = str(error).split("\n")[0] or type(error).__name__
        # not within `except`: what the arguments' own fault is would be shown below this error
        return self._whole(func, args, kwargs, first.grid, first.grid.replicated, reason)

    def _found(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], grid: Grid) -> Outcome:
        if func in _BY_SIZE:
            return self._resized(func, args, kwargs, grid)
        if "_foreach_" in str(func):
            return self._by_kinds(func, args, kwargs, grid)
        return self._by_rules(func, args, kwargs, grid)

    def _by_kinds(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], grid: Grid) -> Outcome:
        """Return the outcome of an operation on lists, such as an optimiser's on all parameters.

        Torch's rules take 0.2 ms for each tensor of a list, so they are asked once for those that are alike.
        """
        lists = [each for each in (*args, *kwargs.values()) if isinstance(each, (list, tuple))]
        if len({*map(len, lists)}) != 1:
            return self._by_rules(func, args, kwargs, grid)
        numbers: dict[Any, int] = {}
        kinds = [numbers.setdefault(self._kind(each), len(numbers)) for each in zip(*lists, strict=True)]
        firsts = [*map(kinds.index, range(len(numbers)))]

        def of_firsts(value: Any) -> Any:
            return [value[n] for n in firsts] if isinstance(value, (list, tuple)) else value

        named = {name: of_firsts(each) for name, each in kwargs.items()}
        found = self._by_rules(func, tuple(map(of_firsts, args)), named, grid)
        if found.moves or found.sums or found.cuts:  # these number inputs
            return self._by_rules(func, args, kwargs, grid)
        if not schema_of(func).returns:
            return found
        return replace(found, parts=tuple(found.parts[each] for each in kinds))

    def _kind(self, values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(each.mesh_meta if self._is_tensor(each) else type(each) for each in values)

    def _fills_partial(self, func: Any, args: Sequence[Any]) -> bool:
        """Say whether each rank would fill its summand with what is to be the sum."""
        return func in _FILLS and any(each.is_partial() for each in args[0].mesh_meta.placements)

    def _is_uneven(self, func: Any, args: Sequence[Any]) -> bool:
        """Say whether parts are of sizes with which the ranks' operation, or torch's rule for it, fails."""
        if func not in _NEED_ROWS and func not in _BY_SIZE:
            return False
        metas = [each.mesh_meta for each in self._tensors(args)]
        if func in _NEED_ROWS:
            return any(0 in _smallest_part(each) for each in metas)
        return any(map(_is_split_unevenly, metas))

    def _resized(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], grid: Grid) -> Outcome:
        """Return the outcome of a view in another size. If parts of the input aren't parts of the result, the
        input is gathered along as few axes of the mesh as possible.
        """
        given: Meta = args[0].mesh_meta
        found = self._by_rules(func, args, kwargs, grid)
        needed = dict(found.moved).get(0, given.placements)
        if _has_parts_of(given.with_layout(needed), found.parts[0]):
            return found
        for layout in _gathered(given):
            like = given.with_layout(layout)
            local = torch.empty(0, dtype=given.dtype, device="meta")
            value = DTensor(local, like.spec, requires_grad=False)
            info = dispatcher.unwrap_to_op_info(func, (value, *args[1:]), dict(kwargs))
            dispatcher.sharding_propagator.propagate(info)
            result = _meta_of_spec(info.output_sharding.output_spec, grid, is_copy=True)
            if not _moves(info, info.output_sharding) and _has_parts_of(like, result):
                words = _Named(0, given.placements or (), layout).words
                return Outcome((result,), moves=words, moved=((0, layout),))
        raise NotImplementedError("parts of the input are no parts of the result")

    def _by_rules(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], grid: Grid) -> Outcome:
        # Not with fake tensors: of layouts in strides, DTensor computes sizes with tensors, and reads these.
        like_args, like_kwargs = pytree.tree_map(self._as_dtensor, (tuple(args), dict(kwargs)))
        info = dispatcher.unwrap_to_op_info(func, like_args, like_kwargs)
        if is_mean_of_rows(func, args):
            with rows_added_up():
                propagator = dispatcher.sharding_propagator
                info.output_sharding = propagator.propagate_op_sharding_non_cached(info.schema)
        else:
            dispatcher.sharding_propagator.propagate(info)
        sharding = info.output_sharding
        if any(num_masked(spec) > 1 for spec in _flat(sharding.output_spec)):
            raise NotImplementedError("rows of a table are split over two axes")
        specs = [spec and without_masks(spec) for spec in _flat(sharding.output_spec)]
        named = self._named(func, args, kwargs, info)
        moves = ", ".join(filter(None, (_moves(info, sharding), *(each.words for each in named))))
        if any(spec is not None and spec.tensor_meta is None for spec in specs):
            shapes = self._results(func, args, kwargs)
            parts = [
                _meta_of(t, grid, s.placements if s else None) for t, s in zip(shapes, specs, strict=True)
            ]
        else:
            is_copy = func.is_view and (bool(moves) or self._is_of_copy(args))
            parts = [_meta_of_spec(spec, grid, is_copy) for spec in specs]
        self._check_in_place(func, args, parts)
        steps = None if named else self._steps(func, args, kwargs, info, specs)
        sums, cuts = steps or (None, ())
        num_inputs = len(self._tensors(args if named else (*args, *kwargs.values())))
        moved = _moved(info, func, num_inputs, named) if moves and sums is None else ()
        return Outcome(tuple(parts), moves=moves, moved=moved, sums=sums, cuts=cuts)

    def _named(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], info: Any) -> list[_Named]:
        """Return the tensors among the named arguments that have to be laid out anew.

        Raises:
            NotImplementedError: if the ranks can't be told what else has to be.
        """
        tensors = [each for each in pytree.tree_leaves(dict(kwargs)) if self._is_tensor(each)]
        sharding, before = info.output_sharding, len(self._tensors(args))
        if not tensors or not before:
            return []
        is_moved = sharding.needs_redistribute and sharding.redistribute_schema is not None
        specs = (sharding.redistribute_schema if is_moved else info.schema).args_spec
        first = (
            specs[0].placements if specs else [Replicate()] * info.compute_mesh.ndim
        )  # lists of tensors aren't there
        pairs = [(each.mesh_meta.spec, layout_of_named(func, first, each.mesh_meta.spec)) for each in tensors]
        found = [
            _Named(before + n, spec.placements, layout)
            for n, (spec, layout) in enumerate(pairs)
            if tuple(spec.placements) != layout
        ]
        if found and is_moved and not _moved(info, func, before):
            raise NotImplementedError("torch lays out anew what it's given by position only")
        return found

    def _steps(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], info: Any, specs: Sequence[Any]
    ) -> _Steps | None:
        """Return which inputs have to be summed, and which cut, if nothing else has to be done to them."""
        tensors = [each for each in pytree.tree_leaves((tuple(args), dict(kwargs))) if self._is_tensor(each)]
        layouts = [*(each.mesh_meta.spec for each in tensors), *(each for each in specs if each is not None)]
        if not follows_rules(func) or is_mean_of_rows(func, args) or not all(map(is_plain, layouts)):
            return None
        if any(map(num_masked, _flat(info.output_sharding.output_spec))):
            return None
        sharding = info.output_sharding
        if not sharding.needs_redistribute:
            return (), ()
        schema = sharding.redistribute_schema
        if sharding.use_val_from_redistribute_schema or schema is None or schema.op != func:
            return None  # sizes depend on the rank
        found = steps_between(info, len(tensors))
        if found is None or (found[1] and not _only_reads(func, found[1])):
            return None
        return tuple(found[0].items()), tuple(found[1].items())

    def _check_in_place(self, func: Any, args: Sequence[Any], parts: Sequence[Meta | None]) -> None:
        """Raise if a tensor that is changed in place would need another layout."""
        returns = schema_of(func).returns
        writes = len(returns) == 1 and returns[0].alias_info is not None and returns[0].alias_info.is_write
        if not writes or not args or not self._is_tensor(args[0]) or not parts or parts[0] is None:
            return
        if args[0].mesh_meta.placements != parts[0].placements:
            raise NotImplementedError(f"{func} would lay out anew what it changes")

    def _as_dtensor(self, value: Any) -> Any:
        if not self._is_tensor(value):
            return value
        meta = value.mesh_meta
        return DTensor(torch.empty(0, dtype=meta.dtype, device="meta"), meta.spec, requires_grad=False)

    def _whole(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], grid: Grid, placements: Placements,
        reason: str = "",
    ) -> Outcome:  # fmt: skip
        try:
            shapes = self._results(func, args, kwargs)
        except DynamicOutputShapeException:
            return Outcome((), True, reason, is_unknown=True)
        is_gathered = any(t.mesh_meta.placements != grid.replicated for t in self._tensors(args))
        is_copy = func.is_view and (is_gathered or self._is_of_copy(args))
        parts = [_meta_of(each, grid, placements, is_copy) for each in shapes]
        if placements != grid.replicated:  # each rank keeps a part of its own
            parts = [part and part.with_layout(placements) for part in parts]
        return Outcome(tuple(parts), True, reason)

    def _is_of_copy(self, args: Sequence[Any]) -> bool:
        """Say whether a view of these arguments shares memory with a copy only."""
        return any(t.mesh_meta.is_copy for t in self._tensors(args))

    def _tensors(self, args: Sequence[Any]) -> list[Any]:
        return [each for each in pytree.tree_leaves(tuple(args)) if self._is_tensor(each)]

    def _results(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        with self._fake:
            like_args, like_kwargs = pytree.tree_map(self._as_fake, (tuple(args), dict(kwargs)))
            found = _flat(func(*like_args, **like_kwargs))
        if any(isinstance(each, torch.Tensor) and each.layout != torch.strided for each in found):
            raise WrongTensor(
                f"{func} makes a sparse tensor; tensors of a mesh are dense. Bring the tensor here: x.full()"
            )
        return found

    def _as_fake(self, value: Any) -> Any:
        if not self._is_tensor(value):
            return value
        meta: Meta = value.mesh_meta
        if meta.fake is None:
            meta.fake = torch.empty_strided(meta.size, meta.stride, dtype=meta.dtype, device=value.device)
        return meta.fake


def _gathered(meta: Meta) -> Iterator[Placements]:
    """Yield layouts in which a tensor is gathered along one axis of the mesh, the last first, then along
    several.
    """
    placements = meta.placements or ()
    axes = [n for n, each in enumerate(placements) if each.is_shard()]
    for num in range(1, len(axes) + 1):
        for along in itertools.combinations(reversed(axes), num):
            yield tuple(Replicate() if n in along else each for n, each in enumerate(placements))


def _has_parts_of(meta: Meta, result: Meta | None) -> bool:
    """Say whether a result's parts have as many elements as those of its input, on each rank; also where a
    placement isn't a plain one, of which only torch knows.
    """
    if result is None or not (is_plain(meta.spec) and is_plain(result.spec)):
        return True
    places = list(itertools.product(*map(range, meta.grid.shape)))
    return all(math.prod(_part_size(meta, each)) == math.prod(_part_size(result, each)) for each in places)


def _part_size(meta: Meta, place: Sequence[int]) -> list[int]:
    """Return the size of the part of the rank at a place of the grid."""
    found = list(meta.size)
    for at, num, each in zip(place, meta.grid.shape, meta.placements or (), strict=False):
        if each.is_shard():
            rows = -(-found[each.dim] // num)
            found[each.dim] = max(0, min(rows, found[each.dim] - at * rows))
    return found


def _smallest_part(meta: Meta) -> list[int]:
    """Return the size of the smallest part of a tensor: the last rank's along each axis."""
    return _part_size(meta, [num - 1 for num in meta.grid.shape])


def _is_split_unevenly(meta: Meta) -> bool:
    """Say whether a dimension that is split over several axes has parts of different sizes."""
    splits: dict[int, list[int]] = {}
    for num, each in zip(meta.grid.shape, meta.placements or (), strict=False):
        if each.is_shard():
            splits.setdefault(each.dim, []).append(num)
    return any(len(nums) > 1 and meta.size[dim] % math.prod(nums) for dim, nums in splits.items())


def _moves(info: Any, sharding: Any) -> str:
    """Return how the layouts of an operation's inputs are changed first, in words."""
    if not sharding.needs_redistribute or sharding.redistribute_schema is None:
        return ""
    changes = [
        (one, other, a.tensor_meta.dtype)
        for a, b in zip(*given_and_wanted(info), strict=True)
        for one, other in zip(a.placements, b.placements, strict=True)
        if one != other
    ]
    for one, other, dtype in changes:
        if type(other) is Partial and one.is_shard():
            raise NotImplementedError(f"{other} would have to be made of a part")
        is_divided = dtype.is_floating_point or dtype.is_complex  # which is how a summand is made of a whole
        if type(other) is Partial and not (is_divided and other.reduce_op in ("sum", "avg")):
            raise NotImplementedError(f"{other} would have to be made of a whole")
    return ", ".join(f"{one} → {other}" for one, other, _ in changes)


class _Named(NamedTuple):
    """A tensor among the named arguments that is laid out anew: its number among all tensors, and how."""

    number: int
    has: Placements
    wanted: Placements

    @property
    def words(self) -> str:
        return ", ".join(f"{a} → {b}" for a, b in zip(self.has, self.wanted, strict=True) if a != b)


def _moved(
    info: Any, func: Any, num_inputs: int, named: Sequence[_Named] = ()
) -> tuple[tuple[int, Placements], ...]:
    """Return the inputs that an operation needs in other layouts, and these; () where ranks have to find out:
    the operation becomes another one, or a layout isn't a plain one.
    """
    others = tuple((each.number, each.wanted) for each in named)
    sharding, schema = info.output_sharding, info.output_sharding.redistribute_schema
    if not sharding.needs_redistribute or schema is None:
        return others
    pairs = list(zip(*given_and_wanted(info), strict=True))
    if sharding.use_val_from_redistribute_schema or schema.op != func or len(pairs) != num_inputs:
        return ()
    found = [(n, tuple(b.placements)) for n, (a, b) in enumerate(pairs) if a.placements != b.placements]
    is_plain = all(type(each) in (Shard, Replicate) for _, layout in found for each in layout)
    return (*found, *others) if is_plain else ()


_Steps = tuple[tuple[tuple[int, Axes], ...], tuple[tuple[int, Placements], ...]]
"""Sums and cuts."""


def _only_reads(func: Any, inputs: Collection[int]) -> bool:
    """Say whether an operation neither changes these inputs nor returns what lies in their memory."""
    writes = written_names(func)
    aliases = any(
        each.alias_info is not None and not each.alias_info.is_write for each in schema_of(func).returns
    )
    return not aliases and (
        not writes or (writes == {"self"} and 0 not in inputs and "_foreach" not in str(func))
    )


def _flat(result: Any) -> list[Any]:
    if isinstance(result, (list, tuple)):
        return [
            leaf for each in result for leaf in (_flat(each) if isinstance(each, (list, tuple)) else [each])
        ]
    return [result]


def _meta_of(value: Any, grid: Grid, placements: Placements | None, is_copy: bool = False) -> Meta | None:
    if not isinstance(value, torch.Tensor):
        return None
    return intern(
        value.size(), value.stride(), value.dtype, grid, placements, int(value.storage_offset()), is_copy
    )


def _meta_of_spec(spec: Any, grid: Grid, is_copy: bool) -> Meta | None:
    if spec is None:
        return None
    found = spec.tensor_meta
    return intern(found.shape, found.stride, found.dtype, grid, tuple(spec.placements), 0, is_copy)


def _argument(func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return an argument of a call by its name; None if the operation has no such argument."""
    for n, each in enumerate(schema_of(func).arguments):
        if each.name == name:
            return args[n] if n < len(args) else kwargs.get(name, each.default_value)
    return None


def _without_partial(meta: Meta) -> Placements:
    assert meta.placements is not None
    return tuple(Replicate() if isinstance(each, Partial) else each for each in meta.placements)
