"""Commands that work on this rank's parts directly.

DTensor finds out at each call which layout an operation's result has, and whether its inputs must be laid out
anew. For a plan that is the same each time. If nothing has to be moved, or inputs only have to be summed over
ranks (`sums`) or cut (`cuts`), the operation is called on the parts, and what it returns gets the layout that
the controller has planned. Where arguments depend on the rank, as sizes of views do, DTensor's rule is asked
here, once. That costs a fraction of the way through DTensor, which takes longer than small operations
themselves.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.utils import _pytree as pytree

from monarch_nb._rank.tensor.compiler import Layouts
from monarch_nb._rank.tensor.cuts import Cut, CutHole, axes_to_cut
from monarch_nb._rank.tensor.private import dispatcher, handled_apart, is_operation, random_ops, spec_of
from monarch_nb._rank.tensor.protocol import SINGLE, Definition, Hole, ScalarHole
from monarch_nb._rank.tensor.sums import Axes, axes_to_sum
from monarch_nb._rank.tensor.whole import LIKES

REDISTRIBUTE = "own.redistribute"
_LIKES = {str(op): op for op in LIKES}
_PLAIN = frozenset({Replicate, Shard, Partial})
"""Placements without state of their own."""


class OnParts(NamedTuple):
    """The way in which an operation is called on parts.

    Attributes:
        plan: the plan, with sizes of this rank's part among its arguments.
        op: the operation; None if the result is the input, summed.
        sums: which inputs have to be summed over ranks before.
        layouts: of the outputs; None if they have to be seen first.
        mesh: the device mesh.
    """

    plan: Definition
    op: Any
    sums: dict[int, Axes]
    layouts: Layouts | None
    mesh: Any


def on_parts(plan: Definition, op: Any, inputs: Sequence[Any]) -> OnParts | None:
    """Return how an operation is called on the parts of these inputs; None if they have to be moved other
    than by sums, or DTensor has its own way.
    """
    if plan.grid is None or plan.is_random or not inputs:
        return None
    if not all(type(each) is DTensor and is_plain(spec_of(each)) for each in inputs):
        return None
    if any(each.device_mesh is not inputs[0].device_mesh for each in inputs):
        return None
    if plan.op == REDISTRIBUTE:
        axes = axes_to_sum(inputs[0].placements, plan.args[1])
        return OnParts(plan, None, {0: axes}, None, inputs[0].device_mesh) if axes else None
    if plan.is_whole:
        op = _LIKES.get(plan.op)
        return OnParts(plan, op, {}, None, inputs[0].device_mesh) if _fills(plan, inputs) else None
    if not is_operation(op):
        return None
    if plan.sums is not None:
        return _as_planned(plan, op, inputs)
    if not follows_rules(op):
        return None
    try:
        return _as_dtensor(plan, op, inputs)
    except Exception:  # DTensor has other ways for operations without a rule, and the better error
        return None


def _fills(plan: Definition, inputs: Sequence[Any]) -> bool:
    """Say whether a result is whole on each rank, and of its input only the size matters, which is the
    part's.
    """
    is_whole = all(each.is_replicate() for placements in plan.placements for each in placements)
    return plan.op in _LIKES and is_whole and not any(each.is_shard() for each in inputs[0].placements)


def follows_rules(op: Any) -> bool:
    """Say whether DTensor computes an operation on parts, and does nothing else for it."""
    return op not in handled_apart and op not in random_ops


def _as_planned(plan: Definition, op: Any, inputs: Sequence[Any]) -> OnParts:
    assert plan.sums is not None
    mesh = inputs[0].device_mesh
    layouts = tuple(
        DTensorSpec(mesh, placements, TensorMeta(torch.Size(size), stride, dtype))
        for placements, (size, stride, dtype) in zip(plan.placements, plan.metas, strict=True)
    )
    return OnParts(_with_cuts(plan, inputs, mesh), op, dict(plan.sums), layouts, mesh)


def _with_cuts(plan: Definition, inputs: Sequence[Any], mesh: Any) -> Definition:
    """Return a plan whose template says which inputs are cut."""
    cuts = {n: _cut(inputs[n].placements, wanted, mesh) for n, wanted in plan.cuts}

    def with_cut(value: Any) -> Any:
        return (
            CutHole(value.index, cuts[value.index]) if type(value) is Hole and value.index in cuts else value
        )

    return replace(plan, args=pytree.tree_map(with_cut, plan.args, is_leaf=_is_hole)) if cuts else plan


def _cut(has: Sequence[Any], wanted: Sequence[Any], mesh: Any) -> Cut:
    return Cut(mesh, wanted, axes_to_cut(has, wanted) or ())


def _as_dtensor(plan: Definition, op: Any, inputs: Sequence[Any]) -> OnParts | None:
    """Return how DTensor would call an operation on parts."""
    mesh = inputs[0].device_mesh
    info = dispatcher.unwrap_to_op_info(op, *_filled(plan, inputs))
    dispatcher.sharding_propagator.propagate(info)
    sharding = info.output_sharding
    layouts = _laid_out(plan, sharding.output_spec)
    if layouts is None:
        return None
    if not sharding.needs_redistribute:
        return OnParts(plan, op, {}, layouts, mesh)
    schema, sums = sharding.redistribute_schema, sums_between(info, len(inputs))
    if sums is None:
        return None
    if sharding.use_val_from_redistribute_schema:  # sizes: those of the whole became those of a part
        plan = replace(plan, args=_with_holes(schema.args_schema))
    return OnParts(plan, schema.op, sums, layouts, mesh)  # squeeze becomes one of given dimensions


def _laid_out(plan: Definition, spec: Any) -> Layouts | None:
    """Return the layouts of a plan's outputs; None if one has a state of its own."""
    found = tuple(spec if n == SINGLE else spec[n] for n in plan.outputs)
    return found if all(isinstance(each, DTensorSpec) and is_plain(each) for each in found) else None


