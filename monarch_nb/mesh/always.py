"""Cells that run on every mesh that this program starts later: `%%mesh --always`. The controller runs them on
ranks that are healed or added (`_host.controller.definitions`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from monarch_nb._cells import DefinitionCell, with_definitions
from monarch_nb.exceptions import MeshError

if TYPE_CHECKING:
    from monarch_nb.mesh.core import Mesh

_cells: tuple[DefinitionCell, ...] = ()


def remember(source: str, number: int) -> None:
    """Register a cell that runs on every later mesh."""
    global _cells
    _cells = with_definitions(_cells, DefinitionCell(source, number))


def forget() -> int:
    """Remove all cells that run on later meshes; return how many there were."""
    global _cells
    num, _cells = len(_cells), ()
    return num


def define_on(mesh: Mesh) -> None:
    """Run them on a new mesh. The error of one is printed to stderr: the mesh itself has started."""
    for cell in _cells:
        try:
            mesh.run(cell.source, number=cell.number, quiet=True, always=True)
        except MeshError as error:
            name = f"In[{cell.number}]" if cell.number else "a cell"
            print(f"{name}, which runs always, failed on mesh {mesh.name!r}: {error}", file=sys.stderr)
