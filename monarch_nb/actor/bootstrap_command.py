"""The argument `bootstrap_command` of `spawn_procs`: the command that starts each process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from monarch_nb._protocol.rank_spec import StartCommand
from monarch_nb._shape import Extent, Point

RANK_MODULE = "monarch_nb._rank.bootstrap"


class BootstrapCommand(msgspec.Struct):
    """A command that becomes a rank. It may be a wrapper that executes the default command, as numactl and
    taskset do.

    Attributes:
        program: the program to execute.
        arg0: the program's own name, `argv[0]`; by default `program`.
        args: the arguments.
        env: environment variables; None removes one.
        inherit_env: whether they are added to the host process' environment, or replace it.
    """

    program: str
    arg0: str | None = None
    args: list[str] = msgspec.field(default_factory=list)
    env: Mapping[str, str | None] = msgspec.field(default_factory=dict)
    inherit_env: bool = True

    def with_env(self, env: Mapping[str, str | None]) -> Self:
        """Return the same command with more environment variables.

        >>> default_bootstrap_cmd().with_env({"A": "1"}).env
        {'A': '1'}
        """
        return replace(self, env={**self.env, **env})


def default_bootstrap_cmd() -> BootstrapCommand:
    """Return the command that starts a process in this program's interpreter: to be changed and given to
    `spawn_procs`.

    Example:
        >>> command = default_bootstrap_cmd()  # doctest: +SKIP
        >>> args = ["-n", "5", command.program, *command.args]  # doctest: +SKIP
        >>> command = BootstrapCommand("nice", None, args)  # doctest: +SKIP
        >>> this_host().spawn_procs({"gpus": 2}, bootstrap_command=command)  # doctest: +SKIP
    """
    return BootstrapCommand(sys.executable, None, ["-m", RANK_MODULE])


def commands_of(
    given: BootstrapCommand | Callable[[Point], BootstrapCommand] | None, extent: Extent
) -> list[StartCommand]:
    """Return the commands of all ranks, as host processes take them: one, if it's the same for all; none if
    there's none.

    Raises:
        TypeError: for what is no command, and returns none.
        ValueError: for one that can't be executed.
    """
    if given is None:
        return []
    if isinstance(given, BootstrapCommand):
        return [_checked(given, "bootstrap_command")]
    if not callable(given):
        raise TypeError(
            "bootstrap_command takes a BootstrapCommand (see default_bootstrap_cmd()) or a function "
            f"of a point, not {given!r}"
        )
    return [_checked(given(point), f"bootstrap_command of {dict(point)}") for point in extent.points()]


def _checked(command: Any, what: str) -> StartCommand:
    if not isinstance(command, BootstrapCommand):
        raise TypeError(f"{what} is a BootstrapCommand (see default_bootstrap_cmd()), not {command!r}")
    if not isinstance(command.program, str) or not command.program:
        raise ValueError(f"{what}: program is the path or name of a program, not {command.program!r}")
    if (
        isinstance(command.args, str)
        or not isinstance(command.args, Sequence)
        or not all(isinstance(a, str) for a in command.args)
    ):
        raise ValueError(f"{what}: args is a list of texts, not {command.args!r}")
    for name, value in command.env.items():
        if not isinstance(name, str) or not isinstance(value, str | None):
            raise ValueError(
                f"{what}: env maps texts to texts, or None to take one away; got {name!r}: {value!r}"
            )
    return StartCommand(
        command.program, command.arg0, list(command.args), dict(command.env), command.inherit_env
    )
