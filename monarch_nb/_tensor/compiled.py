"""A function that is recorded in its first calls, and replayed in later ones."""

from __future__ import annotations

import functools
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from monarch_nb._rank.random_numbers import random_state
from monarch_nb._tensor.borrow import get_active_stream
from monarch_nb._tensor.effects import changes_something
from monarch_nb._tensor.engines import grid_of, live_engines
from monarch_nb._tensor.place import Place
from monarch_nb._tensor.reach import SIMPLE, Reach, Setting
from monarch_nb._tensor.reads import Unclear, places_of
from monarch_nb._tensor.recorded import Argument, Captured, Gradient
from monarch_nb._tensor.recorder import Foreign, Recorder, first_difference
from monarch_nb._tensor.references import is_of_user
from monarch_nb._tensor.replay import Recording, Replay, Result, given_back
from monarch_nb._tensor.tensor import Tensor
from monarch_nb._tensor.watch import Watch
from monarch_nb.actor.active import get_active_mesh
from monarch_nb.exceptions import MeshUsageError, WrongTensor

MOST_RECORDINGS = 16
"""How many recordings of one function are kept: the latest ones."""
MOST_TRIES = 4
"""After how many calls a function that can't be replayed isn't recorded any more."""
MOST_STRAYS = 8
"""After how many calls that read values with which no recording goes on a function isn't replayed any
more.
"""
MOST_MISSES = 12
"""After how many calls without a replay a warning says why there's none."""
_MISSING: Any = object()


