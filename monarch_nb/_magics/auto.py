"""`%mesh auto on`: every plain cell runs on the mesh; `%%local` and other cell magics opt out."""

from __future__ import annotations

import re
from typing import Any

from monarch_nb._commands.parser import Namespace
from monarch_nb._magics.state import State

_OWN_LINES = re.compile(r"\s*(%(mesh|load_ext|unload_ext|reload_ext|autoreload)\b|#|$)")


class AutoMode:
    """An input transformer that turns plain cells into `%%mesh` cells."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.paused = False

    def __call__(self, lines: list[str]) -> list[str]:
        """Put `%%mesh` in front of a cell, unless it has a cell magic or only lines that control the mesh."""
        if (
            self.paused
            or not lines
            or lines[0].startswith("%%")
            or all(_OWN_LINES.match(line) for line in lines)
        ):
            return lines
        return [f"%%mesh --name {self.name}\n", *lines]


def auto(state: State, arguments: Namespace) -> None:
    """Switch the automatic `%%mesh` of plain cells on or off."""
    remove(state.shell)
    if arguments.mode == "on":
        mesh = state.mesh(arguments.name)
        state.shell.input_transformers_cleanup.append(AutoMode(mesh.name))
        print(
            f"plain cells run on mesh {mesh.name!r} from now on; %%local runs one here, %mesh auto "
            "off ends it"
        )
    else:
        print("plain cells run here")


def run_here(shell: Any, cell: str) -> None:
    """Run a cell in the kernel, whatever the mode; what it raises is raised."""
    modes = [t for t in shell.input_transformers_cleanup if isinstance(t, AutoMode)]
    for mode in modes:
        mode.paused = True
    try:
        shell.run_cell(cell).raise_error()
    finally:
        for mode in modes:
            mode.paused = False


def remove(shell: Any) -> None:
    """Remove the transformer."""
    transformers = shell.input_transformers_cleanup
    transformers[:] = [t for t in transformers if not isinstance(t, AutoMode)]
