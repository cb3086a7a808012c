"""The distribution's Python. It belongs to its machine: an environment that was made from it is sent without,
and runs that of its host.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

SYSTEM = "system"
"""What stands in an environment's path for the standard library, which each host has itself."""
_FOLDERS = ("/usr/bin", "/usr/local/bin")
_NAME = re.compile(r"python3(\.\d+t?)?")
_ASK = "import json, sys, sysconfig; print(json.dumps([sysconfig.get_config_var('SOABI'), sys.path]))"
_ASK_S = 10


@dataclass(frozen=True)
class SystemPython:
    """An interpreter that this machine's distribution has installed, perhaps one of several.

    Attributes:
        executable: its path, with the version if there's such a name.
        soabi: as in "cpython-311-x86_64-linux-gnu".
        library: the standard library's entries of `sys.path`.
    """

    executable: str
    soabi: str
    library: tuple[str, ...]


def find_system_python(soabi: str, base: str) -> SystemPython | None:
    """Return this machine's interpreter for extension modules of a kind, if it has one.

    Args:
        base: prefix of the notebook's interpreter; one with the same is preferred.
    """
    found = [each for each in system_pythons() if each.soabi == soabi]
    return min(found, key=lambda each: os.path.dirname(each.executable) != f"{base}/bin", default=None)


def system_pythons() -> Iterator[SystemPython]:
    """Yield the interpreters of this machine's distribution. Each is asked when it's new, or another one than
    before: that takes some 20 ms, and a prefix is looked at several times until it's made.
    """
    seen = set()
    for path in _executables():
        if (real := os.path.realpath(path)) not in seen:
            seen.add(real)
            with suppress(OSError, subprocess.SubprocessError, ValueError):
                yield _asked(path, os.stat(path).st_mtime_ns)


def _executables() -> Iterator[str]:
    for folder in _FOLDERS:
        with suppress(OSError):
            names = [name for name in os.listdir(folder) if _NAME.fullmatch(name)]
            yield from (f"{folder}/{name}" for name in sorted(names, reverse=True))  # python3 is the last


@functools.lru_cache(maxsize=16)
def _asked(executable: str, _changed_at_ns: int) -> SystemPython:
    command = [executable, "-I", "-S", "-c", _ASK]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=True)
    soabi, library = json.loads(asked.stdout)
    return SystemPython(executable, str(soabi), tuple(library))
