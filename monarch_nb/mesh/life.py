"""The life cycle of a mesh: its state, the healing of ranks, its lease and its end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from monarch_nb._client.heal_report import HealReport
from monarch_nb._client.state import StatusFeed
from monarch_nb._protocol.names import GetMesh
from monarch_nb._protocol.programs import SetLease, SetNotice
from monarch_nb._protocol.ranks import Restart
from monarch_nb._shape import format_ranks
from monarch_nb._wire.process import wait_until_gone
from monarch_nb.actor.checked import checks_arguments
from monarch_nb.actor.future import Future
from monarch_nb.actor.handle import placement_of, session_of, transport_of
from monarch_nb.actor.proc_mesh import HEAL_S, ProcMesh, mark_stopped
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.mesh import brought, newcomers
from monarch_nb.mesh.replay import replay as run_again
from monarch_nb.status import MeshStatus, StatusChange
from monarch_nb.status.messages import Snapshot, UnwatchStatus, WatchStatus

if TYPE_CHECKING:
    from monarch_nb.mesh.core import Mesh

RESTART_S = 60.0


def check_lease(idle_timeout_s: float) -> float:
    """Return a lease if it's valid.

    Raises:
        MeshUsageError: if it's no number of seconds, or not above 0.
    """
    if not isinstance(idle_timeout_s, int | float) or not idle_timeout_s > 0:
        raise MeshUsageError(
            f"idle_timeout_s is a number of seconds above 0, as in 3600.0 for an hour; not {idle_timeout_s!r}"
        )
    return idle_timeout_s


@checks_arguments("idle_timeout_s")
class Life:
    """The state and lifetime of a mesh, and its healing: `mesh.status()` is `mesh.life.status()`."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def started_with_env(self) -> dict[str, str]:
        """Return the environment variables that its ranks were given when it was started."""
        record = session_of(self._mesh).request(GetMesh())
        return {} if record is None else dict(record.env)

    def status(self, *, fresh: bool = True) -> MeshStatus:
        """Return the present state of the mesh.

        Args:
            fresh: whether hosts look at everything first, which takes them some 20 ms; else memory, CPU and
                lines are those that were seen last. A rank's memory is read again after 50 times as long as
                it took (some 0.1 s with torch loaded), however often it is asked for.
        """
        return session_of(self._mesh).request(Snapshot(placement_of(self._mesh).group, fresh))

    def watch_status(
        self, on_change: Callable[[StatusChange], None], on_end: Callable[[], None] | None = None
    ) -> StatusFeed[StatusChange]:
        """Watch the state of the mesh: all of it first, then the changes, up to twenty times a second.

        Args:
            on_change: called in the reading thread with all of it, or a change (see `status.apply`), and must
                be quick. What comes next waits until the feed's `taken` is called; changes until
                then come as one.
            on_end: called when the mesh has ended.

        Returns:
            the feed; `close` ends it.
        """
        feed: StatusFeed[StatusChange] = StatusFeed(
            transport_of(self._mesh), StatusChange, on_change, UnwatchStatus, on_end
        )
        session_of(self._mesh).watch(feed, WatchStatus(placement_of(self._mesh).group))
        return feed

    def restart(self, ranks: str | Sequence[int]) -> None:
        """Kill ranks and start them again at their places. Their state is lost; handles on them stay
        valid.
        """
        chosen = self._mesh.select(ranks)
        procs = placement_of(self._mesh).procs_at(chosen)
        session_of(self._mesh).request(Restart(procs, format_ranks(chosen)), RESTART_S)

    def heal(self, *, replay: bool = False, timeout_s: float = HEAL_S) -> HealReport:
        """Repair the losses of the mesh; see `Mesh.heal`."""
        report = ProcMesh.heal(self._mesh, timeout_s=timeout_s)
        self._supply_new_hosts()
        if replay and report.ranks:
            report = dataclasses.replace(
                report, messages=(*report.messages, *run_again(self._mesh, report.ranks))
            )
        return report

    def resize(self, /, *, timeout_s: float = HEAL_S, force: bool = False, **sizes: int) -> HealReport:
        """Change the sizes of the mesh, and bring new hosts up to date; see `ProcMesh.resize`."""
        report = ProcMesh.resize(self._mesh, timeout_s=timeout_s, force=force, **sizes)
        self._supply_new_hosts()
        return report

    def take_hosts(self, hosts: Sequence[int], *, timeout_s: float = HEAL_S) -> HealReport:
        """Start ranks on further hosts, which get what the others were given; see `ProcMesh.take_hosts`."""
        brought.supply(self._mesh, hosts)  # ranks start in it
        report = ProcMesh.take_hosts(self._mesh, hosts, timeout_s=timeout_s)
        newcomers.supply(self._mesh)
        return report

    def _supply_new_hosts(self) -> None:
        """Give hosts on which ranks were just started what the others were given. If that's an environment,
        they are started once more, in that: they hold nothing yet.
        """
        ranks = brought.supply(self._mesh)
        if ranks:
            self.restart(ranks)
        newcomers.supply(self._mesh)

    def notice(self) -> float | None:
        """Return how long before an engine takes hosts away programs are warned, in seconds; None: they
        aren't.
        """
        return session_of(self._mesh).request(SetNotice()).notice_s

    def set_notice(self, notice_s: float | None) -> None:
        """Set how long before an engine takes hosts away, in seconds, programs are warned and the states of
        `Checkpointed` actors are saved. Both happen once more near the end, and in the last 20 s no cell is
        taken. None: none of that.

        Example:
            >>> mesh.set_notice(600.0)                   # doctest: +SKIP
        """
        session_of(self._mesh).request(SetNotice(notice_s, changes=True))

    def set_lease(self, idle_timeout_s: float) -> None:
        """Set how long the mesh lives without a client and a running cell; the time starts again."""
        session_of(self._mesh).request(SetLease(check_lease(idle_timeout_s)))

    def stop(self, reason: str = "", *, grace_s: float | None = 3.0) -> Future[None]:
        """End the mesh: its ranks, its host processes, its connection file."""
        session = session_of(self._mesh)
        session.check_may_end()
        for tell in self._mesh.when_stopped:
            tell("it was stopped")  # a static picture stays where it was displayed
        mark_stopped(self._mesh, reason or "it was stopped")
        reply, pid = session.ask_to_end()

        def finish(_pending: Any) -> None:
            session.close()
            if pid:
                wait_until_gone(pid, (grace_s or 0.0) + 10.0)

        return Future(reply, finish, f"stop of {self._mesh.name}")
