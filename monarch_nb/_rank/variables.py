"""Describes a rank's variables in a few words each, and computes fingerprints with which ranks are compared
without moving the data.
"""

from __future__ import annotations

import hashlib
import pickle
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from monarch_nb._cells import Namespace
from monarch_nb._protocol.variables import VariableRow
from monarch_nb._transport.failure import class_name, message_of
from monarch_nb._wire.loaded import loaded
from monarch_nb.exceptions import NotDefinedHere

MAX_TEXT = 60
MAX_LEAVES = 100_000
MAX_NEAR = 3
MAX_HELD = 20
LARGE_BYTES = 256 << 20
"""For larger values, the overview compares the norm only; `diff` compares everything."""
_DIGEST_BYTES = 8
_GIVEN = frozenset(
    {
        "rank",
        "world_size",
        "local_rank",
        "point",
        "mesh",
        "device",
        "In",
        "Out",
        "get_ipython",
        "exit",
        "quit",
        "open",
    }
)
"""Names that every rank's namespace has from the start."""


def not_defined(names: Sequence[str], namespace: Namespace) -> NotDefinedHere:
    """Return the error for undefined variables."""
    import difflib

    held = user_names(namespace)
    near = [found for name in names for found in difflib.get_close_matches(name, held, MAX_NEAR)]
    return NotDefinedHere(names, near, held[:MAX_HELD])


def user_names(namespace: Namespace) -> list[str]:
    """Return the names of the user's own variables: no modules, no hidden names, no initial ones."""
    return sorted(
        name
        for name, value in namespace.items()
        if not name.startswith("_") and name not in _GIVEN and not is_a(value, types.ModuleType)
    )


def is_a(value: Any, kind: Any) -> bool:
    """Return `isinstance` without asking the object, whose `__class__` may be anything, or raise."""
    return issubclass(type(value), kind)


def describe(name: str, value: Any) -> VariableRow:
    """Return a row about a variable: type, shape, dtype, device, norm, text, and a digest of its content.

    An object that can't be looked at has a row that says so.
    """
    return _row(name, value, lambda outline: _content(value, outline))


def _row(name: str, value: Any, content: Callable[[VariableRow], VariableRow]) -> VariableRow:
    row: VariableRow = {"name": name, "type": class_name(value)}
    try:
        outline = _outline(value)
        return {**row, **outline, **content(outline)}
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return {
            **row,
            "text": f"<can't be looked at: {class_name(error)}: {message_of(error)[:MAX_TEXT]}>",
            "digest": class_name(value),
        }


def _content(value: Any, outline: VariableRow) -> VariableRow:
    """Return the columns of a row that need all data to be read."""
    row: VariableRow = {"norm": _norm(value)} if "norm" in outline else {}
    return {**row, "digest": digest(value) if _num_bytes(value) <= LARGE_BYTES else repr(row.get("norm"))}


def _outline(value: Any) -> VariableRow:
    """Return the columns of a row that cost nothing; a norm that could be computed is None."""
    torch = loaded("torch")
    numpy = loaded("numpy")
    if torch is not None and _is_dtensor(value):
        return {**_tensor_outline(value), "sharded": _placements(value)}
    if torch is not None and is_a(value, torch.Tensor):
        return {**_tensor_outline(value), "norm": None}
    if torch is not None and is_a(value, torch.nn.Module):
        parameters = list(value.parameters())
        return {
            "shape": (sum(p.numel() for p in parameters),),
            "dtype": ", ".join(sorted({_dtype(p) for p in parameters})),
            "device": ", ".join(sorted({str(p.device) for p in parameters})),
            "norm": None,
        }
    if numpy is not None and is_a(value, numpy.ndarray):
        return {"shape": value.shape, "dtype": str(value.dtype), "norm": None}
    if is_a(value, str | bytes | list | tuple | dict | set | frozenset):
        return {"shape": (len(value),), "text": _short(value)}
    return {"text": _short(value)}


def _tensor_outline(value: Any) -> VariableRow:
    return {"shape": tuple(value.shape), "dtype": _dtype(value), "device": str(value.device)}


