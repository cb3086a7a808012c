"""New code in living processes: an edited module takes effect without a restart, and objects keep their
identity.

loaded      what each module of the user's was executed from, and which files have changed since
watch       when a file of a loaded module may have changed: inotify, or its status where that sees nothing
statements  which top-level statements of a source are new (pure)
patch       new code for functions and classes that live (the old objects stay)
lines       line numbers of functions that have only moved
module      reloads one module; nothing has changed if it raises
report      what a reload has done, as data

This package knows nothing of meshes; ranks and kernels use it alike.
"""

from monarch_nb._reload.loaded import (
    Changed,
    changed_modules,
    imported_anew,
    install,
    known_modules,
    num_loads,
)
from monarch_nb._reload.module import AFTER, finish, reload_changed, reload_modules
from monarch_nb._reload.report import (
    SYNC_VARIABLE,
    Change,
    ChangeKind,
    ModuleReload,
    RankReload,
    ReloadRequest,
    SyncMode,
)

__all__ = [
    "AFTER",
    "SYNC_VARIABLE",
    "Change",
    "ChangeKind",
    "Changed",
    "ModuleReload",
    "RankReload",
    "ReloadRequest",
    "SyncMode",
    "changed_modules",
    "finish",
    "imported_anew",
    "install",
    "known_modules",
    "num_loads",
    "reload_changed",
    "reload_modules",
]
