"""Sends many commands in one message: those of a block, or those of a function that was recorded."""

from __future__ import annotations

import functools
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from monarch_nb._tensor.borrow import get_active_stream
from monarch_nb._tensor.engines import grid_of, live_engines
from monarch_nb._tensor.reach import Reach, Setting
from monarch_nb._tensor.recorded import Made
from monarch_nb._tensor.recorder import Recorder, first_difference
from monarch_nb._tensor.replay import Recording, Result, given_back
from monarch_nb._tensor.tensor import Tensor
from monarch_nb._tensor.watch import Watch
from monarch_nb.actor.active import get_active_mesh
from monarch_nb.exceptions import MeshUsageError, WrongTensor

MOST_RECORDINGS = 16
"""How many recordings of one function are kept: the latest ones."""
MOST_TRIES = 4
"""After how many calls a function that can't be replayed isn't recorded any more."""


@contextmanager
def coalescing() -> Iterator[None]:
    """Send all operations on tensors within the block as one message, at its end. This applies to the active
    mesh, or to all meshes if none is active. To wait for a value within the block sends the operations before
    it.

    Example:
        >>> with monarch_nb.coalescing():                    # doctest: +SKIP
        ...     for each in parameters:
        ...         each.mul_(0.9)
    """
    mesh = get_active_mesh()
    engines = live_engines() if mesh is None else [grid_of(mesh).engine]
    with ExitStack() as stack:
        for engine in engines:
            stack.enter_context(engine.stream.hold())
        yield


def compile(function: Callable[..., Any] | None = None, *, verify: bool = True) -> Any:
    """Return a function whose operations on tensors of a mesh are recorded in its first calls, and replayed
    in later ones: a whole training step, with its backward and its optimiser, is then one message of some
    hundred bytes. Can be used as a decorator.

    A replay doesn't run the function's Python, but for steps of optimisers that count their steps in this
    process, or whose settings change. Its results, gradients and parameters are those of an ordinary call,
    also random numbers, of which each replay draws new ones. Arguments that aren't tensors, shapes and
    layouts of tensors, and values outside of the function that it refers to are compared at each call: for
    others it's recorded anew.

    Args:
        function: takes and returns tensors, numbers and strings, also in lists, tuples and dicts.
        verify: whether the function is recorded twice before it's replayed, to compare both.

    Returns:
        a `Compiled`, to be called like the function.

    Raises:
        MeshUsageError: from a call: if the function needs a value of the mesh (`item()`), or plain tensors
            that it computes in this process; if its second recording differs from the first. The error names
            the line.

    Example:
        >>> @monarch_nb.compile                              # doctest: +SKIP
        ... def step(inputs, targets):
        ...     optimizer.zero_grad()
        ...     loss = criterion(model(inputs), targets)
        ...     loss.backward()
        ...     optimizer.step()
        ...     return loss.detach()
    """
    if function is None:
        return functools.partial(compile, verify=verify)
    if not callable(function):
        raise WrongTensor(f"compile takes a function, not {type(function).__name__}")
    return Compiled(function, verify=verify)


