"""The parser of commands, and its errors: what is wrong, what was probably meant, what is allowed."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NoReturn

from monarch_nb.exceptions import MeshUsageError

Namespace = argparse.Namespace
_SIZE = re.compile(r"(?<!\S)[A-Za-z_]\w*=\d+(?!\S)")


class Helped(Exception):
    """The signal that `--help` was typed; its text is the help."""


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises an error instead of exiting the kernel.

    Attributes:
        instead: flags of other tools that people may type, and what to type here instead.
    """

    instead: Mapping[str, str] = MappingProxyType({})

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> object:
        # The value of `-n=--`: argparse takes it for the end of the options, and the value is an empty list.
        if action.option_strings and arg_strings == ["--"]:
            raise argparse.ArgumentError(action, "expected a value, not --")
        return super()._get_values(action, arg_strings)

    def error(self, message: str) -> NoReturn:
        raise MeshUsageError(f"{self.prog}: {message}. {self.hint(message)}Usage: {self.one_line_usage()}")

    def one_line_usage(self) -> str:
        """Return the usage of the command in one line."""
        return " ".join(self.format_usage().removeprefix("usage: ").split())

    def hint(self, message: str) -> str:
        """Return a guess at the intended input: sizes are often typed without their flag, and flags with a
        wrong letter.
        """
        if not message.startswith("unrecognized arguments: "):
            return ""
        sizes = _SIZE.findall(message)
        if sizes and "--dims" in self._option_string_actions:
            return f"Did you mean --dims {','.join(sizes)}? "
        wrong = message.removeprefix("unrecognized arguments: ").split()[0].partition("=")[0]
        known = self.instead.get(wrong.replace("_", "-"))
        if known is not None:
            return f"{known}. "
        return did_you_mean(wrong, self._option_string_actions)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise Helped(message or "")

    def print_help(self, file: object = None) -> None:
        raise Helped(self.format_help().rstrip())


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return a question that suggests names spelled similarly to `word`; empty if there are none.

    >>> did_you_mean("statos", ["start", "status"], "%mesh ")
    'Did you mean %mesh status? '
    """
    found = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6) if len(word) < 40 else []
    return f"Did you mean {prefix}{found[0]}? " if found else ""


def shortened(text: str) -> str:
    """Return typed text as a message quotes it, shortened if it's long."""
    return repr(text) if len(text) <= 60 else f"{text[:50]!r}... ({len(text)} characters)"
