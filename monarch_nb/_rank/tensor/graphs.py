"""Graphs: several commands of a recorded part as one Python function over this rank's parts of tensors.

A command that works on parts (`parts`) reads its inputs from the table, calls an operation of some
microseconds, and makes a tensor over the mesh of what that returns. Where a part is replayed again and again,
commands that follow each other need none of this in between: values stay in variables, and only what is there
at the end goes into the table. Commands that draw random numbers, gather tensors or run modules are done one
by one, as ever.

Sums over ranks wait: those of a backward are done together, just before the first of them is used, or when
there is much to sum.

A failure finds the table as single commands would have left it (`_Graph.spill`). While sums wait, the command
at which the graph stands is the first of these: if one fails, the graph goes back to there, and all commands
since are done one by one. Nothing is changed in place meanwhile, and no value is given up that was there
before.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from monarch_nb._rank.tensor.compiler import Command, Layouts, Source
from monarch_nb._rank.tensor.laying import laid_part, part_bytes
from monarch_nb._rank.tensor.private import bare, local_of, wrapped
from monarch_nb._rank.tensor.protocol import SINGLE, Definition
from monarch_nb._rank.tensor.replays import Part
from monarch_nb._rank.tensor.sums import TOGETHER_BYTES, Axes, summed

AFTER_REPLAYS = 2
"""Graphs are made at the replay after so many: they take tens of milliseconds to make."""
MAX_COMMANDS = 2000
"""Of one function: a longer one takes long to compile at a time."""
MIN_COMMANDS = 3
"""What fewer commands save isn't worth a function."""


class Short(NamedTuple):
    """A command that works on parts.

    Attributes:
        plan: with sizes of this rank's part among its arguments.
        op: the operation; None for one that returns its input summed.
        sums: inputs that are to be summed over ranks before, with the axes.
        layouts: of its outputs.
        mesh: the device mesh that these are of.
        is_laid: outputs are to be laid out in memory as the controller knows them.
    """

    plan: Definition
    op: Any
    sums: Mapping[int, Axes]
    layouts: Layouts
    mesh: Any
    is_laid: bool


class Position:
    """The position of the command that is being done.

    Attributes:
        at: of its first word in the message. If a graph fails, all from there on is done again.
        now: the same of the command that a graph has come to since.
    """

    __slots__ = ("at", "now")

    def __init__(self) -> None:
        self.at = self.now = 0


class _Step(NamedTuple):
    """A command in a part: its position there, and its plan; None for one that empties slots."""

    at: int
    plan: Definition | None
    end: int


class _Slot(NamedTuple):
    """A slot of the table.

    Attributes:
        key: tells it from others.
        text: its number, as Python source.
        position: of a word that is its number.
    """

    key: tuple[str, int]
    text: str
    position: int


class _Value(NamedTuple):
    """A value in a variable.

    Attributes:
        name: of the variable.
        layout: name of its layout; empty for one that is in the table, too.
        size: of this rank's part in bytes, as far as it's known.
    """

    name: str
    layout: str
    size: int


class _Waiting(NamedTuple):
    """A sum that waits: the variable to sum, the one for the result, axes of a device mesh."""

    given: str
    made: str
    axes: Axes
    mesh: Any


def make_graphs(
    part: Part, plans: Mapping[int, Definition], shorts: Mapping[int, Short], rank: int, position: Position
) -> dict[int, Command]:
    """Return functions that do several commands of a part each, by the position of the first one.

    Args:
        shorts: which plans' commands work on parts.
        rank: of this process.
        position: says where a graph is, for failures.
    """
    steps = _steps(part, plans)
    joins = not any(step.plan is not None and step.plan.ranks for step in steps)
    return {
        run[0].at: _Graph(part, run, shorts, rank, position, joins).command
        for run in _runs(steps, shorts, rank)
    }


def _steps(part: Part, plans: Mapping[int, Definition]) -> list[_Step]:
    """Return the commands of a part."""
    found: list[_Step] = []
    at = 0
    while at < len(part.words):
        plan = plans.get(part.words[at])
        end = at + (2 + part.words[at + 1] if plan is None else plan.num_words)
        found.append(_Step(at, plan, end))
        at = end
    return found


def _runs(steps: Sequence[_Step], shorts: Mapping[int, Short], rank: int) -> list[list[_Step]]:
    """Return the commands that follow each other and work on parts."""
    found: list[list[_Step]] = [[]]
    for number, step in enumerate(steps):
        if number % MAX_COMMANDS == 0:
            found.append([])
        if step.plan is None or step.plan.plan in shorts or _is_others(step.plan, rank):
            found[-1].append(step)
        elif found[-1]:
            found.append([])
    return [run for run in found if sum(each.plan is not None for each in run) >= MIN_COMMANDS]


def _is_others(plan: Definition, rank: int) -> bool:
    """Say whether only other ranks do a command."""
    return bool(plan.ranks) and rank not in plan.ranks


