"""What is typed after a verb, checked: each type raises with what was expected."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypedDict

from monarch_nb._client.mesh_name import check_mesh_name
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.status import parse_duration

Namespace = argparse.Namespace
_SIZE = re.compile(r"(?<!\S)[A-Za-z_]\w*=\d+(?!\S)")
DEFAULT_NAME = "mesh"
"""Of a mesh that is given no other."""
MAX_COUNT = 1_000_000_000
"""Larger numbers are typing errors; how many ranks there may be, the machine says."""


class Helped(Exception):
    """--help has been asked for; the text is the help."""


class Parser(argparse.ArgumentParser):
    """argparse that raises instead of leaving the kernel."""

    def error(self, message: str) -> NoReturn:
        raise MeshUsageError(f"{self.prog}: {message}. {self.hint(message)}Usage: {self.one_line_usage()}")

    def one_line_usage(self) -> str:
        """Return what may be typed, in one line."""
        return " ".join(self.format_usage().removeprefix("usage: ").split())

    def hint(self, message: str) -> str:
        """Return what was probably meant: sizes are often typed without their flag, and flags with a wrong
        letter.
        """
        if not message.startswith("unrecognized arguments: "):
            return ""
        sizes = _SIZE.findall(message)
        if sizes and "--dims" in self._option_string_actions:
            return f"Did you mean --dims {','.join(sizes)}? "
        wrong = message.removeprefix("unrecognized arguments: ").split()[0].partition("=")[0]
        return did_you_mean(wrong, self._option_string_actions)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise Helped(message or "")

    def print_help(self, file: object = None) -> None:
        raise Helped(self.format_help().rstrip())


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return a question that names what is spelled nearly as `word`; nothing if nothing is.

    >>> did_you_mean("statos", ["start", "status"], "%mesh ")
    'Did you mean %mesh status? '
    """
    found = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6) if len(word) < 40 else []
    return f"Did you mean {prefix}{found[0]}? " if found else ""


def shortened(text: str) -> str:
    """Return what was typed as a message quotes it: a long text by its beginning."""
    return repr(text) if len(text) <= 60 else f"{text[:50]!r}... ({len(text)} characters)"


def mesh_name(text: str) -> str:
    """Read the name of a mesh."""
    try:
        return check_mesh_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def mesh_names(text: str) -> tuple[str, ...]:
    """Read names of meshes: `generator,trainer`; each once."""
    return tuple(dict.fromkeys(map(mesh_name, text.split(","))))


def mesh_or_pid(text: str) -> str:
    """Read the name of a mesh, or the pid of a program that has one of its own."""
    return text if text.isascii() and text.isdigit() else mesh_name(text)


def variable_name(text: str) -> str:
    """Read the name of a variable."""
    if not text.isidentifier():
        raise argparse.ArgumentTypeError(f"expected a variable's name, as in loss; not {shortened(text)}")
    return text


def variable_part(text: str) -> str:
    """Read the name of a variable, or of a part of it: model.fc, losses[0]."""
    if not re.split(r"[.\[]", text, maxsplit=1)[0].isidentifier():
        raise argparse.ArgumentTypeError(
            f"expected a variable, or a part of one, as in model or model.fc; not {shortened(text)}"
        )
    return text


def pattern(text: str) -> str:
    """Read a regular expression."""
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise argparse.ArgumentTypeError(
            f"expected a regular expression; {shortened(text)} is none: {error}"
        ) from None
    return text


