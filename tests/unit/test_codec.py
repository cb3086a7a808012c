"""Values to bytes and back."""

from __future__ import annotations

import linecache
import pickle
import subprocess
import sys
import threading
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb._wire import codec, plain
from monarch_nb._wire.codec import CannotPickle, Encoded, decode, encode
from monarch_nb._wire.segment import MIN_BYTES

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")


def round_trip(value: Any) -> Any:
    body = encode(value)
    return decode(body.payload, [bytearray(b) for b in body.buffers])


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, 2.5, "text", b"bytes", (1, [2, {"a": None}]), {"k": (1, 2)}, {"a": {1}},
        bytearray(b"x"), [[[[[1]]]]], list(range(100_000)), [b"x" * 100_000] * 3,
        [bytes([i]) * 100_000 for i in range(30)],
    ],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_plain_values(value: object) -> None:
    assert plain.dumps(value) is not None
    found = round_trip(value)
    assert (found, type(found)) == (value, type(value))


def test_a_list_that_holds_itself_is_plain() -> None:
    value: list[Any] = [1]
    value.append(value)
    found = pickle.loads(plain.dumps(value) or b"")
    assert found[1] is found


def test_long_bytes_are_not_copied_before_they_travel_beside_the_message() -> None:
    value = {"a": [b"x" * MIN_BYTES]}
    assert plain.dumps(value) is None
    assert plain.dumps([bytearray(MIN_BYTES), 1]) is None
    assert [len(b) for b in encode(value).buffers] == [MIN_BYTES]


@pytest.mark.parametrize(
    "value", [print, len, type, int, object(), 1j, slice(3), Ellipsis, IntEnum("E", "A").A]
)
def test_all_else_goes_the_general_way(value: object) -> None:
    assert plain.dumps(value) is None
    assert plain.dumps([1, {"a": value}]) is None


def test_classes_are_never_plain() -> None:
    class Local:
        pass

    assert plain.dumps(Local) is None
    assert plain.dumps([Local()]) is None
    assert round_trip(Local).__name__ == "Local"


def test_small_buffers_ride_along_big_ones_do_not() -> None:
    assert not encode(numpy.zeros(100)).buffers
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


def test_code_keeps_the_file_that_it_is_from() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("def outer():\n    return lambda: 1", "/somewhere/Cell In[5]", "exec"), namespace)
    outer = decode(*encode(namespace["outer"]))
    assert outer.__code__.co_filename == outer().__code__.co_filename == "/somewhere/Cell In[5]"
    assert outer()() == 1


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


def test_attributes_of_tensors_travel() -> None:
    tensor = torch.ones(2)
    tensor.tag = {"shard": 3}
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.itself = parameter
    found, kept = round_trip((tensor, parameter))
    assert found.tag == {"shard": 3}
    assert kept.itself is kept


def test_tied_weights_stay_tied() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    found = round_trip(model)
    assert found[0].weight is found[1].weight
    assert torch.equal(found[0].weight, model[0].weight)


def test_big_tensors_stay_out_of_the_message_and_are_sent_once() -> None:
    tensor = torch.arange(1 << 20)
    body = encode({"a": tensor, "b": tensor.reshape(1024, 1024), "c": tensor})
    assert [b.nbytes for b in body.buffers] == [8 << 20]
    assert len(body.payload) < 2000
    found = decode(body.payload, [bytearray(b) for b in body.buffers])
    found["a"][1024] = -1
    assert found["a"] is found["c"]
    assert int(found["b"][1, 0]) == -1


def test_what_arrives_is_its_own() -> None:
    tensor, array = torch.zeros(3), numpy.zeros(3)
    found, other = round_trip((tensor, array))
    found[0], other[0] = 1, 1
    assert (tensor.tolist(), array.tolist()) == ([0, 0, 0], [0, 0, 0])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_unusual_tensors_go_torchs_way() -> None:
    nested = round_trip(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))
    assert [part.tolist() for part in nested.unbind()] == [[1, 1], [1, 1, 1]]
    assert round_trip(torch.ones(2, 2).to_sparse()).to_dense().tolist() == [[1, 1], [1, 1]]
    assert round_trip(torch.tensor([1j]).conj()).tolist() == [-1j]
    assert round_trip(torch.empty(2, device="meta")).device.type == "meta"
    assert round_trip(torch.ones(1).expand(3)).stride() == (0,)


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_keep_their_order(order: Any) -> None:
    array = numpy.arange(6, dtype="int16").reshape(2, 3).astype("int16", order=order)
    found = round_trip(array)
    assert (found.dtype, found.flags.f_contiguous) == (array.dtype, array.flags.f_contiguous)
    assert numpy.array_equal(found, array)


