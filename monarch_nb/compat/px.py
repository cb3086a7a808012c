"""`%px`, `%%px` and `%autopx`: ipyparallel's names for `%%mesh` and `%mesh auto`."""

from __future__ import annotations

import shlex
from typing import Any

from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring


@magics_class
class PxMagics(Magics):
    """The magics of one notebook."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._is_auto = False

    @magic_arguments()
    @argument("--targets", "-t", default="all", help="which ranks: all, 0, 0,2 or ::2")
    @argument("--noblock", "-a", action="store_true", help="return at once; %%mesh result waits for it")
    @argument("--block", action="store_true", help="wait for it, which is the default")
    @argument("--local", action="store_true", help="run it in the notebook, too, before")
    @line_cell_magic
    def px(self, line: str, cell: str | None = None) -> None:
        """Run a line or a cell on the ranks of the mesh.

        Raises:
            UsageError: for an option that isn't there.
        """
        shell: Any = self.shell
        if cell is None:
            shell.run_cell_magic("mesh", "", line)
            return
        given = parse_argstring(self.px, line)
        if given.local:
            shell.run_cell(cell).raise_error()
        flags = ["--ranks", given.targets, *(["--async"] if given.noblock else [])]
        shell.run_cell_magic("mesh", shlex.join(flags), cell)

    @line_magic
    def autopx(self, line: str) -> None:
        """Toggle whether every plain cell runs on the ranks."""
        shell: Any = self.shell
        shell.run_line_magic("mesh", f"auto {'off' if self._is_auto else 'on'}")
        self._is_auto = not self._is_auto
