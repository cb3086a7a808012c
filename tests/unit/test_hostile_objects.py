"""Errors and representations that are hostile: they can be told all the same, and what is told is never
long.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from monarch_nb._protocol.base import decode
from monarch_nb._protocol.failure import Failure
from monarch_nb._rank import variables
from monarch_nb._rank.bundles import MAX_RICH_BYTES, encode_bundle, encode_metadata
from monarch_nb._transport.failure import describe, encode_failure, message_of, traceback_of


class _RaisesItself(BaseException):
    def __str__(self) -> str:
        raise self

    __repr__ = __str__


class _Exits(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)

    def __reduce__(self) -> Any:
        raise SystemExit(4)


class _HidesItsTrace(Exception):
    @property
    def __traceback__(self) -> Any:
        raise ValueError("no trace")


def _raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as found:
        return found


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_RaisesItself, "<_RaisesItself object: its __str__ raised itself>"),
        (_Exits, "<_Exits object: its __str__ raised SystemExit: 3>"),
        (lambda: _HidesItsTrace("plain"), "plain"),
        (lambda: ValueError("lone \ud800"), "lone \\ud800"),
    ],
)
def test_a_hostile_error_is_described(make: Callable[[], BaseException], message: str) -> None:
    error = make()  # pytest would show a parameter
    found = describe(_raised(error), rank=3)
    assert found.message == message
    assert found.type == type(error).__qualname__
    assert "in _raised" in found.traceback
    assert found.rank == 3


class _OddText(str):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class _OddlyNamed(Exception):
    pass


_OddlyNamed.__qualname__ = _OddText("Odd")


def test_a_name_of_another_class_is_told_as_plain_text() -> None:
    found = describe(_raised(_OddlyNamed("plain")))
    assert type(found.type) is str and found.type == "Odd"
    assert decode(Failure, encode_failure(found).payload) == found


@pytest.mark.parametrize("where", [{"pid": 1 << 80}, {"rank": 1 << 80}, {"host": object()}, {"nowhere": 1}])
def test_of_what_cannot_be_described_the_class_is_told(where: dict[str, Any]) -> None:
    payload = encode_failure(describe(_raised(ValueError("x")), **where)).payload
    found = decode(Failure, payload)
    assert found.type == "ValueError" and "<ValueError object that can't be told of: " in found.message


@pytest.mark.parametrize("wrong", [{"pid": 1 << 80}, {"actor": object()}, {"message": _OddText("odd")}])
def test_a_failure_that_cannot_be_encoded_is_one_all_the_same(wrong: dict[str, Any]) -> None:
    failure = Failure(**{"type": "ValueError", "message": "x", "dead": True, **wrong})
    found = decode(Failure, encode_failure(failure).payload)
    assert found.dead and "can't be told of" in found.message


def test_an_error_that_raises_itself_keeps_its_trace() -> None:
    error = _raised(_RaisesItself())
    before = traceback_of(error)
    for _ in range(3):
        message_of(error)
    assert traceback_of(error) == before
    assert before.count("File ") == 1


def test_a_long_message_is_cut_and_says_how_to_get_all() -> None:
    found = describe(_raised(ValueError("x" * 20_000_000)))
    assert len(found.message) < 11_000
    assert "19,990,000 characters left out; on the rank, str(sys.last_value) has it all" in found.message
    assert len(found.traceback) < 12_000
    assert found.traceback.count("left out") == 1
    assert found.exception is None


def test_a_deep_trace_keeps_its_ends() -> None:
    def fall(n: int) -> None:
        return rise(n + 1) if n < 400 else _ends()

    def rise(n: int) -> None:
        return fall(n + 1)

    def _ends() -> None:
        raise KeyError("bottom")

    text = ""
    try:
        fall(0)
    except KeyError as error:
        text = traceback_of(error)
    assert "363 frames left out in the middle" in text
    assert "in test_a_deep_trace" in text and "in _ends" in text


@pytest.mark.parametrize("how", ["from cause", "while handled"])
def test_a_long_chain_keeps_its_ends(how: str) -> None:
    text = traceback_of(_chain_of(300, how == "from cause"))
    shown = [line for line in text.splitlines() if line.startswith("ValueError: ")]
    assert shown == [f"ValueError: {i}" for i in (0, 1, 2, 3, 4, 295, 296, 297, 298, 299)]
    assert text.count("... 290 errors of this chain, each the cause of the next, are left out ...") == 1
    whole = traceback_of(_chain_of(10, how == "from cause"))
    assert whole.count("ValueError: ") == 10 and "left out" not in whole


def test_what_is_suppressed_is_no_link_of_a_chain() -> None:
    error = _chain_of(300, False)
    error.__suppress_context__ = True
    assert traceback_of(error).count("ValueError: ") == 1


def _chain_of(num: int, is_cause: bool) -> BaseException:
    last: BaseException | None = None
    for i in range(num):
        error = ValueError(i)
        if is_cause:
            error.__cause__ = last
        else:
            error.__context__ = last
        last = error
        try:
            raise error
        except ValueError:
            pass
    assert last is not None
    return last


@pytest.mark.parametrize(
    ("mime", "value", "reason"),
    [
        ("application/json", {(1, 2): 3}, "keys must be str"),
        ("application/json", {"a": b"x"}, "bytes is not JSON serializable"),
        ("application/vnd.plotly.v1+json", {"a": "\ud800"}, "surrogates not allowed"),
        ("text/html", 5, "expected text, not int"),
        ("text/html", "x" * (MAX_RICH_BYTES + 1), "8 MiB are the limit; %%mesh --output NAME"),
        ("image/png", b"x" * (MAX_RICH_BYTES + 1), "8 MiB are the limit"),
    ],
)
def test_what_cannot_be_shown_is_named(mime: str, value: Any, reason: str) -> None:
    found = encode_bundle({mime: value, "text/plain": "plain", "image/jpeg": b"\xff"})
    json.dumps(found)
    assert mime not in found and found["image/jpeg"] == "/w=="
    first, line = found["text/plain"].split("\n")
    assert first == "plain" and line.startswith(f"<{mime} not shown: ") and reason in line


def test_a_cycle_and_nonsense_are_named() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    assert "Circular" in encode_bundle({"application/json": cycle})["text/plain"]
    assert "expected a dict" in encode_bundle([1])["text/plain"]
    assert "a MIME type is a str, not int" in encode_bundle({5: "x"})["text/plain"]
    assert encode_metadata({(1, 2): 3}) == {} and encode_metadata({"width": 3}) == {"width": 3}


def test_a_long_text_is_cut() -> None:
    text = encode_bundle({"text/plain": "y" * 20_000_000})["text/plain"]
    assert len(text) < 20_000 and "19,982,000 characters left out; %%mesh --output NAME" in text


class _Hostile:
    @property
    def __class__(self) -> Any:
        raise RuntimeError("who asks?")

    def __getattr__(self, name: str) -> Any:
        raise ValueError(name)

    def __repr__(self) -> str:
        raise KeyError("no")


def test_hostile_variables_have_a_row() -> None:
    import torch

    names = {"Linear": torch.nn.Linear, "hostile": _Hostile(), "Tensor": torch.Tensor, "n": 5}
    assert variables.user_names(names) == ["Linear", "Tensor", "hostile", "n"]
    rows = {name: variables.describe(name, value) for name, value in names.items()}
    assert rows["Linear"]["text"] == "torch.nn.modules.linear.Linear" and rows["n"]["text"] == "5"
    assert rows["hostile"]["type"] == "_Hostile"
    assert rows["hostile"]["text"] == "<can't be looked at: ValueError: nbytes>"
