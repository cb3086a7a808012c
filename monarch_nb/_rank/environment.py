"""Describes the environment of this rank, in words that are equal on equal ranks: versions, variables, code,
settings, random states, limits.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from monarch_nb._wire.loaded import loaded

GIT_S = 20.0
_SECRET = re.compile(
    r"TOKEN|SECRET|PASS(WORD|WD|PHRASE)|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE|_KEY$|AUTH|COOKIE|SESSION"
    r"|_PAT$",
    re.IGNORECASE,
)
_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_UNLIMITED = "unlimited"
_TORCH: dict[str, Callable[[Any], object]] = {
    "deterministic algorithms": lambda torch: torch.are_deterministic_algorithms_enabled(),
    "float32 matmul precision": lambda torch: torch.get_float32_matmul_precision(),
    "threads": lambda torch: torch.get_num_threads(),
    "interop threads": lambda torch: torch.get_num_interop_threads(),
    "default dtype": lambda torch: torch.get_default_dtype(),
    "anomaly detection": lambda torch: torch.is_anomaly_enabled(),
    "cudnn.benchmark": lambda torch: torch.backends.cudnn.benchmark,
    "cudnn.deterministic": lambda torch: torch.backends.cudnn.deterministic,
}  # fmt: skip


def describe(salt: bytes) -> dict[str, dict[str, str]]:
    """Return the facts of the environment that this process runs in, by section and name.

    Args:
        salt: goes into the hashes of secrets, so that they can be compared within one answer and with nothing
            else.
    """
    return {
        "python": _python(),
        "packages": dict(sorted(_packages())),
        "variables": {name: shown(name, value, salt) for name, value in sorted(os.environ.items())},
        "code": _code(),
        "gpu": _gpu(),
        "torch": _torch(),
        "limits": _limits(),
        "random states": _random(),
    }


def shown(name: str, value: str, salt: bytes) -> str:
    """Return a variable's displayed value: a hash for probable secrets.

    >>> shown("WANDB_API_KEY", "abc", b"") == "abc", shown("HOME", "/root", b"")
    (False, '/root')
    >>> shown("PROXY", "http://me:secret@host:80", b"") == shown("PROXY", "http://me:other@host:80", b"")
    False
    """
    if _SECRET.search(name):
        return f"hash {_hash(value.encode(), salt)}"
    return _IN_URL.sub(lambda match: f"hash-{_hash(match[0].encode(), salt)}", value)


def _hash(data: bytes, salt: bytes = b"") -> str:
    return hashlib.blake2b(data, digest_size=4, key=salt[:64]).hexdigest()


def _python() -> dict[str, str]:
    return {
        "version": platform.python_version(),
        "executable": sys.executable,
        "path": os.pathsep.join(sys.path),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
    }


def _packages() -> Iterator[tuple[str, str]]:
    """Yield name and version of importable packages; of two with the same name the first on the path
    counts.
    """
    known = set()
    for found in metadata.distributions():
        with suppress(KeyError, TypeError, OSError):  # a broken package must not hide the others
            about = found.metadata
            name = re.sub(r"[-_.]+", "-", about["Name"]).lower()
            if name not in known:
                known.add(name)
                yield name, about["Version"]


def _code() -> dict[str, str]:
    found = {"directory": os.getcwd()}
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return {**found, "commit": "no git repository"}
    changes = _git("status", "--porcelain") or b""
    num = len(changes.splitlines())
    content = changes + (_git("diff", "HEAD") or b"")
    dirty = f"{num} changed file{'s' if num != 1 else ''}, hash {_hash(content)}" if num else "none"
    return {**found, "commit": commit.decode().strip(), "changes": dirty}


def _git(*arguments: str) -> bytes | None:
    command = ["git", "--no-optional-locks", *arguments]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            command, capture_output=True, check=True, timeout=GIT_S, stdin=subprocess.DEVNULL
        ).stdout
    return None


def _gpu() -> dict[str, str]:
    found = {"driver": _driver(), "models": ", ".join(sorted(_models()))}
    torch = loaded("torch")
    if torch is not None and torch.version.cuda:
        found["CUDA of torch"] = torch.version.cuda
        found["cuDNN"] = str(torch.backends.cudnn.version())
        with suppress(AttributeError, RuntimeError):
            found["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
    return {name: value for name, value in found.items() if value}


def _driver() -> str:
    """Return the driver's version; read from the kernel, so that no CUDA context is made."""
    with suppress(OSError):
        match = re.search(r"Kernel Module\D*([\d.]+)", Path("/proc/driver/nvidia/version").read_text())
        return match[1] if match else ""
    return ""


def _models() -> set[str]:
    found = set()
    for file in Path("/proc/driver/nvidia/gpus").glob("*/information"):
        with suppress(OSError):
            found.update(re.findall(r"^Model:\s*(.+?)\s*$", file.read_text(), re.MULTILINE))
    return found


def _torch() -> dict[str, str]:
    torch = loaded("torch")
    if torch is None:
        return {"torch": "not imported"}
    found = {"torch": str(torch.__version__)}
    for name, read in _TORCH.items():
        with suppress(AttributeError, RuntimeError):
            found[name] = str(read(torch))
    return found


def _limits() -> dict[str, str]:
    return {
        name: _limit(getattr(resource, f"RLIMIT_{name.upper()}"))
        for name in ("memlock", "nofile", "nproc", "stack")
    }


def _limit(which: int) -> str:
    soft, hard = (_UNLIMITED if n == resource.RLIM_INFINITY else str(n) for n in resource.getrlimit(which))
    return soft if soft == hard else f"{soft} (up to {hard})"


def _random() -> dict[str, str]:
    """Return a short hash of each generator's state that has been imported here."""
    found: dict[str, str] = {}
    for name, module, read in _GENERATORS:
        loaded = sys.modules.get(module)
        if loaded is not None:
            with suppress(AttributeError, RuntimeError):
                state = read(loaded)
                if state is not None:
                    found[name] = _hash(state)
    return found


def _numpy_state(numpy: Any) -> bytes:
    name, keys, *rest = numpy.random.get_state()
    return repr((name, keys.tobytes(), *rest)).encode()


def _cuda_state(torch: Any) -> bytes | None:
    return (
        bytes(torch.cuda.get_rng_state().numpy())
        if torch.cuda.is_available() and torch.cuda.is_initialized()
        else None
    )


_GENERATORS: tuple[tuple[str, str, Callable[[Any], bytes | None]], ...] = (
    ("python", "random", lambda random: repr(random.getstate()).encode()),
    ("numpy", "numpy", _numpy_state),
    ("torch", "torch", lambda torch: bytes(torch.get_rng_state().numpy())),
    ("torch.cuda", "torch", _cuda_state),
)
