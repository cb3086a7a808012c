"""Values to bytes and back."""

from __future__ import annotations

import linecache
import threading
from typing import Any

import pytest

from monarch_nb._wire import codec
from monarch_nb._wire.codec import CannotPickle, Encoded, decode, encode

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")


def round_trip(value: Any) -> Any:
    body = encode(value)
    return decode(body.payload, [bytearray(b) for b in body.buffers])


@pytest.mark.parametrize("value", [None, True, 3, 2.5, "text", b"bytes", (1, [2, {"a": None}]), {"k": (1, 2)}])
def test_plain_values(value: object) -> None:
    assert codec.is_plain(value)
    assert round_trip(value) == value


def test_classes_are_never_plain() -> None:
    class Local:
        pass

    assert not codec.is_plain(Local)
    assert not codec.is_plain([Local()])
    assert not codec.is_plain(list(range(1000)))
    assert round_trip(Local).__name__ == "Local"


def test_small_buffers_ride_along_big_ones_do_not() -> None:
    assert encode(numpy.zeros(100)).buffers == []
    body = encode((numpy.arange(1 << 20), "and text"))
    assert [b.nbytes for b in body.buffers] == [8 << 20]
    assert len(body.payload) < 2000
    array, text = round_trip((numpy.arange(1 << 20), "and text"))
    assert array[-1] == (1 << 20) - 1
    assert text == "and text"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "complex64", "uint8"])
def test_tensors(dtype: str) -> None:
    tensor = torch.ones(3, 5).to(getattr(torch, dtype))
    found = round_trip(tensor)
    assert found.dtype == tensor.dtype
    assert torch.equal(found, tensor)


def test_views_share_their_storage_again() -> None:
    base = torch.arange(10)
    whole, part = round_trip((base, base[2:4]))
    whole[2] = -5
    assert part.tolist() == [-5, 3]


def test_a_small_view_leaves_its_big_storage_behind() -> None:
    body = encode(torch.zeros(10 << 20, dtype=torch.uint8)[:10])
    assert len(body.payload) < 2000
    assert not body.buffers


def test_transposed_tensors_and_parameters() -> None:
    tensor = torch.arange(6).reshape(2, 3).T
    assert round_trip(tensor).tolist() == tensor.tolist()
    parameter = round_trip(torch.nn.Parameter(torch.ones(2), requires_grad=False))
    assert isinstance(parameter, torch.nn.Parameter)
    assert not parameter.requires_grad
    assert round_trip(torch.ones(2, requires_grad=True)).requires_grad
    model = round_trip(torch.nn.Linear(2, 2))
    assert sum(p.numel() for p in model.parameters()) == 6


def test_empty_tensors() -> None:
    assert round_trip(torch.empty(0, 3)).shape == (0, 3)


def test_sources_of_cells_travel() -> None:
    source = "def typed():\n    return 1 // 0\n"
    name = "/tmp/ipykernel_1/42.py"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), namespace)
    body = encode(namespace["typed"])
    del linecache.cache[name]
    function = decode(*body)
    with pytest.raises(ZeroDivisionError) as caught:
        function()
    assert linecache.getline(name, 2) == "    return 1 // 0\n"
    assert caught.traceback[-1].path is not None


class Holder:
    def __init__(self) -> None:
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"cfg": Holder()}, "value, key 'cfg', attribute `lock`: cannot pickle"),
        ([1, threading.Lock()], "value, item 1: cannot pickle"),
        (lambda lock=threading.Lock(): lock, "value: cannot pickle"),
    ],
)
def test_the_culprit_is_named(value: object, path: str) -> None:
    with pytest.raises(CannotPickle, match=path):
        encode(value)


def test_encoded_unpacks_for_decode() -> None:
    assert decode(*Encoded(encode(5).payload)) == 5


def test_encoding_keeps_nothing_alive() -> None:
    import gc
    import weakref

    gc.disable()
    try:
        tensor = torch.zeros(2 << 20, dtype=torch.uint8)
        storage = weakref.ref(tensor.untyped_storage())
        encode((tensor, threading.Event))
        del tensor
        assert storage() is None
    finally:
        gc.enable()
