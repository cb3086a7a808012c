"""Builds the command that starts a rank without a fork: a fresh interpreter, or the user's command."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from monarch_nb._host.starting import HUGE_PAGES, PACKAGE_ROOT, RANK_VARIABLE
from monarch_nb._protocol.rank_spec import RankSpec, StartCommand

_CODE = (
    "import sys; sys.path[:] = [p for p in sys.path if p];"
    "import os, json; sys.path[:] = json.loads(os.environ['MONARCH_NB_RANK'])['path'];"
    "from monarch_nb._rank.bootstrap import main; main()"
)


@dataclass(frozen=True)
class RankCommand:
    """The command that starts a rank, with its arguments and its environment.

    Attributes:
        is_users: whether the user has given the command.
    """

    program: str
    argv: list[str]
    env: dict[str, str]
    is_users: bool


def rank_command(spec: RankSpec, spec_fd: int) -> RankCommand:
    """Return the command for a rank whose specification is in `spec_fd`, which the rank inherits."""
    group = spec.group
    command = group.commands[min(spec.place.rank, len(group.commands) - 1)] if group.commands else None
    env = _environment(command)
    pythonpath = env.get("PYTHONPATH")
    if command is not None:  # `python -m` must find this package; the rank restores the variable
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (PACKAGE_ROOT, pythonpath)))
    place = {"path": group.sys_path, "fd": spec_fd, "parent": os.getpid(), "pythonpath": pythonpath}
    env = {**dict([HUGE_PAGES]), **env, **group.env, RANK_VARIABLE: json.dumps(place)}
    if command is not None:
        argv = [command.arg0 or command.program, *command.args]
        return RankCommand(command.program, argv, env, is_users=True)
    python = group.python or sys.executable
    return RankCommand(python, [python, "-c", _CODE], env, is_users=False)


def module_path(theirs: Sequence[str], ours: Sequence[str]) -> list[str]:
    """Return the module path of a rank: the spawning program's; where its interpreter isn't on this host,
    followed by the host process' own, which has the standard library.

    >>> module_path(["/no/such/lib/python3.11", "/home/me/proj"], ["/usr/lib/python3.11"])
    ['/no/such/lib/python3.11', '/home/me/proj', '/usr/lib/python3.11']
    """
    if any(os.path.isdir(os.path.join(entry, "encodings")) for entry in theirs):
        return list(theirs)
    return list(dict.fromkeys([*theirs, *ours]))


def _environment(command: StartCommand | None) -> dict[str, str]:
    if command is None:
        return dict(os.environ)
    env = dict(os.environ) if command.inherit_env else {}
    for name, value in command.env.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env