def dims(text: str) -> dict[str, int]:
    """Read `hosts=2,gpus=4`."""
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
    """Read a number of at least 1."""
    found = _count(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, not {shortened(text)}")
    return found


def whole(text: str) -> int:
    """Read a whole number, also a negative one."""
    if _count(text.removeprefix("-")) is None and text != "0":
        raise argparse.ArgumentTypeError(f"expected a whole number, not {shortened(text)}")
    return int(text)


def _count(text: str) -> int | None:
    """Return the number from 1 to `MAX_COUNT` that a text is; None if it's something else."""
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        return None
    return int(text) if 1 <= int(text) <= MAX_COUNT else None


def seconds(text: str) -> float:
    """Read a duration such as 90s or 8h."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def num_bytes(text: str) -> int:
    """Read a size such as 64M or 1GiB; K, M and G are powers of 1024."""
    found = re.fullmatch(r"([0-9]{1,15})([KMG]?)(?:i?B)?", text, re.IGNORECASE)
    if not found or not int(found[1]):
        raise argparse.ArgumentTypeError(f"expected a size such as 64M or 1G, not {shortened(text)}")
    return int(found[1]) << " KMG".index(found[2].upper() or " ") * 10


def variable(text: str) -> tuple[str, str]:
    """Read KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not equals or not key or "\0" in text:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, not {shortened(text)}")
    return key, value


def cell_number(text: str) -> int:
    """Read the number of a cell in the journal: 12 or #12."""
    return positive(text.removeprefix("#"))


def add_sync_arguments(add: Callable[..., Any]) -> None:
    """Add what sync takes in notebooks and terminals."""
    add("--dry-run", action="store_true", help="only say what would be sent and reloaded, and why")
    add(
        "--include",
        action="append",
        default=[],
        metavar="GLOB",
        help="send it though it's ignored, secret or big, from now on",
    )
    add("--exclude", action="append", default=[], metavar="GLOB", help="don't send it, from now on")
    add("--same-path", action="store_true", help="make a link at the notebook's path on each host")
    add("--no-reload", action="store_true", help="only put files in place")
    add("--force", "-f", action="store_true", help="send more than a GiB")
    add(
        "--env",
        "-e",
        action="store_true",
        help="the environment, too: ranks that are started from then on run in it",
    )
    add(
        "--verify",
        action="store_true",
        help="with --env: read every file here, whatever its package's record says",
    )
    add("--copy", action="store_true", help="with --env: a copy also for hosts that see the notebook's files")


class SyncChoices(TypedDict):
    """What `Mesh.sync` takes besides paths."""

    dry_run: bool
    include: Sequence[str]
    exclude: Sequence[str]
    same_path: bool
    reload: bool
    force: bool
    env: bool
    verify: bool
    copy: bool


def sync_choices(arguments: Any) -> SyncChoices:
    """Return what was typed for sync."""
    return SyncChoices(
        dry_run=arguments.dry_run,
        include=arguments.include,
        exclude=arguments.exclude,
        same_path=arguments.same_path,
        reload=not arguments.no_reload,
        force=arguments.force,
        env=arguments.env,
        verify=arguments.verify,
        copy=arguments.copy,
    )


def add_doctor_arguments(add: Callable[..., Any]) -> None:
    """Add what `doctor` takes, in a notebook and in a terminal."""
    add(
        "--ranks",
        "-r",
        default="",
        help="which ranks; by default all are looked at, and those that stand for their hosts are measured",
    )
    add(
        "--size",
        "-s",
        type=num_bytes,
        default=64 << 20,
        metavar="SIZE",
        help="how much is read at a time: 64M",
    )
    add("--quick", "-q", action="store_true", help="only look, measure nothing")
    add("--all", "-a", action="store_true", help="measure also the path through the mesh's own messages")


def script_name(text: str) -> str:
    """Read a script's file, or a module's name."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(
            f"expected a script's file, as in train.py, or with -m a module's name; not {shortened(text)}"
        )
    return text


def add_script_arguments(add: Callable[..., Any]) -> None:
    """Add what a script's run takes: the script and its own arguments come last."""
    add("--module", "-m", dest="is_module", action="store_true", help="SCRIPT is a module, as for python -m")
    add(
        "--env",
        "-e",
        type=variable,
        action="append",
        metavar="K=V",
        help="an environment variable, for this run only",
    )
    add("script", type=script_name, metavar="SCRIPT", help="a file, or with -m a module")
    add("args", nargs=argparse.REMAINDER, metavar="ARGS", help="what stands behind it is the script's own")


def host_count(text: str) -> str:
    """Read `4`, `2..8`, or names of hosts: `a,b[1-4]`. It stays text."""
    if text[:1].isascii() and text[:1].isalpha():
        return text
    if not all(_count(part) for part in text.split("..", 1)):
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, not {shortened(text)}")
    return text


def word(text: str) -> str:
    """Read a word that a command of an engine is given."""
    if not text or text.startswith("-") or not text.isprintable() or len(text) > 4096:
        raise argparse.ArgumentTypeError(f"expected a name, not {shortened(text)}")
    return text


def add_engine_arguments(add: Callable[..., Any]) -> None:
    """Add what `start` takes for hosts of an engine."""
    add(
        "--on",
        type=word,
        metavar="PROFILE",
        help="hosts of a profile of clusters.toml, or of an engine; %%mesh clusters lists them",
    )
    add("--time", type=seconds, metavar="T", help="with --on: for how long, as in 2h")
    add("--partition", type=word, help="with --on: which part of the cluster")
    add("--account", type=word, help="with --on: who pays")
    add(
        "--login", type=word, metavar="[USER@]HOST", help="with --on: where the engine's commands are, by ssh"
    )
    add("--python", type=word, metavar="PATH", help="with --on: the interpreter on the hosts")
    add(
        "--wait",
        type=seconds,
        metavar="T",
        help="with --on: how long to wait for hosts; then the request is cancelled",
    )
    add("--keep-queued", action="store_true", help="with --wait: leave the request in the queue instead")
    add("--dry-run", action="store_true", help="with --on: show what would be submitted, and submit nothing")


def add_start_arguments(add: Callable[..., Any]) -> None:
    """Add what `start` takes, in a notebook and in a terminal."""
    add(
        "name",
        nargs="?",
        type=mesh_name,
        default=DEFAULT_NAME,
        help="name of the mesh, and of the notebook's variable for it",
    )
    add("--gpus", type=positive, help="ranks per host, one GPU each where there are any")
    add("--procs", type=positive, help="ranks per host")
    add("--hosts", type=host_count, help="number of hosts; with --on also LEAST..MOST, or names")
    add("--dims", type=dims, metavar="D=N,...", help="dimensions, as in hosts=2,gpus=4 or dp=2,tp=4")
    add("--job", choices=("local", "process"), help="where hosts come from")
    add("--idle-timeout", type=seconds, metavar="T", help="lease, as in 30m or 8h (without it: 8h)")
    add("--env", "-e", type=variable, action="append", metavar="K=V", help="environment of the ranks")
    add(
        "--init-process-group",
        nargs="?",
        const="",
        choices=("", "nccl", "gloo"),
        help="set up torch.distributed",
    )
    add(
        "--group-timeout",
        type=seconds,
        metavar="T",
        help="with --init-process-group: how long a collective may take (without it: 10m)",
    )
    add(
        "--on-failure",
        choices=("stop", "heal", "shrink"),
        help="what is done when a rank dies (without it: stop)",
    )
    add("--spares", type=positive, help="hosts that wait to take a lost one's place")
    add("--spawn", action="store_true", help="fresh interpreters instead of forks of a warm one")
    add("--force", "-f", action="store_true", help="more ranks than the machine seems to have room for")
    add_engine_arguments(add)
