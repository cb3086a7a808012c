"""The parsers of verbs, and the verb help."""

from __future__ import annotations

from monarch_nb._commands.command import Command, Place
from monarch_nb._commands.parser import Helped, Namespace, Parser, did_you_mean, shortened
from monarch_nb._commands.table import CELL, IN_NOTEBOOKS
from monarch_nb._magics.state import State
from monarch_nb.exceptions import MeshUsageError


def help_(_state: State, arguments: Namespace) -> None:
    """Print all verbs; with a verb, its complete help."""
    if arguments.verb is not None:
        raise Helped(find_verb(verb_parsers(), arguments.verb).format_help().rstrip())
    print(
        f"%mesh VERB ...; %mesh help VERB explains one.\n\n{verb_lines()}\n\n"
        f"A cell that begins with %%mesh runs on the ranks: {cell_parser().one_line_usage()}"
    )


def verb_parsers() -> dict[str, Parser]:
    """Return a parser for each verb."""
    return {name: _parser(f"%mesh {name}", command) for name, command in IN_NOTEBOOKS.items()}


def cell_parser() -> Parser:
    """Return the parser of `%%mesh`."""
    return _parser(CELL.name, CELL)


def _parser(prog: str, command: Command) -> Parser:
    parser = Parser(prog=prog, description=command.description)
    parser.instead = command.instead
    command.add_to(parser, Place.NOTEBOOK)
    return parser


def verb_lines() -> str:
    """Return a line for each verb."""
    width = max(map(len, IN_NOTEBOOKS))
    return "\n".join(f"    {name:<{width}}  {command.about}" for name, command in IN_NOTEBOOKS.items())


def find_verb(parsers: dict[str, Parser], verb: str) -> Parser:
    """Return a verb's parser.

    Raises:
        MeshUsageError: if there's no such verb, naming what was probably meant.
    """
    found = parsers.get(verb)
    if found is None:
        meant = did_you_mean(verb, parsers, "%mesh ")
        raise MeshUsageError(f"%mesh has no verb {shortened(verb)}. {meant}%mesh help lists all verbs")
    return found
