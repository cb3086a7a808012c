"""Folders of the notebook that have another path on this machine: code in them is displayed with the paths of
the notebook's machine.

Code of such files is compiled under the notebook's path, so that tracebacks, stacks and breakpoints of all
machines name the same file; where it's read, its path is turned into that of this machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import CodeType

Pair = tuple[str, str]
"""A folder's path on the notebook's machine, and its path on this machine."""

_pairs: list[Pair] = []


def learn(pairs: Iterable[Pair]) -> None:
    """Register further folders; a folder registered before gets its new location."""
    known = {**dict(_pairs), **{home.rstrip("/"): here.rstrip("/") for home, here in pairs}}
    _pairs[:] = sorted(known.items(), key=lambda pair: -len(pair[0]))


def known_pairs() -> tuple[Pair, ...]:
    """Return the registered folders."""
    return tuple(_pairs)


def forget_all() -> None:
    """Forget all folders."""
    _pairs.clear()


def local_path(path: str) -> str:
    """Return the path on this machine of a file of the notebook's machine.

    >>> learn([("/home/me/proj", "/tmp/work/proj-1")])
    >>> local_path("/home/me/proj/model.py"), local_path("/home/me/other.py")
    ('/tmp/work/proj-1/model.py', '/home/me/other.py')
    >>> forget_all()
    """
    return _moved(path, _pairs)


def notebook_path(path: str) -> str:
    """Return the path on the notebook's machine of a file of this machine.

    >>> learn([("/home/me/proj", "/tmp/work/proj-1")]); notebook_path("/tmp/work/proj-1/model.py")
    '/home/me/proj/model.py'
    >>> forget_all()
    """
    return _moved(path, [(here, home) for home, here in _pairs]) if _pairs else path


def _moved(path: str, pairs: Iterable[Pair]) -> str:
    for before, after in pairs:
        if path == before or path.startswith(f"{before}/"):
            return after + path[len(before) :]
    return path


def with_notebook_path(code: CodeType) -> CodeType:
    """Return a code object with the notebook's path, in all nested code, too."""
    if not _pairs:
        return code
    path = notebook_path(os.path.abspath(code.co_filename))
    return code if path == code.co_filename else _renamed(code, path)


def _renamed(code: CodeType, path: str) -> CodeType:
    constants = tuple(_renamed(each, path) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename=path, co_consts=constants)
