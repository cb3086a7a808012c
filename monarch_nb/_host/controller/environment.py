"""Describes the environment of a mesh for the journal: versions, and the variables that it was given."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from importlib import metadata

from monarch_nb._protocol.journal import Environment
from monarch_nb._version import __version__

_PACKAGES = ("monarch_nb", "torch", "numpy", "ipython", "pyzmq", "cloudpickle")


def describe_environment(hostname: str, variables: Mapping[str, str]) -> Environment:
    """Return versions, the host and the variables."""
    found = {
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "host": hostname,
        "variables": dict(variables),
    }
    text = json.dumps(found, sort_keys=True)
    return Environment.of({"id": hashlib.sha256(text.encode()).hexdigest()[:8], **found})


def _version(package: str) -> str:
    if package == "monarch_nb":
        return __version__  # the package may run from a checkout that isn't installed
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
