"""Exports the journal's cells as a notebook, or as a script for torchrun."""

from __future__ import annotations

import io
import json
import textwrap
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monarch_nb._display import CellView
from monarch_nb._display.watcher import ViewWatcher
from monarch_nb._protocol.states import CellStatus, EntryKind
from monarch_nb._shape import format_ranks, name_ranks
from monarch_nb.exceptions import MeshUsageError

if TYPE_CHECKING:
    from monarch_nb.mesh.core import Mesh
    from monarch_nb.mesh.history import Entry

_MAX_LITERAL = 500


@dataclass(frozen=True)
class Exported:
    """The result of an export.

    Attributes:
        missing: variables that were pushed, and whose values the journal doesn't have: they are named in the
            file where they were pushed.
    """

    file: str
    num_cells: int
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.num_cells} cell{'s' * (self.num_cells != 1)} written to {self.file}"
        if not self.missing:
            return text
        are = "are" if len(self.missing) > 1 else "is"
        return (
            f"{text}; {', '.join(self.missing)}, pushed from a notebook, {are} missing: the file says "
            f"where to define {'them' if are == 'are' else 'it'}"
        )


def literals(variables: Mapping[str, Any]) -> dict[str, str]:
    """Return the source of each variable that is a number, or a short collection of numbers: what the journal
    keeps of a push.

    Text isn't kept: it may be a password.

    >>> literals({"lr": 0.1, "sizes": [8, None], "token": "secret"})
    {'lr': '0.1', 'sizes': '[8, None]'}
    """
    found = {name: repr(value) for name, value in variables.items() if _is_plain(value)}
    return {name: text for name, text in found.items() if len(text) <= _MAX_LITERAL}


def _is_plain(value: Any, depth: int = 3) -> bool:
    if type(value) in (int, bool, type(None)):
        return True
    if type(value) is float:
        return value - value == 0  # inf and nan are no literals
    return (
        type(value) in (list, tuple)
        and depth > 0
        and len(value) <= _MAX_LITERAL
        and all(_is_plain(v, depth - 1) for v in value)
    )


def export(path: str | Path, mesh: Mesh, entries: Sequence[Entry]) -> Exported:
    """Write the cells of entries, and the variables pushed between them, to FILE.ipynb or FILE.py.

    Raises:
        MeshUsageError: if it's another kind of file, or can't be written.
    """
    given, path = str(path), Path(path)
    write = {".ipynb": write_notebook, ".py": write_script}.get(path.suffix)
    if write is None:
        raise MeshUsageError(f"export to FILE.py or FILE.ipynb, as in %mesh export run.py; not to {given!r}")
    kept = [
        e
        for e in entries
        if _is_push(e) or (e.kind == EntryKind.CELL and not (e.record.rerun_of or e.record.replay_of))
    ]
    try:
        write(path, mesh, kept)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise MeshUsageError(
            f"can't write {str(path)!r}: {why}. Name a file in a directory that exists and that you "
            "can write to"
        ) from error
    missing = dict.fromkeys(name for e in kept if _is_push(e) for name in _missing(e))
    return Exported(str(path), sum(e.kind == EntryKind.CELL for e in kept), tuple(missing))


def _is_push(entry: Entry) -> bool:
    return entry.kind == EntryKind.VARIABLES and entry.record.values is not None


def _missing(entry: Entry) -> list[str]:
    """Return the names of pushed variables whose values aren't in the journal."""
    values = entry.record.values or {}
    return [name for name in entry.record.names if name not in values]


def _pushed(entry: Entry) -> str:
    """Return the source that defines the pushed variables; a comment where the value isn't known."""
    values = entry.record.values or {}
    return "\n".join(
        f"{name} = {values[name]}"
        if name in values
        else f"# {name}: pushed from the notebook; define it here, its value isn't in the journal"
        for name in entry.record.names
    )


_HEADER = '''"""Cells of mesh {name!r}, as they ran there. Run it on as many ranks:

    torchrun --nproc-per-node {size} {file}
"""

import os

rank = int(os.environ.get("RANK", "0"))
world_size = int(os.environ.get("WORLD_SIZE", "1"))
local_rank = int(os.environ.get("LOCAL_RANK", "0"))
'''


def write_script(path: Path, mesh: Mesh, cells: Sequence[Entry]) -> None:
    """Write the sources of cells as one script; IPython's own syntax, and cells that failed, become
    comments.
    """
    parts = [_HEADER.format(name=mesh.name, size=len(mesh), file=path.name)]
    parts += [_script_cell(mesh, entry) for entry in cells]
    path.write_text("\n".join(parts))


