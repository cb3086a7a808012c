"""The magics class. Every verb has its own parser, which explains both `%mesh start --help` and wrong
arguments.
"""

from __future__ import annotations

import shlex
from typing import Any

from IPython.core.magic import Magics, cell_magic, line_cell_magic, magics_class

from monarch_nb._commands.parser import Helped, Namespace, shortened
from monarch_nb._commands.refusal import clear_error
from monarch_nb._magics.auto import run_here
from monarch_nb._magics.cell import run_cell
from monarch_nb._magics.several import run_on_several
from monarch_nb._magics.state import State
from monarch_nb._magics.verb_help import cell_parser, find_verb, verb_lines, verb_parsers
from monarch_nb._magics.verbs import VERBS
from monarch_nb.exceptions import MeshUsageError

_STATE = "_monarch_nb_state"
"""Attribute of the shell that keeps the magics' state, so that `%reload_ext` doesn't forget the mesh in
use.
"""


@magics_class
class MeshMagics(Magics):
    """`%mesh VERB ...`, `%%mesh`, `%%local`."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.verbs = verb_parsers()
        self.cell = cell_parser()
        self.state: State = getattr(shell, _STATE, None) or State(shell)
        setattr(shell, _STATE, self.state)
        self._parsed: dict[str, Namespace] = {}
        """Parsed arguments of earlier `%%mesh` lines: most cells have the same ones."""
        MeshMagics.mesh.__doc__ = _documentation()

    @line_cell_magic
    def mesh(self, line: str, cell: str | None = None) -> Any:
        try:
            if cell is None:
                return self._run_verb(line)
            runs_here = self._run_cell(line, cell)
        except Helped as helped:
            print(helped)
            return None
        except Exception as error:
            typed = f"{'%mesh' if cell is None else '%%mesh'} {line}".strip()
            clear = clear_error(error, typed)
            raise clear from clear.__cause__
        if runs_here and cell is not None:
            run_here(self.shell, cell)  # errors from here on are the user's own
        return None

    @cell_magic
    def local(self, line: str, cell: str) -> None:
        """Run this cell here, in the kernel, also with `%mesh auto on`."""
        run_here(self.shell, cell)

    def _run_cell(self, line: str, cell: str) -> bool:
        """Run a cell on the ranks; say whether it's to run here, too."""
        arguments = self._parsed.get(line)
        if arguments is None:
            arguments = self._parsed[line] = self.cell.parse_args(_split(line))
        meshes = self.state.named(arguments.name)
        if len(meshes) > 1:
            run_on_several(self.state, meshes, cell, arguments)
        else:
            run_cell(self.state, meshes[0], cell, arguments)
        return bool(arguments.local)

    def _run_verb(self, line: str) -> Any:
        verb, *rest = _split(line) or ["status"]
        arguments = find_verb(self.verbs, verb).parse_args(rest, Namespace(typed=shlex.join(rest)))
        return VERBS[verb](self.state, arguments)


def _documentation() -> str:
    """Return the text that `%mesh?` shows."""
    return (
        "Drive a mesh: `%mesh VERB ...`; or run this cell on its ranks: `%%mesh [--ranks R] ...`.\n\n"
        f"Verbs (`%mesh VERB --help` explains one):\n\n{verb_lines()}\n\n{cell_parser().format_help()}"
    )


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise MeshUsageError(
            f"can't read {shortened(line)}: {error}. Close each quotation mark, or write \\\" for one"
        ) from None
