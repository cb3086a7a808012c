"""Arguments that are checked by their annotations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from monarch_nb._tracebacks import BadType
from monarch_nb.actor.checked import checked, checks_arguments


@checked
def ask(
    text: str,
    num: int = 0,
    /,
    *rest: int,
    timeout_s: float | None = None,
    names: Sequence[str] = (),
    ends: Callable[[], None] | None = None,
    **sizes: int,
) -> str:
    return f"{text} {num} {rest} {timeout_s} {names} {sizes}"


GOOD: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (("a", 1, 2), {"timeout_s": 0.5}),
    (("a", np.int64(1)), {"timeout_s": np.float32(0.5)}),
    (("a", True), {"timeout_s": Fraction(1, 2), "names": ["b"]}),
    (("a",), {"timeout_s": None, "names": {"b"}, "ends": print}),
    (("a",), {"names": (name for name in "bc"), "ends": None, "gpus": 4}),
]
BAD: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((5,), {}, "ask: text must be a str, not int: 5"),
    ((None,), {}, "ask: text must be a str, not None"),
    (("a", 1.5), {}, "ask: num must be an int, not float: 1.5"),
    (("a",), {"timeout_s": "x"}, "ask: timeout_s must be a number of seconds or None, not str: 'x'"),
    (("a",), {"names": "bc"}, "ask: names must be a list of str, not str: 'bc'"),
    (("a",), {"names": [1]}, "ask: names must be a list of str, not list: [1]"),
    (("a",), {"ends": 1}, "ask: ends must be callable or None, not int: 1"),
    (("a",), {"gpus": "x"}, "ask: gpus must be an int, not str: 'x'"),
    ((), {}, "ask() missing 1 required positional argument: 'text'"),
]


@pytest.mark.parametrize(("args", "kwargs"), GOOD)
def test_what_fits_goes_through(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert ask(*args, **kwargs).startswith("a ")


@pytest.mark.parametrize(("args", "kwargs", "said"), BAD)
def test_what_does_not_fit_is_named(args: tuple[Any, ...], kwargs: dict[str, Any], said: str) -> None:
    with pytest.raises(BadType) as found:
        ask(*args, **kwargs)
    assert str(found.value) == said


def test_a_type_error_of_the_function_itself_goes_through() -> None:
    @checked
    def add(num: int) -> Any:
        return num + "x"  # type: ignore[operator]

    with pytest.raises(TypeError) as found:
        add(1)
    assert type(found.value) is TypeError


def test_all_public_methods_of_a_class_are_checked() -> None:
    @checks_arguments("own")
    class Part:
        def put(self, num: int, own: int = 0) -> int:
            return num + own

        def _put(self, num: int) -> int:
            return num

    part: Any = Part()
    assert part.put(1, own=True) == 2
    assert part._put("x") == "x"
    with pytest.raises(BadType, match="put: num must be an int"):
        part.put("x")
    with pytest.raises(TypeError, match="unsupported operand"):
        part.put(1, "x")
