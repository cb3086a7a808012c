"""Shift+Tab and `NAME?` for names that the ranks know: the object on the ranks, and differences between them.

In a cell for the ranks their names come first, in others the kernel's. Asked are the ranks that idle; who is
busy is named.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from monarch_nb._magics.auto import AutoMode
from monarch_nb._magics.completion import named_mesh
from monarch_nb._protocol.states import RankState
from monarch_nb._protocol.work import Work
from monarch_nb._shape import format_ranks
from monarch_nb.actor.handle import transport_of
from monarch_nb.actor.proc_mesh import work_on
from monarch_nb.exceptions import MeshError

if TYPE_CHECKING:
    from monarch_nb._magics.state import State
    from monarch_nb.mesh import Mesh

ASK_S = 10.0
_Rows = Mapping[int, Mapping[str, Any] | None]


class RemoteHelp:
    """The help on names that ranks know. It is asked before the shell's own help and, in a kernel, handles
    the inspection request, which has the cell's text.
    """

    def __init__(self, state: State, shell: Any) -> None:
        self._state = state
        self._shell = shell
        self._own = shell.object_inspect_mime
        self._kernel = getattr(shell, "kernel", None)
        self._own_request = self._kernel.do_inspect if self._kernel is not None else None
        self._is_for_ranks = False
        self._name: str | None = None

    def install(self) -> None:
        """Install the help in front of the shell's own."""
        self._shell.object_inspect_mime = self
        if self._kernel is not None:
            self._kernel.do_inspect = self._inspect

    @staticmethod
    def remove(shell: Any) -> None:
        """Remove it."""
        vars(shell).pop("object_inspect_mime", None)
        kernel = getattr(shell, "kernel", None)
        if kernel is not None:
            vars(kernel).pop("do_inspect", None)

    def _inspect(self, code: str, cursor_pos: int, *args: Any, **options: Any) -> Any:
        """Answer a front end's request."""
        modes = [t for t in self._shell.input_transformers_cleanup if isinstance(t, AutoMode)]
        first = code.partition("\n")[0]
        self._is_for_ranks = code.startswith("%%mesh") or (bool(modes) and not code.startswith("%%"))
        self._name = named_mesh(first) if code.startswith("%%mesh") else None
        try:
            assert self._own_request is not None
            return self._own_request(code, cursor_pos, *args, **options)
        finally:
            self._is_for_ranks, self._name = False, None

    def __call__(self, name: str, detail_level: int = 0, omit_sections: Any = ()) -> dict[str, Any]:
        """Return the help about a name as a mimebundle, of ranks that know the name.

        Raises:
            KeyError: if neither kernel nor ranks know it.
        """
        if self._is_for_ranks:
            text = self._remote(name, detail_level)
            if text:
                return _bundle(text)
        try:
            return dict(self._own(name, detail_level=detail_level, omit_sections=omit_sections))
        except KeyError:
            text = "" if self._is_for_ranks else self._remote(name, detail_level)
            if not text:
                raise
            return _bundle(text)

    def _remote(self, name: str, detail_level: int) -> str:
        mesh = self._state.meshes.get(self._name or self._state.current or "")
        if mesh is None or transport_of(mesh).closed or not name:
            return ""
        try:
            return remote_text(mesh, name, detail_level)
        except (MeshError, OSError):
            return ""


def remote_text(mesh: Mesh, name: str, detail_level: int = 0) -> str:
    """Return the ranks' help about a name; empty if they don't know the name, or all are busy."""
    occupied = {
        rank.rank
        for rank in mesh.status().ranks
        if rank.cell is not None or rank.state in (RankState.DEBUGGING, RankState.UNRESPONSIVE)
    }
    ranks = [rank for rank in mesh.living_ranks() if rank not in occupied]
    if not ranks:
        return ""
    brief = work_on(mesh.part(ranks), Work.LOOK_AT, (name, True), "help")
    rows = dict(zip(ranks, brief.get(ASK_S).values(), strict=True))
    knowing = [rank for rank in ranks if rows[rank] is not None]
    if not knowing:
        return ""
    full = work_on(mesh.part(knowing[:1]), Work.LOOK_AT, (name, False), "help").get(ASK_S).item()
    return (
        help_text(full, rows, [rank for rank in mesh.living_ranks() if rank not in ranks], detail_level)
        if full
        else ""
    )


