"""The controller of one mesh's tensors: it turns operations into commands, and reports of ranks into errors.

An operation that was done before with tensors of the same kind costs a look-up and some words. One that is
new is propagated (see `propagation`), and its plan is told to the ranks.
"""

from __future__ import annotations

import itertools
import os
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from monarch_nb._rank.tensor.calls import Frozen, as_tensor
from monarch_nb._rank.tensor.private import (
    decompositions,
    forget_layouts,
    item_op,
    module_of_op,
    restride,
    schema_of,
    taken_apart,
)
from monarch_nb._rank.tensor.protocol import (
    FIRST_PLAN,
    NOT_BEGUN,
    SINGLE,
    Definition,
    Fetched,
    FetchFrom,
    GridDefinition,
    Hole,
    ScalarHole,
)  # fmt: skip
from monarch_nb._tensor import optimizers as optimizers  # how torch's treat parameters of a mesh
from monarch_nb._tensor import worker
from monarch_nb._tensor.adopted import Adopted
from monarch_nb._tensor.arguments import plain_arguments
from monarch_nb._tensor.barrier import STARTED_ANEW, Barrier
from monarch_nb._tensor.by_others import BY_OTHERS, TAKEN_APART
from monarch_nb._tensor.elsewhere import CalledCode
from monarch_nb._tensor.failure import lost_while, reason_of
from monarch_nb._tensor.metadata import Grid, Meta, Placements, contiguous, forget, intern  # fmt: skip
from monarch_nb._tensor.operation import Operation, check_access, check_together, lost_or_foreign
from monarch_nb._tensor.place import Places, users_place
from monarch_nb._tensor.plan import (
    IN_PLACE_VIEWS,
    Plan,
    TemplateMaker,
    floats_travel,
    only_numbers,
    positions,
    takes_only_numbers,
    written_names,
)
from monarch_nb._tensor.propagation import Outcome, Propagation
from monarch_nb._tensor.recorder import Foreign, Recorder
from monarch_nb._tensor.recovery import recover
from monarch_nb._tensor.regrid import can_regrid, over_one_grid
from monarch_nb._tensor.results import described, is_single, only_part, shape_of_result
from monarch_nb._tensor.scaling import UNSCALE, unscale
from monarch_nb._tensor.sendable import sendable
from monarch_nb._tensor.slots import FULL, Handle, Slots
from monarch_nb._tensor.stream import Stream, words_of
from monarch_nb._tensor.tensor import Tensor, is_tensor, maker_of, short_key
from monarch_nb._units import size_text
from monarch_nb.exceptions import MeshError, MeshUsageError, SupervisionError, WrongTensor

if TYPE_CHECKING:
    from monarch_nb._tensor.replay import Recording

