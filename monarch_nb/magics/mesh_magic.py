"""The magics class. Every verb has its own parser, so that `%mesh start --help` and a wrong argument both explain it."""

from __future__ import annotations

import shlex
from typing import Any

from IPython.core.magic import Magics, cell_magic, line_cell_magic, magics_class

from monarch_nb.exceptions import MeshError, MeshUsageError, RankSetError
from monarch_nb.magics.arguments import Helped, Namespace
from monarch_nb.magics.auto import run_here
from monarch_nb.magics.cell import run_cell
from monarch_nb.magics.state import State
from monarch_nb.magics.verbs import VERBS, cell_parser, verb_parsers

_STATE = "_monarch_nb_state"
"""Where the shell keeps our state, so that `%reload_ext` doesn't forget which mesh is in use."""


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
        """Arguments of `%%mesh` that have been typed before: most cells have the same."""
        MeshMagics.mesh.__doc__ = _documentation()

    @line_cell_magic
    def mesh(self, line: str, cell: str | None = None) -> Any:
        try:
            return self._run_cell(line, cell) if cell is not None else self._run_verb(line)
        except Helped as helped:
            print(helped)
            return None
        except (MeshError, RankSetError) as error:
            # Frames of this package tell the reader nothing: show what is wrong, and nothing else.
            if not hasattr(error, "_render_traceback_"):
                text = f"{type(error).__name__}: {error}"
                vars(error)["_render_traceback_"] = text.splitlines
            raise

    @cell_magic
    def local(self, line: str, cell: str) -> None:
        """Run this cell here, in the kernel, also with `%mesh auto on`."""
        run_here(self.shell, cell)

    def _run_cell(self, line: str, cell: str) -> None:
        arguments = self._parsed.get(line)
        if arguments is None:
            arguments = self._parsed[line] = self.cell.parse_args(_split(line))
        run_cell(self.state, self.state.mesh(arguments.name), cell, arguments)
        if arguments.local:
            run_here(self.shell, cell)

    def _run_verb(self, line: str) -> Any:
        verb, *rest = _split(line) or ["status"]
        parser = self.verbs.get(verb)
        if parser is None:
            raise MeshUsageError(f"%mesh has no verb {verb!r}. Verbs: {', '.join(self.verbs)}")
        return VERBS[verb](self.state, parser.parse_args(rest))


def _documentation() -> str:
    """Return what `%mesh?` shows."""
    width = max(map(len, VERBS))
    verbs = "\n".join(f"    {name:<{width}}  {(f.__doc__ or '').splitlines()[0]}" for name, f in VERBS.items())
    return (
        "Drive a mesh: `%mesh VERB ...`; or run this cell on its ranks: `%%mesh [--ranks R] ...`.\n\n"
        f"Verbs (`%mesh VERB --help` explains one):\n\n{verbs}\n\n{cell_parser().format_help()}"
    )


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise MeshUsageError(f"can't read {line!r}: {error}") from None
