"""The code that ranks run: copies files to the hosts, and reloads modules."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from monarch_nb._reload import SyncMode
from monarch_nb._sync import SyncOptions, SyncReceipt
from monarch_nb.actor.checked import checks_arguments
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.mesh import shipping
from monarch_nb.mesh.brought import EnvironmentChoice
from monarch_nb.mesh.sync import SYNC_S, SyncRequest, set_sync_mode, sync, sync_mode

if TYPE_CHECKING:
    from monarch_nb.mesh.core import Mesh


@checks_arguments()
class Code:
    """The code that the ranks of a mesh run: `mesh.sync()` is `mesh.code.sync()`."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def sync(
        self,
        *paths: str | os.PathLike[str],
        dry_run: bool = False,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        same_path: bool = False,
        reload: bool = True,
        force: bool = False,
        env: bool = False,
        verify: bool = False,
        copy: bool = False,
        to: Sequence[str] = (),
        watch: bool = False,
        from_index: bool | None = None,
        timeout_s: float = SYNC_S,
    ) -> SyncReceipt:
        """Copy the workspace to all other hosts; then have this program and all ranks run the present code of
        their modules' files.

        The workspace is the repository that this program works in, or else its working directory. Files that
        git ignores don't go along, nor do secrets, environments, and files over 100 MB; a `.meshignore` says
        more, in the language of a .gitignore. On another host they lie in a folder of their own, which ranks
        there import from and work in. What is sent is what is missing there. Hosts that share the file system
        are sent nothing. Objects keep their identity and state when a module is reloaded; only modules of
        yours are looked at, not installed packages.

        Args:
            paths: files or folders to reload; a folder outside of the workspace is brought to the hosts, too.
            dry_run: only say what would be sent and reloaded.
            include: patterns of what goes along although it's ignored, secret or big; they hold for later
                syncs, too.
            exclude: patterns of what doesn't.
            same_path: make a link at the notebook's path on each host.
            reload: without it, files are only put in place.
            force: however large the workspace is; without it, up to a GiB.
            env: bring the environment that this program runs with, too, interpreter included. Living ranks
                keep what they were started with; those that are started from then on (`restart`, `heal`,
                `resize`) run in it.
            verify: with `env`: read every file here, whatever its package's record says.
            copy: with `env`: make a copy also for hosts that see this program's files, so that what is
                installed here later changes nothing there.
            to: with `env`: other machines that get the environment, too, so that hosts can be started there:
                names for ssh, or commands that run a shell, as `docker exec -i box`. They need `sh` and
                `tar`, no Python. With `same_path`, a link is made there at the environment's own path.
            watch: with `env`: what is installed or edited in the environment from then on goes to the hosts
                before the next cell. `sync_mode = "warn"` ends that.
            from_index: with `env`: whether hosts get what they lack of distributions from the package indexes
                that they are configured to use, by their own uv or pip; files whose content isn't the same
                there are sent from here. None: if what the first 64 MiB take says that the rest would need
                more than half a minute from here.
            timeout_s: so long a rank that is busy is waited for; it reloads when it's done, and the receipt
                says so.

        Raises:
            MeshUsageError: if a path doesn't exist, the workspace can't be meant, or `to` or `watch` is
                without `env`.

        Example:
            >>> print(mesh.sync())                        # doctest: +SKIP
            workspace /home/me/proj: 31 files, 210 KiB, in 41 ms
            [hosts 1-2] 1 changed (model.py): 9.1 KiB sent
            [0-7] reloaded model.py (class Net, 2 functions)
        """
        options = SyncOptions(tuple(include), tuple(exclude), dry_run, same_path, force)
        if to and not env:
            raise MeshUsageError(
                f"sync: --to {to[0]!r} says where the environment goes: %mesh sync --env --to MACHINE, or "
                "mesh.sync(env=True, to=[...])"
            )
        if from_index is not None and not env:
            raise MeshUsageError(
                "sync: --from is about the environment: %mesh sync --env --from index, or "
                "mesh.sync(env=True, from_index=True)"
            )
        if watch and not env:
            raise MeshUsageError("sync: watch=True goes with env=True; for your modules: sync_mode = 'watch'")
        if to:
            shipping.check_source(to, from_index=bool(from_index))
        environment = (
            EnvironmentChoice(verify, copy, tuple(to), same_path, watch, from_index) if env else None
        )
        return sync(self._mesh, SyncRequest(paths, timeout_s, reload, environment), options)

    @property
    def mode(self) -> SyncMode:
        """The mode of ranks before a cell when modules that they have loaded have changed: warn, watch,
        strict or off.
        """
        return sync_mode(self._mesh)

    def set_mode(self, mode: str) -> None:
        """Set how ranks react before a cell when files of their modules have changed."""
        set_sync_mode(self._mesh, mode)