CELL = """
class Base:
    def hello(self):
        return helper(self.word)

class Derived(Base):
    word = "hi"

def helper(word):
    return word.upper()
"""


def test_what_a_cell_defines_is_known_where_it_was_never_run() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(CELL, namespace)
    body = encode({"type": namespace["Derived"], "base": namespace["Base"], "one": namespace["Derived"]()})
    code = (
        "import sys; from monarch_nb._wire.codec import decode; found = "
        "decode(sys.stdin.buffer.read());print(found['one'].hello(), type(found['one']) is "
        "found['type'], issubclass(found['type'], found['base']))"
    )
    ran = subprocess.run([sys.executable, "-c", code], input=body.payload, capture_output=True, check=True)
    assert ran.stdout.decode().split() == ["HI", "True", "True"]


def test_files_stay_at_home() -> None:
    assert codec.interactive_source(__file__) is None
    linecache.getline(__file__, 1)
    assert codec.interactive_source(__file__) is None


def test_plain_pickle_is_never_used_for_what_a_cell_defines(monkeypatch: pytest.MonkeyPatch) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(CELL, namespace)

    def refuse(*args: object) -> bytes:
        raise AssertionError(f"plain pickle of {args[0]!r}")

    monkeypatch.setattr(pickle, "dumps", refuse)
    for value in (
        namespace["Derived"],
        [namespace["Derived"]],
        {"k": namespace["helper"]},
        (namespace["Base"](),),
    ):
        assert plain.dumps(value) is None
        encode(value)


class IntOfCell(int):
    pass


@pytest.mark.parametrize("value", [IntOfCell(3), [IntOfCell(3)], {IntOfCell(3): 1}])
def test_subclasses_are_not_plain(value: object) -> None:
    assert plain.dumps(value) is None
    found = round_trip(value)
    assert (found, type(found)) == (value, type(value))


class Slotted:
    __slots__ = ("lock", "never_set")

    def __init__(self) -> None:
        self.lock = threading.Lock()


class Child:
    def __init__(self, parent: Holder) -> None:
        self.parent = parent


def child_that_knows_its_parent() -> Child:
    parent = Holder()
    child = Child(parent)
    parent.__dict__ = {"child": child, **parent.__dict__}
    return child


def closure_with_empty_cell() -> object:
    lock = threading.Lock()

    def function() -> object:
        return function, later, lock

    if isinstance(lock, int):
        later = 1  # never run: the cell of `later` stays empty
    return function


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"cfg": Slotted()}, "value, key 'cfg', attribute `lock`: cannot pickle '_thread.lock' object"),
        (closure_with_empty_cell(), "value, closure variable `lock`: cannot pickle '_thread.lock' object"),
        (
            child_that_knows_its_parent(),
            "value, attribute `parent`, attribute `lock`: cannot pickle '_thread.lock' object",
        ),
        (Holder().lock.acquire, "value: cannot pickle"),
        (
            [[[[[[[[threading.Lock()]]]]]]]],
            "value" + ", item 0" * 6 + ": cannot pickle '_thread.lock' object",
        ),
    ],
)
def test_the_culprit_is_named_in_odd_places_too(value: object, says: str) -> None:
    with pytest.raises(CannotPickle) as caught:
        encode(value)
    assert str(caught.value).startswith(says)


def test_the_argument_is_named() -> None:
    with pytest.raises(
        CannotPickle, match=r"^argument `cfg`, attribute `lock`: cannot pickle '_thread.lock' object$"
    ):
        encode(Holder(), "argument `cfg`")


def test_an_error_of_the_users_own_is_the_cause() -> None:
    class Refuses:
        def __reduce__(self) -> str:
            raise ValueError("not me")

    with pytest.raises(CannotPickle, match=r"^value, item 0: not me$") as caught:
        encode([Refuses()])
    assert isinstance(caught.value.__cause__, ValueError)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner)
    ),
)


@given(PLAIN)
def test_any_plain_value_comes_back(value: object) -> None:
    found = round_trip(value)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_long_bytes_travel_as_buffers(kind: type) -> None:
    value = kind(bytes(range(256)) * (3 << 12))
    for body in (encode(value), encode(((value, {"again": [value]}), {}))):
        assert len(body.payload) < 1000 and [b.nbytes for b in body.buffers] == [len(value)]
    assert round_trip(value) == value and type(round_trip(value)) is kind
    (first, again), _ = round_trip(((value, {"again": [value]}), {}))
    assert first == value and first is again["again"][0]
    assert round_trip((value, lambda: 3))[1]() == 3
