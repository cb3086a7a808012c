"""`%mesh VERB` and `%%mesh`: they parse, call one function, and show one thing.

mesh_magic  the magics class and its arguments
verbs       what each verb does
cell        a cell on its way: live view while it runs, red when it fails
completion  what Tab offers
"""

from __future__ import annotations

import sys
from typing import Any


def load(shell: Any) -> None:
    """Register the magics, say what runs, and warm up."""
    from monarch_nb._client import spare
    from monarch_nb.magics.mesh_magic import MeshMagics

    shell.register_magics(MeshMagics)
    _say_what_runs()
    spare.prepare()


def unload(shell: Any) -> None:
    """Forget the magics; meshes go on."""
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("mesh", None)


def _say_what_runs() -> None:
    from monarch_nb._client.launch import list_connections

    names = [c.name for c in list_connections()]
    if names:
        print(f"meshes running: {', '.join(names)}. Attach: %mesh attach NAME", file=sys.stderr)