_numbers = itertools.count(1)
_CONSTANTS = frozenset(
    {int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
)
"""Kinds of arguments that are part of a plan."""
START_S = 120.0
MAX_PLANS = 4096
"""Number of plans that are kept, here and on the ranks."""


class Engine:
    """The controller of the tensors of one mesh of processes.

    Args:
        procs: processes that hold the values. Their actors are spawned at once.
        find_grid: returns the grid of a mesh, which may be another engine's.
    """

    def __init__(self, procs: Any, find_grid: Callable[[Any], Grid]) -> None:
        self.procs = procs
        self.find_grid = find_grid
        self.num_ranks = procs.size()
        self.name = f"tensors-{os.getpid()}-{next(_numbers)}"
        self.device = "cpu"
        self._barrier = Barrier(self)
        self._worker, self._control = worker.spawn(procs, self.name, self._barrier.port)
        self._epoch = 0
        self.is_closed = False
        self.num_heals = 0
        """How often ranks were lost, and the engine has gone on after a heal."""
        self._lost: SupervisionError | None = None
        self.module = ""
        """The layer whose forward runs."""
        self.recorder: Recorder | Foreign | None = None
        """Records the commands of a compiled function while its first calls run."""
        self.recordings: weakref.WeakSet[Recording] = weakref.WeakSet()
        """Recordings of this engine's commands: ranks must know their plans."""
        self.sends_soon = False
        """Whether what is put is sent at once in any case, with what comes next."""
        self._warned_of: set[str] = set()
        self._adopted = Adopted()
        self.called_code = CalledCode(self._control)
        """Checks the code of functions that ranks are to call."""
        self.slots = Slots()
        self.places = Places()
        self._grids: dict[Any, Grid] = {}
        self.plans: dict[tuple[Any, ...], Plan] = {}
        """By operator's id, then its arguments as `dispatch` gathers them."""
        self._own_plans: dict[Any, Plan] = {}
        self._of_users: deque[tuple[Any, Plan]] = deque()
        """Plans that have something of the user's in them, by their keys there; the oldest first."""
        self._definitions: dict[int, Definition] = {}
        self._next_plan = itertools.count(FIRST_PLAN)
        self._propagation = Propagation(is_tensor)
        self.num_misses = 0
        self._start_executors()

    # --- life

    def _start_executors(self) -> None:
        """Start the ranks' executors."""
        try:
            address = self.control_of(0).open_store.call_one().get(START_S)
            self.begin_stream(0)
            self._worker.start.call(self._epoch, address).get(START_S)
        except SupervisionError as error:
            self._lost = error
            raise

    def control_of(self, rank: int) -> Any:
        """Return the control actor of one rank."""
        return self._control.flatten("rank").slice(rank=rank) if self.num_ranks > 1 else self._control

    def worker_of(self, rank: int) -> Any:
        """Return the actor of one rank that executes the commands."""
        return self._worker.flatten("rank").slice(rank=rank) if self.num_ranks > 1 else self._worker

    @property
    def grids(self) -> list[Grid]:
        """All grids that commands may refer to."""
        return list(self._grids.values())

    @property
    def definitions(self) -> list[Definition]:
        """All plans that commands may refer to."""
        return list(self._definitions.values())

    @property
    def control(self) -> Any:
        """The control actors of all ranks."""
        return self._control

    @property
    def worker(self) -> Any:
        """The actors that execute the commands."""
        return self._worker

    @property
    def epoch(self) -> int:
        """The number of the process groups that are in use."""
        return self._epoch

    def next_epoch(self) -> int:
        """Return the number for newly created process groups."""
        self._epoch += 1
        return self._epoch

    def lose(self, error: SupervisionError) -> None:
        """Record that a rank has died: the stream is closed, and values there are lost."""
        if self._lost is None:
            self._lost = error
        self.stream.close()

    def begin_stream(self, count: int) -> None:
        """Begin to send.

        Args:
            count: number of the first command.
        """
        self.stream = Stream(self._worker, self.slots, self.lose, count)

    def restart(self) -> None:
        """Restart after a heal: all ranks exist again, with the values of which other ranks have all
        parts.
        """
        assert self._lost is not None
        why = reason_of(self._lost)
        self.stream.close()
        self.next_epoch()
        self._barrier.release()
        self._adopted.clear()
        try:
            recover(self, why)
        except MeshError as error:
            self._lost = SupervisionError(f"after a heal the ranks didn't come together: {error}")
            raise self._lost from error
        self._lost = None
        self.num_heals += 1

    def close(self) -> None:
        """Stop sending."""
        self.is_closed = True
        self.stream.close()
        forget(self)

    def grid(self, shape: Sequence[int], names: Sequence[str], ranks: Sequence[int] | None = None) -> Grid:
        """Return the grid with these axes of all ranks, or of some, the last axis fastest."""
        self._check_alive()
        members = tuple(range(self.num_ranks) if ranks is None else ranks)
        key = (tuple(shape), tuple(names), members)
        found = self._grids.get(key)
        if found is None:
            found = self._grids[key] = Grid(self, shape, names, members, self.device)
            self.stream.define(GridDefinition(found.number, found.shape, found.names, found.ranks))
        return found

    def _check_alive(self) -> None:
        if self._lost is None:
            return
        if self.procs.healthy():
            self.restart()
            return
        raise SupervisionError(
            f"this mesh has lost ranks, and what only they had of its tensors: {reason_of(self._lost)}\n"
            "put it right: monarch_nb.heal_mesh(mesh); tensors of which other ranks have all parts live on"
        )

    # --- operations

    def dispatch(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
        """Execute an operation on tensors of this mesh."""
        number = id(func)  # an operator's own hash is computed in Python
        tensors: list[Any] = []
        scalars: list[float] = []
        key: list[Any] = [number]
        travels = _travels.get(number)
        if travels is None:
            travels = _travels[number] = floats_travel(func)
            _operators.append(func)
            if takes_only_numbers(func):
                only_numbers.add(number)
        for each in args:
            kind = type(each)
            if kind is Tensor:
                tensors.append(each)
                key.append(each.mesh_meta)
            elif kind is float and travels:
                scalars.append(each)
                key.append(float)
            elif kind in _CONSTANTS:
                key.append(each)
                key.append(kind)
            elif self._gather(each, tensors, scalars, key, travels):
                return self._with_plain(func, args, kwargs or {})
        if kwargs:
            for name, each in kwargs.items():
                key.append(name)
                if self._gather(each, tensors, scalars, key, travels):
                    return self._with_plain(func, args, kwargs)
        plan = self.plans.get(tuple(key))
        if plan is None:
            return self._new(Operation(func, args, kwargs or {}, tensors, scalars), tuple(key))
        if number in only_numbers and not kwargs:
            self.plans[short_key(number, args)] = plan
        return self.command(plan, tensors, scalars)

    def _gather(
        self, value: Any, tensors: list[Any], scalars: list[float], key: list[Any], travels: bool
    ) -> bool:
        """Decompose an argument; return whether it contains a plain tensor."""
        kind = type(value)
        if kind is Tensor:
            tensors.append(value)
            key.append(value.mesh_meta)
        elif kind is list or kind is tuple:
            key += (len(value), kind)
            found = [self._gather(each, tensors, scalars, key, travels) for each in value]  # all of them
            return any(found)
        elif kind is float and travels:
            scalars.append(value)
            key.append(float)
        elif isinstance(value, torch.Tensor):
            return True
        else:
            key += (value, kind)
        return False

    def command(self, plan: Plan, tensors: Sequence[Any], scalars: Sequence[float]) -> Any:
        """Add a command to the stream; return its result."""
        if self._lost is not None:
            self._check_alive()
        if plan.is_random:
            scalars = [*scalars, float(torch.randint(1 << 53, ()))]
        stream, slots = self.stream, self.slots
        num = len(tensors)  # one or two nearly always; a comprehension takes as long as the rest of this
        words: tuple[int, ...]
        if num == 1:
            words = plan.number, tensors[0].mesh_handle.slot
        elif num == 2:
            words = plan.number, tensors[0].mesh_handle.slot, tensors[1].mesh_handle.slot
        else:
            words = (plan.number, *[t.mesh_handle.slot for t in tensors])
        if scalars:
            words += words_of(scalars)
        with stream.lock:
            if slots.weight >= FULL and stream.drop():
                self.places.add(_NOWHERE)
            seq = plan.last = stream.count
            frame = sys._getframe(2)  # this one, and that of the tensor's method, aren't the user's
            if frame.f_code is not plan.code:  # nearly always it is, and needn't be looked up
                place = users_place(frame, self.module, plan.op)
                plan.code = place[0]
            else:
                place = frame.f_code, frame.f_lasti, self.module, plan.op
            self.places.add(place)
            if plan.rebuild is None:  # one new tensor: nearly all of them
                meta: Any = plan.outputs[0]
                handle = Handle(slots, seq, meta)
                stream.add((*words, handle.slot))
                if self.recorder is not None:
                    self.recorder.command(plan, tensors, scalars, (handle.slot,))
                made = (meta.make or maker_of(meta))()
                made.mesh_meta, made.mesh_handle = meta, handle
                return made
            only = plan.outputs[0] if plan.rebuild is only_part else None
            if type(only) is int:  # an input, changed in place
                parts, new = [tensors[only]], []
            else:
                parts = [self._part(each, tensors, seq) for each in plan.outputs]
                new = [
                    p.mesh_handle.slot
                    for p, o in zip(parts, plan.outputs, strict=True)
                    if isinstance(o, Meta)
                ]
            stream.add((*words, *new) if new else words)
            if self.recorder is not None:
                self.recorder.command(plan, tensors, scalars, new)
        for n in plan.writes:
            tensors[n].mesh_handle.seq = seq
        return plan.rebuild(parts)

    def _part(self, output: Any, tensors: Sequence[Any], seq: int) -> Any:
        if type(output) is Meta:
            return Tensor(output, Handle(self.slots, seq, output))
        return None if output is None else tensors[output]

    # --- new operations

    def _new(self, op: Operation, key: tuple[Any, ...]) -> Any:
        self._check_alive()
        other = BY_OTHERS.get(op.func)
        found = other(*op.args, **op.kwargs) if other else taken_apart(op.func, op.args, op.kwargs)
        if found is not NotImplemented:
            return found
        metas = [each.mesh_meta for each in op.tensors]
        if len({each.grid for each in metas}) > 1 and can_regrid(metas):
            return self.dispatch(op.func, *over_one_grid(op.tensors, op.written, (op.args, op.kwargs)))
        check_together(op, self)
        if torch.Tag.inplace_view in op.func.tags and op.func is not _aten.detach_.default:
            return self._reshape_in_place(op)
        value = self._value(op.func, op.args, op.tensors)
        if value is not _NO_VALUE:
            return value
        if op.tensors[0].is_global and op.func in TAKEN_APART:
            return decompositions[op.func](*op.args, **op.kwargs)
        self.num_misses += 1
        if op.meta.placements is not None:
            args, kwargs = plain_arguments(op.func, op.args, op.kwargs)
            op = replace(op, args=args, kwargs=kwargs)
        outcome = self._outcome(op)
        if outcome.reason:
            self._tell_of_whole(op.func, op.tensors, outcome.reason)
        if outcome.is_unknown:
            return self._ask(op)
        plan = self._plan(op, outcome)
        self.plans[key] = plan
        return self.command(plan, op.tensors, op.scalars)

    def _reshape_in_place(self, op: Operation) -> Tensor:
        """Replace the tensor of an in-place view operation (such as squeeze_) by the view that the functional
        operation (squeeze) returns.
        """
        view = IN_PLACE_VIEWS.get(op.func)
        if view is None:
            raise MeshUsageError(
                f"{op.func.overloadpacket.__name__} would change the size of a tensor of the mesh in place, "
                "which can't be done: make a new tensor of that size"
            )
        changed: Tensor = op.tensors[0]
        made = self.dispatch(view, op.args, op.kwargs)
        changed.mesh_meta, changed.mesh_handle = made.mesh_meta, made.mesh_handle
        restride(changed, made.mesh_meta.size, made.mesh_meta.stride, made.mesh_meta.offset)
        return changed

    def _outcome(self, op: Operation) -> Outcome:
        """Predict the result's metadata."""
        if op.meta.placements is None:
            return self._propagation.per_rank(op.func, op.args, op.kwargs, op.meta.grid)
        return self._propagation.over_grid(op.func, op.args, op.kwargs, op.meta)

    def _plan(self, op: Operation, outcome: Outcome) -> Plan:
        """Create a plan, and send it to the ranks."""
        func, meta = op.func, op.meta
        where = positions(func, op.args, op.kwargs, is_tensor)
        writes = tuple(n for name in written_names(func) for n in where.get(name, ()))
        outputs, rebuild = shape_of_result(func, outcome.parts, where)
        draws = self._propagation.is_random(func, op.args, op.kwargs)
        is_random = outcome.is_whole and draws
        maker = TemplateMaker(is_tensor, floats_travel(func))
        template, named = maker.of(op.args, op.kwargs)
        if is_random:
            maker.num_scalars += 1
            template = (ScalarHole(maker.num_scalars - 1), *template)
        slots = [n for n, each in enumerate(outputs) if isinstance(each, Meta)]
        plan = Plan(next(self._next_plan), str(func), outputs, rebuild, writes, is_random, draws=draws)
        self._define(Definition(
            plan.number, str(func), template, named, maker.num_tensors, maker.num_scalars,
            (SINGLE,) if slots and is_single(func) else tuple(slots), writes,
            None if meta.placements is None else meta.grid.number, outcome.is_whole, is_random,
            () if meta.placements is None else tuple(p.placements for p in outputs if isinstance(p, Meta)),
            outcome.sums, () if outcome.sums is None else described(outputs),
            self._members(meta.grid), module_of_op(func), outcome.moved, outcome.cuts,
        ))  # fmt: skip
        return plan

    def _define(self, definition: Definition) -> None:
        """Tell the ranks of a plan. Of too many, those that weren't used for the longest are forgotten."""
        if len(self._definitions) >= MAX_PLANS and self.recorder is None:
            self._forget_plans()
        self._definitions[definition.plan] = definition
        self.stream.define(definition)

    def _forget_plans(self) -> None:
        tables: list[dict[Any, Plan]] = [self.plans, self._own_plans]
        last = {plan.number: plan.last for table in tables for plan in table.values()}
        recorded = {number for recording in self.recordings for number in recording.plans}
        by_age = sorted(self._definitions.keys() - recorded, key=lambda number: last.get(number, -1))
        gone = set(by_age[: MAX_PLANS // 4])  # those that can't be used again come first
        for table in tables:
            for key in [key for key, plan in table.items() if plan.number in gone]:
                del table[key]
        for number in gone:
            del self._definitions[number]
        self.stream.forget(sorted(gone))
        forget_layouts()

    def _members(self, grid: Grid) -> tuple[int, ...]:
        """Return the ranks that execute operations over a grid; () for all."""
        return () if len(grid.ranks) == self.num_ranks else grid.ranks

    def create(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], grid: Grid) -> Tensor:
        """Execute an operation without tensor arguments; each rank's result is a value of its own."""
        self._check_alive()
        key = (func, grid, str(args), str(kwargs))
        plan = self._own_plans.get(key)
        if plan is None:
            outcome = self._propagation.per_rank(func, args, kwargs, grid)
            draws = self._propagation.is_random(func, args, kwargs)
            plan = Plan(next(self._next_plan), str(func), outcome.parts, None, (), draws=draws)
            self._own_plans[key] = plan
            template = TemplateMaker(is_tensor, travels=False).of(args, kwargs)
            self._define(
                Definition(
                    plan.number,
                    str(func),
                    *template,
                    outputs=(SINGLE,),
                    ranks=self._members(grid),
                    module=module_of_op(func),
                )
            )
        made: Tensor = self.command(plan, (), ())
        return made

    def _ask(self, op: Operation) -> Any:
        """Execute an operation whose output shapes depend on values: the ranks execute it, and return the
        metadata of the result.
        """
        grid = op.meta.grid
        num = 1 if is_single(op.func) else len(schema_of(op.func).returns)
        unknown = intern((), (), torch.float32, grid, grid.replicated)
        asked = Outcome((unknown,) * num, is_whole=True)
        made = self.command(self._plan(op, asked), op.tensors, op.scalars)
        known = [self._known(each) for each in ([made] if num == 1 else made)]
        return known[0] if num == 1 else tuple(known)

    def _known(self, made: Tensor) -> Tensor:
        found = self.fetch(made, "describe")[made.mesh_meta.grid.ranks[0]]
        meta = intern(
            found.size, found.stride, found.dtype, made.mesh_meta.grid, made.mesh_meta.grid.replicated
        )
        return Tensor(meta, made.mesh_handle)

    def _value(self, func: Any, args: Sequence[Any], tensors: Sequence[Any]) -> Any:
        """Return the result of an operation that returns numbers instead of tensors."""
        returns = schema_of(func).returns
        if len(returns) != 1 or "Tensor" in str(returns[0].type):
            return _NO_VALUE
        if func is torch.ops.aten.is_same_size.default:
            return args[0].shape == args[1].shape
        if func is item_op:
            return self.full(args[0]).item()
        return func(*pytree.tree_map(lambda x: self.full(x) if is_tensor(x) else x, tuple(args)))

    # --- plain tensors among the arguments

    def _with_plain(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Execute an operation on tensors of this mesh and plain ones."""
        if func is UNSCALE:
            unscale(*args)
            return None
        if func is _aten.copy_.default and not is_tensor(args[0]) and not self._keeps(args):
            return args[0].copy_(self.full(args[1]))
        return self.dispatch(func, *self._adopt_in(func, args, kwargs))

    def _keeps(self, args: Sequence[Any]) -> bool:
        """Say whether a history or a recording would need to know what is read here."""
        wants = torch.is_grad_enabled() and any(each.requires_grad for each in args[:2])
        return wants or self.recorder is not None

    def _adopt_in(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the arguments with plain tensors put on the mesh: all ranks get the same value."""
        partners = [t for t in pytree.tree_leaves((tuple(args), dict(kwargs))) if isinstance(t, Tensor)]
        where = written_names(func)
        names = [a.name for a in schema_of(func).arguments]
        for name, each in [*zip(names, args, strict=False), *kwargs.items()]:
            if name in where and not all(isinstance(t, Tensor) for t in pytree.tree_leaves(each)):
                raise WrongTensor(
                    f"LOCAL_TENSOR: {func} would change a plain tensor of this process by one of a "
                    "mesh. Distribute it first, monarch_nb.distribute(t, mesh, ...), or take the "
                    "mesh's here: x.full()"
                )
        if partners[0].placements is None:
            raise WrongTensor(
                f"LOCAL_TENSOR: {func} on a plain tensor and one of which each rank has its own. "
                "Make it in `with mesh.activate():`, or send it: monarch_nb.replicated(t, mesh)"
            )

        def adopted(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or is_tensor(value):
                return value
            return self.adopt(value, partners[0].mesh_meta.grid, _like(value, partners))

        return pytree.tree_map(adopted, tuple(args)), pytree.tree_map(adopted, dict(kwargs))

    def adopt(self, plain: torch.Tensor, grid: Grid, placements: Placements) -> Tensor:
        """Return a plain tensor as a tensor of the mesh. It's sent once, and again only after it has
        changed.
        """
        self._check_alive()  # what ranks were sent before a loss isn't there any more
        known = self._adopted.find(plain, grid)
        made = self.put(plain, grid, placements) if known is None else known
        if self.recorder is not None:
            self.recorder.sent(plain, made, is_adopted=True)
        if known is None:
            self._adopted.add(plain, made)
        return made

    # --- values sent and fetched

    def put(self, plain: Any, grid: Grid, placements: Placements | None, *, maps: bool = False) -> Tensor:
        """Send a plain tensor to the ranks; each keeps its part.

        Args:
            placements: the layout; None: each rank has a value of its own, and `plain` may be a list with one
                tensor for each rank.
            maps: whether ranks keep the memory of the message, instead of a copy of their part.
        """
        self._check_alive()
        is_list = isinstance(plain, list)
        sent: Any = [p if p is None else sendable(p) for p in plain] if is_list else sendable(plain)
        first = next(p for p in sent if p is not None) if is_list else sent
        meta = intern(first.shape, contiguous(first.shape), first.dtype, grid, placements)
        is_large = maps or is_list or first.numel() * first.element_size() > _LARGE
        with self.stream.lock:  # a small one is sent later, when it may have changed: so a copy is sent
            self.stream.add_parcel(
                [p if p is None else p.detach() for p in sent] if is_list else _parcel(sent, is_large)
            )
            if self.recorder is not None:
                self.recorder.parcel(plain)
            number = None if placements is None else grid.number
            made: Tensor = self.own("own.put", (number, placements, grid.ranks, maps), [], meta)
            if is_large and not self.sends_soon:
                self.stream.flush()
        if self.recorder is not None:
            self.recorder.sent(plain, made, maps=maps)
        return made

    def call(self, call: Frozen, tensors: Sequence[Tensor], meta: Meta) -> Tensor:
        """Have the ranks call a function. A large call is sent as a tensor, whose memory is free after it."""
        holes = tuple(map(Hole, range(len(tensors))))
        is_kept = self.recorder is not None or sum(map(len, call)) <= _LARGEST_KEPT_CALL
        if is_kept:  # in its plan: a recording repeats it
            found: Tensor = self.own("own.call", (call, *holes), tensors, meta)
            return found
        sent = self.put(as_tensor(call), meta.grid, None)
        found = self.own("own.call", (*holes, Hole(len(holes))), [sent, *tensors], meta)
        return found

    def _remember(self, key: Any, plan: Plan) -> None:
        """Keep the plans of the last calls of functions and of the last modules, which have these in them."""
        self._of_users.append((key, plan))
        while len(self._of_users) > _KEPT_OF_USERS and self.recorder is None:  # it may use any of them again
            key, oldest = self._of_users[0]
            if oldest.last >= self.stream.num_done:  # after a failure, ranks have to know it
                return
            self._of_users.popleft()
            number = oldest.number
            is_recorded = any(number in recording.plans for recording in self.recordings)
            if number in self._definitions and not is_recorded:
                self._own_plans.pop(key, None)
                del self._definitions[number]
                self.stream.forget([number])

    def own(self, op: str, args: tuple[Any, ...], tensors: Sequence[Tensor], meta: Meta) -> Any:
        """Execute one of the executor's own operations. `args` is the template of its arguments."""
        is_known = _is_hashable(args)
        key = (op, args if is_known else id(args), tuple(t.mesh_meta for t in tensors), meta)
        plan = self._own_plans.get(key)
        if plan is None:
            plan = Plan(next(self._next_plan), op, (meta,), None, ())
            if is_known:
                self._own_plans[key] = plan
            if op == "own.call" or not is_known:
                self._remember(key, plan)
            self._define(
                Definition(
                    plan.number,
                    op,
                    args,
                    (),
                    len(tensors),
                    0,
                    (SINGLE,),
                    (),
                    meta.grid.number,
                    placements=() if meta.placements is None else (meta.placements,),
                    ranks=() if op in _OF_ALL_RANKS else self._members(meta.grid),
                )
            )
        return self.command(plan, tensors, ())

    def full(self, tensor: Tensor) -> torch.Tensor:
        """Return the whole of a global tensor as a plain one."""
        meta = tensor.mesh_meta
        if meta.placements is None:
            if len(meta.grid.ranks) > 1:
                raise WrongTensor(
                    f"each of {len(meta.grid.ranks)} ranks has a value of its own here: which one? "
                    "monarch_nb.inspect(x, rank=0), or monarch_nb.fetch_shard(x).get()"
                )
            found: torch.Tensor = self.fetch(tensor, "each")[meta.grid.ranks[0]]
            return found
        self.check_usable(tensor)
        whole = self.own("own.whole", (Hole(0),), [tensor.detach()], meta.with_layout(meta.grid.replicated))
        value: torch.Tensor = self.fetch(whole, "first", tensor)[meta.grid.ranks[0]]
        return value

    def check_usable(self, tensor: Tensor) -> None:
        """Raise unless a value can be read.

        Raises:
            WrongTensor: if the tensor is of another mesh, or is borrowed as mutable.
            DeviceMeshError: if the value was lost.
        """
        self._check_alive()
        grid = tensor.mesh_meta.grid
        if grid.base not in self._grids.values():
            raise lost_or_foreign("this", grid, self)
        check_access("a value that is fetched,", [tensor.mesh_meta], [])

    def fetch(self, tensor: Tensor, how: FetchFrom, of: Tensor | None = None) -> list[Any]:
        """Return each rank's answer about a value: see `Executor.fetch`.

        Args:
            of: what the user has asked for, if that's another one.

        Raises:
            RemoteException: if the value's computation failed.
            SupervisionError: if a rank is dead.
        """
        if self.recorder is None:
            return self._fetched(tensor, how, of)
        return self.recorder.reads(tensor, how, lambda: self._fetched(tensor, how, of))

    def _fetched(self, tensor: Tensor, how: FetchFrom, of: Tensor | None) -> list[Any]:
        self.check_usable(tensor)
        asked = (tensor if of is None else of).mesh_handle.seq
        try:
            self.stream.flush()
            answers: list[Fetched] = list(
                self._worker.fetch.call(tensor.mesh_handle.slot, how, tensor.mesh_meta.grid.ranks[0])
                .get()
                .values()
            )
        except SupervisionError as error:
            self.lose(error)
            raise lost_while(error, self.places.of(asked, self.stream.count)) from None
        return self.values_of(answers)

    def values_of(self, answers: Sequence[Fetched]) -> list[Any]:
        """Return the values in the ranks' answers to a fetch.

        Raises:
            RemoteException: if the value's computation failed.
            SupervisionError: if a rank was restarted meanwhile.
        """
        failed = next((a.failed for a in answers if a.failed >= 0), None)
        if any(a.failed == NOT_BEGUN for a in answers):
            self.lose(SupervisionError(STARTED_ANEW))
            raise SupervisionError(STARTED_ANEW)
        if failed is not None:
            raise self._barrier.error(failed)
        return [a.value for a in answers]

    def fetch_later(self, tensor: Tensor, how: FetchFrom) -> Any:
        """Request a value like `fetch`, without waiting; return a future of each rank's answer."""
        if self.recorder is not None:
            self.recorder.needs()
        self.check_usable(tensor)
        self.stream.flush()
        asked = self._worker.fetch.call(tensor.mesh_handle.slot, how, tensor.mesh_meta.grid.ranks[0])
        return asked.then(lambda answers: self.values_of(list(answers.values())))

    def synchronize(self) -> None:
        """Wait until the ranks have executed all commands."""
        self.stream.flush()
        self._worker.reached.call().get()

    # --- warnings given once

    def _tell_of_whole(self, func: Any, tensors: Sequence[Tensor], reason: str) -> None:
        name = str(func)
        gathered = [t for t in tensors if t.placements != t.mesh_meta.grid.replicated]
        if name in self._warned_of or not gathered:
            return
        self._warned_of.add(name)
        size = size_text(sum(t.mesh_meta.num_bytes for t in gathered))
        warnings.warn(
            f"{name} can't be done on shards ({', '.join(repr(t.mesh_meta) for t in tensors[:3])}): "
            f"every rank gathers its inputs, {size}, and does all of it; the result is the "
            f"same. ({reason[:200]})",
            stacklevel=6,
        )


_travels: dict[int, bool] = {}
"""Whether floats are sent beside commands, by id of the operator."""
_operators: list[Any] = []
"""Operators whose ids are known, kept alive as long as this program."""
_LARGE = 1 << 20
_LARGEST_KEPT_CALL = 1 << 14
_KEPT_OF_USERS = 64


_OF_ALL_RANKS = frozenset({"own.put", "own.move"})
"""Operations in which ranks outside of the result's grid take part, too."""
_NOWHERE = (None, 0, "", "")
_NO_VALUE: Any = object()
_aten = torch.ops.aten


def _parcel(plain: torch.Tensor, is_large: bool) -> torch.Tensor:
    found = plain.detach()
    return found if is_large else found.clone()


def _like(plain: torch.Tensor, partners: Sequence[Tensor]) -> Placements:
    """Return the layout for a plain tensor: that of another argument of the same shape, otherwise
    replicated.
    """
    whole = partners[0].mesh_meta.grid.replicated
    like = next((p.placements for p in partners if p.shape == plain.shape and plain.dim()), None) or whole
    return tuple(each if each.is_shard() else whole[0] for each in like)


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
