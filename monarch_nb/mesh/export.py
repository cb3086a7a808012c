"""A notebook, or a script for torchrun, made of the journal's cells."""

from __future__ import annotations

import io
import json
import textwrap
import tokenize
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monarch_nb.display import CellView
from monarch_nb.display.watcher import ViewWatcher

if TYPE_CHECKING:
    from monarch_nb.mesh.core import Mesh
    from monarch_nb.mesh.history import Entry

_HEADER = '''"""Cells of mesh {name!r}, as they ran there. Run it on as many ranks: torchrun --nproc-per-node {size} {file}"""

import os

rank = int(os.environ.get("RANK", "0"))
world_size = int(os.environ.get("WORLD_SIZE", "1"))
local_rank = int(os.environ.get("LOCAL_RANK", "0"))
'''


def write_script(path: Path, mesh: Mesh, cells: Sequence[Entry]) -> None:
    """Write the sources of cells as one script; what only IPython understands, and cells that failed, become comments."""
    parts = [_HEADER.format(name=mesh.name, size=len(mesh), file=path.name)]
    parts += [_script_cell(mesh, entry) for entry in cells]
    path.write_text("\n".join(parts))


def _script_cell(mesh: Mesh, entry: Entry) -> str:
    head = f"# %% #{entry.n}, ranks {entry.ranks}, {entry.status}"
    source = entry.source.rstrip()
    if entry.status != "ok":
        return f"{head}\n{_commented(source)}\n"
    try:
        compile(source, f"#{entry.n}", "exec")
    except SyntaxError:
        return f"{head}: not plain Python (magics, !commands or await)\n{_commented(source)}\n"
    ranks = mesh.select(entry.ranks)
    if len(ranks) == len(mesh):
        return f"{head}\n{source}\n"
    # Indenting would change a string of several lines.
    body = f"exec(compile({source!r}, '#{entry.n}', 'exec'))" if _has_long_string(source) else source
    return f"{head}\nif rank in {{{', '.join(map(str, ranks))}}}:\n{textwrap.indent(body, '    ')}\n"


def _commented(source: str) -> str:
    return textwrap.indent(source, "# ", lambda _line: True)


def _has_long_string(source: str) -> bool:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return any(t.type == tokenize.STRING and t.start[0] != t.end[0] for t in tokens)


def write_notebook(path: Path, mesh: Mesh, cells: Sequence[Entry]) -> None:
    """Write cells as a notebook that starts such a mesh and runs them; with the output that the journal has."""
    dims = ",".join(f"{k}={v}" for k, v in mesh.sizes.items())
    notebook = {
        "cells": [
            _code_cell(f"%load_ext monarch_nb\n%mesh start {mesh.name} --dims {dims}", [], 0),
            *(_code_cell(_with_magic(mesh, entry), _outputs(mesh, entry), entry.number) for entry in cells),
        ],
        "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path.write_text(json.dumps(notebook, indent=1) + "\n")


def _with_magic(mesh: Mesh, entry: Entry) -> str:
    ranks = "" if len(mesh.select(entry.ranks)) == len(mesh) else f" --ranks {entry.ranks}"
    return f"%%mesh{ranks}\n{entry.source.rstrip()}"


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
    view = CellView(mesh.select(entry.ranks), len(mesh), more_hint="")
    run = mesh.journal.replay(entry, ViewWatcher(view, show_errors=True))
    run.wait(60.0)
    view.close()
    if not view.visible():
        return []
    return [{"output_type": "display_data", "metadata": {}, "data": view.mimebundle()}]
