"""The table of values of one rank, and the interpreter of the command stream.

A command that raises leaves `Poison` in its outputs, and what uses those becomes it, too. Before the rank
goes on it reports and waits for a decision: if all ranks failed at the same command, they go on with the
next; if only some did, the others may hang in a collective, so all are stopped, their groups are made anew,
and all go on behind the last command that anyone has done.
"""

from __future__ import annotations

import functools
import importlib
import logging
import operator
import queue
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast

import torch
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from monarch_nb._rank import collectives
from monarch_nb._rank.tensor import calls, checkpoints, modules
from monarch_nb._rank.tensor import strategies as strategies  # rules that DTensor needs
from monarch_nb._rank.tensor.collective import moved, reduced
from monarch_nb._rank.tensor.compiler import Command, compile_plan
from monarch_nb._rank.tensor.extremes import keep_nans
from monarch_nb._rank.tensor.graphs import AFTER_REPLAYS, Position, Short, make_graphs
from monarch_nb._rank.tensor.laying import laid, lay_out
from monarch_nb._rank.tensor.losses import MeanOfRows, is_mean_of_rows
from monarch_nb._rank.tensor.meshes import Meshes, device_type
from monarch_nb._rank.tensor.parts import OnParts, is_as_planned, layouts_of, on_parts
from monarch_nb._rank.tensor.private import forget_layouts, local_of, schema_of
from monarch_nb._rank.tensor.protocol import (
    DROP,
    NOT_BEGUN,
    Batch,
    Decision,
    Definition,
    Described,
    Fetched,
    FetchFrom,
    GoOn,
    LayerError,
    Offer,
    Poison,
    Recovery,
    Report,
    Reset,
    Resume,
    Stopped,
)  # fmt: skip
from monarch_nb._rank.tensor.recovery import Stale, exchange, offered, versions_of
from monarch_nb._rank.tensor.replays import Message, Replays
from monarch_nb._rank.tensor.whole import (
    in_place,
    on_moved,
    on_whole,
    place,
    resolved,
    seeded,
    summed_at_once,
    with_workspace,
)
from monarch_nb._transport.failure import class_name, message_of, traceback_of

_log = logging.getLogger(__name__)
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(
    logging.ERROR
)  # advice that isn't meant for the user
DECISION_S = 120.0
"""How long a rank waits for a decision; then the controller is gone, and the rank continues by itself."""
KEPT_MESSAGES = 256

executors: dict[str, Executor] = {}
"""The executors of this process, by name of the engine."""


class Halted(Exception):
    """The error raised when the controller asks this rank to stop, because another one has failed."""


_WRAPPED: Final = {
    "aten.mkldnn_rnn_layer.default": with_workspace,
    "aten.view_as_real.default": resolved,
    "aten.embedding.default": summed_at_once,
}
"""What is done around operations that the controller sees otherwise than torch does them."""
keep_nans()


