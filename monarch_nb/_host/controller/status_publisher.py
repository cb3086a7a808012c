"""Publishes the state of a mesh to its watchers, row by row.

Rows are rebuilt when something touches them, and only while somebody watches. Each has the number of the
change that it had last; a watch is sent the rows that have changed since it was last sent any, twenty times a
second at most, and only after it has taken what it was sent before: a slow one gets fewer messages, not late
ones.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from monarch_nb._host.agent.resource_monitor import Rows
from monarch_nb._host.controller.registry import Group, Host, Proc
from monarch_nb._host.controller.sending import SendsFrames
from monarch_nb._protocol.base import encode
from monarch_nb._protocol.events import HostLooked, LookNow, ResourcesSeen
from monarch_nb._protocol.registry import LATER, Later, Sender, handles
from monarch_nb._protocol.resources import UNMONITORED, MonitoredHost, MonitoredRank
from monarch_nb._protocol.states import HostState, ProcState, RankState
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb.exceptions import describe_end
from monarch_nb.status.delta import StatusChange, Versioned
from monarch_nb.status.messages import Snapshot, StatusTaken, UnwatchStatus, WatchStatus
from monarch_nb.status.model import HostStatus, MeshHead, MeshStatus, RankStatus

if TYPE_CHECKING:
    from monarch_nb._host.agent.resource_monitor import ResourceMonitor
    from monarch_nb._host.controller.cells import Cells
    from monarch_nb._host.controller.environments import EnvironmentService
    from monarch_nb._host.controller.healing import Healing
    from monarch_nb._host.controller.hosts import HostService
    from monarch_nb._host.controller.journal_service import JournalService
    from monarch_nb._host.controller.lease import Lease
    from monarch_nb._host.controller.registry import Registry
    from monarch_nb._host.controller.time_limit import TimeLimit
    from monarch_nb._host.loop import Loop

PUBLISH_S = 0.05
LOOK_S = 0.6
_LEASE_S = 30.0
_SHORT = 6
"""Number of displayed digits of an environment's id."""
_TAIL_BYTES = 400
_UNMEASURED = MonitoredHost()


class Parts(SendsFrames, Protocol):
    """The parts of a controller that the status publisher needs."""

    cells: Cells
    environment_id: str
    environments: EnvironmentService
    healing: Healing
    hosts: HostService
    journal: JournalService
    lease: Lease
    loop: Loop
    name: str
    registry: Registry
    time_limit: TimeLimit
    resource_monitor: ResourceMonitor
    versions: dict[str, str]

    def watch_resources(self, on: bool) -> None:
        """Have all hosts sample their ranks often, or hardly ever."""
        ...


@dataclass
class StatusWatch:
    """A client's watch on the state of a group, with the state that it has been sent.

    Attributes:
        seen: number of the last change that it was sent; -1: none yet.
        ready: whether the client has acknowledged what it was sent.
    """

    client: int
    ref: int
    group: str
    seen: int = -1
    ready: bool = True


