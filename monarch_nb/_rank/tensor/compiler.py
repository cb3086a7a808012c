"""Compiles a plan into a Python function: `f(t, b, i)` executes the command at position `i` of the words `b`
on table `t`, and returns the position of the next command.

Generated, because reading slots, calling and writing slots then costs hardly more than the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from monarch_nb._rank.tensor.protocol import SINGLE, Definition, Hole, ScalarHole

Command = Callable[[list[Any], Sequence[int], int], int]


def compile_plan(
    plan: Definition, op: Callable[..., Any], to_float: Callable[[Sequence[int], int], float]
) -> Command:
    """Return the function of a plan.

    Args:
        op: what is called.
        to_float: reads the scalar at a position of the words.
    """
    names: dict[str, Any] = {"op": op, "to_float": to_float}
    source = _Source(plan, names)
    arguments = [*map(source.of, plan.args), *(f"{name}={source.of(value)}" for name, value in plan.kwargs)]
    lines = _body(plan, f"op({', '.join(arguments)})")
    text = "def command(t, b, i):\n" + "".join(
        f"    {line}\n" for line in [*lines, f"return i + {plan.num_words}"]
    )
    exec(compile(text, f"<plan {plan.plan}: {plan.op}>", "exec"), names)
    found: Command = names["command"]
    return found


def _body(plan: Definition, call: str) -> list[str]:
    if not plan.outputs:
        return [call]
    at = 1 + plan.num_inputs + 2 * plan.num_scalars
    if plan.outputs == (SINGLE,):
        return [f"t[b[i + {at}]] = {call}"]
    return [f"r = {call}", *(f"t[b[i + {at + n}]] = r[{part}]" for n, part in enumerate(plan.outputs))]


class _Source:
    """The Python source of arguments under construction; constants go into the function's namespace."""

    def __init__(self, plan: Definition, names: dict[str, Any]) -> None:
        self._plan = plan
        self._names = names

    def of(self, value: Any) -> str:
        """Return the text of one argument."""
        if isinstance(value, Hole):
            return f"t[b[i + {1 + value.index}]]"
        if isinstance(value, ScalarHole):
            return f"to_float(b, i + {1 + self._plan.num_inputs + 2 * value.index})"
        if isinstance(value, list):
            return f"[{', '.join(map(self.of, value))}]"
        if isinstance(value, tuple):
            return f"({''.join(f'{self.of(each)}, ' for each in value)})"
        if type(value) is dict:
            return f"{{{', '.join(f'{key!r}: {self.of(each)}' for key, each in value.items())}}}"
        name = f"c{len(self._names)}"
        self._names[name] = value
        return name
