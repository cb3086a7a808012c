"""Follows the environment of this program: changes by installs or edits are sent to hosts before the next
cell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace

from monarch_nb._client.session import Session
from monarch_nb._sync.env.edits import Edit, after_edits
from monarch_nb._sync.env.errors import EnvironmentSyncError
from monarch_nb._sync.env.interpreter import this_interpreter
from monarch_nb._sync.env.layers import find_layers
from monarch_nb._sync.env.local import FileChanged
from monarch_nb._sync.env.scan import Scanned
from monarch_nb._sync.env.watching import EnvironmentWatch
from monarch_nb._units import counted
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.mesh.shipping.patching import Spares
from monarch_nb.mesh.shipping.report import EnvironmentPart
from monarch_nb.mesh.shipping.sending import with_scan


def _never(edit: Edit, before: EnvironmentPart) -> None:
    """Send nothing: the whole environment is sent instead."""


class FollowedEnvironment:
    """An environment of this program that hosts have a copy of, kept up to date. Used by one thread at a
    time.

    It watches the environment from its construction on, which precedes the first sending, so that no change
    is lost.

    Args:
        copies: whether hosts that see this program's files get a copy, too.

    Raises:
        MeshUsageError: if changes in some of its folders would not be seen.
        EnvironmentSyncError: if there's no environment that can be sent.
    """

    def __init__(self, *, copies: bool) -> None:
        self.copies = copies
        self._part: EnvironmentPart | None = None
        self._scanned: Scanned | None = None
        self._spares = Spares()
        self._watch = EnvironmentWatch(find_layers(this_interpreter()))
        if self._watch.unseen:
            unseen, first = counted(len(self._watch.unseen), "folder"), self._watch.unseen[0]
            self._watch.close()
            raise MeshUsageError(
                f"sync --env --watch: {unseen} of the environment can't be watched ({first}): "
                "a network's file system, or fs.inotify.max_user_watches is used up (sysctl raises it). "
                "Type %mesh sync --env when you have installed something"
            )

    def has_changed(self) -> bool:
        """Say whether the environment may have changed since it was sent to hosts. Costs some
        microseconds.
        """
        return self._watch.has_changed()

    def sent(self, session: Session, part: EnvironmentPart, scanned: Scanned) -> None:
        """Note what hosts have, and have them prepare for the next version."""
        self._part = part if part.is_done else None
        self._scanned = scanned
        if self._part is not None:
            self._make_spares(session, part)

    def joined(self, session: Session, part: EnvironmentPart) -> None:
        """Note that further hosts have it."""
        if self._part is not None and part.is_done and part.id == self._part.id:
            self._part = replace(self._part, hosts={**self._part.hosts, **part.hosts})
            self._make_spares(session, part)

    def _make_spares(self, session: Session, part: EnvironmentPart) -> None:
        hosts = [host for host, each in part.hosts.items() if not each.is_shared and host not in part.idle]
        self._spares.make(session, hosts, part.id)

    def bring_changes(
        self,
        session: Session,
        bring: Callable[[Scanned], EnvironmentPart],
        patch: Callable[[Edit, EnvironmentPart], EnvironmentPart | None] = _never,
    ) -> EnvironmentPart | None:
        """Bring it to hosts, if it's another one now; return what was done. What can't be sent isn't tried
        again before the next change.

        Args:
            bring: sends the whole of it.
            patch: sends what some edited files are to those who have the rest; returns None if that can't be.

        Raises:
            EnvironmentSyncError: if it can't be sent.
        """
        touched = self._watch.taken()
        edit = self._edit(touched)
        part = None
        if edit is not None and self._part is not None:
            if edit.scanned.manifest.id == self._part.id:
                return None
            self._spares.wait()
            with suppress(FileChanged):
                part = patch(edit, self._part)
        if edit is not None and part is not None:
            self.sent(session, part, edit.scanned)
            return part
        return self._bring_whole(session, bring)

    def _edit(self, touched: Collection[str] | None) -> Edit | None:
        """Return what edited files make of the environment; None if all of it must be looked at."""
        scanned, self._scanned = self._scanned, None
        return None if scanned is None or touched is None else after_edits(scanned, touched)

    def _bring_whole(
        self, session: Session, bring: Callable[[Scanned], EnvironmentPart]
    ) -> EnvironmentPart | None:
        try:
            self._watch.follow(find_layers(this_interpreter()))
            return with_scan(lambda scanned: self._bring_scanned(session, scanned, bring), follows=True)
        except OSError as error:  # somebody is just removing it
            raise EnvironmentSyncError(f"can't read {error.filename}: {error.strerror}") from None

    def _bring_scanned(
        self, session: Session, scanned: Scanned, bring: Callable[[Scanned], EnvironmentPart]
    ) -> EnvironmentPart | None:
        if self._part is not None and scanned.manifest.id == self._part.id:
            self._scanned = scanned
            return None
        part = bring(scanned)
        self.sent(session, part, scanned)
        return part

    def wait_for_spares(self) -> None:
        """Wait until hosts have prepared for the next version, or can't."""
        self._spares.wait()

    def close(self) -> None:
        """End the watch."""
        self._watch.close()
