"""The one table of commands: notebooks, terminals and REST have what stands there, and say the same of it."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from monarch_nb import _cli
from monarch_nb._commands.command import Argument, Command, Place
from monarch_nb._commands.parser import Parser
from monarch_nb._commands.table import CELL, COMMANDS, IN_NOTEBOOKS, IN_TERMINALS
from monarch_nb._magics.verb_help import cell_parser, verb_parsers
from monarch_nb._magics.verbs import VERBS
from monarch_nb._server.routes import routes
from monarch_nb._terminal.words import in_terminal
from monarch_nb.exceptions import MeshUsageError

ALL = [*COMMANDS.values(), CELL]
SOURCES = Path(__file__).parents[2] / "labextension" / "src"


def terminal_parsers() -> dict[str, argparse.ArgumentParser]:
    found = next(a for a in _cli._parser()._actions if a.dest == "command").choices
    assert isinstance(found, dict)
    return found


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    return {flag for action in parser._actions for flag in action.option_strings or [action.dest]}


@pytest.mark.parametrize("command", ALL, ids=lambda c: c.name)
def test_each_command_and_each_argument_has_help(command: Command) -> None:
    assert command.about[0].isupper() and command.about.endswith(".") and len(command.about) < 108
    assert not command.more or command.more.endswith(".")
    assert command.places
    assert all(each.about for each in command.arguments)


def test_what_is_typed_is_what_the_table_has() -> None:
    for place, parsers, commands in (
        (Place.NOTEBOOK, {**verb_parsers(), CELL.name: cell_parser()}, {**IN_NOTEBOOKS, CELL.name: CELL}),
        (Place.TERMINAL, terminal_parsers(), IN_TERMINALS),
    ):
        assert list(parsers) == list(commands)
        for name, command in commands.items():
            own = {f for each in command.arguments if each.is_at(place) for f in each.flags}
            own |= {each.dest for each in command.arguments if not each.flags[0].startswith("-")}
            assert flags_of(parsers[name]) - {"-h", "--help"} <= own
            assert " ".join(parsers[name].format_help().split()).count(command.description) == 1


def test_each_flag_of_a_command_is_described_once() -> None:
    for command in ALL:
        texts: dict[str, set[str]] = defaultdict(set)
        for each in command.arguments:
            for flag in (f for f in each.flags if f.startswith("-") and each.about != argparse.SUPPRESS):
                texts[flag].add(each.about)
        again = {flag for flag, output in texts.items() if len(output) > 1}
        # A terminal's run makes a mesh of its own unless one is named; a notebook has a current one.
        assert again == ({"--name", "-n"} if command.name == "run" else set()), command.name


def test_no_two_arguments_are_written_alike() -> None:
    written: dict[tuple[str, str], set[tuple[tuple[str, object], ...]]] = defaultdict(set)
    for command in ALL:
        for each in command.arguments:
            written[" ".join(each.flags), each.about].add(tuple((k, str(v)) for k, v in each.options.items()))
    again = {key for key, options in written.items() if len(options) > 1}
    assert again <= {
        ("--ranks -r", "a rank set: all; 3; 0-3,7; ::2; hosts=0,gpus=2:8"),  # a terminal's restart needs it
        ("name", "name of the mesh"),
        ("number", "number in %%mesh history"),
    }


def test_each_command_is_run_somewhere() -> None:
    assert list(VERBS) == list(IN_NOTEBOOKS)
    for name, command in IN_NOTEBOOKS.items():
        assert command.run is not None or callable(VERBS[name])
    parsers = terminal_parsers()
    for name, command in IN_TERMINALS.items():
        run = parsers[name].get_default("run")
        assert (run.func is _cli._run_shared) == (name not in _cli._OWN) if hasattr(run, "func") else True
        assert command.run is not None or name in _cli._OWN
    assert set(_cli._OWN) <= set(IN_TERMINALS)


def test_the_servers_actions_are_the_tables() -> None:
    handlers = {handler for _, handler in routes()}
    served = {name for each in handlers for name in getattr(each, "commands", ())}
    assert served == {name for name, each in COMMANDS.items() if Place.SERVER in each.places}


def test_what_cannot_be_typed_somewhere_is_as_nobody_has_typed_it() -> None:
    at_terminal, at_notebook = Parser(prog="x"), Parser(prog="x")
    COMMANDS["restart"].add_to(at_terminal, Place.TERMINAL)
    COMMANDS["restart"].add_to(at_notebook, Place.NOTEBOOK)
    assert at_terminal.parse_args(["--ranks", "1"]).force is True  # a terminal doesn't ask
    assert at_notebook.parse_args([]).force is False
    start = Parser(prog="x")
    COMMANDS["start"].add_to(start, Place.TERMINAL)
    assert start.parse_args([]).with_kernel is False


def test_a_command_for_a_program_has_its_defaults() -> None:
    class Mesh:
        name = "dev"

        def heal(self, *, replay: bool) -> str:
            return f"healed {replay}"

    assert COMMANDS["heal"].ask_text(Mesh()) == "healed False"  # type: ignore[arg-type]
    assert COMMANDS["heal"].ask_text(Mesh(), replay=True) == "healed True"  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="in its own way"):
        COMMANDS["start"].ask(Mesh())  # type: ignore[arg-type]


def test_words_of_a_terminal_know_which_commands_name_a_mesh() -> None:
    assert in_terminal("%mesh stop", COMMANDS, "dev") == "monarch-nb stop dev"
    assert in_terminal("%mesh list", COMMANDS, "dev") == "monarch-nb list"


def test_an_argument_that_is_given_twice_is_one_object_with_options() -> None:
    ranks = next(a for a in COMMANDS["why"].arguments if a.dest == "ranks")
    needed = ranks.at(Place.TERMINAL, required=True)
    assert isinstance(needed, Argument) and needed.about == ranks.about
    assert needed.options["required"] and not needed.is_at(Place.NOTEBOOK)


def test_help_in_a_terminal_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom monarch_nb._cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('torch', 'IPython', 'zmq', 'numpy', 'asyncio', 'rich', 'monarch_nb.mesh', "
        "'monarch_nb.job', 'monarch_nb.actor') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]" and "Interrupt what runs on ranks." in done.stdout


def test_the_cards_buttons_are_the_tables() -> None:
    from monarch_nb._widgets.mesh_widget import BUTTONS

    sent = re.search(r"^type Action = (.+);$", (SOURCES / "card/widgetactions.ts").read_text(), re.MULTILINE)
    assert sent is not None and set(re.findall(r"'(\w+)'", sent[1])) == set(BUTTONS)
    for command in BUTTONS.values():  # they need no more than a set of ranks
        assert command.run is not None
        assert all(each.default is not None or each.dest == "name" for each in command.arguments)


@pytest.mark.parametrize("given", ["-n=--", "-n--", "--name=--"])
def test_two_dashes_are_no_value(given: str) -> None:
    """argparse takes them for the end of the options, and gives an empty list."""
    parser = Parser(prog="%mesh x")
    parser.add_argument("-n", "--name")
    with pytest.raises(MeshUsageError, match=r"%mesh x: argument -n/--name: expected a value, not --"):
        parser.parse_args([given])
    parser.add_argument("words", nargs="*")
    assert parser.parse_args(["-n", "m", "--", "-a"]).words == ["-a"]
