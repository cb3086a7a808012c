"""The verb about verbs: help."""

from __future__ import annotations

from monarch_nb.exceptions import MeshUsageError
from monarch_nb.magics.arguments import Helped, Namespace, Parser, did_you_mean, shortened
from monarch_nb.magics.state import State


def help_(state: State, arguments: Namespace) -> None:
    """Say what can be typed: all verbs, a line each; with a verb, all about it."""
    from monarch_nb.magics.verbs import cell_parser, verb_parsers

    if arguments.verb is not None:
        raise Helped(find_verb(verb_parsers(), arguments.verb).format_help().rstrip())
    print(
        f"%mesh VERB ...; %mesh help VERB explains one.\n\n{verb_lines()}\n\n"
        f"A cell that begins with %%mesh runs on the ranks: {cell_parser().one_line_usage()}"
    )


def verb_lines() -> str:
    """Return a line for each verb."""
    from monarch_nb.magics.verbs import VERBS

    width = max(map(len, VERBS))
    return "\n".join(f"    {name:<{width}}  {(f.__doc__ or '').splitlines()[0]}" for name, f in VERBS.items())


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
