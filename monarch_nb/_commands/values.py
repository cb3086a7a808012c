"""Parsers of the values typed after a command: each checks a value, and raises an error that says what was
expected.
"""

from __future__ import annotations

import argparse
import re

from monarch_nb._client.mesh_name import check_mesh_name
from monarch_nb._commands.parser import shortened
from monarch_nb._units import parse_duration
from monarch_nb._wire.invitation import is_far, is_invitation
from monarch_nb._wire.limits import VARIABLE, parse_limits

DEFAULT_NAME = "mesh"
"""Name of a mesh that is given no other."""
MAX_COUNT = 1_000_000_000
"""Larger numbers are typing errors; the machine limits the number of ranks."""


def mesh_name(text: str) -> str:
    """Parse the name of a mesh."""
    try:
        return check_mesh_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def mesh_before_paths(text: str) -> str:
    """Parse the name of a mesh that stands before paths."""
    try:
        return mesh_name(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; paths stand behind the mesh's name") from None


def mesh_or_invitation(text: str) -> str:
    """Parse the name of a mesh, one on another machine, or an invitation: its file, or itself in one line."""
    return text if is_far(text) or is_invitation(text) else mesh_name(text)


def mesh_names(text: str) -> tuple[str, ...]:
    """Parse names of meshes: `generator,trainer`; each once."""
    return tuple(dict.fromkeys(map(mesh_name, text.split(","))))


def mesh_or_pid(text: str) -> str:
    """Parse the name of a mesh, or the pid of a program that has a mesh of its own."""
    return text if text.isascii() and text.isdigit() else mesh_name(text)


def controller_place(text: str) -> str:
    """Parse where a controller runs: here (which is what an empty field says), or inside."""
    if text not in ("here", "inside"):
        raise argparse.ArgumentTypeError(
            f"expected here (this machine) or inside (the first host); not {shortened(text)}"
        )
    return "" if text == "here" else text


def variable_name(text: str) -> str:
    """Parse the name of a variable."""
    if not text.isidentifier():
        raise argparse.ArgumentTypeError(f"expected a variable's name, as in loss; not {shortened(text)}")
    return text


def variable_part(text: str) -> str:
    """Parse the name of a variable, or of a part of it: model.fc, losses[0]."""
    if not re.split(r"[.\[]", text, maxsplit=1)[0].isidentifier():
        raise argparse.ArgumentTypeError(
            f"expected a variable, or a part of one, as in model or model.fc; not {shortened(text)}"
        )
    return text


def pattern(text: str) -> str:
    """Parse a regular expression."""
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise argparse.ArgumentTypeError(
            f"expected a regular expression; {shortened(text)} is none: {error}"
        ) from None
    return text


def dims(text: str) -> dict[str, int]:
    """Parse `hosts=2,gpus=4`."""
    found = {}
    for part in text.split(","):
        name, equals, size = part.partition("=")
        if not equals or not name.isidentifier() or _count(size) is None:
            raise argparse.ArgumentTypeError(
                f"expected DIM=SIZE,... as in hosts=2,gpus=4; not {shortened(text)}"
            )
        if name in found:
            raise argparse.ArgumentTypeError(
                f"expected each dimension once; {name!r} is there twice in {shortened(text)}"
            )
        found[name] = int(size)
    return found


def positive(text: str) -> int:
    """Parse a number of at least 1."""
    found = _count(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, not {shortened(text)}")
    return found


def whole(text: str) -> int:
    """Parse a whole number, which may be negative."""
    if _count(text.removeprefix("-")) is None and text != "0":
        raise argparse.ArgumentTypeError(f"expected a whole number, not {shortened(text)}")
    return int(text)


def _count(text: str) -> int | None:
    """Return the number from 1 to `MAX_COUNT` in a text; None if it's something else."""
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        return None
    return int(text) if 1 <= int(text) <= MAX_COUNT else None


def seconds(text: str) -> float:
    """Parse a duration such as 90s or 8h."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def num_bytes(text: str) -> int:
    """Parse a size such as 64M or 1GiB; K, M and G are powers of 1024."""
    found = re.fullmatch(r"([0-9]{1,15})([KMG]?)(?:i?B)?", text, re.IGNORECASE)
    if not found or not int(found[1]):
        raise argparse.ArgumentTypeError(f"expected a size such as 64M or 1G, not {shortened(text)}")
    return int(found[1]) << " KMG".index(found[2].upper() or " ") * 10


def variable(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not equals or not key or "\0" in text:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, not {shortened(text)}")
    return key, value


def limit(text: str) -> tuple[str, str]:
    """Parse memory=SIZE,cpus=NUMBER; return the environment variable that tells ranks."""
    try:
        parse_limits(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return VARIABLE, text


def cell_number(text: str) -> int:
    """Parse the number of a cell in the journal: 12 or #12."""
    return positive(text.removeprefix("#"))


def script_name(text: str) -> str:
    """Parse a script's file, or a module's name."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(
            f"expected a script's file, as in train.py, or with -m a module's name; not {shortened(text)}"
        )
    return text


def host_count(text: str) -> str:
    """Check `4`, `2..8`, or names of hosts: `a,b[1-4]`. The value stays text."""
    if text[:1].isascii() and text[:1].isalpha():
        return text
    if not all(_count(part) for part in text.split("..", 1)):
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, not {shortened(text)}")
    return text


def host_names(text: str) -> tuple[str, ...]:
    """Parse numbers or names of hosts: `3,5`."""
    found = tuple(part.strip() for part in text.split(","))
    if not all(found):
        raise argparse.ArgumentTypeError(f"expected hosts, as in 3,5 or n3,n5; not {shortened(text)}")
    return found


def word(text: str) -> str:
    """Check a word that is passed to a command of an engine."""
    if not text or text.startswith("-") or not text.isprintable() or len(text) > 4096:
        raise argparse.ArgumentTypeError(f"expected a name, not {shortened(text)}")
    return text


def num_procs(text: str) -> str:
    """Parse a number of processes: 4, auto, gpu, cpu."""
    if text not in ("auto", "gpu", "cpu"):
        try:
            positive(text)
        except argparse.ArgumentTypeError:
            expected = "expected a number of processes, auto, gpu or cpu"
            raise argparse.ArgumentTypeError(f"{expected}; not {shortened(text)}") from None
    return text


def num_nodes(text: str) -> int:
    """Parse a number of hosts in torchrun's syntax: 2, or 2:2."""
    least, _, most = text.partition(":")
    return positive(least) if most in ("", least) else positive(text)


def num_restarts(text: str) -> int:
    """Parse a number of restarts: 0, 1, 2 ..."""
    return 0 if text == "0" else positive(text)