class StatusPublisher:
    """The service that sends the state of the mesh to its watchers, then the changes. Owned by the loop
    thread.
    """

    def __init__(self, controller: Parts) -> None:
        self._controller = controller
        self._monitored: Rows = {}
        self._machines: dict[int, MonitoredHost] = {}
        self._printed: dict[int, bytes] = {}
        self._since: dict[int, tuple[str, float]] = {}
        self._watches: list[StatusWatch] = []
        self._versions: dict[str, Versioned] = {}
        self._touched: set[int] = set()
        self._is_due = False
        self._looks: dict[int, tuple[set[int], Callable[[], None]]] = {}
        self._num_looks = 0

    # --- events

    @handles(ResourcesSeen)
    def on_resources(self, event: ResourcesSeen, sender: Sender) -> None:
        """Handle the readings of another host: of its ranks and its machine."""
        self.take_readings(address.host_of(sender.proc), event.rows, event.host)

    @property
    def watched(self) -> bool:
        """Whether the state has watchers."""
        return bool(self._watches)

    def take_readings(self, host: int, rows: Rows, machine: MonitoredHost | None) -> None:
        """Handle the readings of a host process."""
        self._monitored.update(rows)
        if machine is not None:
            self._machines[host] = machine
        self.touch(rows)

    def printed(self, proc: int, data: bytes) -> None:
        """Keep the end of a rank's output, and publish the rank's state again."""
        tail = data[-_TAIL_BYTES:]
        if not tail.isspace():
            self._printed[proc] = tail
            if self._watches:
                self.touch((proc,))

    def touch(self, procs: Iterable[int] = ()) -> None:
        """Publish the state of ranks, and of the mesh itself, again in a moment: it may have changed."""
        if not self._watches:
            return
        self._touched.update(procs)
        if not self._is_due:
            self._is_due = True
            self._controller.loop.call_later(PUBLISH_S, self._publish)

    def proc_has_ended(self, proc: int) -> None:
        """Drop the readings of a rank that has ended, and publish the rank's state again."""
        self._monitored.pop(proc, None)
        self.touch((proc,))

    # --- watchers

    @handles(WatchStatus)
    def do_watch_status(self, request: WatchStatus, sender: Sender) -> Later | None:
        """Send a client a group's state, and then the changes, as fast as the client acknowledges them."""
        group = self._controller.registry.group(request.group).name
        was_watched = self.watched
        self._watches.append(StatusWatch(sender.proc, sender.ref, group))
        if not was_watched:
            self._versions.clear()  # rows weren't updated while nobody watched
            self._controller.watch_resources(True)
            self._controller.loop.call_later(_LEASE_S, self._touch_lease)
        self.touch()
        return LATER

    def _touch_lease(self) -> None:
        if self._watches:
            self.touch()
            self._controller.loop.call_later(_LEASE_S, self._touch_lease)

    @handles(StatusTaken)
    def do_status_taken(self, request: StatusTaken, sender: Sender) -> None:
        """Record a client's acknowledgement, and send the changes since."""
        for watch in self._watches:
            if (watch.client, watch.ref) == (sender.proc, request.watch):
                watch.ready = True
                versioned = self._versions.get(watch.group)
                if versioned is not None and versioned.version > watch.seen:
                    self.touch()

    @handles(UnwatchStatus)
    def do_unwatch_status(self, request: UnwatchStatus, sender: Sender) -> None:
        """End a client's watch of a group's state."""
        self.drop(sender.proc, request.watch)

    def drop(self, client: int, ref: int | None = None) -> None:
        """Drop one watch of a client, or, without `ref`, all watches of a client that is gone."""
        was_watched = self.watched
        self._watches = [w for w in self._watches if w.client != client or (ref is not None and w.ref != ref)]
        if was_watched and not self.watched:
            self._controller.watch_resources(False)

    # --- sending

    def _publish(self) -> None:
        self._is_due = False
        touched, self._touched = self._touched, set()
        for name in {w.group for w in self._watches}:
            self._refresh(name, touched)
        for watch in self._watches:
            versioned = self._versions[watch.group]
            change = versioned.unseen_changes(watch.seen) if watch.ready else None
            if change is not None:
                watch.seen, watch.ready = versioned.version, False
                self._send(watch, change)

    def _send(self, watch: StatusWatch, change: StatusChange) -> None:
        frame = wire.pack(
            wire.REPLY, src=address.CONTROLLER, dst=watch.client, ref=watch.ref, payload=encode(change)
        )
        self._controller.send_to_rank(watch.client, frame)

    def _refresh(self, name: str, touched: set[int]) -> Versioned:
        controller = self._controller
        group = controller.registry.groups[name]
        versioned = self._versions.get(name)
        if versioned is None or versioned.order != tuple(group.procs):
            first = versioned.version + 1 if versioned is not None else 0
            versioned = self._versions[name] = Versioned(tuple(group.procs), first)
            touched = set(group.procs)
        self._fill(versioned, group, touched.intersection(group.procs))
        return versioned

    def _fill(self, versioned: Versioned, group: Group, procs: Iterable[int]) -> None:
        """Update all rows to the present state: the mesh's, all hosts', and some ranks'."""
        versioned.put_head(self._head(group))
        for host in self._controller.registry.hosts.values():
            versioned.put_host(host.index, self._host_row(host, group))
        for proc in procs:
            versioned.put_rank(proc, self._rank_row(self._controller.registry.procs[proc]))

    @handles(Snapshot)
    def do_snapshot(self, request: Snapshot, sender: Sender) -> MeshStatus | Later:
        """Take fresh readings, and return a group's state."""
        controller, src, ref = self._controller, sender.proc, sender.ref
        group = controller.registry.group(request.group)
        if not request.fresh:
            controller.resource_monitor.glance()
            return self._snapshot(group)
        self._look(lambda: controller.reply(src, ref, self._snapshot(group)))
        return LATER

    def _snapshot(self, group: Group) -> MeshStatus:
        versioned = Versioned(tuple(group.procs))
        self._fill(versioned, group, group.procs)
        return versioned.full()

    # --- fresh readings

    def _look(self, done: Callable[[], None]) -> None:
        """Ask all hosts for fresh readings; `done` is called when they have come, or after `LOOK_S`."""
        self._num_looks += 1
        ref = self._num_looks
        controller = self._controller
        hosts = {0, *(h.index for h in controller.hosts.link.remote_hosts() if h.state == HostState.UP)}
        self._looks[ref] = (hosts, done)
        for index in hosts - {0}:
            controller.event(address.host_proc(index), LookNow(ref))
        controller.resource_monitor.look(lambda: self._looked(0, ref))
        controller.loop.call_later(LOOK_S, lambda: self._end_look(ref))

    @handles(HostLooked)
    def on_looked(self, event: HostLooked, sender: Sender) -> None:
        """Record that another host has taken its fresh readings; finish once all hosts have."""
        self._looked(address.host_of(sender.proc), event.ref)

    def _looked(self, host: int, ref: int) -> None:
        if ref in self._looks:
            self._looks[ref][0].discard(host)
            if not self._looks[ref][0]:
                self._end_look(ref)

    def _end_look(self, ref: int) -> None:
        look = self._looks.pop(ref, None)
        if look is not None:
            look[1]()

    # --- rows

    def _head(self, group: Group) -> MeshHead:
        controller = self._controller
        return MeshHead(
            name=controller.name or group.name,
            pid=os.getpid(),
            started=controller.registry.started,
            sizes=tuple(zip(group.extent.labels, group.extent.sizes, strict=True)),
            idle_timeout_s=controller.lease.idle_timeout_s,
            lease_left_s=controller.lease.left_s(),
            num_cells=controller.cells.num_running,
            is_healing=controller.healing.is_busy(group.name),
            on_failure=group.policy.on_failure,
            journal=controller.journal.store.directory,
            journal_trouble=controller.journal.trouble,
            owner_pid=controller.lease.owner_pid,
            ends_at=controller.time_limit.ends_at,
            job=controller.time_limit.job,
            cost=controller.time_limit.cost,
            clients=tuple(
                f"{c.what} (pid {c.pid})" for c in controller.registry.clients.values() if not c.observes
            ),
            kernels={c.kernel: c.used for c in controller.registry.clients.values() if c.kernel},
            versions=controller.versions,
            environment=controller.environment_id,
        )

    def _host_row(self, host: Host, group: Group) -> HostStatus | None:
        if host.index not in group.hosts and host.state != HostState.UP:
            return None
        environments = self._controller.environments
        measured = self._machines.get(host.index, _UNMEASURED) if host.state == HostState.UP else _UNMEASURED
        return HostStatus(
            index=host.index,
            hostname=host.hostname or host.label,
            state=host.state,
            pid=host.pid,
            num_cores=host.num_cores,
            num_gpus=host.num_gpus,
            machine=host.machine,
            cpu_percent=measured.cpu_percent,
            memory_used_bytes=measured.memory_used_bytes,
            memory_total_bytes=measured.memory_total_bytes,
            gpus=measured.gpus,
            history=measured.history,
            environment=environments.id_on(host.index)[:_SHORT],
            differs=environments.difference_of(host.index),
        )

    def _rank_row(self, entry: Proc) -> RankStatus:
        monitored = self._monitored.get(entry.proc, UNMONITORED)
        state, doing, since, cell = self._state(entry, monitored)
        known, known_since = self._since.get(entry.proc, ("", 0.0))
        if known != state:
            known_since = since or time.time()
            self._since[entry.proc] = (state, known_since)
        is_busy = state in (RankState.BUSY, RankState.DEBUGGING)
        cells = self._controller.cells.on(entry.proc)
        is_sent = (
            self._controller.cells.at(entry.proc) is not None
        )  # sent to the rank, which counts it until it begins
        return RankStatus(
            rank=entry.rank,
            host=address.host_of(entry.proc),
            pid=entry.pid,
            state=state,
            reason=self._reason(entry),
            doing=doing,
            since=since or known_since,
            cell=cell,
            line=monitored.line if is_busy else "",
            collective=monitored.collective if is_busy else None,
            cpu_percent=monitored.cpu_percent,
            memory_bytes=monitored.memory_bytes,
            gpus=monitored.gpus,
            gpu_memory_bytes=monitored.gpu_memory_bytes,
            transfers=monitored.transfers,
            last_line=_last_line(self._printed.get(entry.proc, b"")),
            num_queued=monitored.num_queued + max(0, len(cells) - int(is_sent)),
            cells_waiting=tuple(n for n in cells if n != cell),
        )

    def _state(self, entry: Proc, monitored: MonitoredRank) -> tuple[RankState, str, float, int | None]:
        """Return a rank's state, its activity, its start (0: with the state), and the number of its cell."""
        if entry.state != ProcState.RUNNING:
            return RankState(entry.state), "", 0.0, None
        at = self._controller.cells.at(entry.proc)
        n, began = at if at is not None else (None, 0.0)
        if at is None and monitored.is_cell and not self._controller.cells.is_stuck(entry.proc):
            monitored = UNMONITORED  # the cell has ended since that reading
        if monitored.is_before_cells:
            at, n, began = None, None, 0.0  # the cell was sent to the rank, and waits there
        doing = f"cell #{n}" if at is not None else monitored.doing
        if monitored.debugging:
            return RankState.DEBUGGING, doing, monitored.since, n
        if at is not None or monitored.busy:
            state = RankState.UNRESPONSIVE if entry.trouble else RankState.BUSY
            return state, doing, began or monitored.since, n
        return (RankState.UNRESPONSIVE if entry.trouble else RankState.IDLE), "", 0.0, None

    @staticmethod
    def _reason(entry: Proc) -> str:
        if entry.end is not None and entry.state == ProcState.LOST:
            return describe_end(replace(entry.end, last_lines=""))
        return entry.trouble


def _last_line(data: bytes) -> str:
    lines = data.decode("utf-8", "replace").split("\n")
    return next((line.rpartition("\r")[2].strip() for line in reversed(lines) if line.strip()), "")[:200]