class _Graph:
    """The function of some commands, under construction.

    Args:
        joins: whether sums wait for each other: not in a part of which other ranks do other commands.

    Attributes:
        command: that function.
    """

    def __init__(
        self,
        part: Part,
        steps: Sequence[_Step],
        shorts: Mapping[int, Short],
        rank: int,
        position: Position,
        joins: bool,
    ) -> None:
        self._part, self._position, self._first = part, position, steps[0].at
        self._names: dict[str, Any] = {
            "p": position, "part": local_of, "wrapped": wrapped, "summed": summed, "laid_part": laid_part,
            "spill": self.spill,
        }  # fmt: skip
        self._joins = joins
        self._lines: list[str] = []
        self._values: dict[tuple[str, int], _Value] = {}
        """What slots have, by key."""
        self._num_slots: Counter[str] = Counter()
        """How many of them have a variable's value."""
        self._changes: list[tuple[int, _Slot, _Value | None]] = []
        """Changes of that, with the position of the command."""
        self._num_values = 0
        self._waiting: list[_Waiting] = []
        self._waiting_bytes = 0
        self._postponed: list[str] = []
        """Lines that give values up, for when no sum waits any more."""
        for step in steps:
            if step.plan is None:
                self._drop(step)
            elif not _is_others(step.plan, rank):
                self._do(step, step.plan, shorts[step.plan.plan])
        self._sum()
        self._store()
        self.command = self._compiled(steps[-1].end - self._first)

    def _compiled(self, num_words: int) -> Command:
        body = "".join(f"        {line}\n" for line in self._lines)
        text = (
            f"def graph(t, b, i):\n    try:\n{body}    except BaseException:\n"
            f"        spill(t, b, i, locals())\n        raise\n    return i + {num_words}\n"
        )
        exec(compile(text, f"<graph of {len(self._lines)} lines>", "exec"), self._names)
        found: Command = self._names["graph"]
        return found

    def _slot(self, position: int) -> _Slot:
        """Return the slot whose number stands at a position of the part."""
        which = self._part.given.get(position)
        if which is not None:
            return _Slot(("given", which), f"b[i + {position - self._first}]", position)
        number = self._part.words[position]
        return _Slot(("own", number), str(number), position)

    def _constant(self, value: Any) -> str:
        name = f"c{len(self._names)}"
        self._names[name] = value
        return name

    def _variable(self) -> str:
        self._num_values += 1
        return f"v{self._num_values}"

    def _add(self, line: str) -> None:
        self._lines.append(line)

    # --- one command

    def _drop(self, step: _Step) -> None:
        self._stand_at(step)
        for position in range(step.at + 2, step.end):
            slot = self._slot(position)
            self._release(step, slot)
            self._give_up(f"t[{slot.text}] = None")

    def _do(self, step: _Step, plan: Definition, short: Short) -> None:
        inputs = [self._slot(step.at + 1 + n) for n in range(plan.num_inputs)]
        outputs = [self._slot(step.end - len(plan.outputs) + n) for n in range(len(plan.outputs))]
        wanted = {value.name for slot in inputs if (value := self._values.get(slot.key)) is not None}
        is_much = self._waiting_bytes > TOGETHER_BYTES
        changes = is_much or bool(plan.writes) or any(isinstance(each, int) for each in short.layouts)
        if changes or not wanted.isdisjoint(each.made for each in self._waiting):
            self._sum()
        self._stand_at(step)
        given = [self._loaded(slot).name for slot in inputs]
        if short.op is None:
            self._wait(step, outputs[0], given[0], short)
        else:
            self._call(step, plan, short, given, inputs, outputs)

    def _stand_at(self, step: _Step) -> None:
        at = "" if self._waiting else "p.at = "
        self._add(f"{at}p.now = i + {step.at - self._first}")

    def _loaded(self, slot: _Slot) -> _Value:
        """Return the value of a slot, which is in a variable then."""
        found = self._values.get(slot.key)
        if found is None:
            found = _Value(self._variable(), "", 0)
            self._put_into(slot, found)
            self._add(f"{found.name} = part(t[{slot.text}])")
        return found

    def _call(
        self,
        step: _Step,
        plan: Definition,
        short: Short,
        given: list[str],
        inputs: Sequence[_Slot],
        outputs: Sequence[_Slot],
    ) -> None:
        if short.sums:
            self._sum()
            given = self._summed(step, given, short)
        source = Source(self._names, lambda n: given[n], lambda n: self._scalar(step, plan, n))
        call = f"{self._constant(bare(short.op))}({source.arguments(short.plan)})"
        is_new = any(not isinstance(layout, int) for layout in short.layouts)
        self._add(f"r = {call}" if is_new else call)
        for number, slot, layout in zip(plan.outputs, outputs, short.layouts, strict=True):
            if isinstance(layout, int):
                self._same(step, slot, inputs[layout])
            else:
                name = self._variable()
                part = "r" if number == SINGLE else f"r[{number}]"
                known = self._constant(layout)
                self._add(f"{name} = laid_part({part}, {known})" if short.is_laid else f"{name} = {part}")
                self._new(step, slot, _Value(name, known, _size(layout)))
        if is_new:
            self._add("r = None")

    def _summed(self, step: _Step, given: list[str], short: Short) -> list[str]:
        """Sum inputs now; return the variables of all inputs."""
        self._stand_at(step)
        made = {n: self._variable() for n in short.sums}
        self._add_sums([_Waiting(given[n], made[n], axes, short.mesh) for n, axes in short.sums.items()])
        return [made.get(n, name) for n, name in enumerate(given)]

    def _add_sums(self, sums: Sequence[_Waiting]) -> None:
        names, made = ", ".join(each.given for each in sums), ", ".join(each.made for each in sums)
        axes, mesh = self._constant(tuple(each.axes for each in sums)), self._constant(sums[0].mesh)
        self._add(f"{made}, = summed(({names},), {axes}, {mesh})")

    def _scalar(self, step: _Step, plan: Definition, number: int) -> str:
        at = step.at + 1 + plan.num_inputs + 2 * number
        return self._constant(struct.unpack_from("<d", self._part.words, 4 * at)[0])

    def _new(self, step: _Step, slot: _Slot, value: _Value) -> None:
        """Give a slot a new value; the table forgets what was there."""
        self._release(step, slot)
        self._hold(step, slot, value)
        self._give_up(f"t[{slot.text}] = None")

    def _same(self, step: _Step, slot: _Slot, given: _Slot) -> None:
        """Let a slot have the value of an input."""
        value = self._values[given.key]
        if slot.key == given.key:
            return
        self._release(step, slot)
        if value.layout:
            self._hold(step, slot, value)
        else:
            self._put_into(slot, value)
            self._add(f"t[{slot.text}] = t[{given.text}]")

    # --- sums

    def _wait(self, step: _Step, slot: _Slot, given: str, short: Short) -> None:
        """Sum an input later."""
        (layout,) = short.layouts
        if any(each.mesh is not short.mesh for each in self._waiting):
            self._sum()
            self._stand_at(step)
        made = _Value(self._variable(), self._constant(layout), _size(layout))
        self._waiting.append(_Waiting(given, made.name, short.sums[0], short.mesh))
        self._new(step, slot, made)
        self._waiting_bytes += made.size
        if self._waiting_bytes > TOGETHER_BYTES or not self._joins:
            self._sum()

    def _sum(self) -> None:
        """Do the sums that wait."""
        if self._waiting:
            self._add_sums(self._waiting)
        self._lines += self._postponed
        self._waiting, self._waiting_bytes, self._postponed = [], 0, []

    # --- what slots have

    def _put_into(self, slot: _Slot, value: _Value) -> None:
        self._values[slot.key] = value
        self._num_slots[value.name] += 1

    def _hold(self, step: _Step, slot: _Slot, value: _Value) -> None:
        self._put_into(slot, value)
        self._changes.append((step.at, slot, value))

    def _release(self, step: _Step, slot: _Slot) -> None:
        """Note that a slot's value isn't needed there any more."""
        value = self._values.pop(slot.key, None)
        if value is None:
            return
        if value.layout:
            self._changes.append((step.at, slot, None))
        self._num_slots[value.name] -= 1
        if not self._num_slots[value.name]:
            self._waiting_bytes += value.size
            self._give_up(f"{value.name} = None")

    def _give_up(self, line: str) -> None:
        (self._postponed if self._waiting else self._lines).append(line)

    def _held(self, before: float = math.inf) -> dict[_Value, list[_Slot]]:
        """Return the values that aren't in the table before a command, with their slots."""
        by_slot: dict[tuple[str, int], tuple[_Slot, _Value]] = {}
        for at, slot, value in self._changes:
            if at >= before:
                break
            if value is None:
                by_slot.pop(slot.key, None)
            else:
                by_slot[slot.key] = slot, value
        found: dict[_Value, list[_Slot]] = {}
        for slot, value in by_slot.values():
            found.setdefault(value, []).append(slot)
        return found

    def _store(self) -> None:
        """Put what is left into the table: what is one tensor stays one."""
        for value, slots in self._held().items():
            targets = " = ".join(f"t[{slot.text}]" for slot in slots)
            self._add(f"{targets} = wrapped({value.name}, {value.layout})")

    def spill(self, table: list[Any], words: Sequence[int], start: int, variables: Mapping[str, Any]) -> None:
        """Put into the table what the commands before the one that failed have made.

        Args:
            start: the position of the first command in the message.
            variables: of the function.
        """
        for value, slots in self._held(self._position.at - start + self._first).items():
            made = wrapped(variables[value.name], self._names[value.layout])
            for slot in slots:
                table[words[start + slot.position - self._first]] = made


def _size(layout: Any) -> int:
    """Return the bytes of a rank's part of a tensor, rounded."""
    meta = layout.tensor_meta
    return part_bytes(math.prod(meta.shape) * meta.dtype.itemsize, layout.mesh.shape, layout.placements)
