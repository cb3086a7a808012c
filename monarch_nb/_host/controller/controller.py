"""The controller: the first host process of a mesh. It is composed of services; requests of clients are
dispatched to them by name.

- `clients`: programs that use the mesh. `mesh_name`: the claim to its name. `lease`: whose it is, how long it
  lives. `handover`: how a program takes one that was kept warm. `names`: what goes by which name.
  `singletons`: where named singletons live.
- `members`: programs of other users, let in by a key with a role; `permissions`: which role a request needs;
  `audit`: who did what.
- `hosts`: other machines. `ranks`: how they start and end; `exits`: who hears of that.
  `waits`: who waits until either is up.
- `cells`: what runs where. `interrupts`: making it stop. `asking`: questions to ranks.
- `journal`: what was done and printed. `output`: who sees it.
- `status_publisher`: the state, live. `stack_requests`: stacks, and what ranks wait for. `debug`: who
  stands at a breakpoint.
- `healing`: what is done about losses. `checkpoints`: what actors have saved.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any

from monarch_nb._host.agent.process import HostProcess, visible_gpus
from monarch_nb._host.agent.resource_monitor import Rows
from monarch_nb._host.agent.supervisor import Rank
from monarch_nb._host.config import HostConfig
from monarch_nb._host.controller.asking import Asking
from monarch_nb._host.controller.cells import Cells
from monarch_nb._host.controller.checkpoints import CheckpointService
from monarch_nb._host.controller.clients import ClientService
from monarch_nb._host.controller.debug_service import DebugService
from monarch_nb._host.controller.definitions import Definitions
from monarch_nb._host.controller.environments import EnvironmentService
from monarch_nb._host.controller.exits import subscribers
from monarch_nb._host.controller.handover import Handover
from monarch_nb._host.controller.healing import Healing
from monarch_nb._host.controller.hosts import HostService
from monarch_nb._host.controller.interrupts import InterruptService
from monarch_nb._host.controller.invitations import Invitations
from monarch_nb._host.controller.journal_service import JournalService
from monarch_nb._host.controller.lease import Lease
from monarch_nb._host.controller.members import Members
from monarch_nb._host.controller.mesh_name import MeshName
from monarch_nb._host.controller.names import NameService
from monarch_nb._host.controller.orphans import Orphans
from monarch_nb._host.controller.output_service import OutputService
from monarch_nb._host.controller.question_service import QuestionService
from monarch_nb._host.controller.ranks import RankService
from monarch_nb._host.controller.registry import Registry
from monarch_nb._host.controller.singletons import SingletonService
from monarch_nb._host.controller.spawn_specs import SpawnSpecs
from monarch_nb._host.controller.stack_requests import StackRequests
from monarch_nb._host.controller.status_publisher import StatusPublisher
from monarch_nb._host.controller.time_limit import TimeLimit
from monarch_nb._host.controller.waiting import WaitingService
from monarch_nb._host.loop import guarded
from monarch_nb._host.warming import Zygote
from monarch_nb._protocol.base import Event
from monarch_nb._protocol.events import Leave, MeshEnding, WatchResources
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.programs import MeshRecord, ProcRow, ProgramRow, ShutDown, Status
from monarch_nb._protocol.registry import LATER, Handler, Later, Sender, handles
from monarch_nb._protocol.resources import MonitoredHost
from monarch_nb._protocol.states import HostState, ProcState
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb._wire.granted import granted_cores
from monarch_nb._wire.marks import Piece
from monarch_nb._wire.mesh_address import MeshAddress
from monarch_nb._wire.message import Message
from monarch_nb._wire.process import machine_id, process_trouble


class ControllerProcess(HostProcess):
    """The controller process: its services, and what they share: sending, and the end of the mesh. Owned by
    the loop thread.

    Attributes:
        name: the mesh's name; empty for the mesh of a single program.
        environment_id, versions: the environment that the mesh runs with, once it has a name.
    """

    def __init__(self, config: HostConfig, zygote: Zygote | None = None) -> None:
        super().__init__(config, zygote)
        self.name = ""
        self.mesh_id = secrets.token_hex(8)
        self.environment_id = ""
        self.versions: dict[str, str] = {}
        self.registry = Registry()
        self._enter_own_host()
        self.clients = ClientService(self)
        self.hosts = HostService(self)
        self.invitations = Invitations(self)
        self.ranks = RankService(self)
        self.waits = WaitingService(self.registry, self.hosts, self)
        self.names = NameService(self.registry)
        self.singletons = SingletonService(self.registry, self.ranks, self.hostname)
        self.journal = JournalService(self)
        self.members = Members(self)
        self.output = OutputService(self)
        self.status_publisher = StatusPublisher(self)
        self.environments = EnvironmentService(self.hosts, self.status_publisher, self.loop, self)
        self.cells = Cells(self)
        self.definitions = Definitions(self.registry, self.cells)
        self.asking = Asking(self.loop, self.send_to_rank)
        self.interrupts = InterruptService(
            self.registry, self.cells, self.ranks, self.journal, self.asking, self
        )
        self.stack_requests = StackRequests(self)
        self.debug = DebugService(self)
        self.questions = QuestionService(self.registry, self.cells, self)
        self.checkpoints = CheckpointService(self)
        self.healing = Healing(self, SpawnSpecs(os.path.join(self.directory, "spawn_specs")))
        self.orphans = Orphans(self.registry, self.healing.spawn_specs, self.ranks, self.send_to_rank)
        self.exit_subscribers = subscribers(self)
        self.mesh_name = MeshName(self)
        self.lease = Lease(self)
        self.time_limit = TimeLimit(self)
        self.handover = Handover(self)
        for service in (
            self.clients, self.hosts, self.invitations, self.members, self.ranks, self.waits, self.names,
            self.singletons,
            self.journal, self.output, self.status_publisher, self.cells, self.definitions,
            self.interrupts, self.stack_requests, self.debug, self.questions, self.checkpoints, self.healing,
            self.orphans, self.mesh_name, self.lease,
            self.environments, self.time_limit,
        ):  # fmt: skip
            self.handlers.add(service)

    @property
    def mesh_address(self) -> MeshAddress:
        """The address of this mesh that handles carry."""
        return MeshAddress.of_controller(self.mesh_id, self.name, self.directory, os.getpid())

    def _enter_own_host(self) -> None:
        own = self.registry.new_host(self.hostname)
        own.state, own.hostname, own.pid, own.machine = HostState.UP, self.hostname, os.getpid(), machine_id()
        own.num_cores, own.num_gpus = granted_cores(), len(visible_gpus())

    # --- sending

    def everybody(self) -> list[int]:
        """Return the proc ids of all processes that are told of ends: clients, ranks, other hosts."""
        ranks = [p.proc for p in self.registry.alive() if p.state == ProcState.RUNNING]
        return [
            *self.registry.clients,
            *ranks,
            *(address.host_proc(h.index) for h in self.hosts.link.remote_hosts()),
        ]

    def send_remote(self, host: int, frames: list[Any]) -> None:
        if self.hosts.untold:
            self.hosts.tell_ends()
        self.hosts.link.send(host, frames)

    def send_to_rank(self, proc: int, frame: bytes) -> None:
        """Send a frame to a rank or a program, here or elsewhere."""
        if address.host_of(proc) == self.index:
            self.send_local(proc, frame)
        else:
            self.send_remote(address.host_of(proc), [frame])

    def send_cell(self, receivers: Sequence[tuple[int, int]], origin: int, frame: bytes) -> None:
        """Send a cell to (proc, rank)s: one message to each other host."""
        remote: dict[int, list[tuple[int, int]]] = {}
        self.begin_cell([proc for proc, _ in receivers if address.host_of(proc) == self.index], origin)
        for proc, slot in receivers:
            if address.host_of(proc) == self.index:
                self.send_local(proc, wire.readdress(frame, slot, proc))
            else:
                remote.setdefault(address.host_of(proc), []).append((proc, slot))
        for host, theirs in remote.items():
            self.send_remote(host, [wire.pack_fanout(self.me, address.host_proc(host), theirs, frame)])

    # --- answers of ranks

    def take_answer(self, message: Message) -> None:
        if message.kind == wire.COMBINED:
            for flags, slots, payload in wire.unpack_combined(message):
                for slot in slots:
                    self._take_slot(message, slot, flags, payload)
        else:
            self._take_slot(message, message.slot, message.flags, message.payload)

    def _take_slot(self, message: Message, slot: int, flags: int, payload: Any) -> None:
        if message.ref in self.journal.entries.entries:
            self.cells.answered(message.ref, slot, flags, payload)
        else:
            self.asking.answered(message.ref, slot, flags, payload)

    # --- ranks of this machine

    def rank_ended(self, end: RankExit) -> None:
        super().rank_ended(end)
        self.ranks.ended(end)

    def environment_switched(self, number: int, problem: str) -> None:
        self.environments.switched(self.index, number, problem)

    def rank_heartbeat(self, proc: int, trouble: str) -> None:
        self.ranks.heartbeat(proc, trouble)

    def rank_printed(self, rank: Rank, piece: Piece) -> None:
        self.output.printed(rank.rank, rank.proc, piece)

    def resources_changed(self, rows: Rows, host: MonitoredHost | None) -> None:
        self.status_publisher.take_readings(0, rows, host)

    def watch_resources(self, on: bool) -> None:
        """Have all hosts sample their ranks frequently, or rarely."""
        self.resource_monitor.watch(on)
        self.hosts.tell_all(WatchResources(on))

    def process_state(self, proc: int) -> str:
        """Return the kernel's state of a rank of this machine, in words; empty if nothing is special."""
        rank = self.supervisor.ranks.get(proc)
        return process_trouble(rank.pid) if rank is not None and rank.pid else ""

    # --- the registry

    @handles(Status)
    def do_status(self, request: Status, sender: Sender) -> MeshRecord:
        """Return the registry as a record."""
        registry = self.registry
        return MeshRecord(
            name=self.name,
            pid=os.getpid(),
            zygote_pid=self.supervisor.zygote_pid,
            warm=self.supervisor.warm,
            started=registry.started,
            idle_timeout_s=self.lease.idle_timeout_s,
            num_cells=self.cells.num_running,
            healing=[g for g in registry.groups if self.healing.is_busy(g)],
            policies={g.name: g.policy.on_failure for g in registry.groups.values()},
            journal=self.journal.store.directory,
            journal_trouble=self.journal.trouble,
            hosts=self.hosts.rows(),
            clients=[ProgramRow(c.pid, c.what) for c in registry.clients.values()],
            procs=[
                ProcRow(p.proc, p.group, p.rank, p.state, p.pid, p.end, p.trouble)
                for p in registry.procs.values()
            ],
            names=registry.names,
        )

    # --- the end

    def preempted(self) -> None:
        self.checkpoints.save_then(
            {p.proc for p in self.registry.alive()},
            lambda: self.shut_down("was told to end by a signal (SIGTERM or SIGHUP)"),
        )

    @handles(ShutDown)
    def do_shut_down(self, request: ShutDown, sender: Sender) -> Later | None:
        """Stop the mesh."""
        self.reply(sender.proc, sender.ref, None)
        self.shut_down(f"was stopped by {self.clients.who(sender.proc)}")
        return LATER

    def shut_down(self, how: str = "") -> None:
        for step in (
            self.mesh_name.hide,
            partial(self._tell_programs, MeshEnding(how)),
            partial(self.cells.mesh_ends, how or "has ended"),
            partial(self.hosts.tell_all, Leave()),
            self.members.mesh_ends,
        ):
            guarded(step)  # whatever fails in one service, this process ends, and so do its hosts
        super().shut_down()

    def handler_of(self, message: Message) -> Handler:
        self.members.note_own(message)
        return super().handler_of(message)

    def _tell_programs(self, event: Event) -> None:
        for client in list(self.registry.clients):
            self.event(client, event)

    def close_link(self) -> None:
        self.members.audit.close()
        self.journal.close()
        self.handover.close()
        self.hosts.link.close()
        self.mesh_name.release()
