"""Proves from a function's code that a value which a call in it gives is returned, and used for nothing else.

The proof follows the value over the stack and the local variables, on all paths, also those of exceptions.
What isn't understood is taken for a use.
"""

from __future__ import annotations

import dis
import enum
import functools
import inspect
import sys
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

MOST_STATES = 20_000
"""After so many states a function is too long to be followed."""
_READS = ("item", "tolist", "full", "cpu", "numpy")
_BUILTINS = ("__float__", "__int__", "__bool__")
_LOADS = frozenset(
    {"LOAD_CONST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_CLASSDEREF", "LOAD_SMALL_INT", "PUSH_NULL"}
)
_NOTHING = frozenset(
    {
        "RESUME",
        "NOP",
        "KW_NAMES",
        "JUMP_FORWARD",
        "JUMP_BACKWARD",
        "JUMP_BACKWARD_NO_INTERRUPT",
        "EXTENDED_ARG",
    }
)
_BUILDS = {"BUILD_TUPLE": 1, "BUILD_LIST": 1, "BUILD_MAP": 2, "BUILD_CONST_KEY_MAP": 1}
"""How many values each item takes."""
_POPS = {
    "BINARY_OP": 2, "BINARY_SUBSCR": 2, "COMPARE_OP": 2, "IS_OP": 2, "CONTAINS_OP": 2, "LOAD_ATTR": 1,
    "LOAD_METHOD": 1, "POP_TOP": 1, "STORE_ATTR": 2, "STORE_DEREF": 1, "STORE_GLOBAL": 1, "STORE_SUBSCR": 3,
    "UNARY_NOT": 1, "UNARY_NEGATIVE": 1, "TO_BOOL": 1, "POP_JUMP_IF_TRUE": 1, "POP_JUMP_IF_FALSE": 1,
    "POP_JUMP_IF_NONE": 1, "POP_JUMP_IF_NOT_NONE": 1, "POP_JUMP_FORWARD_IF_TRUE": 1,
    "POP_JUMP_FORWARD_IF_FALSE": 1, "POP_JUMP_FORWARD_IF_NONE": 1, "POP_JUMP_FORWARD_IF_NOT_NONE": 1,
    "POP_JUMP_BACKWARD_IF_TRUE": 1, "POP_JUMP_BACKWARD_IF_FALSE": 1, "POP_JUMP_BACKWARD_IF_NONE": 1,
    "POP_JUMP_BACKWARD_IF_NOT_NONE": 1, "BEFORE_WITH": 1, "DICT_UPDATE": 1, "LIST_EXTEND": 1,
}  # fmt: skip
"""How many values an instruction takes from the stack."""
_ENDS = frozenset({"RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_ALWAYS_JUMPS = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"})
_SEES_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"})

_State = tuple[int, tuple[bool, ...], frozenset[str], bool]
"""Number of an instruction; for each value on the stack whether it's the one; variables that have it; whether
the call was made.
"""


class Fate(enum.Enum):
    """The fate of the value of a call.

    Attributes:
        USED: it may be used for anything.
        DROPPED: it's returned, or dropped.
        RETURNED: it's returned in any case, unless the same call is made again.
    """

    USED = enum.auto()
    DROPPED = enum.auto()
    RETURNED = enum.auto()


class _Used(Exception):
    """The value may be used."""


@functools.lru_cache(256)
def fate_of(code: CodeType, offset: int, name: str) -> Fate:
    """Return what becomes of the value of a call in a function. To be in a new tuple, list or dict that is
    returned is to be returned.

    The call is `x.item()`, `x.tolist()`, `x.full()`, `x.cpu()`, `x.numpy()`, `float(x)`, `int(x)` or
    `bool(x)`; any other isn't understood.

    Args:
        offset: of the instruction of the call, as in `frame.f_lasti`.
        name: of the method that was called: `item`, or `__float__` for `float(x)`; "": of a function that is
            known to be called there (`calls_directly`).

    Example:
        >>> def passes(x):
        ...     value = x.item()
        ...     return {"loss": value}
        >>> def steers(x):
        ...     value = x.item()
        ...     return value if value < 3 else 3.0
        >>> [fate_of(f.__code__, *calls_in(f.__code__), "item").name for f in (passes, steers)]
        ['RETURNED', 'USED']
    """
    steps = list(dis.get_instructions(code))
    at = _number_at(steps, offset)
    if at < 0 or (name and not _gives_itself(steps, at, name)) or _SEES_LOCALS.intersection(code.co_names):
        return Fate.USED
    try:
        return _Walk(code, steps, at).fate()
    except _Used:
        return Fate.USED


