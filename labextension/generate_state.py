"""Write `src/state.ts`, a mesh's state as TypeScript sees it, from the Python types that it's sent as:

    python labextension/generate_state.py           # writes the file
    python labextension/generate_state.py --check   # fails if the file isn't what the types say

Doc comments are the types' docstrings and the strings below their fields.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from monarch_nb._protocol import resources, states
from monarch_nb.status import model

FILE = Path(__file__).parent / "src" / "state.ts"
COMMAND = "make labextension"
WIDTH = 110
HEADER = f"""/**
 * A mesh's state. Generated from `monarch_nb/status/model.py` by `{COMMAND}`: change it there.
 *
 * Times are seconds since the epoch, durations seconds, sizes bytes, shares per cent; null: it isn't known.
 */
"""
WORDS: tuple[type[StrEnum], ...] = (states.RankState, states.HostState, states.StopState, states.OnFailure)
TYPES: Mapping[type[msgspec.Struct], str] = {
    resources.Collective: "ICollective",
    resources.Transfers: "ITransfers",
    resources.GpuProcess: "IGpuProcess",
    resources.GpuStatus: "IGpu",
    resources.History: "IHistory",
    model.RankStatus: "IRank",
    model.HostStatus: "IHost",
    model.MeshHead: "IMeshHead",
    model.MeshStatus: "IMeshStatus",
    model.MeshSummary: "IMeshSummary",
}
LATER: Mapping[type[msgspec.Struct], frozenset[str]] = {
    resources.GpuStatus: frozenset({"uuid"}),
    model.RankStatus: frozenset({"cells_waiting", "transfers"}),
    model.MeshHead: frozenset({"ends_at", "journal_trouble", "kernels", "owner_pid"}),
    model.MeshSummary: frozenset({"kernels"}),
}
"""Fields that snapshots in notebooks saved long ago lack."""
_PLAIN = {str: "string", int: "number", float: "number", bool: "boolean", NoneType: "null"}


def typescript() -> str:
    """Return what the file should be."""
    parts = [HEADER, *map(_words, WORDS), *map(_interface, TYPES)]
    return "\n".join(parts)


def type_text(kind: Any) -> str:
    """Return a type of a field in TypeScript.

    >>> type_text(tuple[float | None, ...]), type_text(tuple[str, int])
    ('(number | null)[]', '[string, number]')
    """
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind in TYPES:
        return TYPES[kind]
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " | ".join(dict.fromkeys(map(type_text, inner)))
    if origin is tuple and inner[-1] is Ellipsis:
        one = type_text(inner[0])
        return f"({one})[]" if " | " in one else f"{one}[]"
    if origin is tuple:
        return f"[{', '.join(map(type_text, inner))}]"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"{{ [name: string]: {type_text(inner[1])} }}"
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind.__name__
    raise TypeError(f"no type of TypeScript is known for {kind}: add it to {Path(__file__).name}")


def _words(words: type[StrEnum]) -> str:
    alternatives = " | ".join(f"'{word}'" for word in words)
    line = f"export type {words.__name__} = {alternatives};"
    if len(line) > WIDTH:
        line = f"export type {words.__name__} =\n  {alternatives};"
    return _comment(inspect.getdoc(words) or "", "") + line + "\n"


def _interface(kind: type[msgspec.Struct]) -> str:
    base = next((TYPES[b] for b in kind.__bases__ if b in TYPES), "")
    head = f"export interface {TYPES[kind]}{f' extends {base}' if base else ''} {{"
    lines = [line for name, hint in _own_fields(kind) for line in _field(kind, name, hint)]
    return "\n".join([_comment(inspect.getdoc(kind) or "", "") + head, *lines, "}"]) + "\n"


def _own_fields(kind: type[msgspec.Struct]) -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(kind)
    for name in vars(kind)["__annotations__"]:
        yield name, hints[name]


def _field(kind: type[msgspec.Struct], name: str, hint: Any) -> Iterator[str]:
    said = _docs_of_fields(kind).get(name, "")
    if said:
        yield _comment(said, "  ").removesuffix("\n")
    yield f"  {name}{'?' if name in LATER.get(kind, ()) else ''}: {type_text(hint)};"


def _docs_of_fields(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return the strings that stand below fields."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    return {
        field.target.id: inspect.cleandoc(str(ast.literal_eval(said.value)))
        for field, said in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(said, ast.Expr)
        and isinstance(said.value, ast.Constant)
    }


def _comment(text: str, indent: str) -> str:
    text = " ".join(text.split()).replace("None", "null")
    if len(indent) + len(text) + 7 <= WIDTH:
        return f"{indent}/** {text} */\n"
    lines = textwrap.wrap(text, WIDTH - len(indent) - 3)
    return f"{indent}/**\n" + "".join(f"{indent} * {line}\n" for line in lines) + f"{indent} */\n"


def main() -> int:
    """Write the file, or compare; return the exit status."""
    wanted = typescript()
    if "--check" not in sys.argv:
        FILE.write_text(wanted, "utf-8")
        return 0
    if FILE.exists() and FILE.read_text("utf-8") == wanted:
        return 0
    print(f"labextension/src/{FILE.name} isn't what the Python types say; type `{COMMAND}`, and commit it")
    return 1


if __name__ == "__main__":
    sys.exit(main())
