"""The types of a command: its name, help, arguments, action, and the way its result is shown."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from monarch_nb._commands.parser import Namespace

if TYPE_CHECKING:
    from monarch_nb.mesh import Mesh


class Place(StrEnum):
    """A place in which commands can be typed or called."""

    NOTEBOOK = "%mesh"
    TERMINAL = "monarch-nb"
    SERVER = "REST"
    CARD = "card"


TYPED = frozenset({Place.NOTEBOOK, Place.TERMINAL})


@dataclass(frozen=True)
class Argument:
    """One argument of a command.

    Attributes:
        flags: how the argument is typed: its flags, or the name of a positional one.
        about: help text; `%` is written twice.
        options: further keyword arguments for argparse.
        only: the only place where the argument can be typed; None: in both.
        absent: its value in the other place.
    """

    flags: tuple[str, ...]
    about: str
    options: Mapping[str, object]
    only: Place | None = None
    absent: object = None

    @property
    def dest(self) -> str:
        """The argument's name in the parsed arguments."""
        return str(self.options.get("dest", self.flags[0].lstrip("-").replace("-", "_")))

    @property
    def default(self) -> object:
        """The value where the argument wasn't typed."""
        if self.absent is not None:
            return self.absent
        is_switch = self.options.get("action") == "store_true"
        return self.options.get("default", False if is_switch else None)

    def is_at(self, place: Place) -> bool:
        """Return whether the argument can be typed at a place."""
        return self.only in (None, place)

    def at(self, place: Place, **options: object) -> Argument:
        """Return the same argument for one place only, with other options."""
        return replace(self, only=place, options={**self.options, **options})

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add the argument to a parser."""
        add: Callable[..., object] = parser.add_argument
        add(*self.flags, help=self.about, **self.options)


def argument(
    *flags: str, about: str, only: Place | None = None, absent: object = None, **options: object
) -> Argument:
    """Return an argument; keywords other than the named ones are passed to argparse."""
    return Argument(flags, about, options, only, absent)


Run = Callable[["Mesh", Namespace], Any]


def text_of(result: object) -> str:
    """Return a result as text; None is an empty text."""
    return "" if result is None else str(result)


@dataclass(frozen=True)
class Command:
    """A command on a mesh: a row of the table that magics, terminal, REST and the card read.

    Attributes:
        name: the word that is typed.
        about: what the command does, in one line.
        more: further help text.
        arguments: its arguments.
        places: where the command is offered.
        run: runs the command on a mesh; None where each place has an implementation of its own.
        text: returns a result as text.
        is_rich: whether a notebook displays the result object itself, rather than its text.
        status: returns a terminal's exit status for a result.
        loss: returns what the command would destroy without `--force`; "" if nothing. The user is asked
            first.
        observes: whether the terminal's program only observes, and isn't counted as a client.
        instead: flags of other tools that people may type, and what to type here instead.
    """

    name: str
    about: str
    arguments: tuple[Argument, ...] = ()
    more: str = ""
    places: frozenset[Place] = TYPED
    run: Run | None = None
    text: Callable[[Any], str] = text_of
    is_rich: bool = False
    status: Callable[[Any], int] = lambda _result: 0
    loss: Callable[[Mesh, Namespace], str] = lambda _mesh, _arguments: ""
    observes: bool = False
    instead: Mapping[str, str] = field(default_factory=dict)

    @property
    def description(self) -> str:
        """The command's whole help text."""
        return f"{self.about} {self.more}".rstrip()

    @property
    def is_about_a_mesh(self) -> bool:
        """Whether the command takes the name of a mesh."""
        return any(each.dest == "name" for each in self.arguments)

    @property
    def names_mesh_first(self) -> bool:
        """Whether the first word after it is a mesh's name, also in a notebook."""
        return any(each.flags == ("name",) and each.is_at(Place.NOTEBOOK) for each in self.arguments)

    def add_to(self, parser: argparse.ArgumentParser, place: Place) -> None:
        """Add the command's arguments of a place to a parser; those of other places get their absent
        values.
        """
        here = [each for each in self.arguments if each.is_at(place)]
        dests = {each.dest for each in here}
        elsewhere = {each.dest: each.default for each in self.arguments if each.dest not in dests}
        parser.set_defaults(**elsewhere)
        for each in here:
            each.add_to(parser)

    def ask(self, mesh: Mesh, **given: object) -> Any:
        """Run the command for a program, with defaults for what isn't given; return its result."""
        if self.run is None:
            raise TypeError(f"{self.name} is run by each place in its own way")
        return self.run(mesh, Namespace(**{each.dest: each.default for each in self.arguments} | given))

    def ask_text(self, mesh: Mesh, **given: object) -> str:
        """Run the command for a program; return its result as text."""
        return self.text(self.ask(mesh, **given))


def at_place(commands: Mapping[str, Command], place: Place) -> dict[str, Command]:
    """Return the commands of a place."""
    return {name: each for name, each in commands.items() if place in each.places}
