"""Finds the source folders of editable installs: lines of `.pth` files, and the finders that build backends
write.

A `.pth` of hatchling, flit, pdm, uv and maturin has directories. setuptools may write
`__editable___NAME_finder.py` with a literal
`MAPPING` of packages to directories, scikit-build-core `_editable_skbc_NAME.py` (before 0.12
`_NAME_editable.py`) with a call `install({...}, ...)`. meson-python's loader rebuilds at import:
`meson_loader`.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from monarch_nb._sync.env import meson_loader

_FINDER = re.compile(r"__editable__.*\.py|_.*_editable.*\.py|_editable_skbc_.*\.py")


@dataclass(frozen=True)
class Hooks:
    """The hooks that make Python import from directories outside of site-packages.

    Attributes:
        folders: absolute paths that exist.
        built: of these, folders that loaders build in at import.
        loaders: files of such loaders.
        unbuilt: files of loaders of which it can't be told what they import.
    """

    folders: tuple[str, ...]
    built: tuple[str, ...] = ()
    loaders: tuple[str, ...] = ()
    unbuilt: tuple[str, ...] = ()


def editable_hooks(site: str) -> Hooks:
    """Return the folders and modules that `.pth` files and finders of a site directory lead to."""
    folders: dict[str, None] = {}
    built: dict[str, None] = {}
    loaders, unbuilt = [], []
    for name in _names(site):
        path = os.path.join(site, name)
        if name.endswith(".pth"):
            folders.update(dict.fromkeys(_pth_folders(site, path)))
        elif _FINDER.fullmatch(name):
            text = _text(path)
            if not meson_loader.is_loader(text):
                folders.update(dict.fromkeys(_existing_parents(_paths_in(text))))
            elif modules := meson_loader.modules(text):
                loaders.append(path)
                parents = list(_existing_parents(modules.values()))
                folders.update(dict.fromkeys(parents))
                build = meson_loader.build_folder(text)
                built.update({folder: None for folder in parents if f"{folder}/".startswith(f"{build}/")})
            else:
                unbuilt.append(path)
    return Hooks(tuple(folders), tuple(built), tuple(loaders), tuple(unbuilt))


def _names(site: str) -> list[str]:
    with suppress(OSError):
        return sorted(os.listdir(site))
    return []


def _pth_folders(site: str, path: str) -> Iterator[str]:
    """Yield the directories that `site.addpackage` would add."""
    for line in _text(path).splitlines():
        line = line.strip()
        if line and not line.startswith(("#", "import ", "import\t")):
            folder = os.path.abspath(os.path.join(site, line))
            if os.path.isdir(folder):
                yield folder


def _paths_in(text: str) -> Iterator[str]:
    """Yield absolute paths among the strings of a program that isn't run."""
    with suppress(SyntaxError, ValueError, RecursionError):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and os.path.isabs(node.value):
                yield node.value


def _existing_parents(paths: Iterable[str]) -> Iterator[str]:
    """Yield the directory that makes each path importable: the path itself, or that of the module."""
    for path in paths:
        if os.path.isdir(path):
            yield os.path.normpath(path)
        elif os.path.isfile(path):
            yield os.path.dirname(os.path.normpath(path))


def _text(path: str) -> str:
    with suppress(OSError):
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    return ""