class Executor:
    """The executor of one engine's commands on this rank, with the table of values. `run`, `fetch` and so on
    are called by one thread; `halt` and `decisions` are for others.

    Args:
        name: of the engine.
        rank: of this process among its ranks.
        report: tells the controller that this rank waits for a decision.
    """

    def __init__(self, name: str, rank: int, report: Callable[[Report], None]) -> None:
        self._report = report
        self._rank = rank
        self._table: list[Any] = []
        self._plans: dict[int, Definition] = {}
        self._commands: dict[int, Command] = {DROP: self._drop}
        self._meshes = Meshes(name, rank, self._check_halt)
        self._replays = Replays()
        self._messages: deque[Message] = deque(maxlen=KEPT_MESSAGES)
        self._parcels: Iterator[Any] = iter(())
        self._skips_until = self._cause = 0
        self._epoch = self._begun_at = self._received = 0
        self._position = Position()
        self._has_begun = False
        self._shortens = True
        """Whether commands may work on parts: as long as all results are laid out as planned."""
        self._shorts: dict[int, Short] = {}
        """The plans whose commands do."""
        self._counts_after = -1
        self._stopped: int | None = None
        """The first command that wasn't done, on a rank that was stopped since another one was lost."""
        self._left_out: list[Message] = []
        self._halts = threading.Event()
        self.decisions: queue.SimpleQueue[Decision] = queue.SimpleQueue()
        self._own: dict[str, Callable[..., Any]] = {
            "own.put": self._put,
            "own.from_local": self._from_local,
            "own.redistribute": _redistribute,
            "own.call": self._call,
            "own.part": _part,
            "own.element": operator.getitem,
            "own.reduce": self._reduce,
            "own.move": self._move,
            "own.coordinate": self._coordinate,
            "own.keep": _keep,
            "own.whole": _to_replicated,
            "own.local": _to_local,
            **checkpoints.operations(self._meshes),
            **modules.operations(self._meshes.by_number),
        }

    # --- the command stream

    def run(self, batch: Batch) -> None:
        """Execute the commands of a message."""
        if not self._has_begun:  # the message was under way when a rank was lost
            if self._stopped is not None and not self._has_come(batch.number):
                self._left_out.append(self._replays.message(batch))
            return
        if self._has_come(batch.number):
            return
        message = self._replays.message(batch)
        self._keep(message)
        words = message.words()
        self._parcels = message.parcels()
        self._table.extend([None] * (batch.num_slots - len(self._table)))
        with torch.no_grad():
            try:
                at = self._prepare(batch, message, words)
            except BaseException as error:
                at = self._failed(message, words, 0, error)
            self._interpret(message, words, at, self._graphs(message) if batch.replays else {})
        message.free_parcels()  # their memory isn't needed again

    def _has_come(self, number: int) -> bool:
        """Say whether a message is here already: who is interrupted while he sends it, sends it again."""
        if number and number <= self._received:
            return True
        if number > self._received + 1:
            raise RuntimeError(f"message {number} came after message {self._received}")
        self._received = number or self._received
        return False

    def _keep(self, message: Message) -> None:
        """Keep a message, as other ranks may be behind; forget the plans that only older ones need."""
        if len(self._messages) == KEPT_MESSAGES:
            for number in self._messages[0].forgotten:
                self._plans.pop(number, None)
                self._commands.pop(number, None)
                self._shorts.pop(number, None)
        self._position.at = self._position.now = 0
        self._messages.append(message)
        if message.forgotten:
            forget_layouts()

    def _prepare(self, batch: Batch, message: Message, words: Sequence[int]) -> int:
        """Register definitions; return the position after the skipped commands."""
        for plan in batch.definitions:
            self._register(plan)
        self._meshes.check_registered()
        for grid in batch.grids:
            self._meshes.define(grid)
        if self._skips_until > batch.first:
            return self._poison(message, words, self._skips_until, self._cause)
        return 0

    def _register(self, plan: Definition) -> None:
        self._plans[plan.plan] = plan
        self._commands[plan.plan] = self._compiled_later(plan)

    def _interpret(
        self, message: Message, words: Sequence[int], at: int, graphs: Mapping[int, Command]
    ) -> None:
        table, commands, end, position = self._table, self._commands, len(words), self._position
        is_halted = self._halts.is_set
        while at < end:
            position.at = position.now = at
            try:
                if is_halted():
                    raise Halted
                graph = graphs.get(at) if graphs else None
                at = (graph or commands[words[at]])(table, words, at)
            except BaseException as error:
                graphs = {}  # the rest one by one
                at = self._failed(message, words, position.at, error)

    def _graphs(self, message: Message) -> dict[int, Command]:
        """Return functions that do several commands of a message, by the position of the first one."""
        found: dict[int, Command] = {}
        for start, part in message.parts():
            part.num_replays += message.first > self._counts_after
            if part.graphs is None and part.num_replays > AFTER_REPLAYS:
                part.graphs = make_graphs(part, self._plans, self._shorts, self._rank, self._position)
            if self._shortens:
                found.update((start + at, graph) for at, graph in (part.graphs or {}).items())
        return found

    def _compiled_later(self, plan: Definition) -> Command:
        """Compile a plan when it's first used: what is wrong with it is that command's failure."""

        if plan.ranks and self._rank not in plan.ranks:
            num_words = plan.num_words
            return lambda table, words, at: at + num_words

        num = len(plan.outputs)

        def first(table: Any, words: Sequence[int], at: int) -> int:
            op = self._operation(plan)
            inputs = [table[slot] for slot in words[at + 1 : at + 1 + plan.num_inputs]]
            found = on_parts(plan, op, inputs) if self._shortens else None
            command = compile_plan(plan, op, _scalar) if found is None else self._command_of(plan, op, found)
            end = command(table, words, at)
            outputs = [table[slot] for slot in words[end - num : end]]
            if not self._is_as_planned(plan, outputs):
                return end
            is_laid = not plan.writes and not _returns_views(plan)
            if is_laid := is_laid and lay_out(table, words[end - num : end]):
                command = laid(command, num)  # and so each time: a plan is of one layout
            self._commands[plan.plan] = command
            if found is not None:
                self._shorten(plan, op, found, inputs, outputs, is_laid=is_laid)
            return end

        return first

    @staticmethod
    def _command_of(plan: Definition, op: Callable[..., Any], found: OnParts) -> Command:
        """Return the command of a plan, which works on parts if the layouts of its outputs are known."""
        if found.layouts is None:
            return compile_plan(plan, op, _scalar)
        return compile_plan(found.plan, found.op, _scalar, found.layouts, found.sums, found.mesh)

    def _shorten(
        self,
        plan: Definition,
        op: Callable[..., Any],
        found: OnParts,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        *,
        is_laid: bool,
    ) -> None:
        """Note that a command works on parts; have it do so from now on, if its outputs had to be seen."""
        layouts = layouts_of(inputs, outputs) if found.layouts is None else found.layouts
        if layouts is not None:
            known = found._replace(layouts=layouts)
            self._shorts[plan.plan] = Short(known.plan, known.op, known.sums, layouts, known.mesh, is_laid)
            if found.layouts is None and found.op is not None:
                command = self._command_of(plan, op, known)
                self._commands[plan.plan] = laid(command, len(plan.outputs)) if is_laid else command

    def _is_as_planned(self, plan: Definition, outputs: Sequence[Any]) -> bool:
        """Say whether results are laid out as the controller has predicted. If not, all commands go through
        DTensor from now on: then what a plan gets may differ from time to time.
        """
        if not self._shortens or is_as_planned(plan, outputs):
            return True
        self._shortens = False
        layouts = [getattr(each, "placements", None) for each in outputs]
        _log.info("%s gave %s, not as planned: %s", plan.op, layouts, plan.placements)
        self._start_over(self._counts_after)
        return False

    def _start_over(self, after: int) -> None:
        """Have commands be done as if they were new. After a failure ranks differ in how often they've done
        one; but all must begin at the same command to sum several tensors in one message.

        Args:
            after: only messages behind this command count.
        """
        self._counts_after = after
        self._shorts.clear()
        for each in self._plans.values():
            self._register(each)
        self._replays.start_over()

    def _operation(self, plan: Definition) -> Callable[..., Any]:
        op = self._own.get(plan.op) or _resolve(plan.op, plan.module)
        mesh = None if plan.grid is None else self._meshes.by_number[plan.grid]
        if plan.op.startswith("own."):
            return op
        if not plan.num_inputs:  # the operation creates a tensor: on this rank's device
            return functools.partial(op, device=device_type())
        if plan.is_random:
            op = seeded(op)
        if plan.op in _WRAPPED:
            op = _WRAPPED[plan.op](op)
        if is_mean_of_rows(op, plan.args) and not plan.is_whole and mesh is not None:
            return MeanOfRows(op, plan.moved)
        if plan.moved:
            return on_moved(op, plan.moved)
        return on_whole(op, plan, mesh) if plan.is_whole and mesh is not None else op

    def _drop(self, table: list[Any], words: Sequence[int], at: int) -> int:
        end = at + 2 + words[at + 1]
        for slot in words[at + 2 : end]:
            table[slot] = None
        return end

    # --- failures

    def _failed(self, message: Message, words: Sequence[int], at: int, error: BaseException) -> int:
        """Poison the command's outputs; return the position to continue at."""
        plan = self._plans.get(words[at]) if at < len(words) else None
        cause = None if isinstance(error, Halted) or plan is None else self._poisoned_by(plan, words, at)
        if cause is not None:
            return self._skip(words, at, cause)
        now = self._position.now if at < len(words) else at
        acts = plan if now == at else self._plans[words[now]]
        if acts is not None and now != at and self._poisoned_by(acts, words, now) is not None:
            return at  # what came before it is done again, one by one
        seq = message.first + self._count(words, at)
        decision = self._ask(self._described(seq, acts, error))
        self._start_over(decision.until if isinstance(decision, Resume) else seq)
        if isinstance(decision, Resume):
            return self._resume(decision, message, words, at)
        if isinstance(decision, Reset):
            self._halt_at(seq, message)
            return len(words)
        return self._skip(words, at, decision.seq) if at < len(words) else at

    def _poisoned_by(self, plan: Definition, words: Sequence[int], at: int) -> int | None:
        inputs = (self._table[slot] for slot in words[at + 1 : at + 1 + plan.num_inputs])
        return next((value.seq for value in inputs if isinstance(value, Poison)), None)

    def _described(self, seq: int, plan: Definition | None, error: BaseException) -> Report:
        op = plan.op if plan is not None else ""
        if isinstance(error, Halted):
            return Report(self._rank, seq, op, epoch=self._epoch)
        if isinstance(error, LayerError):
            return Report(self._rank, seq, op, error.kind, str(error), "", self._epoch)
        text = traceback_of(error) if op == "own.call" else ""
        return Report(self._rank, seq, op, class_name(error), message_of(error), text, self._epoch)

    def _ask(self, report: Report) -> Decision:
        """Report, and wait for the decision."""
        self._report(report)
        deadline = time.monotonic() + DECISION_S
        while time.monotonic() < deadline:
            try:
                return self.decisions.get(timeout=0.25)
            except queue.Empty:
                continue
            except KeyboardInterrupt:  # the decision arrives without a request, at once
                continue
        return GoOn(report.seq)

    def _check_halt(self) -> None:
        if self._halts.is_set():
            raise Halted

    def position(self) -> int | None:
        """Return the number of the command that this rank is at, or was at last; None if it hasn't begun. Any
        thread may call it.
        """
        if not self._has_begun:
            return None
        try:
            message, at = self._messages[-1], self._position.at
            return message.first + self._count(message.words(), at)
        except LookupError:  # nothing has come yet, or it goes on with the next message just now
            return self._begun_at

    def halt(self) -> bool:
        """Stop at the next command, and abort running collectives. Any thread may call it.

        Returns:
            whether there's anything to stop: not on a rank that was started anew.
        """
        self._halts.set()
        collectives.abort()
        return self._has_begun

    def _resume(self, decision: Resume, message: Message, words: Sequence[int], at: int) -> int:
        """Poison the results since the first failure, here as on the other ranks; meet them after the last
        command that any rank has begun.
        """
        own = message.first + self._count(words, at)
        self._cause = decision.cause
        for old in list(self._messages)[:-1]:
            before = old.words()
            if old.first + self._count(before, len(before)) > decision.first:
                self._poison(old, before, decision.until, decision.cause, decision.first)
        self._skips_until = decision.until
        position = self._poison(message, words, max(own, decision.until), decision.cause, decision.first)
        self._epoch = decision.epoch
        self._halts.clear()
        try:
            self._meshes.connect(decision.epoch, decision.address)
        except BaseException as error:
            return self._failed(message, words, position, error)
        return position

    def _poison(self, message: Message, words: Sequence[int], until: int, cause: int, first: int = 0) -> int:
        """Treat commands from `first` to before `until` as failed; return the position after them."""
        at, seq = 0, message.first
        self._parcels = message.parcels()
        while at < len(words) and seq < until:
            if words[at] != DROP and self._plans[words[at]].op == "own.put":
                next(self._parcels, None)
            at = self._skip(words, at, cause) if seq >= first else self._behind(words, at)
            seq += 1
        return at

    def _skip(self, words: Sequence[int], at: int, cause: int) -> int:
        plan = self._plans.get(words[at])
        if plan is None:
            return self._drop(self._table, words, at)
        end = at + plan.num_words
        written = [words[at + 1 + n] for n in plan.writes]
        for slot in [*written, *words[end - len(plan.outputs) : end]]:
            self._table[slot] = Poison(cause)
        return end

    def _behind(self, words: Sequence[int], at: int) -> int:
        plan = self._plans.get(words[at])
        return at + (2 + words[at + 1] if plan is None else plan.num_words)

    def _count(self, words: Sequence[int], end: int) -> int:
        at = number = 0
        while at < end:
            at, number = self._behind(words, at), number + 1
        return number

    def stand(self) -> None:
        """Report and wait, if this rank was told to stop; called when it's idle."""
        if not self._halts.is_set() or not self._has_begun:
            return
        message = self._messages[-1] if self._messages else self._replays.message(Batch(0, 0, b""))
        words = message.words()
        with torch.no_grad():
            self._failed(message, words, len(words), Halted())

    # --- life

    def start(self, epoch: int, address: tuple[str, int]) -> None:
        """Start with an empty table."""
        self._take_decisions()
        self._epoch, self._received = epoch, 0
        self._meshes.connect(epoch, address)
        self._stopped, self._has_begun = None, True

    def _halt_at(self, seq: int, message: Message | None = None) -> None:
        """Do nothing more from this command on, which is one of the message."""
        self._has_begun, self._stopped = False, seq
        self._left_out = [] if message is None else [message]

    def _take_decisions(self) -> None:
        while not self.decisions.empty():
            self.decisions.get()
        self._halts.clear()

    def stand_still(self, unsent: Sequence[Batch]) -> Stopped | None:
        """Stop, if this rank hasn't yet: another one was lost. Return what is known of the values here; None
        on a rank that was started anew.

        Args:
            unsent: messages that should have come.
        """
        if self._has_begun:
            self._halt_at(self._next_seq())
        if self._stopped is None:
            return None
        poisons = {n: value.seq for n, value in enumerate(self._table) if isinstance(value, Poison)}
        return Stopped(self._stopped, versions_of(self._table), poisons, self._stale(unsent, self._stopped))

    def _next_seq(self) -> int:
        if not self._messages:
            return self._begun_at
        last = self._messages[-1]
        words = last.words()
        return last.first + self._count(words, len(words))

    def _stale(self, unsent: Sequence[Batch], stopped: int) -> frozenset[int]:
        """Return the slots whose values the commands would have changed that are left out."""
        found = Stale(self._table, _returns_views)
        plans = dict(self._plans)
        for message in [*self._left_out, *map(self._replays.message, unsent)]:
            plans.update((plan.plan, plan) for plan in message.definitions)
            words, at, seq = message.words(), 0, message.first
            while at < len(words):
                plan = plans.get(words[at])
                end = at + (2 + words[at + 1] if plan is None else plan.num_words)
                if plan is not None and seq >= stopped:
                    inputs = words[at + 1 : at + 1 + plan.num_inputs]
                    found.leave_out(plan, inputs, words[end - len(plan.outputs) : end])
                at, seq = end, seq + 1
        return found.slots

    def offer(self, slots: Sequence[int]) -> Offer:
        """Return which of these values this rank can give to one that was started anew."""
        return offered(self._table, slots, self._meshes)[0]

    def recover(self, recovery: Recovery) -> None:
        """Begin again after a loss: with the values that are kept, or on a rank that was started anew, with
        what others give to it.
        """
        if (self._stopped is None) != (self._rank in recovery.lost):
            raise RuntimeError(f"rank {self._rank} was lost meanwhile")
        self._take_decisions()
        self._plans = {plan.plan: plan for plan in recovery.definitions}
        self._commands = {DROP: self._drop}
        self._shorts.clear()
        # As on a rank that was started anew: all ranks must do the same. What torch chooses, where several
        # layouts would do, depends on what it has kept.
        self._shortens = True
        forget_layouts()
        self._counts_after = recovery.first
        for plan in recovery.definitions:
            self._register(plan)
        for grid in recovery.grids:
            self._meshes.prepare(grid)
        self._epoch, self._received = recovery.epoch, 0
        self._meshes.connect(recovery.epoch, recovery.address)
        self._table.extend([None] * (recovery.num_slots - len(self._table)))
        with torch.no_grad():
            exchange(recovery.gifts, self._table, self._meshes, self._rank)
        for slot in set(range(len(self._table))) - recovery.kept:
            self._table[slot] = None
        for slot, seq in recovery.poisons.items():
            self._table[slot] = Poison(seq)
        self._messages.clear()
        self._replays.clear()
        self._left_out, self._skips_until, self._begun_at = [], 0, recovery.first
        self._stopped, self._has_begun = None, True

    # --- values that are sent away

    def fetch(self, slot: int, how: FetchFrom, first: int = 0) -> Fetched:
        """Return a value: `first`: from one rank only, that of number `first`; `each`: from all;
        `describe`: what it is, tensors without their data.

        Nothing is communicated here: what has to be gathered is gathered by a command before.
        """
        if not self._has_begun:
            return Fetched(failed=NOT_BEGUN)
        value = self._table[slot] if slot < len(self._table) else Poison(0)
        if isinstance(value, Poison):
            return Fetched(failed=value.seq)
        if how == "describe":
            return Fetched(pytree.tree_map(_described, value))
        if how == "first" and self._rank != first:
            return Fetched()
        return Fetched(pytree.tree_map(lambda x: _plain(_to_local(x)), value))

    # --- operations of this package

    def _put(self, mesh_number: int | None, placements: Any, ranks: Sequence[int], maps: bool) -> Any:
        """Take a plain tensor from the message; keep this rank's part of it.

        Args:
            maps: in the memory where it came: a mapping that only this process sees changes of.
        """
        whole = next(self._parcels)
        if self._rank not in ranks:
            return None
        whole = whole[self._rank] if isinstance(whole, (list, tuple)) else whole
        if not isinstance(whole, torch.Tensor):
            raise TypeError(f"put of a {type(whole).__name__}")
        whole = whole.detach().to(device_type())
        if mesh_number is None:
            return whole.clone()
        part = (in_place if maps else place)(whole, self._meshes.by_number[mesh_number], placements)
        local = local_of(part)
        if not maps and _shares(local, whole):  # the message's memory, which other processes may map, too
            local.set_(local.clone(memory_format=torch.contiguous_format))
        return part

    def _from_local(self, value: Any, mesh_number: int, placements: Any) -> Any:
        return DTensor.from_local(value, self._meshes.by_number[mesh_number], placements, run_check=False)

    def _call(self, call: Any, *tensors: Any) -> Any:
        return calls.do(call, tensors, lambda hole: self._group(hole.grid, hole.axis))

    def _group(self, grid: int, axis: int) -> Any:
        return self._meshes.by_number[grid].get_group(axis)

    def _reduce(self, value: Any, grid: int, axes: Sequence[int], reduction: str, scatter: bool) -> Any:
        for axis in axes:
            value = reduced(value, self._group(grid, axis), reduction, scatter)
        return value

    def _move(self, value: Any, world: int, pairs: Any, size: Any, dtype: Any) -> Any:
        """Send this rank's value to its receivers; return the received one."""
        return moved(value, self._group(world, 0), self._rank, pairs, lambda: torch.empty(
            size, dtype=dtype, device=device_type()
        ))  # fmt: skip

    def _coordinate(self, grid: int, axis: int) -> Any:
        return torch.tensor(self._meshes.by_number[grid].get_local_rank(axis), device=device_type())


