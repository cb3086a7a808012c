"""The user's modules on this rank: changed files are detected before a cell runs, and before a call if the
files are watched.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from monarch_nb import _reload
from monarch_nb._reload import SYNC_VARIABLE, ModuleReload, RankReload, ReloadRequest, SyncMode
from monarch_nb._runtime.actors import has_async
from monarch_nb.exceptions import StaleCode

if TYPE_CHECKING:
    from monarch_nb._runtime.actor_host import ActorHost


class Reloader:
    """The reloader of changed modules. Cells and calls use it, each on its own thread."""

    def __init__(self, actors: ActorHost) -> None:
        self._actors = actors
        self._lock = threading.Lock()
        self._reported: set[str] = set()
        """Warnings that were given: each is repeated only after another change."""
        self.mode = SyncMode.WARN
        self.read_mode()
        _reload.AFTER.append(self._renew_actors)

    def read_mode(self) -> None:
        """Apply the mode of the environment variable."""
        self.mode = SyncMode.of(os.environ.get(SYNC_VARIABLE))
        self._actors.before_call = self.before_call if self.mode is SyncMode.WATCH else None

    def reload(self, request: ReloadRequest) -> RankReload:
        """Reload changed modules, comparing the complete content of each file.

        Raises:
            KeyboardInterrupt: if the user has interrupted it.
        """
        with self._lock:
            return _reload.reload_changed(request)

    def before_cell(self) -> list[str]:
        """Check whether a cell would run old code; return lines about it to print.

        Raises:
            StaleCode: if it would, and isn't to run.
        """
        if self.mode is SyncMode.OFF:
            return []
        with self._lock:
            changed = _reload.changed_modules()
            if not changed:
                self._reported.clear()
                return []
            if self.mode is SyncMode.WATCH:
                return self._reload(changed)
            names = ", ".join(sorted({PurePath(each.loaded.path).name for each in changed}))
            text = (
                f"{names} ha{'s' if len(changed) == 1 else 've'} changed since this rank loaded "
                f"{'it' if len(changed) == 1 else 'them'}"
            )
            if self.mode is SyncMode.STRICT and not all(each.is_gone for each in changed):
                raise StaleCode(
                    f"{text}, and the cell hasn't run. Next: %mesh sync (mesh.sync()), or %mesh set sync warn"
                )
            key = "|".join(f"{each.loaded.path}:{hash(each.source)}" for each in changed)
            if key in self._reported:
                return []
            self._reported.add(key)
            return [f"{text}. Next: %mesh sync; or %mesh set sync watch, to have new code from now on"]

    def before_call(self) -> None:
        """Reload changed modules before an actor handles a call.

        Raises:
            StaleCode: if it can't be had.
        """
        if not self._lock.acquire(
            blocking=False
        ):  # the module is being reloaded, maybe by code that waits for this call
            return
        try:
            changed = _reload.changed_modules()
            if changed:
                self._reload(changed)
        finally:
            self._lock.release()

    # --- with the lock held

    def _reload(self, changed: Sequence[_reload.Changed]) -> list[str]:
        modules = _reload.reload_modules(changed)
        notes = _reload.finish(modules)
        failed = [module for module in modules if module.error]
        if failed:
            names = ", ".join(PurePath(module.path).name for module in failed)
            raise StaleCode(
                f"{names} can't be reloaded, and nothing was run: {failed[0].summary()}. Next: mend "
                "it and run this again; or go on with the old code: %mesh set sync warn\n\n"
                f"{failed[0].error.rstrip()}"
            )
        return [*_sentences(modules, self._reported), *notes]

    def _renew_actors(self) -> list[str]:
        """Have actors look up their methods again; return which of them can't run their classes' present
        code.
        """
        notes = []
        for runner in list(self._actors.actors.values()):
            runner.renew_methods()
            if runner.instance is not None and has_async(type(runner.instance)) and not runner.has_loop:
                notes.append(
                    f"actor {runner.name!r} was started without an event loop, and has async methods "
                    "now: spawn it anew"
                )
        return notes


def _sentences(modules: Sequence[ModuleReload], reported: set[str]) -> list[str]:
    """Describe the result of a reload in lines: which modules were reloaded, and which can't be."""
    done = [module.summary() for module in modules if module.is_done and module.changes]
    lines = [f"reloaded {', '.join(done)}"] if done else []
    for module in modules:
        if module.trouble and module.summary() not in reported:
            reported.add(module.summary())
            lines.append(module.summary())
    return lines
