"""Compiles a plan into a Python function: `f(t, b, i)` executes the command at position `i` of the words `b`
on table `t`, and returns the position of the next command.

Generated, because reading slots, calling and writing slots then costs hardly more than the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monarch_nb._rank.tensor.cuts import CutHole
from monarch_nb._rank.tensor.private import local_of, wrapped
from monarch_nb._rank.tensor.protocol import SINGLE, Definition, Hole, ScalarHole
from monarch_nb._rank.tensor.sums import Axes, summed

Command = Callable[[list[Any], Sequence[int], int], int]
Layouts = tuple[Any, ...]
"""For each output of a plan that works on parts: the number of the input that it is, or its `DTensorSpec`."""


def compile_plan(
    plan: Definition,
    op: Callable[..., Any],
    to_float: Callable[[Sequence[int], int], float],
    layouts: Layouts | None = None,
    sums: Mapping[int, Axes] | None = None,
    mesh: Any = None,
) -> Command:
    """Return the function of a plan.

    Args:
        op: what is called.
        to_float: reads the scalar at a position of the words.
        layouts: of the outputs, if `op` is called on this rank's parts.
        sums: which inputs are to be summed over ranks before, along which axes of the mesh.
    """
    names: dict[str, Any] = {"op": op, "to_float": to_float, "part": local_of, "wrapped": wrapped}
    places = {number: n for n, number in enumerate(sums or ())}

    def slot(number: int) -> str:
        return f"t[b[i + {1 + number}]]"

    def hole(number: int) -> str:
        if number in places:
            return f"sums[{places[number]}]"
        return slot(number) if layouts is None else f"part({slot(number)})"

    source = Source(names, hole, lambda n: f"to_float(b, i + {1 + plan.num_inputs + 2 * n})")
    lines = _body(plan, f"op({source.arguments(plan)})", layouts)
    if sums:
        names.update(summed=summed, axes=tuple(sums.values()), mesh=mesh)
        lines.insert(0, f"sums = summed(({''.join(f'part({slot(n)}), ' for n in sums)}), axes, mesh)")
    names.update((f"layout{n}", each) for n, each in enumerate(layouts or ()))
    text = "def command(t, b, i):\n" + "".join(
        f"    {line}\n" for line in [*lines, f"return i + {plan.num_words}"]
    )
    exec(compile(text, f"<plan {plan.plan}: {plan.op}>", "exec"), names)
    found: Command = names["command"]
    return found


def _body(plan: Definition, call: str, layouts: Layouts | None) -> list[str]:
    if not plan.outputs:
        return [call]
    at = 1 + plan.num_inputs + 2 * plan.num_scalars
    single = plan.outputs == (SINGLE,)
    parts = ["r"] if single else [f"r[{part}]" for part in plan.outputs]
    if layouts is not None:
        parts = [_with_layout(n, part, layouts[n]) for n, part in enumerate(parts)]
    return [f"r = {call}", *(f"t[b[i + {at + n}]] = {part}" for n, part in enumerate(parts))]


def _with_layout(number: int, part: str, layout: Any) -> str:
    """Return the text of an output: one of the inputs, or a new part as a tensor of the mesh."""
    return f"t[b[i + {1 + layout}]]" if isinstance(layout, int) else f"wrapped({part}, layout{number})"


class Source:
    """The Python source of arguments under construction; constants go into the function's namespace.

    Args:
        names: the namespace.
        hole, scalar: give the text of the n-th input, and of the n-th scalar.
    """

    def __init__(
        self, names: dict[str, Any], hole: Callable[[int], str], scalar: Callable[[int], str]
    ) -> None:
        self._names = names
        self._hole, self._scalar = hole, scalar

    def arguments(self, plan: Definition) -> str:
        """Return the text of a plan's arguments."""
        return ", ".join(
            [*map(self.of, plan.args), *(f"{name}={self.of(value)}" for name, value in plan.kwargs)]
        )

    def of(self, value: Any) -> str:
        """Return the text of one argument."""
        if isinstance(value, Hole):
            return self._hole(value.index)
        if isinstance(value, CutHole):
            return f"{self._constant(value.cut)}({self._hole(value.index)})"
        if isinstance(value, ScalarHole):
            return self._scalar(value.index)
        if isinstance(value, list):
            return f"[{', '.join(map(self.of, value))}]"
        if isinstance(value, tuple):
            return f"({''.join(f'{self.of(each)}, ' for each in value)})"
        if type(value) is dict:
            return f"{{{', '.join(f'{key!r}: {self.of(each)}' for key, each in value.items())}}}"
        return self._constant(value)

    def _constant(self, value: Any) -> str:
        name = f"c{len(self._names)}"
        self._names[name] = value
        return name
