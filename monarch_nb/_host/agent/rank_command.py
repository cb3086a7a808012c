"""How a rank is started that isn't forked: by a fresh interpreter, or by a command of the user's."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monarch_nb._host.starting import HUGE_PAGES, PACKAGE_ROOT, RANK_VARIABLE

_CODE = (
    "import sys, os, json; sys.path[:] = json.loads(os.environ['MONARCH_NB_RANK'])['path'];"
    "from monarch_nb._rank.bootstrap import main; main()"
)


@dataclass(frozen=True)
class RankCommand:
    """What is executed.

    Attributes:
        is_users: whether the user has chosen the command.
    """

    program: str
    argv: list[str]
    env: dict[str, str]
    is_users: bool


def rank_command(own: Mapping[str, Any], spec: Mapping[str, Any], spec_fd: int) -> RankCommand:
    """Return the command for a rank whose specification lies in `spec_fd`, which it inherits."""
    commands = spec.get("commands")
    command = commands[min(own["rank"], len(commands) - 1)] if commands else {}
    env = _environment(command)
    pythonpath = env.get("PYTHONPATH")
    if command:  # `python -m` is to find us; the rank puts it back
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (PACKAGE_ROOT, pythonpath)))
    place = {"path": spec["sys_path"], "fd": spec_fd, "parent": os.getpid(), "pythonpath": pythonpath}
    env = {**dict([HUGE_PAGES]), **env, **spec["env"], **own.get("env", {}), RANK_VARIABLE: json.dumps(place)}
    if command:
        return RankCommand(
            command["program"], [command["arg0"] or command["program"], *command["args"]], env, is_users=True
        )
    python = spec.get("python") or sys.executable
    return RankCommand(python, [python, "-c", _CODE], env, is_users=False)


def _environment(command: Mapping[str, Any]) -> dict[str, str]:
    env = dict(os.environ) if command.get("inherit_env", True) else {}
    for name, value in command.get("env", {}).items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env