class Compiled:
    """A function that is recorded, then replayed; see `monarch_nb.compile`.

    Attributes:
        num_recorded, num_replayed: how often each was done.
    """

    def __init__(self, function: Callable[..., Any], *, verify: bool) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._name = getattr(function, "__name__", type(function).__name__)
        self._verify = verify
        self._known: dict[int, weakref.ref[Tensor]] = {}
        self._live: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._recordings: list[tuple[Any, Recording]] = []
        self._facts: dict[Any, Any] = {}
        self._changed = ""
        self._tries: dict[Any, int] = {}
        """By what a recording depends on of the arguments: how many in turn can't be replayed."""
        self._given_up: set[Any] = set()
        self._strays: dict[Any, int] = {}
        self._num_misses = 0
        self.num_recorded = self.num_replayed = 0

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, or replay it."""
        if any(engine.recorder is not None for engine in live_engines()):  # it's a part of another one
            return self._function(*args, **kwargs)
        call = _Call(self._function, args, kwargs)
        reach = self._reach(call)
        key = (*call.key(), *reach.facts)
        known = [r for k, r in reversed(self._recordings) if r.is_verified and k == key]
        fitting = [each for each in known if each.fits(call.leaves)]
        if fitting:
            replay = Replay(fitting, call.leaves)
            found = replay.run()
            if found is not None:
                self._has_replayed(key, replay.recording)
                return pytree.tree_unflatten(found, replay.recording.structure)
            self._strayed(key, replay.recording)
        return self._miss(key, call, reach)

    def _has_replayed(self, key: Any, recording: Recording) -> None:
        self._num_misses = 0
        self.num_replayed += 1
        if recording.path:
            self._strays.pop(key, None)
            self._recordings.sort(key=lambda each: each[1] is recording)  # the likeliest one last

    def _strayed(self, key: Any, recording: Recording) -> None:
        """Hear that a value was read with which no recording goes on."""
        self._strays[key] = self._strays.get(key, 0) + 1
        if self._strays[key] < MOST_STRAYS or key in self._given_up:
            return
        self._given_up.add(key)
        self._recordings = [(k, r) for k, r in self._recordings if k != key]
        part = next(p for p in recording.parts if p.read is not None and p.read.decides)
        assert part.read is not None
        self._warn_of(
            "what it does may depend on a value that is another one in each call: "
            f"{Place(*part.read.place)}\n  let the mesh compare, as in `if loss < best:`, for then only the "
            "outcome is read; or return the tensor, and read it after the call"
        )

    def _warn_of(self, reason: str) -> None:
        self._warn(f"{self._name} isn't replayed; it runs as without compile: {reason}")

    def close(self) -> None:
        """Free what the recordings have on the ranks. Later calls record anew."""
        self._recordings.clear()

    def _reach(self, call: _Call) -> Reach:
        """Return what the function sees, without settings of optimisers in which they were seen to change."""
        reach = call.reach(self._live)
        facts = dict(reach.facts)
        if self._facts:
            self._changed = _changed(self._facts, facts)
        settings = [name for name in facts if isinstance(name, Setting)]
        changed = [n.optimizer for n in settings if self._facts.get(n, facts[n]) != facts[n]]
        if changed:
            self._live.update(changed)
            reach = call.reach(self._live)
            facts = dict(reach.facts)
        self._facts = facts
        return reach

    # --- recording

    def _miss(self, key: Any, call: _Call, reach: Reach) -> Any:
        self._recordings = [(k, r) for k, r in self._recordings if not r.is_dead]
        engine = _engine_of([*call.leaves, *reach.tensors])
        if engine is None or key in self._given_up or self._tries.get(call.key(), 0) >= MOST_TRIES:
            return call.make()
        self._num_misses += 1
        if self._num_misses == MOST_MISSES:
            self._warn(
                f"{self._name} was recorded {MOST_MISSES} times without a replay, for each call differs from "
                f"those before: {self._changed or 'in the shapes of its arguments, or in their values'}"
            )
        for each in reach.tensors:
            self._known[id(each)] = weakref.ref(each)
        return self._recorded(engine, key, call, reach)

    def _recorded(self, engine: Any, key: Any, call: _Call, reach: Reach) -> Any:
        known = [t for t in (ref() for ref in self._known.values()) if t is not None]
        recorder = Recorder(engine, call.leaves, known, _Call.make.__code__)
        watch = Watch(recorder, self._live, [*reach.optimizers, *self._live])
        drawn = random_state()
        with _recorded_by(recorder, engine), watch, watch.steps():
            flat, structure = pytree.tree_flatten(call.make())
            recorder.end_part()
            places = _places(recorder, flat)
            results = [_result(recorder, n, each, call.leaves, places or {}) for n, each in enumerate(flat)]
        self.num_recorded += 1
        self._known = {id(t): weakref.ref(t) for t in [*known, *recorder.unknown]}
        flat = [_given(each, result) for each, result in zip(flat, results, strict=True)]
        recording = Recording(engine, recorder, results, structure)
        reason = self._why_not(recorder, watch, recording, call, reach) or _why_not_read(recorder, recording)
        if not reason and random_state() != drawn:
            reason = (
                "it draws random numbers of Python's or numpy's, which a replay would repeat: draw them "
                "before the call and pass them, or on the mesh, as in torch.rand_like(x)"
            )
        if not reason and places is None:
            reason = "it returns a number that it has read beside an equal one"
        if not reason:
            self._tries.pop(call.key(), None)
            self._keep(key, recording)
        else:
            self._refuse(call.key(), reason)
        return pytree.tree_unflatten(flat, structure)

    def _why_not(
        self, recorder: Recorder, watch: Watch, recording: Recording, call: _Call, reach: Reach
    ) -> str:
        """Return why a call can't be replayed as it was recorded; "" if it can."""
        if watch.found_live or recorder.unknown:
            return "each call meets other parameters, or other optimisers"
        if recorder.rebound():
            return "it changes the shape of a tensor from outside, or sets its .data"
        if recorder.outliving(recording.kept):
            gc.collect()
        outliving = recorder.outliving(recording.kept)
        if outliving:
            return f"a tensor outlives the call that isn't returned: {recorder.place_of(outliving[0])}"
        changed = watch.changed_setting()
        changed = changed or _changed(dict(reach.facts), dict(call.reach(self._live).facts))
        return f"it changes {changed} in Python, which a replay doesn't run" if changed else ""

    def _refuse(self, key: Any, reason: str) -> None:
        self._tries[key] = self._tries.get(key, 0) + 1
        if self._tries[key] == MOST_TRIES:
            self._warn_of(reason)

    def _keep(self, key: Any, recording: Recording) -> None:
        alike = [r for k, r in self._recordings if k == key and r.entries == recording.entries]
        for each in alike:
            self._compare(each, recording)
            recording.share(each)
        before = next((r for r in alike if r.path == recording.path), None)
        if before is not None:
            before.is_verified = True
            return
        recording.is_verified = not self._verify
        self._recordings = [*self._recordings, (key, recording)][-MOST_RECORDINGS:]
        if alike:
            self._strayed(key, recording)

    def _compare(self, before: Recording, recording: Recording) -> None:
        """Compare two recordings up to where they have read different values.

        Raises:
            MeshUsageError: if they differ.
        """
        pairs = zip(before.path, recording.path, strict=False)
        num = next((n + 1 for n, (a, b) in enumerate(pairs) if a != b), None)  # None: all pieces
        one, other = ([p for piece in r.pieces[:num] for p in piece.parts] for r in (before, recording))
        difference = first_difference(one, other)
        is_same = (before.results, before.structure) == (recording.results, recording.structure)
        if not difference and before.path == recording.path and not is_same:
            difference = "it returned something else"
        if difference:
            self._recordings = [(k, r) for k, r in self._recordings if r is not before]
            raise MeshUsageError(
                f"{self._name} can't be replayed, for a call did something else than the one before: "
                f"{difference}\n  what changes from call to call is to be an argument"
            )

    def _warn(self, text: str) -> None:
        warnings.warn(text, stacklevel=5)