class Compiled:
    """A function that is recorded, then replayed; see `compile`.

    Attributes:
        num_recorded, num_replayed: how often each was done.
    """

    def __init__(self, function: Callable[..., Any], *, verify: bool) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._verify = verify
        self._known: dict[int, weakref.ref[Tensor]] = {}
        self._live: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._recordings: list[tuple[Any, Recording]] = []
        self._facts: dict[Any, Any] = {}
        self._tries: dict[Any, int] = {}
        self.num_recorded = self.num_replayed = 0

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, or replay it."""
        engines = live_engines()
        if any(engine.recorder is not None for engine in engines):  # it's a part of another one
            return self._function(*args, **kwargs)
        leaves, structure = pytree.tree_flatten((args, kwargs))
        reach = self._reach(args, kwargs)
        key = (structure, *map(_fact_of, leaves, [leaves] * len(leaves)), *_surroundings(), *reach.facts)
        for known, recording in self._recordings:
            if recording.is_verified and known == key and recording.fits(leaves):
                self.num_replayed += 1
                return pytree.tree_unflatten(recording.replay(leaves), recording.structure)
        return self._called(key, leaves, reach, args, kwargs)

    def close(self) -> None:
        """Free what the recordings have on the ranks. Later calls record anew."""
        self._recordings.clear()

    # --- what it depends on

    def _reach(self, args: Any, kwargs: Any) -> Reach:
        """Return what the function sees, without optimisers' settings that were seen to change."""
        reach = self._seen(args, kwargs)
        facts = dict(reach.facts)
        changed = [
            name.optimizer
            for name, value in facts.items()
            if isinstance(name, Setting) and self._facts.get(name, value) != value
        ]
        if changed:
            self._live.update(changed)
            reach = self._seen(args, kwargs)
            facts = dict(reach.facts)
        self._facts = facts
        return reach

    def _seen(self, args: Any, kwargs: Any) -> Reach:
        reach = Reach(self._live)
        reach.add((), self._function)
        for each in pytree.tree_leaves((args, kwargs)):
            if isinstance(each, (torch.nn.Module, torch.optim.Optimizer)):
                reach.add(("argument",), each)
        return reach

    # --- recording

    def _called(
        self, key: Any, leaves: Sequence[Any], reach: Reach, args: Any, kwargs: Mapping[str, Any]
    ) -> Any:
        self._recordings = [(k, r) for k, r in self._recordings if not r.is_dead]
        engine = self._engine_of([*leaves, *reach.tensors])
        if engine is None or self._tries.get(key, 0) >= MOST_TRIES:
            return self._function(*args, **kwargs)
        for each in reach.tensors:
            self._known[id(each)] = weakref.ref(each)
        known = [t for t in (ref() for ref in self._known.values()) if t is not None]
        recorder = Recorder(engine, leaves, known)
        watch = Watch(recorder, self._live)
        engine.recorder = recorder
        try:
            with watch, watch.steps():
                result = self._function(*args, **kwargs)
            recorder.end_part()
        finally:
            engine.recorder = None
        self.num_recorded += 1
        self._known.update({id(each): weakref.ref(each) for each in recorder.unknown})
        flat, structure = pytree.tree_flatten(result)
        del result
        found = [self._result(recorder, each, leaves) for each in flat]
        flat = [
            given_back(each, about) if about.value is not None else each
            for each, about in zip(flat, found, strict=True)
        ]
        recording = Recording(engine, recorder.parts, recorder.entries, found, structure)
        reason = self._why_not(recorder, watch, recording, reach, args, kwargs)
        self._keep(key, recording, reason, leaves)
        return pytree.tree_unflatten(flat, structure)

    def _engine_of(self, values: Sequence[Any]) -> Any:
        found = {each.engine for each in values if isinstance(each, Tensor)}
        if len(found) > 1:
            raise WrongTensor("WRONG_MESH: a compiled function uses tensors of one mesh, not of two")
        if found:
            return found.pop()
        mesh = get_active_mesh()
        return None if mesh is None else grid_of(mesh).engine

    def _result(self, recorder: Recorder, value: Any, leaves: Sequence[Any]) -> Result:
        if isinstance(value, Tensor):
            known = recorder.value_of(value)
            return Result(known, value.mesh_meta, value.requires_grad, value.is_leaf)
        argument = next((n for n, leaf in enumerate(leaves) if leaf is value), -1)
        if isinstance(value, torch.Tensor) and argument < 0:
            recorder.refuse("returns a plain tensor, which a replay wouldn't compute again")
        return Result(other=value, argument=argument)

    def _why_not(
        self, recorder: Recorder, watch: Watch, recording: Recording, reach: Reach, args: Any, kwargs: Any
    ) -> str:
        """Return why a call can't be replayed as it was recorded; "" if it can."""
        if watch.found_live or recorder.unknown:
            return "it took its first step"
        kept = {g.value for p in recorder.parts for g in p.gradients} | {r.value for r in recording.results}
        outliving = recorder.outliving([v for v in kept if v is not None])
        if outliving:
            gc.collect()
            outliving = recorder.outliving([v for v in kept if v is not None])
        if outliving:
            return f"a tensor outlives the call, which isn't returned: {recorder.place_of(outliving[0])}"
        changed = _changed(dict(reach.facts), dict(self._seen(args, kwargs).facts))
        return f"it changes {changed} in Python" if changed else ""

    def _keep(self, key: Any, recording: Recording, reason: str, leaves: Sequence[Any]) -> None:
        if reason:
            self._tries[key] = self._tries.get(key, 0) + 1
            if self._tries[key] == MOST_TRIES:
                warnings.warn(
                    f"{self._function.__name__} isn't replayed, but runs as without compile: {reason}",
                    stacklevel=4,
                )
            return
        before = next((r for k, r in self._recordings if k == key and r.entries == recording.entries), None)
        if before is None:
            recording.is_verified = not self._verify
            self._recordings = [*self._recordings, (key, recording)][-MOST_RECORDINGS:]
            return
        difference = first_difference(before.parts, recording.parts)
        if difference:
            self._recordings = [(k, r) for k, r in self._recordings if r is not before]
            raise MeshUsageError(
                f"{self._function.__name__} can't be replayed, for its second call did something else than "
                f"the first: {difference}\nwhat changes from call to call is to be an argument"
            )
        before.is_verified = True


def _changed(before: dict[Any, Any], after: dict[Any, Any]) -> str:
    for name in {**before, **after}:
        if before.get(name, Made) != after.get(name, Made):
            return ".".join(str(part) for part in name)
    return ""


def _fact_of(value: Any, leaves: Sequence[Any]) -> Any:
    """Return what a recording depends on of an argument."""
    if isinstance(value, Tensor):
        same = next(n for n, x in enumerate(leaves) if _handle(x) is value.mesh_handle)
        return value.mesh_meta, value.requires_grad, value.is_leaf, same
    if isinstance(value, torch.Tensor):
        same = next(n for n, x in enumerate(leaves) if x is value)
        return tuple(value.shape), value.stride(), value.dtype, value.requires_grad, same
    try:
        hash(value)
    except TypeError:
        raise WrongTensor(
            f"a compiled function takes tensors, numbers and strings, not {type(value).__name__}: "
            "torch.as_tensor(x) makes a tensor"
        ) from None
    return type(value), value


def _handle(value: Any) -> Any:
    return value.mesh_handle if isinstance(value, Tensor) else None


def _surroundings() -> tuple[Any, ...]:
    """Return the settings of torch and of the active mesh that decide what operations do."""
    kinds = ("cpu", "cuda")
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        tuple((torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in kinds),
        id(get_active_mesh()),
        get_active_stream().name,
    )
