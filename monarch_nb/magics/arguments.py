"""What is typed after a verb, checked: each type raises with what was expected."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any, NoReturn

from monarch_nb.exceptions import MeshUsageError
from monarch_nb.status import parse_duration

Namespace = argparse.Namespace
_SIZE = re.compile(r"(?<!\S)[A-Za-z_]\w*=\d+(?!\S)")
DEFAULT_NAME = "mesh"
"""Of a mesh that is given no other."""


class Helped(Exception):
    """--help has been asked for; the text is the help."""


class Parser(argparse.ArgumentParser):
    """argparse that raises instead of leaving the kernel."""

    def error(self, message: str) -> NoReturn:
        usage = " ".join(self.format_usage().removeprefix("usage: ").split())
        raise MeshUsageError(f"{self.prog}: {message}. {self._hint(message)}Usage: {usage}")

    def _hint(self, message: str) -> str:
        """Return what was probably meant: sizes are often typed without their flag."""
        sizes = _SIZE.findall(message) if message.startswith("unrecognized arguments") else []
        return f"Did you mean --dims {','.join(sizes)}? " if sizes and "--dims" in self._option_string_actions else ""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise Helped(message or "")

    def print_help(self, file: object = None) -> None:
        raise Helped(self.format_help().rstrip())


def dims(text: str) -> dict[str, int]:
    """Read `hosts=2,gpus=4`."""
    found = {}
    for part in text.split(","):
        name, equals, size = part.partition("=")
        if not equals or not name.isidentifier() or not size.isdigit() or int(size) < 1:
            raise argparse.ArgumentTypeError(f"expected DIM=SIZE,... as in hosts=2,gpus=4; not {text!r}")
        found[name] = int(size)
    return found


def positive(text: str) -> int:
    """Read a number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, not {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """Read a duration such as 90s or 8h."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def num_bytes(text: str) -> int:
    """Read a size such as 64M or 1GiB; K, M and G are powers of 1024."""
    found = re.fullmatch(r"(\d+)([KMG]?)(?:i?B)?", text, re.IGNORECASE)
    if not found:
        raise argparse.ArgumentTypeError(f"expected a size such as 64M or 1G, not {text!r}")
    return int(found[1]) << " KMG".index(found[2].upper() or " ") * 10


def variable(text: str) -> tuple[str, str]:
    """Read KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, not {text!r}")
    return key, value


def cell_number(text: str) -> int:
    """Read the number of a cell in the journal: 12 or #12."""
    return positive(text.removeprefix("#"))


def add_doctor_arguments(add: Callable[..., Any]) -> None:
    """Add what `doctor` takes, in a notebook and in a terminal."""
    add("--ranks", "-r", default="", help="which ranks; by default all are looked at, and those that stand for their hosts are measured")
    add("--size", "-s", type=num_bytes, default=64 << 20, metavar="SIZE", help="how much is read at a time: 64M")
    add("--quick", "-q", action="store_true", help="only look, measure nothing")
    add("--all", "-a", action="store_true", help="measure also the path through the mesh's own messages")


def add_start_arguments(add: Callable[..., Any]) -> None:
    """Add what `start` takes, in a notebook and in a terminal."""
    add("name", nargs="?", default=DEFAULT_NAME, help="name of the mesh, and of the notebook's variable for it")
    add("--gpus", type=positive, help="ranks per host, one GPU each where there are any")
    add("--procs", type=positive, help="ranks per host")
    add("--hosts", type=positive, help="number of hosts")
    add("--dims", type=dims, metavar="D=N,...", help="dimensions, as in hosts=2,gpus=4 or dp=2,tp=4")
    add("--job", choices=("local", "process"), help="where hosts come from")
    add("--idle-timeout", type=seconds, default=8 * 3600.0, metavar="T", help="lease, as in 30m or 8h")
    add("--env", "-e", type=variable, action="append", metavar="K=V", help="environment of the ranks")
    add("--init-process-group", nargs="?", const="", choices=("", "nccl", "gloo"), help="set up torch.distributed")
    add("--group-timeout", type=seconds, default=600.0, metavar="T", help="how long a collective may take: 10m")
    add("--on-failure", choices=("stop", "heal", "shrink"), default="stop", help="what is done when a rank dies")
    add("--spares", type=positive, help="hosts that wait to take a lost one's place")
    add("--spawn", action="store_true", help="fresh interpreters instead of forks of a warm one")
