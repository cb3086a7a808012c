"""Sharding rules of operations that torch has none for, by what they do to dimensions. `strategies` registers
them.

A rule gets an operation's arguments, with `DTensorSpec`s in place of tensors, and returns layouts over one
axis of the mesh: pairs of the placements of all outputs, and of all inputs that are tensors. That each rank
may have the whole of everything is always one, and isn't in the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from monarch_nb._rank.tensor.losses import WITH_TARGETS, rows_of_loss
from monarch_nb._rank.tensor.private import pool_backward

Layouts = Iterable[tuple[Sequence[Placement], Sequence[Placement]]]
Rule = Callable[..., Layouts]

_aten = torch.ops.aten
_WHOLE = Replicate()


def is_spec(value: Any) -> bool:
    """Say whether an argument stands for a tensor."""
    return hasattr(value, "tensor_meta")


def _specs(args: Sequence[Any]) -> list[Any]:
    return [each for each in args if is_spec(each)]


def _wrapped(dim: int, ndim: int) -> int:
    return dim + ndim if dim < 0 else dim


# --- elementwise


def _elementwise(num_outputs: int) -> Rule:
    """Return the rule of operations on elements, whose inputs may have fewer dimensions or a size of 1."""

    def rule(*args: Any, **_: Any) -> Layouts:
        specs = _specs(args)
        shape = torch.broadcast_shapes(*(each.shape for each in specs))
        for dim, size in enumerate(shape):
            if size > 1:
                yield [Shard(dim)] * num_outputs, [_part(each, dim, shape) for each in specs]

    return rule


def _log_sigmoid(*args: Any) -> Layouts:
    """Return the layouts of log_sigmoid_forward, whose second output is kept for the backward: on a GPU, it's
    empty.
    """
    for out, ins in _elementwise(1)(*args):
        yield [*out, out[0] if _has_buffer(args[0]) else _WHOLE], ins


def _log_sigmoid_backward(gradient: Any, spec: Any, buffer: Any) -> Layouts:
    for out, ins in _elementwise(1)(gradient, spec):
        yield out, [*ins, out[0] if _has_buffer(spec) else _WHOLE]


def _has_buffer(spec: Any) -> bool:
    return bool(spec.mesh.device_type == "cpu")


def _part(spec: Any, dim: int, shape: Sequence[int]) -> Placement:
    """Return the placement of an input whose element at `dim` of the result's shape is needed."""
    own = dim - (len(shape) - spec.ndim)
    return Shard(own) if own >= 0 and spec.shape[own] > 1 else _WHOLE


def _loss_with_logits(*args: Any, reduction: int = 1) -> Layouts:
    """Return the layouts of binary_cross_entropy_with_logits: an elementwise loss, and its mean or sum."""
    reduction = args[4] if len(args) > 4 else reduction
    specs = _specs(args)
    for (out,), ins in _elementwise(1)(*specs):
        assert isinstance(out, Shard)
        for loss in _loss_along(specs[0], out.dim, reduction):
            yield [loss], ins


def _loss_along(spec: Any, dim: int, reduction: int) -> Sequence[Placement]:
    """Return how a loss is laid out where its input is sharded over a dimension; `reduction` is torch's
    number: 0 for none, 1 for the mean, 2 for the sum. There is no layout for the mean of parts that differ in
    size: they would count alike.
    """
    if reduction == 0:
        return [Shard(dim)]
    if reduction == 2:
        return [Partial("sum")]
    return [Partial("avg")] if spec.shape[dim] % spec.mesh.size() == 0 else []


def _margin_loss(
    spec: Any, _target: Any, _p: Any = 1, _margin: Any = 1, weight: Any = None, reduction: int = 1
) -> Layouts:
    """Return the layouts of multi_margin_loss of rows, each with a target; weights are those of classes."""
    rows = _loss_along(spec, 0, reduction) if spec.ndim == 2 else []
    return [([loss], [Shard(0), Shard(0)] + [_WHOLE] * is_spec(weight)) for loss in rows]


