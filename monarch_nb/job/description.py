"""Descriptions of jobs, in files: JSON of a job's class and of what it was made of, with no hosts.

Never a pickle: such a file lies in a working directory, and reading it must run nothing that whoever has
written it chose. Only classes that the program has imported itself are made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

VERSION = 1
MAX_BYTES = 1 << 20
_OURS = "monarch_nb.job."


class Kinds:
    """The classes that descriptions may name."""

    def __init__(self) -> None:
        self._by_name: dict[str, type[Any]] = {}

    def add(self, kind: type[Any]) -> None:
        """Let descriptions name a class."""
        self._by_name[name_of(kind)] = kind

    def read(self, data: bytes | str) -> tuple[Any, dict[str, Any]]:
        """Return the job that a description describes, and what stands there besides.

        Raises:
            ValueError: saying why it describes none.
        """
        found = json.loads(data)
        if not isinstance(found, dict) or found.get("version") != VERSION:
            raise ValueError(f"it's no description of version {VERSION}")
        name, fields = found.pop("job", None), found.pop("fields", None)
        kind = self._by_name.get(str(name))
        if kind is None:
            module = str(name).rpartition(".")[0] or "its module"
            raise ValueError(f"this program has no class {name!r} of jobs; import {module} first")
        if not isinstance(fields, dict):
            raise ValueError(f"{name} has no fields")
        return kind(**fields), found


def name_of(kind: type[Any]) -> str:
    """Return the name by which descriptions call a class.

    >>> name_of(dict)
    'builtins.dict'
    """
    return (
        kind.__qualname__ if kind.__module__.startswith(_OURS) else f"{kind.__module__}.{kind.__qualname__}"
    )


def written(kind: type[Any], fields: Mapping[str, Any], **others: str) -> str:
    """Return the description of a job.

    Raises:
        TypeError: if a field isn't JSON: naming it.
    """
    for name, value in fields.items():
        try:
            json.dumps(value, default=os.fspath)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"{kind.__name__} can't be written into a file: {name} is a {type(value).__name__} "
                f"({error}); expected text, numbers, lists and dicts"
            ) from None
    described = {"version": VERSION, "job": name_of(kind), "fields": dict(fields), **others}
    return json.dumps(described, default=os.fspath, indent=1)
