"""Encodes and decodes values: plain pickle where possible (`plain`), cloudpickle where needed, big buffers
beside the message.

Functions and classes of notebook cells take their source along, so that a traceback on a rank shows the
user's lines.

Tensors go as their storage's bytes: torch's own reduction copies three times. Tensors of one message that
share a storage share it on the other side, too, but for a view that comes first and shows less than half of
it: such a view goes alone, so that ten rows don't drag their data set along. CUDA tensors travel through host
memory and arrive on the receiver's current device, or on the CPU where there is none.
"""

from __future__ import annotations

import ctypes
import functools
import io
import json
import linecache
import pickle
import struct
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from monarch_nb._tracebacks import ShowsItself
from monarch_nb._wire import long_bytes, plain
from monarch_nb._wire.loaded import loaded
from monarch_nb._wire.segment import min_bytes
from monarch_nb._wire.tables import reduce_table

_SOURCED: Final = b"\x01"
_LONG: Final = b"\x02"
_LENGTH = struct.Struct("<I")


class Encoded(NamedTuple):
    """An encoded value: its bytes, and the buffers sent beside them."""

    payload: bytes
    buffers: Sequence[memoryview] = ()


class CannotPickle(ShowsItself, TypeError):
    """The error of a value that can't be pickled; it names the path to the part that prevents that."""


class CannotUnpickle(ShowsItself, RuntimeError):
    """A value that has arrived and can't be made where it is read: its class isn't there, or raises.

    Args:
        what: what the value is.
        reason: why it can't be made, and what to do.
    """

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what, self.reason = what, reason

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


def encode(value: object, what: str = "value") -> Encoded:
    """Return `value` as bytes; long contiguous buffers stay where they are (`segment.min_bytes`).

    Raises:
        CannotPickle: naming, from `what` on, the part that can't be pickled.

    Example:
        >>> decode(*encode({"loss": 0.5}))
        {'loss': 0.5}
    """
    payload = plain.dumps(value)
    return _encode_any(value, what) if payload is None else Encoded(payload)


def _encode_any(value: object, what: str) -> Encoded:
    stream = io.BytesIO()
    buffers: list[memoryview] = []
    is_long = long_bytes.holds_long_bytes(value)
    pickler = (_long_pickler_class() if is_long else _pickler_class())(stream, buffers)
    try:
        pickler.dump(value)
    except Exception as error:
        path = find_unpicklable(value, what) or what
        reason = str(error) or type(error).__name__
        raise CannotPickle(f"{path}: {reason}") from error
    payload = _LONG + stream.getvalue() if is_long else stream.getvalue()
    if pickler.sources:
        head = json.dumps(pickler.sources).encode()
        payload = b"".join((_SOURCED, _LENGTH.pack(len(head)), head, payload))
    return Encoded(payload, buffers)


def decode(payload: bytes | memoryview, buffers: Sequence[Any] = ()) -> Any:
    """Return the value that `encode` made `payload` and `buffers` of."""
    if payload[:1] == _SOURCED:
        (n,) = _LENGTH.unpack_from(payload, 1)
        start = 1 + _LENGTH.size
        _remember_sources(json.loads(bytes(payload[start : start + n])))
        payload = payload[start + n :]
    if payload[:1] == _LONG:
        return long_bytes.loads(payload[1:], buffers)
    return pickle.loads(payload, buffers=buffers)


def to_bytes(encoded: Encoded) -> bytes:
    """Return an encoded value in one piece, buffers included: for keeping it."""
    return pickle.dumps((encoded.payload, [bytearray(b) for b in encoded.buffers]), 5)


def from_bytes(data: bytes | memoryview) -> Any:
    """Return the value that `to_bytes` was given the encoding of."""
    return decode(*pickle.loads(data))


# --- sources of notebook cells


def _remember_sources(sources: dict[str, str]) -> None:
    for filename, text in sources.items():
        # mtime None: linecache never drops such an entry for lack of a file.
        linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)


def interactive_source(filename: str) -> str | None:
    """Return the source of code typed into a cell, or None if `filename` is a file or unknown."""
    entry = linecache.cache.get(filename)
    if entry is None or len(entry) < 4 or entry[1] is not None:
        return None
    return "".join(entry[2])


