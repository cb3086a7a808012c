"""Describes a Python interpreter: this process' own, or another one, by a program that runs in it and needs
none of this package.
"""

from __future__ import annotations

import json
import os
import platform
import site
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import asdict, dataclass

TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Interpreter:
    """An interpreter with its environment.

    Attributes:
        executable: how it was started.
        prefix, base_prefix: the environment, and what that was made from; equal if there's none.
        path: `sys.path`.
        user_site: the user's site-packages, if they're on; else "".
        version: as in "3.11.7".
        soabi: what extension modules must have been built for: "cpython-311-x86_64-linux-gnu".
        machine: "x86_64".
        libc: "glibc 2.36"; "" where that can't be said.
        stdlib: directory of the standard library.
        cwd: the directory that it runs in: what `""` in its path means.
    """

    executable: str
    prefix: str
    base_prefix: str
    path: tuple[str, ...]
    user_site: str
    version: str
    soabi: str
    machine: str
    libc: str
    stdlib: str
    cwd: str


def this_interpreter(path: Sequence[str] | None = None) -> Interpreter:
    """Return this process' interpreter.

    Args:
        path: what stands for `sys.path`; by default that.
    """
    return Interpreter(
        executable=sys.executable,
        prefix=sys.prefix,
        base_prefix=sys.base_prefix,
        path=tuple(sys.path if path is None else path),
        user_site=(site.getusersitepackages() if site.ENABLE_USER_SITE else ""),
        version=platform.python_version(),
        soabi=str(sysconfig.get_config_var("SOABI") or ""),
        machine=platform.machine(),
        libc=" ".join(platform.libc_ver()).strip(),
        stdlib=sysconfig.get_path("stdlib"),
        cwd=os.getcwd(),
    )


def interpreter_of(executable: str) -> Interpreter:
    """Return the facts about another interpreter, by asking it.

    Raises:
        OSError: if it can't be started.
        subprocess.CalledProcessError: if it ends with an error.
    """
    with open(__file__, encoding="utf-8") as file:
        program = file.read()
    asked = subprocess.run(
        [executable, "-c", program], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    fields = json.loads(asked.stdout)
    return Interpreter(**{**fields, "path": tuple(fields["path"])})


if __name__ == "__main__":
    print(json.dumps(asdict(this_interpreter())))