def _margin_loss_of_labels(spec: Any, _target: Any, reduction: int) -> Layouts:
    """Return the layouts of multilabel_margin_loss_forward, whose second output is kept for the backward."""
    rows = _loss_along(spec, 0, reduction) if spec.ndim == 2 else []
    return [([loss, Shard(0)], [Shard(0), Shard(0)]) for loss in rows]


def _margin_loss_backward(
    _gradient: Any, spec: Any, _target: Any, _p: Any, _margin: Any, weight: Any = None, reduction: int = 1
) -> Layouts:
    for layout in _gradient_of_rows(spec, reduction):
        yield [Shard(0)], [layout, Shard(0), Shard(0)] + [_WHOLE] * is_spec(weight)


def _margin_loss_of_labels_backward(
    _gradient: Any, spec: Any, _target: Any, reduction: int, _is_target: Any
) -> Layouts:
    for layout in _gradient_of_rows(spec, reduction):
        yield [Shard(0)], [layout, Shard(0), Shard(0), Shard(0)]


def _gradient_of_rows(spec: Any, reduction: int) -> Sequence[Placement]:
    """Return how a loss' gradient is laid out beside sharded rows; of a mean it counts all rows, of which a
    rank has a part only.
    """
    return [] if spec.ndim != 2 or reduction == 1 else [Shard(0)] if reduction == 0 else [_WHOLE]


# --- dimension by dimension


def _leading(num_trailing: int, num_inputs: int = 1) -> Rule:
    """Return the rule of operations that change the last dimensions, and leave the others as they are."""

    def rule(spec: Any, *_: Any, **__: Any) -> Layouts:
        return [([Shard(dim)], [Shard(dim)] * num_inputs) for dim in range(spec.ndim - num_trailing)]

    return rule


def _all_but(spec: Any, dim: int, *_: Any, **__: Any) -> Layouts:
    """Return the layouts of an operation along one dimension, which stays: the others are independent."""
    along = _wrapped(dim, spec.ndim)
    return [([Shard(d)], [Shard(d)]) for d in range(spec.ndim) if d != along]


def _only(spec: Any, _power: Any, dim: int, *_: Any) -> Layouts:
    """Return the layouts of renorm, which takes each slice along a dimension by itself."""
    along = _wrapped(dim, spec.ndim)
    return [([Shard(along)], [Shard(along)])]


def _glu(spec: Any, dim: int = -1) -> Layouts:
    return _all_but(spec, dim)


def _glu_backward(gradient: Any, spec: Any, dim: int) -> Layouts:
    return [(out, [*ins, *ins]) for out, ins in _all_but(spec, dim)]


def _scattered(*args: Any, **_: Any) -> Layouts:
    """Return the layouts of scatter: other dimensions are independent where all have the same size."""
    (target, along, index, source) = args[:4]
    for dim in range(target.ndim):
        sizes = {each.shape[dim] for each in (target, index, source) if each.ndim}
        if dim != _wrapped(along, target.ndim) and len(sizes) == 1:
            yield [Shard(dim)], [Shard(dim)] * 3


def _gathered(source: Any, along: int, index: Any, **_: Any) -> Layouts:
    """Return the layouts of gather: along its dimension each rank may look up its part of the index in the
    whole; other dimensions are independent where both have the same size.
    """
    for dim in range(source.ndim):
        if dim == _wrapped(along, source.ndim):
            yield [Shard(dim)], [_WHOLE, Shard(dim)]
        elif source.shape[dim] == index.shape[dim]:
            yield [Shard(dim)], [Shard(dim)] * 2


def _indexed(target: Any, along: int, index: Any, source: Any, **_: Any) -> Layouts:
    """Return the layouts of index_add and index_copy: each slice along the dimension has one index."""
    for dim in range(target.ndim):
        if dim != _wrapped(along, target.ndim) and source.ndim == target.ndim:
            yield [Shard(dim)], [Shard(dim), _WHOLE, Shard(dim)]