def help_text(full: Mapping[str, Any], rows: _Rows, busy: Sequence[int] = (), detail_level: int = 0) -> str:
    """Return the help about a name, in IPython's layout.

    Args:
        full: what the first rank says.
        rows: by rank; None: it isn't defined there.

    >>> row = {"type": "int", "text": "3"}
    >>> print(help_text({**row, "signature": "", "doc": ""}, {0: row, 1: {**row, "text": "4"}, 2: None}))
    Type:      int
    Value:     [0] 3
               [1] 4
    Undefined: rank 2
    """
    defined = {rank: row for rank, row in rows.items() if row is not None}
    lines = _field("Signature", {0: full["signature"]}) if full["signature"] else []
    for title, key, tell in _FIELDS:
        if key == "text" and full["signature"]:
            continue  # a function's name
        lines += _field(
            title,
            {rank: tell(row[key]) for rank, row in defined.items() if row.get(key) not in (None, "")},
            len(defined),
        )
    lines += _agreement(defined)
    if "text" not in full and full.get("repr"):
        lines += _field(
            "String form" if len(defined) == 1 else f"Rank {next(iter(defined))}", {0: full["repr"]}
        )
    missing = [rank for rank, row in rows.items() if row is None]
    lines += _field("Undefined", {0: _who(missing)}) if missing else []
    lines += _field("Busy", {0: f"{_who(busy)}; not asked"}) if busy else []
    if full["doc"] and (full["signature"] or not _is_plain(full)):
        lines += _field("Docstring", {0: full["doc"]})
    if detail_level and full.get("source"):
        lines += ["Source:", full["source"].rstrip()]
    return "\n".join(lines)


def _shape_text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) if shape else "scalar"


_FIELDS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("Type", "type", str),
    ("Shape", "shape", _shape_text),
    ("Dtype", "dtype", str),
    ("Device", "device", str),
    ("Sharded", "sharded", str),
    ("Norm", "norm", lambda norm: f"{norm:.6g}"),
    ("Value", "text", str),
)
_WIDTH = 11


def _field(title: str, values: Mapping[int, str], num_ranks: int = 1) -> list[str]:
    """Return a field: its value, or each value with its ranks where they differ, or some have none."""
    by_value: dict[str, list[int]] = {}
    for rank, value in values.items():
        by_value.setdefault(value, []).append(rank)
    head = f"{title + ':':<{_WIDTH}}"
    is_same = len(by_value) == 1 and len(values) >= num_ranks
    shown = (
        list(by_value)
        if is_same
        else [f"[{format_ranks(ranks)}] {value}" for value, ranks in by_value.items()]
    )
    lines = "\n".join(shown).split("\n") if shown else []
    return [f"{head if i == 0 else ' ' * _WIDTH}{line}" for i, line in enumerate(lines)]


def _agreement(rows: _Rows) -> list[str]:
    """Return whether ranks agree, where the fields don't show it."""
    texts = {row.get("text") for row in rows.values() if row}
    if len(texts) > 1 and None not in texts:
        return []  # values show it themselves
    digests = {rank: row["digest"] for rank, row in rows.items() if row and "digest" in row}
    if len(rows) < 2 or len(digests) < len(rows):
        return []
    by_digest: dict[str, list[int]] = {}
    for rank, digest in digests.items():
        by_digest.setdefault(digest, []).append(rank)
    groups = [format_ranks(ranks) for ranks in by_digest.values()]
    if len(groups) == 1:
        return _field("Ranks", {0: f"{groups[0]}, all equal"})
    return _field("Ranks", {0: "differ: " + " | ".join(groups[:8]) + (" | ..." if len(groups) > 8 else "")})


def _is_plain(full: Mapping[str, Any]) -> bool:
    """Return whether a value's type is so basic that its documentation isn't shown."""
    return full["type"] in (
        "int",
        "float",
        "str",
        "bool",
        "NoneType",
        "list",
        "dict",
        "tuple",
        "set",
        "bytes",
        "Tensor",
        "Parameter",
        "ndarray",
    )


def _who(ranks: Sequence[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {format_ranks(ranks)}"


def _bundle(text: str) -> dict[str, str]:
    """Return a text as `text/plain` and as `text/html`: ipykernel removes the latter, and reports that
    nothing was found if it's missing.
    """
    return {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}
