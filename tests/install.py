"""Installs packages into this environment, or another one: by uv, which costs a tenth of the processor time
that pip takes; by pip where uv can't be had, or can't do it.

uv reads none of pip's settings: where packages come from is said to it as pip knows it. Nothing is compiled
to byte code: the Makefile does that. Nothing is kept in uv's cache: the environment's files would be links to
it.

usage: install.py [--python PYTHON] REQUIREMENT [...], as after `pip install`; PYTHON: the other environment's
"""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

PIP = [sys.executable, "-m", "pip"]
PIP_OPTIONS = ["--quiet", "--disable-pip-version-check", "--no-compile"]
UV_INSTALL = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-cache"]
# Of all sources the newest version, as pip does it.
UV_INSTALL += ["--index-strategy", "unsafe-best-match"]
_LIKE_PIP = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "constraint": "--constraint",
    "trusted-host": "--allow-insecure-host",
    "no-index": "--no-index",
    "pre": "--prerelease=allow",
}
_FLAGS = ("no-index", "pre")
_VARIABLES = {"cert": "SSL_CERT_FILE", "timeout": "UV_HTTP_TIMEOUT", "default-timeout": "UV_HTTP_TIMEOUT"}
_IGNORED = ("disable-pip-version-check", "no-cache-dir", "cache-dir", "progress-bar", "quiet", "no-compile")
_IGNORED += ("root-user-action", "no-input", "retries")
"""They say nothing of what is installed, nor where from."""


def main(arguments: Sequence[str]) -> int:
    """Install requirements; return pip's exit status."""
    if arguments[:1] == ["--python"]:
        return 0 if install(arguments[2:], says_why=True, python=arguments[1]) else 1
    return 0 if install(arguments, says_why=True) else 1


def install(requirements: Sequence[str], *, says_why: bool, python: str = sys.executable) -> bool:
    """Install requirements beside what is there; say whether that was possible."""
    if _has_uv() and _run([*UV_INSTALL, "--python", python, *_where_from(), *requirements], says_why=False):
        return True
    return _run([*PIP, "--python", python, "install", *PIP_OPTIONS, *requirements], says_why=says_why)


def _has_uv() -> bool:
    """Say whether uv can do the work; install it if it isn't there."""
    settings = {name for name, _ in _settings()}
    if settings - _LIKE_PIP.keys() - _VARIABLES.keys() - set(_IGNORED):
        return False  # whatever it means: pip knows
    if importlib.util.find_spec("uv") is not None:
        return True
    return _run([*PIP, "install", *PIP_OPTIONS, "uv"], says_why=False)


def _settings() -> Iterator[tuple[str, str]]:
    """Yield pip's settings, those of all its files and variables, the weakest first."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=False).stdout
    rows = [line.partition("=")[::2] for line in listed.splitlines()]
    for kind in ("global", "install", ":env:"):
        for name, value in rows:
            if name.startswith(f"{kind}."):
                yield name.removeprefix(f"{kind}."), str(ast.literal_eval(value))


def _where_from() -> list[str]:
    """Return pip's settings as uv takes them."""
    found: dict[str, list[str]] = {}
    for name, value in _settings():
        if name in _VARIABLES:
            os.environ.setdefault(_VARIABLES[name], value)
        if name in _FLAGS:
            found[name] = [_LIKE_PIP[name]] if value.lower() in ("1", "true", "yes", "on") else []
        elif name in _LIKE_PIP:
            found[name] = [word for each in value.split() for word in (_LIKE_PIP[name], each)]
    return [word for words in found.values() for word in words]


def _run(command: Sequence[str], *, says_why: bool) -> bool:
    return subprocess.run(command, stderr=None if says_why else subprocess.DEVNULL).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
