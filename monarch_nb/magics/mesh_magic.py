"""The magics class. Every verb has its own parser, so that `%mesh start?` and a wrong argument both explain it."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from typing import Any, NoReturn

from IPython.core.magic import Magics, line_cell_magic, magics_class

from monarch_nb.exceptions import MeshError, MeshUsageError, RankSetError
from monarch_nb.magics import verbs
from monarch_nb.magics.cell import run_cell


class _Parser(argparse.ArgumentParser):
    """argparse that raises instead of leaving the kernel."""

    def error(self, message: str) -> NoReturn:
        raise MeshUsageError(f"{self.prog}: {message}. Usage: {self.format_usage().removeprefix('usage: ').strip()}")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise _Helped(message or "")


class _Helped(Exception):
    """--help has been printed."""


def _verb_parsers() -> dict[str, _Parser]:
    return {
        name: verbs.add_arguments(name, _Parser(prog=f"%mesh {name}", description=function.__doc__))
        for name, function in verbs.VERBS.items()
    }


def _cell_parser() -> _Parser:
    parser = _Parser(prog="%%mesh", description="Run this cell on the ranks of a mesh.")
    parser.add_argument("--ranks", "-r", default="all", help="a rank set: all; 3; 0-3,7; ::2; hosts=0,gpus=2:8")
    parser.add_argument("--name", "-n", help="which mesh, if not the current one")
    parser.add_argument("--output", "-o", metavar="VAR", help="put the last value of each rank here, as a ValueMesh")
    parser.add_argument("--timeout", "-t", type=float, metavar="S", help="seconds; then the ranks are interrupted")
    parser.add_argument("--local", action="store_true", help="run the cell in the kernel, too, after the ranks")
    return parser


@magics_class
class MeshMagics(Magics):
    """`%mesh VERB ...` and `%%mesh`."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._verbs = _verb_parsers()
        self._cell = _cell_parser()
        self._state = verbs.State(shell)

    @line_cell_magic
    def mesh(self, line: str, cell: str | None = None) -> Any:
        """Drive a mesh: `%mesh VERB ...`; or run this cell on its ranks: `%%mesh [--ranks R] ...`.

        Verbs: start, list, attach, detach, use, status, logs, interrupt, stop, push, pull. `%mesh VERB --help` explains one.
        """
        try:
            return self._run_cell(line, cell) if cell is not None else self._run_verb(line)
        except _Helped as helped:
            if str(helped):
                print(helped)
            return None
        except (MeshError, RankSetError) as error:
            # Frames of this package tell the reader nothing: show what is wrong, and nothing else.
            if not hasattr(error, "_render_traceback_"):
                text = f"{type(error).__name__}: {error}"
                vars(error)["_render_traceback_"] = text.splitlines
            raise

    def _run_cell(self, line: str, cell: str) -> None:
        arguments = self._cell.parse_args(_split(line))
        mesh = self._state.mesh(arguments.name)
        run_cell(self.shell, mesh, cell, arguments)
        if arguments.local:
            self.shell.run_cell(cell).raise_error()

    def _run_verb(self, line: str) -> Any:
        verb, *rest = _split(line) or ["status"]
        parser = self._verbs.get(verb)
        if parser is None:
            raise MeshUsageError(f"%mesh has no verb {verb!r}. Verbs: {', '.join(self._verbs)}")
        function: Callable[..., Any] = verbs.VERBS[verb]
        return function(self._state, parser.parse_args(rest))


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise MeshUsageError(f"can't read {line!r}: {error}") from None
