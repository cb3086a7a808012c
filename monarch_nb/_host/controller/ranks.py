"""The life cycle of ranks: how they are started, stopped and restarted, and the actions after an exit."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from monarch_nb._host import capacity
from monarch_nb._host.controller import exits
from monarch_nb._host.controller.exits import Exited
from monarch_nb._host.controller.registry import Group
from monarch_nb._host.controller.sending import SendsFrames
from monarch_nb._host.loop import guarded
from monarch_nb._host.starting import PROCESS_JOB
from monarch_nb._protocol.events import EndsHere, RankHeartbeat, RankIsUp, RanksEnded, RanksRevived
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.journal import JournalEntry
from monarch_nb._protocol.rank_spec import GroupPlace, RankPlace
from monarch_nb._protocol.ranks import (
    Restart,
    SetProcEnvironment,
    Signal,
    SignalRanks,
    Spawn,
    StartRanks,
    Stop,
    StopRanks,
)
from monarch_nb._protocol.registry import Later, Sender, handles
from monarch_nb._protocol.runs import runs_of
from monarch_nb._protocol.states import EntryKind, ProcState
from monarch_nb._shape import decode_extent
from monarch_nb._wire import address

if TYPE_CHECKING:
    from monarch_nb._host.controller.cells import Cells
    from monarch_nb._host.controller.debug_service import DebugService
    from monarch_nb._host.controller.definitions import Definitions
    from monarch_nb._host.controller.exits import Subscriber
    from monarch_nb._host.controller.healing import Healing
    from monarch_nb._host.controller.hosts import HostService
    from monarch_nb._host.controller.journal_service import JournalService
    from monarch_nb._host.controller.mesh_name import MeshName
    from monarch_nb._host.controller.registry import Registry
    from monarch_nb._host.controller.status_publisher import StatusPublisher
    from monarch_nb._host.controller.waiting import WaitingService
    from monarch_nb._host.local_sockets import LocalSockets
    from monarch_nb._wire.mesh_address import MeshAddress

_LEFT_OUT_GRACE_S = 3.0


class Parts(SendsFrames, Protocol):
    """The parts of a controller that this module uses."""

    cells: Cells
    debug: DebugService
    definitions: Definitions
    exit_subscribers: tuple[Subscriber, ...]
    healing: Healing
    hosts: HostService
    journal: JournalService
    local: LocalSockets
    mesh_name: MeshName
    registry: Registry
    status_publisher: StatusPublisher
    waits: WaitingService

    @property
    def mesh_address(self) -> MeshAddress:
        """The address of this mesh, which handles on it carry."""
        ...

    def rank_is_up(self, proc: int) -> None:
        """Note that a rank of this machine has started."""
        ...

    def spread_ends(self, ends: Sequence[RankExit]) -> None:
        """Tell the processes of this machine which ranks have ended."""
        ...


class RankService:
    """The service that has hosts start and stop ranks, and publishes the exits of ranks. Owned by the loop
    thread.
    """

    def __init__(self, controller: Parts) -> None:
        self._controller = controller
        self._restarting: set[int] = set()
        """Procs that are started again as soon as they have ended."""

    # --- starting

    @handles(Spawn)
    def do_spawn(self, request: Spawn, sender: Sender) -> list[int]:
        """Start ranks on hosts; answers with their proc ids at once."""
        if request.creator_actor and not self._controller.registry.lives(sender.proc):
            return []  # no program waits for them, or would end them
        procs = self.spawn(request)
        self._controller.registry.groups[request.group].creator = (sender.proc, request.creator_actor)
        return procs

    def spawn(self, asked: Spawn) -> list[int]:
        """Start `per_host` ranks on each of `hosts`, as a group; return their proc ids."""
        registry, per_host = self._controller.registry, asked.per_host
        self._check_room(asked.hosts, per_host, force=asked.force)
        hosts = [self._controller.hosts.get(index) for index in asked.hosts]
        procs = []
        for i, host in enumerate(hosts):
            ranks = list(range(i * per_host, (i + 1) * per_host))
            for local_rank, entry in enumerate(registry.new_procs(host.index, asked.group, ranks)):
                entry.local_rank = local_rank
                procs.append(entry.proc)
        extent = decode_extent(asked.spec.extent)
        group = registry.groups[asked.group] = Group(asked.group, extent, procs, asked.spec, asked.method)
        self.start(group, procs)
        return procs

    def _check_room(self, hosts: Sequence[int], per_host: int, *, force: bool) -> None:
        """Raise if hosts have no room for a number of further ranks each: checked on this machine, and on
        hosts that are processes of it or machines like it.

        Raises:
            ValueError: if they haven't.
        """
        known = self._controller.registry.hosts
        here = [h for h in hosts if not h or (h in known and known[h].kind == PROCESS_JOB)]
        capacity.check_room(per_host * max(1, len(here)), force=force, how="--force (force=True)")

    def start(self, group: Group, procs: Sequence[int]) -> None:
        """Start ranks of a group, each on its host."""
        controller = self._controller
        spec = replace(group.spec, extent=group.context)
        debug = controller.debug.settings
        place = GroupPlace(
            runs_of(group.procs),
            runs_of(group.hosts),
            controller.mesh_address,
            runs_cells=controller.mesh_name.is_claimed,
            skip=debug["skip"],
            on_error=debug["on_error"],
        )
        all_entries = [controller.registry.procs[proc] for proc in procs]
        places = dict(zip(procs, group.places(all_entries), strict=True))
        for index, theirs in controller.hosts.of(procs).items():
            entries = [controller.registry.procs[proc] for proc in theirs]
            own = [RankPlace(proc=e.proc, **places[e.proc], own_env=e.own_env) for e in entries]
            there = replace(place, elsewhere=controller.hosts.get(index).elsewhere)
            controller.hosts.ask(index, StartRanks(own, spec, there, group.method))

    @handles(RankIsUp)
    def on_up(self, event: RankIsUp, sender: Sender) -> None:
        """Handle the event that a rank is up: register it, run its pending cells, and answer waiting
        requests.
        """
        controller = self._controller
        controller.rank_is_up(sender.proc)
        settled = controller.registry.proc_is_up(sender.proc, event.pid)
        controller.definitions.rank_is_up(sender.proc)
        controller.waits.settled(settled)
        controller.status_publisher.touch((sender.proc,))

    @handles(SetProcEnvironment)
    def do_environment(self, request: SetProcEnvironment, sender: Sender) -> None:
        """Record environment variables that ranks were given, for processes that replace them."""
        procs = self._controller.registry.procs
        for proc, variables in request.variables.items():
            if proc in procs:
                procs[proc].own_env.update(variables)

    # --- starting again

    @handles(Restart)
    def do_restart(self, request: Restart, sender: Sender) -> Later | None:
        """Kill ranks and start them again at their places; answers once they're up. Handles on them stay
        valid.
        """
        self._controller.definitions.restarting(request.procs)
        self.restart(request.procs)
        self._controller.journal.note(
            sender.proc, JournalEntry(EntryKind.COMMAND, source=f"%mesh restart --ranks {request.rank_set}")
        )
        return self._controller.waits.answer_when(sender, set(request.procs), restarted=True)

    def restart(self, procs: Sequence[int]) -> None:
        """Kill living ranks; they are started again at their places as soon as they have ended."""
        controller = self._controller
        for index, theirs in controller.hosts.of(procs).items():
            controller.hosts.get(index)
            dead = [p for p in theirs if controller.registry.procs[p].end is not None]
            self._restarting.update(theirs)
            controller.hosts.ask(index, SignalRanks(theirs, int(signal.SIGKILL)))
            for proc in dead:
                self.start_again(proc)

    def start_again(self, proc: int) -> None:
        """Start an ended rank again at its place, under the same proc id."""
        controller = self._controller
        self._restarting.discard(proc)
        entry = controller.registry.procs[proc]
        entry.state, entry.end = ProcState.STARTING, None
        controller.status_publisher.touch((proc,))
        for to in controller.everybody():
            controller.event(to, RanksRevived((proc,)))
        self.start(controller.registry.groups[entry.group], [proc])

    # --- stopping

    @handles(Stop)
    def do_stop(self, request: Stop, sender: Sender) -> Later | None:
        """Stop ranks; answers once they have ended."""
        self.stop(request.procs, request.grace_s)
        left = {p for p in request.procs if self._controller.registry.procs[p].end is None}
        return self._controller.waits.answer_when(sender, left)

    def leave_out(self, procs: Sequence[int]) -> None:
        """Stop ranks that a mesh gives up; dead ones count as stopped."""
        known = self._controller.registry.procs
        for proc in procs:
            if known[proc].end is not None:
                known[proc].state = ProcState.STOPPED
        self.stop([p for p in procs if known[p].end is None], _LEFT_OUT_GRACE_S)
        self._controller.healing.spawn_specs.procs_stopped(list(procs))

    def stop(self, procs: Sequence[int], grace_s: float) -> None:
        """Stop ranks, here or elsewhere; their actors clean up meanwhile."""
        for index, theirs in self._controller.hosts.of(procs).items():
            self._controller.hosts.ask(index, StopRanks(theirs, grace_s))

    @handles(Signal)
    def do_signal(self, request: Signal, sender: Sender) -> None:
        """Send a signal to ranks."""
        self.signal(request.procs, request.number)

    def signal(self, procs: Sequence[int], number: int, cell: int = 0) -> None:
        """Send a signal to ranks, here or on other hosts; one for a cell isn't sent to ranks that do other
        work.
        """
        for index, theirs in self._controller.hosts.of(procs).items():
            self._controller.hosts.ask(index, SignalRanks(theirs, number, cell))

    # --- exits and heartbeats

    @handles(RankHeartbeat)
    def on_heartbeat(self, event: RankHeartbeat, sender: Sender) -> None:
        """Record the event that a rank of another host is unresponsive, or responds again."""
        self.heartbeat(event.proc, event.trouble)

    def heartbeat(self, proc: int, trouble: str) -> None:
        """Record that a rank is unresponsive, or responds again (no trouble)."""
        entry = self._controller.registry.procs.get(proc)
        if entry is None or entry.end is not None:
            return
        entry.trouble = trouble
        self._controller.status_publisher.touch((proc,))
        self._controller.cells.say_on(proc, f"rank {entry.rank} {trouble or 'reacts again'}")

    @handles(EndsHere)
    def on_ends(self, event: EndsHere, sender: Sender) -> None:
        """Handle ends of ranks of another host, which speaks for its own: tell all services."""
        host = address.host_of(sender.proc)
        for end in event.ends:
            if address.host_of(end.proc) == host:
                guarded(partial(self.ended, end))

    def ended(self, end: RankExit) -> None:
        """Tell all services that a rank has ended, here or on another host (`exits.subscribers`)."""
        again = end.proc in self._restarting
        entry = self._controller.registry.procs.get(end.proc)
        exits.tell(self._controller.exit_subscribers, Exited(self._describe(end, again), again, entry))

    def note_exit(self, exited: Exited) -> None:
        """Enter an exit into the registry, tell other processes, and answer requests that waited for the
        rank.
        """
        done = self._controller.registry.proc_has_ended(exited.end, settle=not exited.again)
        self.tell_end(exited.end)
        self._controller.waits.settled(done)

    def _describe(self, end: RankExit, again: bool) -> RankExit:
        """Return an end with the facts of the registry added."""
        controller, proc = self._controller, end.proc
        entry, group = controller.registry.procs.get(proc), controller.registry.groups.get(end.group)
        if entry is not None:
            end = replace(end, rank=entry.rank)  # its number may have changed since it started
            taken = controller.registry.hosts[address.host_of(proc)].taken
            if taken and entry.state != ProcState.STOPPING:
                end = replace(end, stopped=False, reason=taken)
        return replace(
            end,
            point=_point(end, group),
            notified=tuple(controller.cells.waiters_of(proc)),
            restarted=again,
            policy="" if group is None else group.policy.on_failure,
            reason="was restarted" if again else end.reason,
        )

    def tell_end(self, end: RankExit) -> None:
        """Tell all processes of this machine, all clients and all other hosts that a rank has ended."""
        controller = self._controller
        controller.spread_ends([end])
        clients = [c for c in controller.registry.clients if not controller.local.has_route(c)]
        controller.event_to_all(clients, RanksEnded((end,)))
        controller.hosts.tell_end(end)


def _point(end: RankExit, group: Group | None) -> dict[str, int]:
    """Return the coordinates of a rank."""
    if group is None or end.proc not in group.procs:  # the mesh may have removed it by now
        return {}
    return dict(group.extent.point(end.rank))