def _part(value: Any, number: int) -> Any:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)][number]


def _keep(value: Any) -> Any:
    return value


def _redistribute(value: Any, placements: Any) -> Any:
    return value.redistribute(value.device_mesh, placements)


def _to_replicated(value: Any) -> Any:
    """Return the whole of a sharded tensor; of another one, that."""
    if not isinstance(value, DTensor):
        return value
    if value.dtype in _COLLECTIVES_TAKE or any(p.is_partial() for p in value.placements):
        return value.full_tensor()
    return _gathered_as_bytes(value)


def _gathered_as_bytes(value: DTensor) -> torch.Tensor:
    """Return the whole of a tensor of numbers that collectives don't take: each one travels as its bytes, in
    a dimension more.
    """
    local = value.to_local().contiguous().unsqueeze(-1).view(torch.uint8)
    size = torch.Size((*value.shape, value.dtype.itemsize))
    strides = torch.empty(size, device="meta").stride()
    whole = DTensor.from_local(
        local, value.device_mesh, value.placements, run_check=False, shape=size, stride=strides
    )
    return whole.full_tensor().contiguous().view(value.dtype).squeeze(-1)


_COLLECTIVES_TAKE: Final = frozenset({
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool,
})  # fmt: skip
"""Dtypes that the collectives of both gloo and NCCL support."""


