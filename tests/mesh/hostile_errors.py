"""Errors that resist being told, and an actor that raises them."""

from __future__ import annotations

from typing import Any

from monarch_nb.actor import Actor, endpoint

NAMES = (
    "ByMetaclass", "Reduces", "BadText", "NoText", "HidesTrace", "HidesAll", "HidesCause", "LoneSurrogate",
    "OddModule", "OddName", "OddNotes", "HidesClass",
)  # fmt: skip


def make(name: str) -> BaseException:
    """Return such an error. The classes are made where they're raised: none of them can be sent."""
    return _classes()[name]("told")


def _classes() -> dict[str, Any]:
    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            if name in ("__name__", "__qualname__", "__module__", "__mro__"):
                raise RuntimeError(name)
            return super().__getattribute__(name)

        def __hash__(cls) -> int:
            raise RuntimeError("hash")

    class OddText(str):
        def __str__(self) -> str:
            raise RuntimeError("text")

        def __len__(self) -> int:
            raise RuntimeError("len")

    def raises(error: BaseException) -> Any:
        def method(self: object, *_args: object) -> Any:
            raise error

        return method

    def of(**names: Any) -> type[Exception]:
        return type("Hostile", (Exception,), names)

    odd_name, surrogate, odd_module = of(), of(), of()
    odd_name.__qualname__ = OddText("Odd")
    surrogate.__qualname__ = "Lone\ud800"
    odd_module.__module__ = 5  # type: ignore[assignment]
    hidden = property(raises(KeyboardInterrupt()))
    return {
        "ByMetaclass": Meta("Hostile", (Exception,), {}),
        "Reduces": of(__reduce__=raises(SystemExit(4)), __reduce_ex__=raises(KeyboardInterrupt())),
        "BadText": of(__str__=raises(SystemExit(3)), __repr__=raises(SystemExit(3))),
        "NoText": of(__str__=lambda self: 5),
        "HidesTrace": of(__traceback__=hidden),
        "HidesAll": of(__getattribute__=raises(MemoryError())),
        "HidesCause": of(__cause__=hidden, __context__=hidden, __notes__=hidden),
        "LoneSurrogate": surrogate,
        "OddModule": odd_module,
        "OddName": odd_name,
        "OddNotes": of(__notes__=7),
        "HidesClass": of(__class__=hidden),
    }


class Hostile(Actor):
    @endpoint
    def alone(self, name: str) -> None:
        raise make(name)

    @endpoint
    def in_a_group(self, name: str) -> None:
        error = make(name)
        assert isinstance(error, Exception)
        raise ExceptionGroup("some", [error])

    @endpoint
    def as_a_cause(self, name: str) -> None:
        raise ValueError("told") from make(name)

    @endpoint
    def ok(self) -> str:
        return "ok"


class AsyncHostile(Actor):
    @endpoint
    async def alone(self, name: str) -> None:
        raise make(name)

    @endpoint
    async def ok(self) -> str:
        return "ok"


class HostileStart(Actor):
    def __init__(self, name: str) -> None:
        raise make(name)

    @endpoint
    def ok(self) -> str:
        return "ok"