class _Call:
    """A call of a function."""

    def __init__(self, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> None:
        self._function, self._args, self._kwargs = function, args, kwargs
        self.leaves, self.structure = pytree.tree_flatten((args, dict(kwargs)))
        self._key: tuple[Any, ...] | None = None

    def make(self) -> Any:
        """Call the function."""
        return self._function(*self._args, **self._kwargs)

    def key(self) -> tuple[Any, ...]:
        """Return what a recording depends on of the arguments and of settings."""
        if self._key is None:
            self._key = (self.structure, *map(self._fact, self.leaves), *_surroundings())
        return self._key

    def _fact(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            same = next(n for n, x in enumerate(self.leaves) if _handle(x) is value.mesh_handle)
            return value.mesh_meta, value.requires_grad, value.is_leaf, same
        if isinstance(value, torch.Tensor):
            same = next(n for n, x in enumerate(self.leaves) if x is value)
            return tuple(value.shape), value.stride(), value.dtype, value.requires_grad, same
        if isinstance(value, (torch.nn.Module, torch.optim.Optimizer)):  # `reach` looks into it
            return type(value), id(value)
        try:
            hash(value)
        except TypeError:
            if is_of_user(type(value)) and hasattr(value, "__dict__"):  # this, too
                return type(value), id(value)
            raise WrongTensor(
                f"a compiled function takes tensors, numbers and strings, not {type(value).__name__}: "
                "torch.as_tensor(x) makes a tensor of numbers"
            ) from None
        return type(value), value

    def reach(self, live: Any) -> Reach:
        """Return what the function sees."""
        reach = Reach(live)
        reach.add((), self._function)
        for n, each in enumerate(self.leaves):
            if type(each) not in SIMPLE and not isinstance(each, torch.Tensor):
                reach.add((f"argument {n}",), each)
        return reach


@contextmanager
def _recorded_by(recorder: Recorder, engine: Any) -> Iterator[None]:
    engines = live_engines()
    for each in engines:
        each.recorder = recorder if each is engine else Foreign()
    try:
        yield
    finally:
        for each in engines:
            each.recorder = None


def _engine_of(values: Sequence[Any]) -> Any:
    """Return the engine whose commands a call gives; None if it doesn't seem to give any."""
    found = {each.engine for each in values if isinstance(each, Tensor)}
    if len(found) > 1:
        raise WrongTensor("WRONG_MESH: a compiled function uses tensors of one mesh, not of two")
    if found:
        engine = found.pop()
        return None if engine.is_closed else engine
    mesh, engines = get_active_mesh(), live_engines()
    if mesh is not None:
        return grid_of(mesh).engine
    return engines[0] if len(engines) == 1 else None


def _places(recorder: Recorder, flat: Sequence[Any]) -> dict[int, tuple[int, int]] | None:
    """Return which results were read; None if that can't be said."""
    try:
        return places_of(recorder.given, flat)
    except Unclear:
        return None


def _why_not_read(recorder: Recorder, recording: Recording) -> str:
    """Return why values that a call has read keep it from being replayed; "" if they don't."""
    after = "return the tensor, and read it after the call"
    if recorder.shown is not None:
        return f"it makes text of a tensor's numbers: {recorder.shown}\n  {after}"
    reads = [piece.decides for piece in recording.pieces if piece.decides is not None]
    many = next((read for read in reads if read.answer is None), None)
    if many is not None:
        return f"many numbers that it reads may decide what it does: {Place(*many.place)}\n  {after}"
    if reads and changes_something(recording.deciding_parts):
        return (
            "a value that it reads may decide what it does, after it has changed something: "
            f"{Place(*reads[-1].place)}\n  read it before that; or return it as it is; or {after}"
        )
    return ""


def _result(
    recorder: Recorder, number: int, value: Any, leaves: Sequence[Any], places: Mapping[int, tuple[int, int]]
) -> Result:
    """Return what a result is."""
    if number in places:
        return Result(read=places[number])
    if isinstance(value, Tensor):
        known = recorder.value_of(value)
        is_outside = isinstance(known, (Argument, Captured, Gradient)) and known.find(leaves) is value
        is_itself = is_outside or recorder.is_gradient(value)
        return Result(known, value.mesh_meta, value.requires_grad, value.is_leaf, is_itself)
    argument = next((n for n, leaf in enumerate(leaves) if leaf is value), -1)
    if argument < 0 and not isinstance(value, (*SIMPLE, torch.Size)):
        recorder.refuse(
            f"returns a {type(value).__name__}, which a replay wouldn't make again: it may return tensors of "
            "the mesh, numbers and strings"
        )
    return Result(other=value, argument=argument)


def _given(value: Any, result: Result) -> Any:
    is_other = result.value is None or result.is_itself  # also a value that was read
    return value if is_other else given_back(value.mesh_handle, result)


def _changed(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> str:
    """Return the name of what has changed, or ""."""
    for name in {**before, **after}:
        if before.get(name, _MISSING) != after.get(name, _MISSING):
            return ".".join(str(part) for part in name)
    return ""


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