def _to_local(value: Any) -> Any:
    return value.to_local() if isinstance(value, DTensor) else value


def _plain(value: Any) -> Any:
    """Return a tensor as it can be sent: of this machine's memory, no longer than it need be."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().cpu().clone(memory_format=torch.contiguous_format)


def _described(value: Any) -> Any:
    """Return the facts about a tensor without its data; any other value as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    placements = value.placements if isinstance(value, DTensor) else None
    return Described(tuple(value.shape), tuple(value.stride()), value.dtype, placements)


def _returns_views(plan: Definition) -> bool:
    """Say whether results of an operation may lie in the memory of its arguments."""
    if plan.op.startswith("own."):
        return True
    found = torch.ops
    for name in plan.op.split("."):
        found = getattr(found, name, None)
    schema = None if found is None else schema_of(found)
    return schema is None or any(each.alias_info is not None for each in schema.returns)


def _resolve(name: str, module: str) -> Callable[..., Any]:
    """Return an operation by its name; one that a module registers is there once that is imported.

    Raises:
        LookupError: if this process doesn't know the operation.
    """
    if module not in ("", "__main__"):
        with suppress(ImportError):
            importlib.import_module(module)
    try:
        return cast("Callable[..., Any]", operator.attrgetter(name)(torch.ops))
    except AttributeError:
        raise LookupError(_unknown_op(name, module)) from None


def _unknown_op(name: str, module: str) -> str:
    op = "::".join(name.split(".")[:2])
    if module not in ("", "__main__"):
        return f"{op} isn't registered on this rank, and module {module!r}, which does that, is missing there"
    return (
        f"{op} isn't registered on this rank. Register it there, too: run the cell that does so with "
        "%%mesh --always, as new and healed ranks will"
    )


def _scalar(words: Any, at: int) -> float:
    return float(struct.unpack_from("<d", words, 4 * at)[0])


def _shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())
