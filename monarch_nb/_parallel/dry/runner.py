"""Runs a forward without values: it determines the outputs, the cost, and the layers that mix rows of the
batch.

The module is run twice over shapes alone. Once as one rank sees it, on its part of the batch (`local`); once
as one tensor over all ranks (`whole`), with DTensor's rules. Where both do the same operations with the same
numbers, and no rule asks for another layout, each rank can do its part by itself. A layer where that isn't so
looks across the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from monarch_nb._parallel.attributes import attributes_kept
from monarch_nb._parallel.dry.following import Following, Shared
from monarch_nb._parallel.dry.local import LocalRun
from monarch_nb._parallel.dry.outcome import (
    CantFollow,
    DryRun,
    Finding,
    Found,
    LocalMismatch,
    LooksAcross,
    hole,
)
from monarch_nb._parallel.dry.whole import WholeRun
from monarch_nb._parallel.numbers import split_dims
from monarch_nb._rank.random_numbers import random_state_kept
from monarch_nb._rank.tensor.inside import tensors_of


class DryRunner(Shared):
    """The dry runs of one module for a given number of ranks.

    Args:
        module: the user's module; only the shapes of its parameters are used.
        num_ranks: number of ranks over which a batch is split.
        replicate: layers that run on the whole batch because the user says so.
    """

    def __init__(self, module: nn.Module, num_ranks: int, replicate: Sequence[str] = ()) -> None:
        super().__init__(module, num_ranks)
        self.replicate = tuple(replicate)
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
                mismatch = error
            except Found as found:
                if self._is_fine(found, over_all):
                    continue
                if not finds:
                    raise LooksAcross(self._finding(found)) from None
                self._note(found)
                continue
            self._run_as_one(
                args, kwargs, rows, mismatch
            )  # outside of `except`, which would show both errors
            if not finds:
                raise mismatch
            self._note(Found(mismatch.path, mismatch.op, "shapes don't fit on a part of it", mismatch.place))

    def _run_as_one(self, args: Any, kwargs: Any, rows: int, mismatch: LocalMismatch) -> None:
        """Run the forward on the whole batch, and raise the error of one process, if it has one, with a note
        that says where in the module.
        """
        try:
            self.run_in(WholeRun(self, (), rows, None), args, kwargs)
        except Exception as error:
            error.add_note(str(replace(mismatch.place, module=mismatch.path)))
            raise

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

    def run_in(self, mode: Following, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the module with tensors of a mode, which follows it.

        Raises:
            CantFollow: if it draws random numbers of this process: ranks would draw others, and each its own.
        """
        state = mode.state(self.module)
        buffers = {name: state[name] for name, _ in self.module.named_buffers()}
        given = pytree.tree_map(mode.given, (tuple(args), dict(kwargs)))
        with attributes_kept(self.paths) as left, random_state_kept() as were_drawn, mode.following():
            result = functional_call(self.module, state, *given, tie_weights=True)
        if were_drawn():
            raise CantFollow(
                "it draws random numbers of Python's or numpy's, and each rank would draw others"
            )
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
        holes = tuple(map(hole, leaves))
        findings = tuple(replace(f, num_bytes=local.gathered.get(f.path, 0)) for f in self._known)
        return DryRun(
            outputs, holes, structure, findings, used, local.num_flops, local.saved_bytes,
            over_all.counts_rows, over_all.assigned,
        )  # fmt: skip


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
