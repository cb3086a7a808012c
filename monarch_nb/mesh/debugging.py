"""Diagnosis of a mesh: stacks, hangs, paths of the data plane, differences between ranks and between
hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from monarch_nb._protocol.hang import RankStacks, Stacks
from monarch_nb.actor.checked import checks_arguments
from monarch_nb.actor.handle import placement_of, session_of
from monarch_nb.mesh import shipping
from monarch_nb.mesh.environment import EnvironmentDifference, find_environment_difference

if TYPE_CHECKING:
    from monarch_nb._debug.client import MeshDebugger
    from monarch_nb._why import HangReport
    from monarch_nb.mesh.core import Mesh
    from monarch_nb.mesh.shipping import HostsDifference
    from monarch_nb.rdma.doctor.report import Report as DoctorReport


@checks_arguments()
class Debugging:
    """The diagnosis of a mesh: `mesh.why()` is `mesh.debugging.why()`."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def stacks(self, ranks: str | Sequence[int] = "all", *, native: bool = False) -> dict[int, RankStacks]:
        """Return the stacks of ranks, also of those that can't answer because something holds the
        interpreter's lock, or the main thread waits in C.

        Args:
            native: frames of C code, too; only py-spy has them, and it takes some seconds.

        Returns:
            By rank: "stacks" (text by thread name; None if they couldn't be had), "how" (asked, faulthandler
            or py-spy), "missing" (what couldn't be had, and why) and "process" (what the kernel says, if
            that's special).

        Example:
            >>> mesh.stacks("3")[3]["how"]                # doctest: +SKIP
            'faulthandler'
        """
        living = self._mesh.living_ranks()
        procs = placement_of(self._mesh).procs_at(r for r in self._mesh.select(ranks) if r in living)
        return session_of(self._mesh).request(Stacks(procs, native))

    def why(self, ranks: str | Sequence[int] = "all") -> HangReport:
        """Explain why the mesh makes no progress: what each rank waits for, and which rank deviates from the
        others.

        Example:
            >>> print(mesh.why().sentence)                # doctest: +SKIP
            ranks 0-2 wait in all_reduce #41 of the default group since 34 s; rank 3 never entered it: it is
            in cell [17] line 4, input()
        """
        from monarch_nb._why import explain

        return explain(self._mesh, self._mesh.select(ranks))

    def doctor(
        self,
        ranks: str | Sequence[int] = "",
        *,
        size_bytes: int = 64 << 20,
        measures: bool = True,
        all_paths: bool = False,
    ) -> DoctorReport:
        """Report the ranks' transports, the speed of each path between them, and what to change.

        Args:
            ranks: which ones; by default all are looked at, and those that stand for their hosts are
                measured.
            size_bytes: how much is read at a time.
            measures: without it, nothing is measured, which takes a fraction of a second.
            all_paths: measure also the path through the mesh's own messages.

        Example:
            >>> print(mesh.doctor("0,1").measurements[1].gb_per_s)     # doctest: +SKIP
            9.3
        """
        from monarch_nb.rdma.doctor.report import diagnose

        return diagnose(self._mesh, ranks, size_bytes, measures, all_paths=all_paths)

    def debugger(self) -> MeshDebugger:
        """Return the debugger of this mesh, which lists stops and sends commands to them."""
        from monarch_nb._debug.client import MeshDebugger

        return MeshDebugger(self._mesh)

    def diff_env(
        self, ranks: str | Sequence[int] = "all", *, shows_all: bool = False
    ) -> EnvironmentDifference:
        """Return the differences between the environments of ranks: versions, environment variables, git
        commit, GPU driver, torch's settings, limits.

        Args:
            shows_all: its text has what is equal, too, and what is each rank's own.
        """
        return find_environment_difference(self._mesh, self._mesh.select(ranks), shows_all=shows_all)

    def diff_hosts(self) -> HostsDifference:
        """Return the packages that differ between hosts and this program: version, build, edited by hand.

        Raises:
            EnvironmentSyncError: if this program runs in a distribution's own environment.
        """
        return shipping.compare_hosts(session_of(self._mesh), self._mesh.living().host_indices)
