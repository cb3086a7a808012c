"""Types that describe a reload: the request, and the result, sent from ranks to the asking program."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from pathlib import PurePath

import msgspec

SYNC_VARIABLE = "MONARCH_NB_SYNC"
"""The environment variable of a rank that holds its `SyncMode`: a process that replaces the rank gets it,
too.
"""


class SyncMode(StrEnum):
    """The action of a rank before a cell when files of modules that the rank has loaded have changed."""

    WARN = "warn"
    """The rank reports it, once for each change."""
    WATCH = "watch"
    """The rank reloads them, also before calls of actors."""
    STRICT = "strict"
    """The rank refuses to run the cell."""
    OFF = "off"

    @classmethod
    def of(cls, text: str | None) -> SyncMode:
        """Return the mode of that name; `WARN` if there is none."""
        return cls(text) if text in tuple(cls) else cls.WARN


class ChangeKind(StrEnum):
    """The kind of change of a name of a module."""

    FUNCTION = "function"
    """It is the same function, and runs new code."""
    CLASS = "class"
    """It is the same class, with new attributes; its instances keep their state."""
    VALUE = "value"
    """It is bound to another object."""
    NEW = "new"
    GONE = "gone"
    REPLACED = "replaced"
    """The old object could not take on the new code: references to it continue to run the old code."""


class Change(msgspec.Struct, frozen=True):
    """The change of one name of a module.

    Attributes:
        detail: the reason, for `REPLACED`.
    """

    kind: ChangeKind
    name: str
    detail: str = ""


class ModuleReload(msgspec.Struct, frozen=True):
    """The result of reloading one module whose file has changed.

    Attributes:
        name: the module's, as in `sys.modules`.
        path: of its file.
        changes: by name; empty if only comments or layout have changed, or nothing has been done.
        trouble: why the new code isn't in use; "" if it is.
        error: traceback of what its new statements raised; the module is then as before.
    """

    name: str
    path: str
    changes: tuple[Change, ...] = ()
    trouble: str = ""
    error: str = ""

    @property
    def is_done(self) -> bool:
        """Say whether the module runs its file's code now."""
        return not self.trouble and not self.error

    def summary(self) -> str:
        """Return the module's changes in a few words: "model.py (class Net, 2 functions)"."""
        name = PurePath(self.path).name
        if self.error:
            return f"{name}: {self.error.rstrip().rpartition(chr(10))[2]}"
        if self.trouble:
            return f"{name}: {self.trouble}"
        return f"{name} ({', '.join(_counted(self.changes)) or 'nothing that runs'})"

    def notes(self) -> list[str]:
        """Return a line about each object that goes on with the old code."""
        replaced = [c for c in self.changes if c.kind is ChangeKind.REPLACED]
        return [
            f"{PurePath(self.path).name}: who holds the old {c.name} keeps it ({c.detail})" for c in replaced
        ]


class ReloadRequest(msgspec.Struct, frozen=True):
    """The request to a rank to reload modules.

    Attributes:
        paths: files or folders, absolute; None: whatever has changed.
        is_dry: whether to only report what would be reloaded.
        elsewhere: folders of the notebook's, and where they lie on the rank's machine.
    """

    paths: tuple[str, ...] | None = None
    is_dry: bool = False
    elsewhere: tuple[tuple[str, str], ...] = ()


class RankReload(msgspec.Struct, frozen=True):
    """The result of a reload on one rank.

    Attributes:
        modules: those whose files had changed.
        num_modules: how many modules of the user's it has loaded.
        notes: what continues to run old code, one line each.
    """

    modules: tuple[ModuleReload, ...]
    num_modules: int
    notes: tuple[str, ...] = ()


def _counted(changes: tuple[Change, ...]) -> list[str]:
    """Return the changes in words: one of a kind by its name, several by their number."""
    words = {
        ChangeKind.CLASS: ("class", "classes"),
        ChangeKind.FUNCTION: ("function", "functions"),
        ChangeKind.VALUE: ("value", "values"),
        ChangeKind.NEW: ("new:", "new names"),
        ChangeKind.GONE: ("gone:", "names gone"),
        ChangeKind.REPLACED: ("replaced:", "replaced"),
    }
    counts = Counter(change.kind for change in changes)
    texts = []
    for kind, (one, many) in words.items():
        if counts[kind] == 1:
            texts.append(f"{one} {next(c.name for c in changes if c.kind is kind)}")
        elif counts[kind]:
            texts.append(f"{counts[kind]} {many}")
    return texts