def _filenames(code: types.CodeType) -> Iterator[str]:
    yield code.co_filename
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _filenames(const)


# --- the pickler


def _pickler_class() -> type[Any]:
    global _PICKLER
    if _PICKLER is None:
        _PICKLER = _make_pickler_class()
    return _PICKLER


_PICKLER: type[Any] | None = None


@functools.cache
def _long_pickler_class() -> type[Any]:
    class LongPickler(_pickler_class()):  # type: ignore[misc]
        """The pickler, with long bytes as buffers. Pickle notes what stands for them, so that one
        bytearray in two places is one on the other side, too.
        """

        def __init__(self, stream: io.BytesIO, buffers: list[memoryview]) -> None:
            self._beside: dict[int, long_bytes.Beside] = {}
            super().__init__(stream, buffers)

        def persistent_id(self, obj: Any) -> long_bytes.Beside | None:
            if not long_bytes.is_long(obj):
                return None
            return self._beside.setdefault(id(obj), long_bytes.Beside(obj))

    return LongPickler


def _make_pickler_class() -> type[Any]:
    import cloudpickle  # takes 15 ms: imported only where it's needed

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        """The cloudpickle pickler, with tensors as buffers, and with the sources of functions defined in
        cells.
        """

        def __init__(self, stream: io.BytesIO, buffers: list[memoryview]) -> None:
            self.sources: dict[str, str] = {}
            self._storages: dict[int, _StorageBytes] = {}
            least = min_bytes()

            # No method: a pickler that refers to itself would keep buffers until the next garbage collection.
            def take_buffer(buffer: pickle.PickleBuffer) -> bool:
                raw = buffer.raw()
                if raw.nbytes < least:
                    return True
                buffers.append(raw)
                return False

            super().__init__(stream, protocol=5, buffer_callback=take_buffer)

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, types.FunctionType):
                self._note_source(obj.__code__)
            elif isinstance(obj, types.CodeType):
                return _with_filename(obj, self.dispatch_table[types.CodeType](obj))
            else:
                torch = loaded("torch")
                if torch is not None and isinstance(obj, torch.Tensor):
                    reduced = _reduce_tensor(torch, obj, self._storages)
                    if reduced is not None:
                        return reduced
                reduced = reduce_table(obj)
                if reduced is not None:
                    return reduced
                if type(obj).__module__ == _AUTOCALL and "Exit" in type(obj).__name__:
                    return getattr, (sys, "exit")
            return super().reducer_override(obj)

        def _note_source(self, code: types.CodeType) -> None:
            for filename in _filenames(code):
                if filename not in self.sources:
                    text = interactive_source(filename)
                    if text is not None:
                        self.sources[filename] = text

    return Pickler


_AUTOCALL = "IPython.core.autocall"
"""Module of IPython's `quit` and `exit`, which hold the notebook's shell: elsewhere they are `sys.exit`."""
_NO_FILENAME = "<dynamic-code>"
"""Substitute of cloudpickle 3.1.3 and later for a code's file name."""


def _with_filename(code: types.CodeType, reduced: tuple[Any, tuple[Any, ...]]) -> tuple[Any, tuple[Any, ...]]:
    """Return a reduction of `code` that keeps the file that it's from: tracebacks and debuggers show it."""
    make, arguments = reduced
    return make, tuple(code.co_filename if each == _NO_FILENAME else each for each in arguments)


# --- tensors


class _StorageBytes:
    """The bytes of one storage; pickled once per message, however many tensors share it."""

    def __init__(self, storage: Any) -> None:
        self.array = (ctypes.c_ubyte * storage.nbytes()).from_address(storage.data_ptr())
        self.array.storage = storage  # keeps the memory alive

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _rebuild_storage, (pickle.PickleBuffer(self.array),)


