"""The hook that shows a mesh's card when the mesh is the last line of a cell. The implementation belongs to a
higher room: the package sets it (`monarch_nb/__init__`), and it's loaded when a mesh is first shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch_nb.mesh import Mesh

Show = Callable[["Mesh"], None]
_load: Callable[[], Show] | None = None


def provide(load: Callable[[], Show]) -> None:
    """Set the function that loads the implementation."""
    global _load
    _load = load


def show_card(mesh: Mesh) -> None:
    """Show a mesh's card in the running cell; as text where there's no notebook."""
    assert _load is not None, "monarch_nb/__init__ puts it in place"
    _load()(mesh)
