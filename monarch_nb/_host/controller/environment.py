"""Describes the environment of a mesh for the journal: versions, and the variables that it was given."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from contextlib import suppress

from monarch_nb._protocol.journal import Environment
from monarch_nb._version import __version__

_PACKAGES = ("torch", "numpy", "ipython", "pyzmq", "cloudpickle")
_RECORD = re.compile(r"(\w+)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info")


def describe_environment(hostname: str, variables: Mapping[str, str]) -> Environment:
    """Return versions, the host and the variables."""
    found = {
        "python": platform.python_version(),
        # ours from here: the package may run from a checkout that isn't installed
        "packages": {"monarch_nb": __version__, **_versions()},
        "host": hostname,
        "variables": dict(variables),
    }
    text = json.dumps(found, sort_keys=True)
    return Environment.of({"id": hashlib.sha256(text.encode()).hexdigest()[:8], **found})


def _versions() -> dict[str, str]:
    """Return versions of installed packages, of which the names of their records tell. `importlib.metadata`
    reads the records, and imports email, csv and zipfile for it: a sixth of what a controller imports.
    """
    found: dict[str, str] = {}
    for directory in sys.path:
        with suppress(OSError):
            for record in filter(None, map(_RECORD.fullmatch, os.listdir(directory or os.curdir))):
                found.setdefault(record[1].lower(), record[2])
    return {name: found[name] for name in _PACKAGES if name in found}
