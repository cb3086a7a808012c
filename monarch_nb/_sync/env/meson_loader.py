"""A loader for editable installs of meson-python on hosts. meson-python's own loader rebuilds at import, with
the tools and in the folder of the machine where it was installed; this one imports what has been built.

What lies where is in the build folder's `meson-info/intro-install_plan.json`
(https://mesonbuild.com/IDE-integration.html, "Install plan").
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from typing import Any

PLAN = "meson-info/intro-install_plan.json"
_FINDER = "MesonpyMetaFinder"
_SITES = ("{py_purelib}/", "{py_platlib}/")
_SUFFIXES = (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES)
_LOADER = '''"""Imports an editable install from where it lies on this host; it was built elsewhere."""

import importlib.util
import os
import sys

FILES = {files}


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        file = FILES.get(name)
        if file is None:
            return None
        folder = [os.path.dirname(file)] if os.path.basename(file).startswith("__init__.") else None
        return importlib.util.spec_from_file_location(name, file, submodule_search_locations=folder)


def init():
    sys.meta_path.insert(0, Finder)
'''


def is_loader(text: str) -> bool:
    """Say whether a module of a site directory is such a loader."""
    return f"class {_FINDER}" in text


def build_folder(text: str) -> str:
    """Return the folder that a loader builds in; "" if it can't be told.

    >>> build_folder("finder = MesonpyMetaFinder('mine', {'mine'}, '/p/build/cp311', ['ninja'], False)")
    '/p/build/cp311'
    """
    with suppress(SyntaxError, ValueError, RecursionError):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == _FINDER and len(node.args) > 2:
                found = node.args[2]
                return str(found.value) if isinstance(found, ast.Constant) else ""
    return ""


def modules(text: str) -> dict[str, str]:
    """Return the file of each module that a loader imports, by the module's name; nothing if it hasn't been
    built.
    """
    folder = build_folder(text)
    with suppress(OSError, ValueError, AttributeError):
        with open(os.path.join(folder, PLAN), encoding="utf-8") as file:
            return dict(sorted(_planned(json.load(file))))
    return {}


def plain_loader(text: str) -> bytes:
    """Return the loader that a host gets, which builds nothing."""
    files = "".join(f"    {name!r}: {path!r},\n" for name, path in modules(text).items())
    return _LOADER.replace("{files}", f"{{\n{files}}}").encode("utf-8", "surrogateescape")


def _planned(plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for group in plan.values():
        for source, each in group.items():
            place = str(each["destination"])
            site = next((site for site in _SITES if place.startswith(site)), None)
            if site is not None:
                yield from _modules_at(place.removeprefix(site), source)


def _modules_at(place: str, source: str) -> Iterator[tuple[str, str]]:
    """Yield the modules of a file, or of a folder that is installed as a whole."""
    if not os.path.isdir(source):
        name = _module_name(place)
        if name and os.path.exists(source):
            yield name, source
        return
    for name in sorted(os.listdir(source)):
        yield from _modules_at(f"{place}/{name}", f"{source}/{name}")


def _module_name(place: str) -> str:
    """Return the name that a file is imported by, from where it would be installed; "" if it's no module.

    >>> _module_name("mine/native.cpython-311-x86_64-linux-gnu.so"), _module_name("mine/__init__.py")
    ('mine.native', 'mine')
    """
    suffix = next((suffix for suffix in _SUFFIXES if place.endswith(suffix)), "")
    names = place.removesuffix(suffix).split("/") if suffix else []
    return ".".join(names[:-1] if names[-1:] == ["__init__"] else names)