def _number_at(steps: Sequence[dis.Instruction], offset: int) -> int:
    """Return the number of the instruction at an offset, which may be in its cache; -1 if there's none."""
    found = max((n for n, step in enumerate(steps) if step.offset <= offset), default=-1)
    is_prepared = found >= 0 and steps[found].opname == "PRECALL"  # does the whole call once it's specialised
    return found + 1 if is_prepared else found


def calls_directly(frame: FrameType, code: CodeType) -> bool:
    """Return whether a frame calls the function with a code itself, and not by another one that isn't
    written in Python.
    """
    steps = list(dis.get_instructions(frame.f_code))
    at = _number_at(steps, frame.f_lasti)
    called = _before_arguments(steps, at) if at >= 0 else []
    return getattr(_callee(frame, called), "__code__", None) is code


def _callee(frame: FrameType, before: Sequence[dis.Instruction]) -> Any:
    """Return the function that was loaded by the last instructions; None if that isn't known."""
    if not before:
        return None
    if before[-1].opname not in ("LOAD_METHOD", "LOAD_ATTR"):
        found = _loaded(frame, before[-1])
        return found.__func__ if isinstance(found, MethodType) else found
    if len(before) < 2:
        return None
    found = inspect.getattr_static(type(_loaded(frame, before[-2])), before[-1].argval, None)
    return found if isinstance(found, FunctionType) else None


def _loaded(frame: FrameType, step: dis.Instruction) -> Any:
    """Return the variable that an instruction loads; None if it's none."""
    if step.opname in ("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_DEREF", "LOAD_NAME"):
        return frame.f_locals.get(step.argval)
    return frame.f_globals.get(step.argval) if step.opname == "LOAD_GLOBAL" else None


def calls_in(code: CodeType) -> list[int]:
    """Return the offsets of the calls in a function."""
    return [step.offset for step in dis.get_instructions(code) if step.opname == "CALL"]


def _gives_itself(steps: Sequence[dis.Instruction], at: int, name: str) -> bool:
    """Return whether the result of a call is what was read, and not what another function makes of it."""
    called = _before_arguments(steps, at)
    if not called:
        return False
    loads, num = called[-1].opname, steps[at].arg
    if loads in ("LOAD_METHOD", "LOAD_ATTR"):
        return num == 0 and called[-1].argval == name in _READS
    is_global = loads in ("LOAD_GLOBAL", "LOAD_NAME")
    return num == 1 and is_global and f"__{called[-1].argval}__" == name in _BUILTINS


def _before_arguments(steps: Sequence[dis.Instruction], at: int) -> list[dis.Instruction]:
    """Return the instructions before those of a call's arguments: the last one loads what is called. []
    if that isn't known.
    """
    if steps[at].opname != "CALL":
        return []
    before, num = list(steps[:at]), steps[at].arg or 0
    while before and before[-1].opname in ("PRECALL", "KW_NAMES"):
        before.pop()
    while before and num > 0:
        step = before.pop()
        if step.is_jump_target or step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
            return []
        num -= dis.stack_effect(step.opcode, step.arg if step.opcode >= dis.HAVE_ARGUMENT else None)
    while before and before[-1].opname == "PUSH_NULL":
        before.pop()
    return before if num == 0 else []


