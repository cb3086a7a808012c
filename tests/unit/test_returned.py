"""The proof that a value is only returned holds for no function that uses it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from monarch_nb._tensor.returned import Fate, calls_directly, fate_of


class Value:
    """Knows from where `item` was called last."""

    def __init__(self) -> None:
        self.sites: list[Any] = []
        self.flag = True

    def item(self) -> float:
        frame = sys._getframe(1)
        self.sites.append((frame.f_code, frame.f_lasti))
        return float(len(self.sites))

    def __float__(self) -> float:
        frame = sys._getframe(1)
        self.sites.append((frame.f_code, frame.f_lasti))
        return 1.0

    def step(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def __enter__(self) -> None:
        """Begin a block."""

    def __exit__(self, *_: Any) -> None:
        """End a block."""


def alone(x: Any) -> Any:
    return x.item()


def in_containers(x: Any) -> Any:
    value = x.item()
    x.step(1, rate=2)
    return {"loss": value, "all": [1, value]}, (value, x)


def in_a_block(x: Any) -> Any:
    with x:
        return x.item()


def before_other_calls(x: Any) -> Any:
    value = x.item()
    for _ in range(3):
        x.step()
    other = value
    del value
    return other


def as_float(x: Any) -> Any:
    return float([x][0])


def swapped(x: Any) -> Any:
    a, b = x.item(), 1
    a, b = b, a
    return a, b


def finally_done(x: Any) -> Any:
    try:
        return x.item()
    finally:
        x.step()


def after_a_block(x: Any) -> Any:
    with x:
        value = x.item()
    return value


def or_not(x: Any) -> Any:
    value = x.item()
    if x.flag:
        return 3
    return value


def in_a_loop(x: Any) -> Any:
    for _ in range(2):
        value = x.item()
        last, value = value, None
    return last


def compared(x: Any) -> Any:
    value = x.item()
    return value if value < 3 else 3.0


def asked(x: Any) -> Any:
    value = x.item()
    return value or 1


def added(x: Any) -> Any:
    return x.item() + 0


def given_to_a_function(x: Any) -> Any:
    value = x.item()
    x.step(value)
    return value


def rounded(x: Any) -> Any:
    return round(x.item())


def made_text(x: Any) -> Any:
    return f"{x.item()}"


def kept(x: Any) -> Any:
    value = x.item()
    x.flag = value
    return value


def put_into_a_list(x: Any) -> Any:
    found = [x.item()]
    x.sites += found
    return found


def closed_over(x: Any) -> Any:
    value = x.item()
    x.step(lambda: value)
    return value


def seen_as_a_local(x: Any) -> Any:
    value = x.item()
    x.step(locals())
    return value


def taken_apart(x: Any) -> Any:
    (value,) = [x.item()]
    return value


def yielded(x: Any) -> Any:
    yield x.item()


def matched(x: Any) -> Any:
    match x.item():
        case 1:
            return 2
        case other:
            return other


@pytest.mark.parametrize(
    ("function", "fate"),
    [
        *((f, Fate.RETURNED) for f in (alone, in_containers, in_a_block, before_other_calls, swapped)),
        *((f, Fate.RETURNED) for f in (finally_done, in_a_loop)),
        *((f, Fate.DROPPED) for f in (after_a_block, or_not)),
        *((f, Fate.USED) for f in (compared, asked, added, given_to_a_function, rounded, made_text, kept)),
        *((f, Fate.USED) for f in (put_into_a_list, closed_over, seen_as_a_local, taken_apart, matched)),
    ],
)
def test_what_becomes_of_a_value(function: Callable[[Any], Any], fate: Fate) -> None:
    for _ in range(40):  # Python specialises instructions after some calls
        x = Value()
        function(x)
        assert {fate_of(*site, "item") for site in x.sites if isinstance(site, tuple)} == {fate}


def test_other_calls_give_other_values() -> None:
    x = Value()
    as_float(x)
    assert fate_of(*x.sites[0], "__float__") is Fate.RETURNED
    assert fate_of(*x.sites[0], "__int__") is fate_of(*x.sites[0], "item") is Fate.USED
    list(yielded(x))
    assert fate_of(*x.sites[1], "item") is Fate.USED
    x.sites.clear()
    (lambda: max([x], key=Value.item))()
    assert fate_of(*x.sites[0], "item") is Fate.USED


def test_calls_by_others() -> None:
    seen: list[bool] = []

    class Trainer:
        def inner(self, *_: Any) -> float:
            frame = sys._getframe(1)
            seen.append(calls_directly(frame, self.inner.__code__))
            return 1.0

    trainer = Trainer()
    method = trainer.inner

    def calls() -> None:
        trainer.inner(len([1]), 2)
        method()
        max([1, 2], key=trainer.inner)
        list(map(method, [1]))

    for _ in range(20):
        calls()
    assert seen == [True, True, False, False, False] * 20
