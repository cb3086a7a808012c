"""The ranks' own modules: whether they have the code and the values that this program has.

Functions and classes of a notebook, or of a script itself, are sent by value. Of a module that can be
imported each process has its own, as it was when that process loaded it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from monarch_nb import _reload
from monarch_nb._frames.owner import warn_user
from monarch_nb._rank.tensor.files import checksums
from monarch_nb._tensor.reach import Reach
from monarch_nb._tensor.references import OfFile, code_of_file, is_users, wrapped_by
from monarch_nb.exceptions import MeshError, StaleCode

ASK_S = 60.0
_WARN, _STRICT = "warn", "strict"
_MOST_CHECKED = 256
_MOST_WRAPPED = 16
_MOST_ITEMS = 100
Checksums = list[int | None]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The ranks' own modules.

    Attributes:
        checksums: asks all ranks for checksums of what has these names.
        mode: says what is done if they differ: `warn`, `strict`, or nothing.
    """

    checksums: Callable[[list[tuple[str, str]]], list[Checksums]]
    mode: Callable[[], str]

    @classmethod
    def of(cls, control: Any, mesh: Any) -> Elsewhere:
        """Return the modules of a mesh's ranks.

        Args:
            control: the control actors of the engine.
            mesh: what the user has started; a named mesh says what is done.
        """
        return cls(
            lambda names: list(control.checksums.call(names).get(ASK_S).values()),
            lambda: getattr(mesh, "sync_mode", _WARN),
        )

    def tell_of(self, names: Iterable[OfFile]) -> None:
        """Say what of these ranks have otherwise in their modules, as far as it can be said.

        Raises:
            StaleCode: if there is something, and the mode is strict.
        """
        ordered = sorted(set(names), key=lambda each: (not each.is_code, each))
        mode = self.mode() if ordered else ""
        if mode not in (_WARN, _STRICT):
            return
        texts = [*map(_text, self._other(ordered))]
        if texts and mode == _STRICT:
            raise StaleCode("; ".join(texts))
        for each in texts:
            warn_user(each)

    def _other(self, names: list[OfFile]) -> list[OfFile]:
        asked = [(each.owner, each.part) for each in names]
        here, there = checksums(asked), self.checksums(asked)
        return [name for n, name in enumerate(names) if any(_differ(here[n], found[n]) for found in there)]


def _differ(here: int | None, there: int | None) -> bool:
    return here is not None and there is not None and here != there


def _text(name: OfFile) -> str:
    if name.is_code:
        return f"ranks have loaded other code of {name} than this program: mesh.sync() has them load it"
    return (
        f"{name} has another value on ranks than in this program; "
        f"mesh.execute(setattr, {name.owner}, {name.part!r}, {name}) sets it there"
    )


class CalledCode:
    """The code that functions of the user's lead to which ranks call: is it what they have loaded?

    Asked once for each function, and anew when this program has loaded a file of the user's since.

    Args:
        control: the control actors of the engine.
    """

    def __init__(self, control: Any) -> None:
        self._control = control
        self._checked: dict[int, tuple[CodeType, int]] = {}
        """By id of the code, which is kept alive here: how many files had been loaded."""

    def check(self, function: Any, mesh: Any) -> None:
        """Say if ranks have loaded other code.

        Args:
            mesh: what the function is called on.

        Raises:
            StaleCode: if the mesh is strict.
        """
        called = _users_function(function)
        if called is None:
            return
        code, now = called.__code__, _reload.num_loads()
        if self._checked.get(id(code), (code, -1))[1] == now:
            return
        try:
            Elsewhere.of(self._control, mesh).tell_of(code_of_files(function))
        except StaleCode:
            raise
        except (MeshError, TimeoutError):  # the call itself says that ranks are lost, or busy
            return
        if len(self._checked) >= _MOST_CHECKED:
            self._checked.clear()
        self._checked[id(code)] = code, now


def code_of_files(function: Any) -> set[OfFile]:
    """Return the functions of modules that can be imported to which a function of the user's leads, itself
    among them.
    """
    found = _Code()
    found.add(("called",), function)
    found.add(("function",), _users_function(function))
    return found.names


def _users_function(called: Any) -> FunctionType | None:
    """Return the function of the user's that is called, behind what wraps it."""
    for _ in range(_MOST_WRAPPED):
        if type(called) is FunctionType and is_users(called):
            return called
        called = _inner(called)
    return None


def _inner(called: Any) -> Any:
    if issubclass(type(called), functools.partial):  # an object may raise from __class__
        return called.func
    if type(called) is MethodType:
        return called.__func__
    try:
        wrapped = wrapped_by(called)
    except Exception:  # an object that can't be looked into
        return None
    return getattr(type(called), "__call__", None) if wrapped is None else wrapped  # noqa: B004 - not what it is


class _Code(Reach):
    """The search for the code that a function leads to; what values it sees doesn't matter."""

    def __init__(self) -> None:
        super().__init__(())
        self.names: set[OfFile] = set()

    def _code(self, name: tuple[Any, ...], function: FunctionType) -> None:
        if (found := code_of_file(function)) is not None:
            self.names.add(found)

    def _tensor(self, name: tuple[Any, ...], value: torch.Tensor) -> None:
        """Add nothing."""

    def _array(self, name: tuple[Any, ...], array: Any) -> None:
        """Add nothing."""

    def _optimizer(self, name: tuple[Any, ...], optimizer: torch.optim.Optimizer) -> None:
        """Add nothing."""

    def _collection(self, name: tuple[Any, ...], collection: Any, depth: int) -> None:
        if len(collection) <= _MOST_ITEMS:  # in a longer one there's data
            super()._collection(name, collection, depth)