def _reduce_tensor(torch: Any, tensor: Any, storages: dict[int, _StorageBytes]) -> Any:
    """Return the reduction of a dense tensor, or None if torch had better do it."""
    kind = type(tensor)
    if kind is not torch.Tensor and kind is not torch.nn.Parameter:
        return None
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return None
    if tensor.is_nested:
        return None
    state = (tensor.__dict__, None, None, _set_attributes) if tensor.__dict__ else ()
    if tensor.device.type == "cuda":
        return (
            _rebuild_on_device,
            (tensor.detach().cpu(), tensor.requires_grad, kind is not torch.Tensor),
            *state,
        )
    if tensor.device.type != "cpu" or tensor.numel() == 0:
        return None
    flat = tensor.detach()
    storage = flat.untyped_storage()
    if storage.data_ptr() not in storages and storage.nbytes() > 2 * flat.numel() * flat.element_size():
        flat = flat.contiguous().clone()  # a small view must not carry its whole storage along
        storage = flat.untyped_storage()
    shared = storages.get(storage.data_ptr())
    if shared is None:
        shared = storages[storage.data_ptr()] = _StorageBytes(storage)
    layout = (flat.storage_offset(), tuple(flat.size()), tuple(flat.stride()))
    dtype = str(flat.dtype).removeprefix("torch.")
    return _rebuild_tensor, (shared, dtype, layout, tensor.requires_grad, kind is not torch.Tensor), *state


def _rebuild_storage(buffer: Any) -> Any:
    import torch

    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def _rebuild_tensor(storage: Any, dtype: str, layout: Any, requires_grad: bool, is_parameter: bool) -> Any:
    import torch

    offset, size, stride = layout
    tensor = torch.empty(0, dtype=getattr(torch, dtype)).set_(storage, offset, size, stride)
    return _finish_tensor(tensor, requires_grad, is_parameter)


def _rebuild_on_device(tensor: Any, requires_grad: bool, is_parameter: bool) -> Any:
    import torch

    return _finish_tensor(tensor.cuda() if torch.cuda.is_available() else tensor, requires_grad, is_parameter)


def _set_attributes(tensor: Any, attributes: dict[str, Any]) -> None:
    tensor.__dict__.update(attributes)


def _finish_tensor(tensor: Any, requires_grad: bool, is_parameter: bool) -> Any:
    import torch

    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_() if requires_grad else tensor


# --- finding the unpicklable part


def find_unpicklable(value: object, path: str, depth: int = 6, above: tuple[int, ...] = ()) -> str | None:
    """Return the path to the innermost part of `value` that can't be pickled, or None if all of it can."""
    if id(value) in above or _can_pickle(value):  # a reference back up the path isn't the cause
        return None
    if depth:
        for step, child in _children(value):
            found = find_unpicklable(child, f"{path}, {step}", depth - 1, (*above, id(value)))
            if found:
                return found
    return path


def name_culprit(error: CannotPickle, parts: Mapping[str, object]) -> CannotPickle:
    """Return an error that names which of `parts` can't be pickled, by its key and the path from there.

    Args:
        error: what `encode` has raised about all of them together.

    Example:
        >>> error = CannotPickle("value, item 0: cannot pickle 'generator' object")
        >>> name_culprit(error, {"f, argument `x`": [1, 2], "f, argument `y`": [(x for x in "ab")]})
        CannotPickle("f, argument `y`, item 0: cannot pickle 'generator' object")
    """
    reason = str(error).rpartition(": ")[2]
    for name, value in parts.items():
        path = find_unpicklable(value, name)
        if path:
            found = CannotPickle(f"{path}: {reason}")
            found.__cause__ = error.__cause__
            return found
    return error


def _can_pickle(value: object) -> bool:
    try:
        _pickler_class()(io.BytesIO(), []).dump(value)
    except Exception:
        return False
    return True


def _children(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        yield from ((f"key {k!r}", v) for k, v in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"item {i}", v) for i, v in enumerate(value))
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            with suppress(ValueError):  # an empty cell: a name that is not bound yet
                yield f"closure variable `{name}`", cell.cell_contents
        names = [n for n in value.__code__.co_names if n in value.__globals__]
        yield from ((f"global `{n}`", value.__globals__[n]) for n in names)
    elif isinstance(value, types.MethodType):
        yield "its object", value.__self__
    else:
        slots = [
            n for c in type(value).__mro__ for n in c.__dict__.get("__slots__", ()) if not n.startswith("__")
        ]
        attributes = {n: getattr(value, n) for n in slots if hasattr(value, n)} | dict(
            getattr(value, "__dict__", {})
        )
        yield from ((f"attribute `{n}`", v) for n, v in attributes.items())
