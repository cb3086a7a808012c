"""Follows the environment of this program: changes by installs or edits are sent to hosts before the next
cell.
"""

from __future__ import annotations

from collections.abc import Callable

from monarch_nb._sync.env.errors import EnvironmentSyncError
from monarch_nb._sync.env.interpreter import this_interpreter
from monarch_nb._sync.env.layers import find_layers
from monarch_nb._sync.env.scan import Scanned
from monarch_nb._sync.env.watching import EnvironmentWatch
from monarch_nb._units import counted
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.mesh.shipping.report import EnvironmentPart
from monarch_nb.mesh.shipping.sending import with_scan


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
        self._id = ""
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

    def sent(self, part: EnvironmentPart) -> None:
        """Record the environment that hosts have."""
        self._id = part.id if part.is_done else ""

    def bring_changes(self, bring: Callable[[Scanned], EnvironmentPart]) -> EnvironmentPart | None:
        """Send the environment to hosts, if it has changed; return the result. After an error it isn't tried
        again before the next change.

        Raises:
            EnvironmentSyncError: if it can't be sent.
        """

        def changed(scanned: Scanned) -> EnvironmentPart | None:
            return None if scanned.manifest.id == self._id else bring(scanned)

        self._watch.taken()
        try:
            self._watch.follow(find_layers(this_interpreter()))
            part = with_scan(changed)
        except OSError as error:  # somebody is removing it at this moment
            raise EnvironmentSyncError(f"can't read {error.filename}: {error.strerror}") from None
        if part is not None:
            self.sent(part)
        return part

    def close(self) -> None:
        """End the watch."""
        self._watch.close()