def _batched(*num_trailing: int) -> Rule:
    """Return the rule of operations on batches, of which inputs may have fewer dimensions or a size of 1;
    `num_trailing`: dimensions of one element of each input's batch.
    """

    def rule(*args: Any, **_: Any) -> Layouts:
        batches = [each.shape[: each.ndim - n] for each, n in zip(_specs(args), num_trailing, strict=True)]
        sizes = torch.broadcast_shapes(*batches)
        for dim, size in enumerate(sizes):
            if size > 1:
                own = [(batch, dim - len(sizes) + len(batch)) for batch in batches]
                yield (
                    [Shard(dim)],
                    [Shard(at) if at >= 0 and batch[at] > 1 else _WHOLE for batch, at in own],
                )

    return rule


# --- copies of views


def _moved(where: Callable[..., Sequence[int | None]]) -> Rule:
    """Return the rule of an operation that moves dimensions; `where`: to which one each goes."""

    def rule(spec: Any, *args: Any, **_: Any) -> Layouts:
        for dim, to in enumerate(where(spec, *args)):
            if to is not None and spec.shape[dim] > 1:
                yield [Shard(to)], [Shard(dim)]

    return rule


def _permuted(spec: Any, dims: Sequence[int]) -> Sequence[int | None]:
    order = [_wrapped(dim, spec.ndim) for dim in dims]
    return [order.index(dim) for dim in range(spec.ndim)]


def _transposed(spec: Any, one: int = 0, other: int = -1) -> Sequence[int | None]:
    found: list[int | None] = list(range(spec.ndim))
    if found:
        a, b = _wrapped(one, spec.ndim), _wrapped(other, spec.ndim)
        found[a], found[b] = b, a
    return found


def _unsqueezed(spec: Any, dim: int) -> Sequence[int | None]:
    new = _wrapped(dim, spec.ndim + 1)
    return [each + (each >= new) for each in range(spec.ndim)]