def _norm(value: Any) -> float | None:
    torch, numpy = loaded("torch"), loaded("numpy")
    if torch is not None and is_a(value, torch.Tensor):
        return _tensor_norm(value)
    if torch is not None and is_a(value, torch.nn.Module):
        return float(sum(_tensor_norm(p) ** 2 for p in value.parameters() if not _is_dtensor(p)) ** 0.5)
    return _array_norm(numpy, value)


def _num_bytes(value: Any) -> int:
    torch = loaded("torch")
    if torch is not None and is_a(value, torch.nn.Module):
        return sum(p.numel() * p.element_size() for p in value.parameters())
    return 0 if is_a(value, type) else int(getattr(value, "nbytes", 0) or 0)


def _short(value: Any) -> str:
    if is_a(value, type | types.FunctionType):
        return f"{value.__module__}.{value.__qualname__}".removeprefix("__main__.")
    try:
        text = repr(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return f"<repr raised {class_name(error)}: {message_of(error)}>"[:MAX_TEXT]
    text = " ".join(text.split())
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _is_dtensor(value: Any) -> bool:
    """Say whether a tensor is distributed; without importing what defines DTensor."""
    return not is_a(value, type) and hasattr(type(value), "placements") and hasattr(type(value), "to_local")


def _placements(value: Any) -> str:
    return ", ".join(map(str, value.placements))


def _tensor_norm(tensor: Any) -> float:
    if tensor.is_meta or not tensor.numel():
        return 0.0
    if _is_dtensor(tensor):
        tensor = tensor.to_local()
    detached = tensor.detach()
    if detached.is_quantized:
        detached = detached.dequantize()
    if not detached.is_complex():
        detached = detached.double() if detached.device.type != "mps" else detached.float()
    return float(abs(detached.norm()))


def _array_norm(numpy: Any, array: Any) -> float | None:
    if array.dtype.kind not in "biufc":
        return None
    return float(numpy.linalg.norm(array.astype(complex if array.dtype.kind == "c" else float).ravel()))


# --- comparing


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value as (path, leaf): tensors, arrays and plain values.

    >>> dict(leaves({"a": [1, 2]}))
    {"['a'][0]": 1, "['a'][1]": 2}
    """
    torch = loaded("torch")
    if torch is not None and is_a(value, torch.nn.Module | torch.optim.Optimizer):
        value = value.state_dict()
    if is_a(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}[{key!r}]")
    elif is_a(value, list | tuple) and not hasattr(type(value), "_fields"):
        for i, item in enumerate(value):
            yield from leaves(item, f"{path}[{i}]")
    else:
        yield path, value


def digest(value: Any) -> str:
    """Return a digest that is equal for equal content. Of a DTensor only its global form counts: its
    shards are no disagreement.
    """
    found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for i, (path, leaf) in enumerate(leaves(value)):
        if i >= MAX_LEAVES:
            break
        found.update(path.encode())
        found.update(_leaf_digest(leaf))
    return found.hexdigest()


def _leaf_digest(leaf: Any) -> bytes:
    torch = loaded("torch")
    if torch is not None and is_a(leaf, torch.Tensor):
        return _tensor_digest(torch, leaf)
    numpy = loaded("numpy")
    if numpy is not None and is_a(leaf, numpy.ndarray) and leaf.dtype.kind != "O":
        head = f"{leaf.dtype}{leaf.shape}".encode()
        return hashlib.blake2b(
            numpy.ascontiguousarray(leaf).data, digest_size=_DIGEST_BYTES, key=head[:64]
        ).digest()
    return hashlib.blake2b(_plain_bytes(leaf), digest_size=_DIGEST_BYTES).digest()


def _plain_bytes(leaf: Any) -> bytes:
    if is_a(leaf, type | types.FunctionType | types.MethodType):
        return f"{leaf.__module__}.{leaf.__qualname__}".encode()
    try:
        return pickle.dumps(leaf, 4)
    except Exception:
        return type(leaf).__qualname__.encode()


def _tensor_digest(torch: Any, tensor: Any) -> bytes:
    head = f"{tensor.dtype}{tuple(tensor.shape)}".encode()
    if _is_dtensor(tensor):
        return hashlib.blake2b(head + _placements(tensor).encode(), digest_size=_DIGEST_BYTES).digest()
    if tensor.is_meta or not tensor.numel():
        return hashlib.blake2b(head, digest_size=_DIGEST_BYTES).digest()
    plain = tensor.detach().to("cpu")
    if plain.layout != torch.strided:
        plain = plain.to_dense()
    if plain.is_quantized:
        plain = plain.int_repr()
    data = plain.contiguous().reshape(-1).view(torch.uint8).numpy().data
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES, key=head[:64]).digest()


def leaf_digests(value: Any) -> dict[str, str]:
    """Return a digest for each leaf, by path."""
    return {path: _leaf_digest(leaf).hex() for path, leaf in leaves(value)}


def leaf_at(value: Any, path: str) -> Any:
    """Return a leaf as something that can be sent and compared: a tensor on the CPU, an array, or the
    value itself.
    """
    for found, leaf in leaves(value):
        if found == path:
            torch = loaded("torch")
            if torch is not None and is_a(leaf, torch.Tensor):
                return leaf.to_local().detach().cpu() if _is_dtensor(leaf) else leaf.detach().cpu()
            return leaf
    raise KeyError(path)


# --- help and completion


MAX_MATCHES = 200


def complete(namespace: Namespace, text: str) -> list[str]:
    """Return the completions of `text`: variables, or attributes after a dot. Runs no user code.

    >>> complete({"model": 1, "mode": 2}, "mod")
    ['mode', 'model']
    """
    owner, dot, start = text.rpartition(".")
    if not dot:
        names = [
            n for n in namespace if n.startswith(start) and (start.startswith("_") or not n.startswith("_"))
        ]
        return sorted(names)[:MAX_MATCHES]
    first, *rest = owner.split(".")
    if first not in namespace:
        return []
    value = namespace[first]
    for attribute in rest:
        value = _plain_attribute(value, attribute)
    known = {*dir(type(value)), *getattr(value, "__dict__", {}), *_module_names(value)}
    fitting = (n for n in known if n.startswith(start) and (start.startswith("_") or not n.startswith("_")))
    return [f"{owner}.{n}" for n in sorted(fitting)][:MAX_MATCHES]


def _plain_attribute(value: Any, name: str) -> Any:
    """Return an attribute without running properties."""
    found = getattr(value, "__dict__", {}).get(name)
    if found is None:
        found = _module_names(value).get(name)
    if found is None and isinstance(value, types.ModuleType):
        found = getattr(value, name, None)
    return found


def _module_names(value: Any) -> dict[str, Any]:
    """Return the parameters and parts of a torch module, which are no plain attributes."""
    found: dict[str, Any] = {}
    for table in ("_modules", "_parameters", "_buffers"):
        entries = getattr(value, "__dict__", {}).get(table)
        if isinstance(entries, dict):
            found.update(entries)
    return found


GLANCE_BYTES = 16 << 20
"""For larger values, help on a name doesn't compare ranks: that would take too long for a tooltip."""
GLANCE_ITEMS = 8


def glance(name: str, value: Any) -> VariableRow:
    """Return a tooltip's row of a variable on one rank: with the content of a small value, and a digest
    unless it's large.
    """
    row = _row(
        name, value, lambda outline: _content(value, outline) if _num_bytes(value) <= GLANCE_BYTES else {}
    )
    if "text" not in row and row.get("dtype") and row["type"] != "type" and _num_items(row) <= GLANCE_ITEMS:
        row["text"] = _short(value)
    return row


def _num_items(row: VariableRow) -> int:
    num = 1
    for size in row.get("shape", ()):
        num *= size
    return num


def look_at(name: str, value: Any) -> VariableRow:
    """Return the row that `NAME?` shows: type, text, signature, documentation, source file."""
    import inspect

    found = glance(name, value)
    found["repr"] = _tried(lambda: repr(value)[:1000], lambda error: f"<repr raised {type(error).__name__}>")
    found["signature"] = _tried(lambda: f"{name}{inspect.signature(value)}" if callable(value) else "")
    found["doc"] = _tried(lambda: inspect.getdoc(value) or "")
    found["source"] = _tried(lambda: inspect.getsource(value) if callable(value) else "")
    return found


def _tried(look: Callable[[], str], otherwise: Callable[[Exception], str] = lambda _error: "") -> str:
    """Return a text made by user code, whatever that raises."""
    try:
        return look()
    except Exception as error:
        return otherwise(error)