def sums_between(info: Any, num_inputs: int) -> dict[int, Axes] | None:
    """Return the sums that lead from an operation's inputs to those that DTensor's rule wants; None if it
    takes something else.

    Args:
        info: DTensor's, of the operation.
    """
    found = steps_between(info, num_inputs)
    return None if found is None or found[1] else found[0]


def steps_between(info: Any, num_inputs: int) -> tuple[dict[int, Axes], dict[int, tuple[Any, ...]]] | None:
    """Return the sums that `sums_between` does, and layouts of inputs that only have to be cut."""
    given, wanted = given_and_wanted(info)
    if len(given) != num_inputs or len(wanted) != num_inputs:  # there are others among the named arguments
        return None
    sums: dict[int, Axes] = {}
    cuts: dict[int, tuple[Any, ...]] = {}
    for n, (one, other) in enumerate(zip(given, wanted, strict=True)):
        if axes := axes_to_sum(one.placements, other.placements):
            sums[n] = axes
        elif axes is None and axes_to_cut(one.placements, other.placements) is None:
            return None
        elif axes is None:
            cuts[n] = tuple(other.placements)
    return sums, cuts


def given_and_wanted(info: Any) -> tuple[list[Any], list[Any]]:
    """Return the layouts of an operation's inputs that aren't named arguments, and those that DTensor's rule
    wants; also of tensors in lists, which `args_spec` of what a rule has made leaves out.
    """
    return _layouts(info.schema.args_schema), _layouts(info.output_sharding.redistribute_schema.args_schema)


def _layouts(args: Any) -> list[Any]:
    return [each for each in pytree.tree_leaves(args) if isinstance(each, DTensorSpec)]


def _with_holes(args: Any) -> Any:
    """Return arguments as a template: layouts stand for tensors."""
    numbers = itertools.count()
    return pytree.tree_map(
        lambda each: Hole(next(numbers)) if isinstance(each, DTensorSpec) else each, tuple(args)
    )


def is_as_planned(plan: Definition, outputs: Sequence[Any]) -> bool:
    """Say whether a command's results are laid out as the controller has predicted."""
    return all(map(_is_laid_out, outputs, plan.placements))


def _is_laid_out(value: Any, placements: Sequence[Any]) -> bool:
    if type(value) is not DTensor:  # the whole of a tensor for who fetches it, or nothing on this rank
        return not isinstance(value, DTensor)
    return list(map(_key, value.placements)) == list(map(_key, placements))


def _key(placement: Any) -> Any:
    """Return what a placement is compared by. Kinds of sums with a state of their own lose it on the way."""
    is_special = isinstance(placement, Partial) and type(placement) is not Partial
    return type(placement) if is_special else placement


def layouts_of(inputs: Sequence[Any], outputs: Sequence[Any]) -> Layouts | None:
    """Return the layouts of an operation's outputs; None if one has a state of its own."""
    found: list[Any] = []
    for each in outputs:
        if type(each) is not DTensor or not is_plain(spec_of(each)):
            return None
        same = next((n for n, given in enumerate(inputs) if given is each), None)
        found.append(spec_of(each) if same is None else same)
    return tuple(found)


def is_plain(spec: Any) -> bool:
    """Say whether a layout is known, and no placement has a state of its own."""
    return spec.tensor_meta is not None and all(type(each) in _PLAIN for each in spec.placements)


def _filled(plan: Definition, inputs: Sequence[Any]) -> tuple[Any, Any]:
    """Return arguments as the operation gets them; of scalars that change, any."""

    def fill(value: Any) -> Any:
        if isinstance(value, Hole):
            return inputs[value.index]
        return 1.0 if isinstance(value, ScalarHole) else value

    return (
        pytree.tree_map(fill, plan.args, is_leaf=_is_hole),
        {name: pytree.tree_map(fill, value, is_leaf=_is_hole) for name, value in plan.kwargs},
    )


def _is_hole(value: Any) -> bool:
    return isinstance(value, (Hole, ScalarHole))