def _squeezed(spec: Any, dim: Any = None) -> Layouts:
    """Return the layouts of squeeze. A dimension of which a part has one row would go, too."""
    dims = range(spec.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    may_go = {_wrapped(each, spec.ndim) for each in dims} if spec.ndim else set()
    gone = {each for each in may_go if spec.shape[each] == 1}
    for each, size in enumerate(spec.shape):
        rows, rest = divmod(size, spec.mesh.size())
        if size > 1 and (each not in may_go or (rows > 1 and not rest)):
            yield [Shard(each - sum(g < each for g in gone))], [Shard(each)]


# --- sums of parts


def _reduced(num_outputs: int) -> Rule:
    """Return the rule of a reduction of some dimensions, over which nothing is sharded."""

    def rule(spec: Any, *args: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Layouts:
        lists = [each for each in args if isinstance(each, (list, tuple))]
        dims = lists[0] if lists else dim
        if dims is None:
            return
        keepdim = keepdim or True in [each for each in args if isinstance(each, bool)]
        over = {_wrapped(d, spec.ndim) for d in ([dims] if isinstance(dims, int) else dims)} or set(
            range(spec.ndim)
        )
        for each in range(spec.ndim):
            if each not in over:
                to = each if keepdim else each - sum(d < each for d in over)
                yield [Shard(to)] * num_outputs, [Shard(each)]

    return rule


def _mv(matrix: Any, vector: Any) -> Layouts:
    return [([Shard(0)], [Shard(0), _WHOLE]), ([Partial()], [Shard(1), Shard(0)])]


def _addmv(bias: Any, matrix: Any, vector: Any, **_: Any) -> Layouts:
    return [([Shard(0)], [_part(bias, 0, matrix.shape[:1]), Shard(0), _WHOLE])]


def _addbmm(added: Any, left: Any, right: Any, **_: Any) -> Layouts:
    shape = (left.shape[1], right.shape[2])
    return [
        ([Shard(0)], [_part(added, 0, shape), Shard(1), _WHOLE]),
        ([Shard(1)], [_part(added, 1, shape), _WHOLE, Shard(2)]),
    ]


def _addr(added: Any, column: Any, row: Any, **_: Any) -> Layouts:
    shape = (column.shape[0], row.shape[0])
    return [
        ([Shard(0)], [_part(added, 0, shape), Shard(0), _WHOLE]),
        ([Shard(1)], [_part(added, 1, shape), _WHOLE, Shard(0)]),
    ]


def _vdot(one: Any, other: Any) -> Layouts:
    return [([Partial()], [Shard(0), Shard(0)])]


def _trilinear(
    one: Any,
    two: Any,
    three: Any,
    new_1: Sequence[int],
    new_2: Sequence[int],
    new_3: Sequence[int],
    summed: Sequence[int],
    *_: Any,
) -> Layouts:
    """Return the layouts of _trilinear, of which bilinear layers are made: the product of three inputs that
    get new dimensions, and its sum over some.
    """
    for dim in range(one.ndim + len(new_1)):
        ins = [_before(x, new, dim) for x, new in ((one, new_1), (two, new_2), (three, new_3))]
        if ins != [_WHOLE] * 3:
            yield [Partial() if dim in summed else Shard(dim - sum(s < dim for s in summed))], ins


def _before(spec: Any, new: Sequence[int], dim: int) -> Placement:
    """Return the placement of an input where the dimension is sharded that it has beside its new ones."""
    own = dim - sum(each < dim for each in new)
    return _WHOLE if dim in new or spec.shape[own] == 1 else Shard(own)


def _distances(one: Any, other: Any, *_: Any) -> Layouts:
    """Return the layouts of _cdist_forward: each row of one input beside each of the other's."""
    ndim = max(one.ndim, other.ndim)
    yield [Shard(ndim - 2)], [Shard(one.ndim - 2), _WHOLE]
    yield [Shard(ndim - 1)], [_WHOLE, Shard(other.ndim - 2)]
    if one.shape[:-2] == other.shape[:-2]:
        for dim in range(ndim - 2):
            yield [Shard(dim)], [Shard(dim)] * 2


def _distances_backward(gradient: Any, one: Any, other: Any, *_: Any) -> Layouts:
    """Return the layouts of _cdist_backward: the gradient of the first input's rows."""
    if one.shape[:-2] != other.shape[:-2]:
        return
    rows, columns = gradient.ndim - 2, gradient.ndim - 1
    yield [Shard(rows)], [Shard(rows), Shard(rows), _WHOLE, Shard(rows)]
    yield [Partial()], [Shard(columns), _WHOLE, Shard(rows), Shard(columns)]
    for dim in range(rows):
        yield [Shard(dim)], [Shard(dim)] * 4


def _counted(spec: Any, dim: int | None = None) -> Layouts:
    return [] if dim is not None else [([Partial()], [Shard(each)]) for each in range(spec.ndim)]


def _first_alone(first: Any, *_: Any, **__: Any) -> Layouts:
    """Return the layouts of a look-up of each element of the first input in the second, which is whole."""
    return [([Shard(dim)], [Shard(dim), _WHOLE]) for dim in range(first.ndim)]


def _last_alone(table: Any, last: Any, *_: Any, **__: Any) -> Layouts:
    """Return the layouts of a look-up of each element of the second input in a line, which is whole."""
    return [([Shard(dim)], [_WHOLE, Shard(dim)]) for dim in range(last.ndim)] if _is_line(table) else []


def _is_line(spec: Any) -> bool:
    return bool(spec.ndim <= 1)


def _taken(table: Any, index: Any) -> Layouts:
    return [([Shard(dim)], [_WHOLE, Shard(dim)]) for dim in range(index.ndim)]


RULES: dict[Any, Rule] = {
    **dict.fromkeys(
        (
            _aten.rsub.Tensor, _aten.rsub.Scalar, _aten.floor_divide.default, _aten.floor_divide.Scalar,
            _aten.complex.default, _aten.polar.default, _aten._conj_physical.default, _aten.fill.Scalar,
            _aten.fill.Tensor, _aten.fill_.Tensor,
            _aten.alias_copy.default, _aten.masked_fill.Tensor, _aten.hardswish.default,
            _aten.hardswish_backward.default, _aten._prelu_kernel.default,
        ),
        _elementwise(1),
    ),
    _aten._prelu_kernel_backward.default: _elementwise(2),
    _aten.binary_cross_entropy_with_logits.default: _loss_with_logits,
    _aten.multi_margin_loss.default: _margin_loss,
    _aten.multilabel_margin_loss_forward.default: _margin_loss_of_labels,
    _aten.multi_margin_loss_backward.default: _margin_loss_backward,
    _aten.multilabel_margin_loss_backward.default: _margin_loss_of_labels_backward,
    _aten.channel_shuffle.default: _leading(3),
    _aten.pixel_shuffle.default: _leading(3),
    _aten.pixel_unshuffle.default: _leading(3),
    _aten.im2col.default: _leading(3),
    **dict.fromkeys((_aten.reflection_pad1d.default, _aten.replication_pad1d.default), _leading(1)),
    **dict.fromkeys((_aten.reflection_pad2d.default, _aten.replication_pad2d.default), _leading(2)),
    **dict.fromkeys((_aten.reflection_pad3d.default, _aten.replication_pad3d.default), _leading(3)),
    **dict.fromkeys((_aten.unfold.default, _aten.unfold_copy.default, _aten.narrow_copy.default), _all_but),
    _aten.log_sigmoid_forward.default: _log_sigmoid,
    _aten.log_sigmoid_backward.default: _log_sigmoid_backward,
    _aten.renorm.default: _only,
    _aten.glu.default: _glu,
    _aten.glu_backward.default: _glu_backward,
    _aten.permute_copy.default: _moved(_permuted),
    _aten.transpose_copy.int: _moved(_transposed),
    _aten.t_copy.default: _moved(_transposed),
    _aten.unsqueeze_copy.default: _moved(_unsqueezed),
    **dict.fromkeys(
        (_aten.squeeze_copy.default, _aten.squeeze_copy.dim, _aten.squeeze_copy.dims), _squeezed
    ),
    _aten._trilinear.default: _trilinear,
    _aten._cdist_forward.default: _distances,
    _aten._cdist_backward.default: _distances_backward,
    _aten.mv.default: _mv,
    _aten.addmv.default: _addmv,
    _aten.addbmm.default: _addbmm,
    _aten.addr.default: _addr,
    _aten.vdot.default: _vdot,
    _aten.count_nonzero.default: _counted,
    _aten.std_mean.correction: _reduced(2),
    _aten.aminmax.default: _reduced(2),
    _aten.norm.ScalarOpt_dim: _reduced(1),
    _aten.index_add.default: _indexed,
    _aten.index_copy.default: _indexed,
    _aten.scatter.reduce: _scattered,
    _aten.scatter_reduce.two: _scattered,
    _aten.isin.Tensor_Tensor: _first_alone,
    _aten.searchsorted.Tensor: _last_alone,
    _aten.take.default: _taken,
}  # fmt: skip


WRONG_IN_TORCH: dict[Any, Rule] = {
    _aten.cumsum.default: _all_but,
    _aten.cumprod.default: _all_but,
    _aten.logcumsumexp.default: _all_but,
    _aten.logsumexp.default: _reduced(1),
    _aten.gather.default: _gathered,
    _aten.linalg_ldl_solve.default: _batched(2, 1, 2),
    _aten.linalg_solve_triangular.default: _batched(2, 2),
    _aten.max_unpool2d.default: _leading(2, 2),
    _aten.max_unpool3d.default: _leading(3, 2),
    pool_backward: _leading(2, 2),
    **dict.fromkeys(WITH_TARGETS, rows_of_loss),
}
"""Rules in place of torch's own. Those of sums don't see that the last dimension and dimension -1 are the
same, that of `logsumexp` doesn't see `keepdim`, that of `gather` pairs rows of tensors of different sizes,
and those of solvers and of pools take rows or other tensors' batches for batches, and for channels; those of
losses take the mean of ranks' means (see `losses`).
"""