def _script_cell(mesh: Mesh, entry: Entry) -> str:
    if _is_push(entry):
        body = _for_ranks(mesh, entry, _pushed(entry))
        return f"# %% #{entry.n}, variables for ranks {entry.ranks}\n{body}\n"
    head = f"# %% #{entry.n}, ranks {entry.ranks}, {entry.status}"
    source = entry.source.rstrip()
    if entry.status != CellStatus.OK:
        return f"{head}\n{_commented(source)}\n"
    if not _still_there(mesh, entry):
        return f"{head}: the mesh no longer has these ranks\n{_commented(source)}\n"
    try:
        compile(source, f"#{entry.n}", "exec")
    except SyntaxError:
        return f"{head}: not plain Python (magics, !commands or await)\n{_commented(source)}\n"
    if len(_still_there(mesh, entry)) < len(mesh) and _has_long_string(source):
        # indenting would change a string of several lines
        source = f"exec(compile({source!r}, '#{entry.n}', 'exec'))"
    return f"{head}\n{_for_ranks(mesh, entry, source)}\n"


def _for_ranks(mesh: Mesh, entry: Entry, source: str) -> str:
    """Return source that runs on an entry's ranks only."""
    ranks = _still_there(mesh, entry)
    if len(ranks) == len(mesh):
        return source
    if not ranks:
        return _commented(source)
    only_comments = all(line.startswith("#") for line in source.splitlines())
    return f"if rank in {{{', '.join(map(str, ranks))}}}:\n{textwrap.indent(source, '    ')}" + (
        "\n    pass" if only_comments else ""
    )


def _still_there(mesh: Mesh, entry: Entry) -> list[int]:
    """Return the ranks of an entry that the mesh still has; it may have been resized since."""
    return [rank for rank in entry.ran_on if rank < len(mesh)]


def _commented(source: str) -> str:
    return textwrap.indent(source, "# ", lambda _line: True)


def _has_long_string(source: str) -> bool:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return any(t.type == tokenize.STRING and t.start[0] != t.end[0] for t in tokens)


def write_notebook(path: Path, mesh: Mesh, cells: Sequence[Entry]) -> None:
    """Write cells as a notebook that starts such a mesh and runs them; with the output in the journal."""
    dims = ",".join(f"{k}={v}" for k, v in mesh.sizes.items())
    notebook = {
        "cells": [
            _code_cell(f"%load_ext monarch_nb\n%mesh start {mesh.name} --dims {dims}", [], 0),
            *(_notebook_cell(mesh, entry) for entry in cells),
        ],
        "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path.write_text(json.dumps(notebook, indent=1) + "\n")


def _notebook_cell(mesh: Mesh, entry: Entry) -> dict[str, Any]:
    if _is_push(entry):
        return _code_cell(_with_magic(mesh, entry, _pushed(entry)), [], 0)
    return _code_cell(_with_magic(mesh, entry, entry.source), _outputs(mesh, entry), entry.number)


def _with_magic(mesh: Mesh, entry: Entry, source: str) -> str:
    there = _still_there(mesh, entry)
    if not there:
        ranks = name_ranks(entry.ran_on)
        return f"# ran on {ranks}, which the mesh no longer has\n{_commented(source.rstrip())}"
    ranks = "" if len(there) == len(mesh) else f" --ranks {format_ranks(there)}"
    if entry.record.script:
        return source.replace("%mesh run", f"%mesh run{ranks}", 1)
    return f"%%mesh{ranks}\n{source.rstrip()}"


def _code_cell(source: str, outputs: list[Any], number: int) -> dict[str, Any]:
    import secrets

    return {
        "cell_type": "code",
        "execution_count": number or None,
        "id": secrets.token_hex(4),
        "metadata": {},
        "outputs": outputs,
        "source": source,
    }


def _outputs(mesh: Mesh, entry: Entry) -> list[Any]:
    view = CellView(entry.ran_on, entry.width(mesh), more_hint="")
    run = mesh.journal.replay(entry, ViewWatcher(view, show_errors=True))
    run.wait(60.0)
    view.close()
    return [
        {"output_type": "display_data", "metadata": output.metadata, "data": output.data}
        for output in (view.outputs() if view.visible() else ())
    ]