class _Walk:
    """The search of all paths of a function."""

    def __init__(self, code: CodeType, steps: Sequence[dis.Instruction], at: int) -> None:
        self._steps, self._at = steps, at
        self._number = {step.offset: n for n, step in enumerate(steps)}
        self._handlers = list(dis.Bytecode(code).exception_entries)  # type: ignore[attr-defined]
        self._is_dropped = False

    def fate(self) -> Fate:
        """Return what becomes of the value, if nothing uses it.

        Raises:
            _Used: if a path may use it.
        """
        seen: set[_State] = set()
        left: list[_State] = [(0, (), frozenset(), False)]
        while left:
            state = left.pop()
            if state in seen:
                continue
            seen.add(state)
            if len(seen) > MOST_STATES:
                raise _Used
            left += self._after(state)
        return Fate.DROPPED if self._is_dropped else Fate.RETURNED

    def _after(self, state: _State) -> Iterator[_State]:
        """Yield the states that may follow."""
        at, stack, names, is_made = state
        step = self._steps[at]
        yield from self._if_it_raises(step, stack, names, is_made)
        if step.opname == "RETURN_VALUE":
            self._is_dropped |= is_made and not stack[-1]
            return
        if step.opname in _ENDS:
            self._is_dropped |= is_made and step.opname == "RETURN_CONST"
            return
        if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
            yield self._number[step.argval], *self._done(step, stack, names, jump=True), is_made
        if step.opname not in _ALWAYS_JUMPS:
            to, kept = self._done(step, stack, names, jump=False)
            is_it = at == self._at
            yield at + 1, (*to[:-1], True) if is_it else to, kept, is_made or is_it

    def _if_it_raises(
        self, step: dis.Instruction, stack: tuple[bool, ...], names: frozenset[str], is_made: bool
    ) -> Iterator[_State]:
        for each in self._handlers:
            if each.start <= step.offset < each.end:
                pushed = (False,) * (2 if each.lasti else 1)
                yield self._number[each.target], (*stack[: each.depth], *pushed), names, is_made
                return

    def _done(
        self, step: dis.Instruction, stack: tuple[bool, ...], names: frozenset[str], jump: bool
    ) -> tuple[tuple[bool, ...], frozenset[str]]:
        """Return the stack and the variables after an instruction."""
        name, arg = step.opname, step.arg or 0
        if name == "STORE_FAST":
            return stack[:-1], names | {step.argval} if stack[-1] else names - {step.argval}
        if name in ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"):
            return (*stack, step.argval in names), names
        if name == "DELETE_FAST":
            return stack, names - {step.argval}
        if name == "COPY":
            return (*stack, stack[-arg]), names
        if name == "SWAP":
            changed = list(stack)
            changed[-1], changed[-arg] = changed[-arg], changed[-1]
            return tuple(changed), names
        if names and "FAST" in name:  # one of several variables
            raise _Used
        return self._other(step, stack, jump), names

    def _other(self, step: dis.Instruction, stack: tuple[bool, ...], jump: bool) -> tuple[bool, ...]:
        effect = dis.stack_effect(
            step.opcode, step.arg if step.opcode >= dis.HAVE_ARGUMENT else None, jump=jump
        )
        pops = _pops(step)
        if pops is None:  # not known: it may take all, and store it anywhere
            if any(stack):
                raise _Used
            pops = max(0, -effect)
        taken, rest = stack[len(stack) - pops :], stack[: len(stack) - pops]
        if any(taken) and step.opname not in _BUILDS and step.opname != "POP_TOP":
            raise _Used
        return (*rest, *[any(taken)] * (effect + pops))


def _pops(step: dis.Instruction) -> int | None:
    """Return how many values an instruction takes from the stack; None if that isn't known."""
    name, arg = step.opname, step.arg or 0
    if name in _LOADS or name in _NOTHING:
        return 0
    if name in _BUILDS:
        return _BUILDS[name] * arg + (name == "BUILD_CONST_KEY_MAP")
    if name == "PRECALL":
        return arg
    if name == "CALL":
        return 2 if sys.version_info < (3, 12) else arg + 2
    return _POPS.get(name)
