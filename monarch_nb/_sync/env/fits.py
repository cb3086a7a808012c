"""Checks whether an environment can run on a machine: by facts before anything is sent, by a trial
afterwards.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from monarch_nb._sync.env.place import Prefix
from monarch_nb._sync.env.system_python import system_pythons
from monarch_nb._units import size_text

TEST_S = 120.0
SLACK_BYTES = 64 << 20
_OWN_VARIABLES = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
)
_LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
"""By CUDA's major version, the driver that all its minor versions run on (NVIDIA, "CUDA Compatibility")."""
_TEST = (
    "import importlib, sys\n"
    "for name in sys.argv[1:]:\n"
    "    try:\n        importlib.import_module(name)\n"
    "    except BaseException as error:\n        sys.exit(f'{name}: {type(error).__name__}: {error}')\n"
)


@dataclass(frozen=True)
class Machine:
    """The properties of a machine that an environment must fit.

    Attributes:
        machine: as in "x86_64".
        libc: "glibc 2.36"; "" where that can't be said.
        soabis: of the interpreters of the distribution.
        driver: version of NVIDIA's driver; "" without one.
        free_bytes, free_inodes: where the store is.
    """

    machine: str
    libc: str
    soabis: tuple[str, ...]
    driver: str
    free_bytes: int
    free_inodes: int


def this_machine(store: str) -> Machine:
    """Return the facts about this machine; `store`: an existing directory where the store is."""
    disk = os.statvfs(store)
    libc = " ".join(platform.libc_ver()).strip()
    free_inodes = disk.f_favail or 1 << 62  # some file systems have no fixed number
    free_bytes = disk.f_bavail * disk.f_frsize
    soabis = tuple(python.soabi for python in system_pythons())
    return Machine(platform.machine(), libc, soabis, _driver(), free_bytes, free_inodes)


def refusal(facts: Mapping[str, str], there: Machine) -> str:
    """Return why an environment can't run on a machine; empty if nothing speaks against it.

    Args:
        facts: of its manifest.
    """
    if facts.get("machine") != there.machine:
        return f"it is for {facts.get('machine')}, the host is {there.machine}: one can be made there"
    here_libc, there_libc = facts.get("libc", "").split(), there.libc.split()
    if here_libc[:1] != there_libc[:1]:
        return (
            f"it is for {' '.join(here_libc) or 'another libc'}, this host has {there.libc or 'another one'}"
        )
    needed = facts.get("glibc") or "0"
    if there_libc[1:] and _version(needed) > _version(there_libc[1]):
        return f"it needs glibc {needed}, this host has {there_libc[1]}"
    if facts.get("system_python") and facts.get("soabi") not in there.soabis:
        return (
            f"it was made from the distribution's Python ({facts.get('soabi')}), and this host has "
            f"{' '.join(there.soabis) or 'none'}: install it there, or take another one here "
            "(uv venv --managed-python)"
        )
    return ""


def warnings(facts: Mapping[str, str], there: Machine) -> Iterator[str]:
    """Yield warnings of features that will not work on a machine, though the environment runs there."""
    cuda = facts.get("cuda", "")
    major = int(cuda.partition(".")[0]) if cuda.partition(".")[0].isdecimal() else 0
    least = _LEAST_DRIVER.get(major, 0)
    if there.driver and _version(there.driver) < (least,):
        yield f"NVIDIA's driver {there.driver} is too old for CUDA {cuda}, which needs {least}"


def no_room(num_bytes: int, num_files: int, there: Machine) -> str:
    """Return why there's no room for so much more; empty if there is."""
    if num_bytes + SLACK_BYTES > there.free_bytes:
        free = size_text(there.free_bytes)
        return f"{size_text(num_bytes)} are needed, {free} are free: monarch-nb sync --gc there frees some"
    if 2 * num_files > there.free_inodes:
        return f"{num_files:,} files are needed, and the file system has {there.free_inodes:,} inodes left"
    return ""


def try_prefix(prefix: Prefix, modules: Sequence[str]) -> str:
    """Have a prefix' interpreter import modules; return why it can't, empty if it can.

    Args:
        modules: what the notebook has imported itself, so that it's known to work.
    """
    if not prefix.python:
        return "the environment has no interpreter"
    try:
        tried = subprocess.run(
            [prefix.python, "-I", "-B", "-c", _TEST, *modules],
            capture_output=True, text=True, timeout=TEST_S, stdin=subprocess.DEVNULL,
            env=clean_variables(os.environ),
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"its interpreter can't be started: {error}"
    if not tried.returncode:
        return ""
    errors = tried.stderr.strip().splitlines()
    return f"it doesn't work there: {errors[-1] if errors else f'exit code {tried.returncode}'}"


def clean_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables without those that would lead an interpreter into another environment."""
    return {name: value for name, value in environ.items() if name not in _OWN_VARIABLES}


def needed_glibc(contents: Sequence[bytes]) -> str:
    """Return the newest version of glibc that ELF files ask for; "" if none.

    >>> needed_glibc([b"GLIBC_2.4 GLIBC_2.34", b"GLIBC_2.17"])
    '2.34'
    """
    found = [
        tuple(map(int, m.split(b".")))
        for content in contents
        for m in re.findall(rb"GLIBC_(2\.\d+)", content)
    ]
    return ".".join(map(str, max(found))) if found else ""


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))


def _driver() -> str:
    with suppress(OSError):
        with open("/proc/driver/nvidia/version") as file:
            found = re.search(r"Kernel Module.*?(\d+\.\d+(?:\.\d+)?)", file.read())
            return found.group(1) if found else ""
    return ""
