"""Determines the facts that two programs must have in common so that an interpreter started for one can serve
the other.

An interpreter takes some things in when it starts and when it imports torch, and never again: these must
agree. The rest (other environment variables, the working directory, further entries of the module path) a
program hands over when it takes the interpreter.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import all_suffixes

from monarch_nb._client.launch import clean_environment
from monarch_nb._host.starting import PACKAGE_ROOT
from monarch_nb._protocol.warm import Requirements
from monarch_nb._wire.directory import socket_root
from monarch_nb._wire.process import machine_id

PREFIX, SUFFIX = "warm-", ".claim"
_PACKAGE = os.path.join(PACKAGE_ROOT, "monarch_nb")
_LOADED_ONCE = re.compile(
    r"(?:LD|DYLD|GLIBC|MALLOC|THP|LC|XDG|OMP|GOMP|KMP|MKL|OPENBLAS|GOTO|BLIS|DNNL|ONEDNN|TBB|NPY|NUMPY|"
    r"NUMEXPR|SYMPY|ATEN|CUDA|CUBLAS|CUDNN|NVIDIA|NCCL|GLOO|HIP|HSA|ROCR|TRITON|TORCHINDUCTOR|"
    r"ZMQ|SSL|OPENSSL|TZ)_.*|PYTHON.*|PYTORCH.*|TORCH.*|IPYTHON.*|MPL.*|LANG|LANGUAGE"
    r"|TZ|HOME|USER|LOGNAME|TMPDIR|TEMP|TMP"
    r"|MONARCH_NB_PRELOAD|MONARCH_NB_HOST_LOG"
)
"""Variables that the loader, the interpreter, torch or its libraries may read only once, when they are
loaded.
"""
_STATUS = (
    "Umask",
    "Uid",
    "Gid",
    "Groups",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "NoNewPrivs",
    "Seccomp",
    "Cpus_allowed_list",
    "Mems_allowed_list",
)
_NAMESPACES = "/proc/self/ns"
_SIGNALS = ("SigBlk", "SigIgn")
_SIGNAL_MASK = sum(1 << (number - 1) for number in (1, 3, 10, 12, 15))
"""HUP, QUIT, USR1, USR2, TERM: a kernel, or Python itself, may be handling others at the moment."""


def environment() -> dict[str, str]:
    """Return this program's environment, with a PYTHONPATH that means the same in any working directory."""
    found = clean_environment()
    if path := found.get("PYTHONPATH"):
        found["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, path.split(os.pathsep)))
    return found


def requirements() -> Requirements:
    """Return the requirements that a warm interpreter must meet to become this program's.

    Raises:
        OSError: if the kernel doesn't say.
    """
    status = _process_status()
    return Requirements(
        machine=machine_id(),
        python=(sys.executable, sys.version, sys.prefix, sys.base_prefix),
        packages=(*_package_directories(sys.path), _own_code()),
        variables={k: v for k, v in sorted(environment().items()) if _LOADED_ONCE.fullmatch(k)},
        rights=tuple(status.get(name, "") for name in _STATUS),
        signals=tuple(int(status.get(name, "0"), 16) & _SIGNAL_MASK for name in _SIGNALS),
        priority=(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), _text("oom_score_adj")),
        limits=_limits(),
        namespaces=tuple(os.readlink(f"{_NAMESPACES}/{name}") for name in sorted(os.listdir(_NAMESPACES))),
        root=os.readlink("/proc/self/root"),
        cgroup=_text("cgroup"),
    )


def key_of(found: Requirements) -> str:
    """Return the digest of the requirements."""
    return hashlib.sha256(json.dumps(found.plain(), sort_keys=True).encode()).hexdigest()[:16]


def claim_path(key: str) -> str:
    """Return the file whose lock is the claim of the keeper of an interpreter with a key.

    Raises:
        OSError: if there's no directory for it.
    """
    return os.path.join(socket_root(), f"{PREFIX}{key}{SUFFIX}")


def differences(one: Requirements, other: Requirements) -> list[str]:
    """Return the names of the requirements that differ, as in `["priority", "variable TZ"]`."""
    mine, theirs = one.plain(), other.plain()
    return sorted(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name))


def why_path_differs(
    path: Sequence[str], warm_path: Sequence[str], modules: Mapping[str, Sequence[str]]
) -> str:
    """Return why a program with the module path `path` would import other modules than those imported from
    `warm_path`; empty if it wouldn't.

    Args:
        modules: top-level modules that have been imported, by the directory that they come from.
    """
    places = {entry: i for i, entry in enumerate(dict.fromkeys(warm_path))}
    entries = list(dict.fromkeys(path))
    missing = [entry for entry in places if entry not in entries]
    if missing:
        return f"{missing[0]} isn't in its module path"
    origins = {name: directory for directory, names in modules.items() for name in names}
    lowest = len(places)
    earlier = []  # entries that precede those the warm interpreter has looked into, if any
    for entry in reversed(entries):
        place = places.get(entry, len(places))
        if place > lowest or entry not in places:
            earlier.append(entry)
        lowest = min(lowest, place)
    return next(filter(None, (_hidden_by(entry, origins) for entry in reversed(earlier))), "")


def _hidden_by(entry: str, origins: Mapping[str, str]) -> str:
    """Return the imported module that an entry of the module path would replace, since it was found in
    another entry; empty if none.
    """
    try:
        files = os.listdir(entry)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{entry} in its module path can't be looked into: {error.strerror}"
    for file in sorted(files):
        name, _, suffix = file.partition(".")
        if origins.get(name, entry) != entry and _is_module(
            os.path.join(entry, file), f".{suffix}" if suffix else ""
        ):
            return f"{os.path.join(entry, file)} would be imported in place of the installed {name}"
    return ""


def _is_module(path: str, suffix: str) -> bool:
    """Return whether the import system would import a file or directory by its name; it wouldn't import a
    directory of data.
    """
    if suffix:
        return suffix in all_suffixes()
    return any(os.path.exists(os.path.join(path, f"__init__{each}")) for each in all_suffixes())


def _package_directories(path: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield the directories of installed packages in a module path, and the times of their last changes."""
    for entry in dict.fromkeys(path):
        if os.path.basename(entry) in ("site-packages", "dist-packages"):
            with suppress(OSError):
                yield entry, os.stat(entry).st_mtime_ns


def _own_code() -> tuple[str, int, int]:
    """Return the path, and facts that change whenever this package's own code does."""
    times = []
    for directory, folders, files in os.walk(_PACKAGE):
        folders[:] = [name for name in folders if name != "__pycache__"]
        times += [
            os.stat(os.path.join(directory, name)).st_mtime_ns for name in files if name.endswith(".py")
        ]
    return _PACKAGE, len(times), max(times, default=0)


def _process_status() -> dict[str, str]:
    rows = (line.partition(":") for line in _text("status").splitlines())
    return {name: value.strip() for name, _, value in rows}


def _limits() -> tuple[tuple[int, int, int], ...]:
    numbers = {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
    return tuple((number, *resource.getrlimit(number)) for number in sorted(numbers))


def _text(name: str) -> str:
    with open(f"/proc/thread-self/{name}", errors="replace") as file:
        return file.read()
