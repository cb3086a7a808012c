"""Watches plain tensors of this process while a call is recorded: a replay doesn't run Python, so it neither
computes with them nor changes them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from monarch_nb._rank.tensor.private import FAKE_MODE, dispatch_mode, item_op, schema_of
from monarch_nb._tensor.reach import settings_of
from monarch_nb._tensor.recorder import Recorder
from monarch_nb._tensor.sendable import PLAIN
from monarch_nb._tensor.tensor import Tensor


class Watch(TorchDispatchMode):  # type: ignore[misc]
    """The mode in which a call is recorded.

    Args:
        recorder: the recording.
        live: optimisers that take their steps in Python; those that turn out to need it are added.
        optimizers: optimisers whose settings are known.

    Attributes:
        found_live: whether one was added.
    """

    def __init__(
        self,
        recorder: Recorder,
        live: weakref.WeakSet[torch.optim.Optimizer],
        optimizers: Iterable[torch.optim.Optimizer],
    ) -> None:
        super().__init__()
        self._settings = {each: settings_of(each) for each in optimizers}
        self._changed = ""
        self._recorder = recorder
        recorder.is_constant, recorder.take_for_constant = self.is_constant, self._take_for_constant
        self._live = live
        self.found_live = False
        self._optimizer: torch.optim.Optimizer | None = None
        self._has_arguments = False
        self._made: dict[int, weakref.ref[torch.Tensor]] = {}
        self._derived: set[int] = set()

    def is_constant(self, plain: torch.Tensor) -> bool:
        """Return whether the call has made a plain tensor, of nothing but constants.

        Raises:
            MeshUsageError: if it has made it of other plain tensors.
        """
        found = self._made.get(id(plain))
        if found is None or found() is not plain:
            return False
        if id(plain) in self._derived:
            self._recorder.refuse(
                "sends a plain tensor that is computed from others in this process, which a replay wouldn't "
                "do again: compute it before the call and pass it, or distribute the others first"
            )
        return True

    def _take_for_constant(self, plain: torch.Tensor) -> None:
        self._made[id(plain)] = weakref.ref(plain)
        self._derived.discard(id(plain))

    @contextmanager
    def steps(self) -> Iterator[None]:
        """Hear of steps of optimisers within the block."""
        before = register_optimizer_step_pre_hook(self._step_begins)
        after = register_optimizer_step_post_hook(self._step_ends)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _step_begins(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._has_arguments = len(args) > 1 or bool(kwargs)
        self._optimizer = optimizer
        if optimizer not in self._settings:  # where nobody sees its settings change
            self._runs_in_python()
        elif optimizer in self._live:
            self._check_arguments()
            self._compare(optimizer)
            self._recorder.pause(optimizer)
        else:
            self._compare(optimizer)

    def _step_ends(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._optimizer = None
        self._settings[optimizer] = settings_of(optimizer)
        if self._recorder.is_paused:
            self._recorder.go_on()

    def _compare(self, optimizer: torch.optim.Optimizer) -> None:
        known = self._settings.get(optimizer)
        for before, now in zip(known or (), settings_of(optimizer), strict=False):
            if before != now and not self._changed:
                self._changed = f"{now[0][1]} of {type(optimizer).__name__}"

    def changed_setting(self) -> str:
        """Return which setting of an optimiser was changed outside of its steps; "" if none was."""
        for each in self._settings:
            self._compare(each)
        return self._changed

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Look at an operation on plain tensors, and do it."""
        named = dict(kwargs or {})
        inputs = [x for x in pytree.tree_leaves((tuple(args), named)) if isinstance(x, torch.Tensor)]
        is_other = any(type(x) not in PLAIN or x.is_meta for x in inputs)
        if self._recorder.is_paused or is_other or dispatch_mode(FAKE_MODE) is not None:
            return func(*args, **named)
        self._check(func, args, named, inputs)
        result = func(*args, **named)
        self._note(func, inputs, result)
        return result

    def _check(self, func: Any, args: Sequence[Any], named: Mapping[str, Any], inputs: Sequence[Any]) -> None:
        written = _written(func, args, named)
        if self._optimizer is not None and (written or func is item_op):
            self._runs_in_python()
            return
        if any(not self._is_made_here(x) for x in written):
            self._recorder.refuse(
                "changes a plain tensor of this process, which a replay wouldn't do again: do it outside"
            )
        if func is item_op and any(not self._is_constant_here(x) for x in inputs):
            self._recorder.refuse(
                "reads a number from a plain tensor, which a replay wouldn't read again: pass the number"
            )
        if torch.Tag.nondeterministic_seeded in func.tags:
            self._recorder.refuse(
                "draws random numbers in this process, which a replay would repeat: draw them before the "
                "call and pass them, or on the mesh, as in torch.rand_like(x)"
            )

    def _runs_in_python(self) -> None:
        assert self._optimizer is not None
        self._check_arguments()
        if self._optimizer not in self._live:
            self._live.add(self._optimizer)
            self.found_live = True

    def _check_arguments(self) -> None:
        if self._has_arguments:
            self._recorder.refuse(
                f"calls step() of {type(self._optimizer).__name__} with arguments, which can't be replayed: "
                "call it outside"
            )

    def _is_made_here(self, plain: torch.Tensor) -> bool:
        found = self._made.get(id(plain))
        return found is not None and found() is plain

    def _is_constant_here(self, plain: torch.Tensor) -> bool:
        return self._is_made_here(plain) and id(plain) not in self._derived

    def _note(self, func: Any, inputs: Sequence[torch.Tensor], result: Any) -> None:
        """Note what the call has made, and whether of constants only."""
        is_lifted = func is torch.ops.aten.lift_fresh.default
        is_derived = not is_lifted and not all(map(self._is_constant_here, inputs))
        for each in pytree.tree_leaves(result):
            if isinstance(each, torch.Tensor):
                self._made[id(each)] = weakref.ref(each)
                (self._derived.add if is_derived else self._derived.discard)(id(each))


def _written(func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the plain tensors that an operation changes."""
    found: list[torch.Tensor] = []
    for n, each in enumerate(schema_of(func).arguments):
        if each.alias_info is not None and each.alias_info.is_write:
            value = args[n] if n < len(args) else named.get(each.name)
            found += [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]
    return [x for x in found if not isinstance(x, Tensor)]
