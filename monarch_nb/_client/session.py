"""A program's connection to one mesh's controller: requests and their answers, and events.

A session owns nothing that matters: the program may end at any time and the mesh goes on, unless it is the
private mesh of this program, which `this_host()` makes.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from msgspec.structs import replace

from monarch_nb._client import spare
from monarch_nb._client.actor_states import states_in
from monarch_nb._client.connection_file import Connection
from monarch_nb._client.ending import Ending
from monarch_nb._client.feed import Feed
from monarch_nb._client.heal_report import HealReport
from monarch_nb._client.notebook import PROGRAM_NUMBER, NotebookHooks
from monarch_nb._client.output import OutputHub
from monarch_nb._client.preferences import preferences
from monarch_nb._client.reports import FailureReports
from monarch_nb._client.sessions import by_transport
from monarch_nb._client.state import StatusFeed
from monarch_nb._client.stop_notices import StopNotices
from monarch_nb._client.subscribers import Subscribers
from monarch_nb._client.waiting import Wakeup, wait_simply
from monarch_nb._protocol.base import Request
from monarch_nb._protocol.events import (
    ActorsHealed,
    AskedNoMore,
    GroupsKnown,
    MeshEnding,
    Notice,
    RanksEnded,
    RanksRevived,
    RankStopped,
    Reshaped,
    UserAsked,
)
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.failure import ActorFailed
from monarch_nb._protocol.healing import Report
from monarch_nb._protocol.journal import EndpointCalls, JournalEntry, Note
from monarch_nb._protocol.keyboard import RefuseUser
from monarch_nb._protocol.programs import Goodbye, Hello, SettleOutput, ShutDown
from monarch_nb._protocol.registry import Handlers, Sender, handles
from monarch_nb._protocol.roles import Role
from monarch_nb._protocol.states import CellStatus, EntryKind
from monarch_nb._runtime.supervision import MeshFailure, call_fault_hook, has_own_hook
from monarch_nb._shape import Extent
from monarch_nb._tracebacks import hide_in_scripts
from monarch_nb._transport import process_context
from monarch_nb._transport.pending import Reply
from monarch_nb._transport.transport import Transport
from monarch_nb._wire import address, open_files
from monarch_nb._wire.mesh_address import MeshAddress
from monarch_nb._wire.message import Message
from monarch_nb._wire.process import process_trouble
from monarch_nb.exceptions import MeshError, MeshStartError, MeshUnreachable, RankTimeout

T = TypeVar("T")

REQUEST_S = 30.0
_NAMED = os.environ.pop("MONARCH_NB_PROGRAM", "")
"""Name that the parent process has given this program; child processes don't inherit it."""
HELLO_S = 20.0
LINGER_S = 0.5
UNATTENDED_S = 3.0
"""How long a question of a rank waits for a cell that waits for that rank."""


class Session:
    """A connection to a controller. All methods may be called from any thread.

    In a rank, it shares the rank's transport; in a client it has its own.
    """

    def __init__(self, transport: Transport, connection: Connection | None) -> None:
        self.transport = transport
        self.connection = connection
        by_transport[id(transport)] = self
        self.private = False
        self.role = Role.OWNER
        """What this program may do in the mesh."""
        self.observes = False
        self.wakeups: list[Wakeup] = []
        """Waits in a notebook, which are woken when a rank stops at a breakpoint."""
        self.num_waiting = 0
        """Number of cells that wait in a notebook, and can ask its user."""
        self.num_stops = self.num_stops_shown = 0
        """Number of stops that this program was told of, and of those shown in a prompt."""
        self.num_questions_over = 0
        """Number of notices that ranks no longer wait for a typed line."""
        self.take_back_question: dict[int, Callable[[], None]] = {}
        """Callbacks that withdraw an open prompt, by the number of the rank's question."""
        self.num_prompts = 0
        """Number of open debugger prompts of this program."""
        self._began = time.time()
        self.ending: Ending | None = None
        """Describes the end of the mesh; None in a rank, which ends with the mesh."""
        self.listens = False
        self.when_lost: list[Callable[[str], None]] = []
        """Called with a sentence about the end of the mesh, by the thread that has noticed it."""
        self.notebook: NotebookHooks | None = None
        self.output: OutputHub | None = None
        self.local_actors: Any = None
        self._making_actors = threading.Lock()
        self.meshes: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        """Actor meshes that this program has spawned, by actor id."""
        self.actor_states = states_in(transport)
        """The states of those actors; failures are passed on to it."""
        self.num_moves = 0
        """How often ranks were restarted, or a mesh was resized: hosts may have changed since."""
        self.reshaped: Subscribers[Reshaped] = Subscribers()
        """Handles that are resized, called with the controller's event about their group."""
        self.fault_handlers: dict[str, Callable[[Any], None]] = {}
        """This program's callbacks for the death of a rank, by group."""
        self.reports = FailureReports(self)
        transport.on_dropped = self.reports.dropped
        self.stop_notices = StopNotices(self)

    @classmethod
    def connect(
        cls,
        connection: Connection,
        what: str = "",
        *,
        listens: bool = True,
        observes: bool = False,
        is_guest: bool = False,
    ) -> Session:
        """Connect to a running controller.

        Args:
            what: what people know this program by.
            listens: whether it shows what actors print.
            observes: whether it only looks on: it doesn't keep the mesh alive, nor is it among its clients.
            is_guest: whether it's a rank of another mesh: it looks on, and calls what it has handles on.

        Raises:
            MeshStartError: if it doesn't answer.
        """
        if not is_guest:
            open_files.raise_when_needed()
        transport = Transport(address.new_client_id(connection.host), connection.directory)
        session = cls(transport, connection)
        observes, listens = observes or is_guest, listens and not is_guest
        session.observes, session.listens, transport.is_guest = observes, listens, is_guest
        session.output = OutputHub(transport)
        transport.event_handlers.append(Handlers(session, HandleEvents(session)))
        transport.on_call = session._take_call
        transport.on_unhandled_end = lambda end: session._on_ends([replace(end, handled=False)])
        ending = session.ending = Ending(connection)
        transport.watch_controller(connection.pid, ending.describe)
        transport.on_lost, transport.left = session._on_lost, ending.left
        transport.start()
        kernel_id = _kernel_id() if listens else ""
        try:
            welcome = session.request(
                Hello(os.getpid(), what or _program(), PROGRAM_NUMBER, listens, observes, kernel_id), HELLO_S
            )
        # the controller may be about to end, or another program may have killed it
        except BaseException as error:
            with suppress(Exception):
                session.tell(Goodbye())  # a controller that reads the greeting late reads this, too
            session.stop_notices.close()
            transport.close(LINGER_S)
            if not isinstance(error, RankTimeout):
                raise
            what_is = process_trouble(connection.pid) or f"does not answer; end it: kill {connection.pid}"
            raise MeshStartError(
                f"the controller of mesh {connection.name!r} (pid {connection.pid}) {what_is}"
            ) from None
        session.role, transport.mesh = welcome.role, MeshAddress(*welcome.mesh)
        transport.mesh_id = transport.mesh.mesh_id
        session.output.learn_groups(welcome.groups)
        atexit.register(session.close)
        session.notebook = NotebookHooks.install(session) if listens else None
        if not is_guest:
            hide_in_scripts()
        if session.notebook is None and connection.name and not observes:
            transport.calls = {}  # a script's calls are entered into the journal when it exits
        return session

    def is_open_to(self, connection: Connection) -> bool:
        """Return whether this is an open connection to that controller that shows output of ranks."""
        mine, transport = self.connection, self.transport
        is_it = mine is not None and (mine.pid, mine.directory) == (connection.pid, connection.directory)
        return is_it and self.listens and not transport.closed and not transport.lost

    # --- requests

    def request(self, request: Request[T], timeout_s: float | None = None) -> T:
        """Send a request to the controller and wait for the answer.

        Raises:
            RequestFailed: with the controller's reason.
            RankTimeout: if it didn't answer in time.
            MeshEnded: if it's gone.
        """
        reply = self.ask(request)
        seconds = timeout_s or preferences.request_s or REQUEST_S
        if not wait_simply(reply, time.monotonic() + seconds):
            late = f"the controller did not answer {request.wire_name!r} within {seconds:g} s"
            raise self._late(late, reply)
        return reply.read()

    def _late(self, what: str, reply: Reply[Any]) -> RankTimeout:
        """Return the error about a controller that doesn't answer, with what it does instead."""
        from monarch_nb._client.controller_stack import what_it_does

        here, reader = self.connection, self.transport.reader.described()
        if here is None or not here.pid:
            return RankTimeout(what)
        does = what_it_does(here)
        if does.startswith("it stands in"):  # nothing is wrong with it: was the request lost, or the answer?
            does += f"; here {reader}{', and the answer has come just now' if reply.ready else ''}"
        return RankTimeout(f"{what}: {does}")

    def ask(self, request: Request[T]) -> Reply[T]:
        """Send a request to the controller; return the reply, which can be read once it's ready."""
        return self.transport.request(address.CONTROLLER, request)

    def check_may_end(self) -> None:
        """Raise if this program may not end the mesh that it's still in.

        Raises:
            RequestFailed: with the controller's reason.
        """
        if self.role is not Role.OWNER:
            self.request(ShutDown())

    def ask_to_end(self) -> tuple[Reply[None], int]:
        """Ask the controller to end, and the mesh with it; return the reply, and the controller's pid, 0 if
        that isn't known."""
        if self.ending is not None:
            self.ending.is_wanted = self.ending.is_by_us = True
        reply = self.ask(ShutDown())
        reply.accepts_end = True
        return reply, self.connection.pid if self.connection is not None else 0

    def watch(self, feed: Feed | StatusFeed[Any], request: Request[None]) -> None:
        """Have the controller send the events of a watch request to `feed`."""
        if self.output is not None and isinstance(feed, Feed):
            feed.when_late = self.output.expect_late
        self.transport.ask(address.CONTROLLER, request, self.transport.expect(feed))

    def tell(self, request: Request[Any]) -> None:
        """Tell the controller something that needs no answer."""
        self.transport.ask(address.CONTROLLER, request)

    def note_calls(
        self, source: str, began: float, *, origin: int = 0, status: CellStatus = CellStatus.OK
    ) -> None:
        """Have the calls since the last time entered into the journal. The entry includes failures, even if
        nobody has read the answers.
        """
        calls, self.transport.calls = self.transport.calls, {}
        if not calls:
            return
        rows: list[EndpointCalls] = [endpoint.describe(times) for endpoint, times in calls.items()]
        seconds: dict[int, float] = {}
        for row in rows:
            for rank, each in row.seconds.items():
                seconds[rank] = seconds.get(rank, 0.0) + each
        if any(row.num_failed for row in rows):
            status = CellStatus.ERROR
        entry = JournalEntry(
            EntryKind.CALLS, source=source, when=began, ranks=", ".join(sorted({row.ranks for row in rows})),
            seconds=seconds, calls=rows, origin=origin, status=status,
        )  # fmt: skip
        self.tell(Note(entry))

    # --- actors of this program

    def host_actors(self) -> Any:
        """Enable this program to have actors of its own; return the host that receives calls to them."""
        with self._making_actors:
            if self.local_actors is None:
                from monarch_nb._runtime.actor_host import ActorHost

                self.local_actors = ActorHost(self.transport)
        return self.local_actors

    def _take_call(self, message: Message) -> Any:
        """Handle the first call to this program: another process spawns a named singleton here, or calls
        one.
        """
        if not message.target:
            return None  # a request that only processes with actors answer
        return self.host_actors().on_call(message)

    # --- events

    @handles(GroupsKnown)
    def on_groups_known(self, event: GroupsKnown, sender: Sender) -> None:
        """Handle the event that groups of ranks may print: have the output learn their names."""
        if self.output is not None:
            self.output.learn_groups(event.groups)

    @handles(ActorFailed)
    def on_actor_failed(self, event: ActorFailed, sender: Sender) -> None:
        """Handle the failure of an actor of this program: mark its mesh as failed and have that reported."""
        self.reports.actor_failed(event.actor_id, event.failure)

    @handles(RanksEnded)
    def on_ranks_ended(self, event: RanksEnded, sender: Sender) -> None:
        """Handle the end of ranks: have the output forget them, and tell the program's hook of it."""
        for end in event.ends:
            if self.output is not None:
                self.output.forget(end.proc)
        self._on_ends(event.ends)

    @handles(RankStopped)
    def on_rank_stopped(self, event: RankStopped, sender: Sender) -> None:
        """Handle a rank's stop at a breakpoint: have it announced, and wake threads that wait for answers."""
        self.num_stops += 1
        self.stop_notices.stopped(event)
        for wakeup in list(self.wakeups):
            wakeup.wake_for_stop()

    @handles(AskedNoMore)
    def on_asked_no_more(self, event: AskedNoMore, sender: Sender) -> None:
        """Take back the prompts of questions to whose answers ranks don't wait any more."""
        self.num_questions_over += 1
        for take_back in filter(None, map(self.take_back_question.get, event.ids)):
            take_back()

    @handles(Notice)
    def on_notice(self, event: Notice, sender: Sender) -> None:
        """Show a notice of the controller to the user."""
        _show_notice(event.what)

    @handles(MeshEnding)
    def on_mesh_ending(self, event: MeshEnding, sender: Sender) -> None:
        """Handle the coming end of the mesh: remember how it ends."""
        if self.ending is not None:
            self.ending.how = event.how

    @handles(UserAsked)
    def on_user_asked(self, event: UserAsked, sender: Sender) -> None:
        """Handle a rank's request for typed input: wake the threads that wait for answers. If nobody waits
        for it in a cell, nobody will see the question, and it's refused.
        """
        self.num_stops += 1
        for wakeup in list(self.wakeups):
            wakeup.wake_for_stop()

        def refuse() -> None:
            if not self.num_waiting:
                self.tell(
                    RefuseUser(
                        "no cell of the notebook waits for it (it runs in the background, or was "
                        "called by a script)"
                    )
                )

        self.transport.reader.call_at(time.monotonic() + UNATTENDED_S, refuse)

    def _on_ends(self, ends: Sequence[RankExit]) -> None:
        """Call the program's hook for ranks that have died, unless a thread waited for them and gets an
        exception.

        A hook of the program's own is told of each; what is written to stderr has all of a mesh that died
        together.
        """
        unheard: dict[Any, list[RankExit]] = {}
        for end in ends:
            if end.stopped or end.restarted or self.observes:
                continue
            if not end.handled:
                self.transport.reported_ends.add(end.proc)
            handler = self.fault_handlers.get(end.group)
            # the callback may wait for answers, and this is the thread that reads them
            if handler is not None:
                failure = MeshFailure.from_ends([end])
                threading.Thread(
                    target=handler, args=(failure,), name="monarch-nb-fault", daemon=True
                ).start()
            elif not end.handled:
                unheard.setdefault(end.proc if has_own_hook() else end.group, []).append(end)
        for together in unheard.values():
            call_fault_hook(MeshFailure.from_ends(together))

    def take_sizes(self, event: Reshaped) -> None:
        """Have handles take on the new sizes of a group of ranks: handles on the whole group, and on actors
        spawned on all of it.
        """
        if self.output is not None:
            self.output.default.sizes[event.group] = Extent(event.labels, event.sizes).nelements
        self.num_moves += 1
        self.reshaped.publish(event)

    def healed(self, actor_ids: Sequence[int]) -> None:
        """Mark actors that were created again as healthy."""
        for actor_id in actor_ids:
            state = self.actor_states.get(actor_id)
            if state is not None:
                state.heal()

    # --- the end

    def _on_lost(self, heard: bool) -> None:
        """Call subscribers when the controller is gone. If no waiting thread gets an exception about that,
        show a notice.
        """
        for tell in self.when_lost:
            tell(self.transport.lost)
        if self.listens and not heard and self.ending is not None and not self.ending.is_wanted:
            _show_notice(self.transport.lost)

    def close(self) -> None:
        """Disconnect. A program's own mesh ends."""
        if self.transport.closed:
            return
        atexit.unregister(self.close)
        if self.notebook is not None:
            self.notebook.remove()
        if self.ending is not None:
            self.ending.is_wanted = True
        if self.local_actors is not None:
            with suppress(Exception):
                self.local_actors.stop()
        with suppress(Exception):
            self.settle_output()
        with suppress(Exception):  # even if the controller is too busy to say which output is still to come
            if self.notebook is None:
                self.note_calls(_program(), self._began)
        with suppress(Exception):
            self.tell(ShutDown() if self.private else Goodbye())
        with suppress(Exception):
            self.transport.drop_unread()
            self.reports.flush()
        self.stop_notices.close()
        self.transport.close(LINGER_S)
        by_transport.pop(id(self.transport), None)

    def settle_output(self) -> None:
        """Wait until all output printed before now has arrived."""
        if self.output is not None:
            self.request(SettleOutput(), 2.0)
            self.output.default.flush()


class HandleEvents:
    """The handlers of events about handles. Clients and ranks have them; a rank learns of all other events by
    other ways.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    @handles(ActorsHealed)
    def on_actors_healed(self, event: ActorsHealed, sender: Sender) -> None:
        """Handle the healing of actors, which have been made again: mark them as healthy."""
        self._session.healed(event.actor_ids)

    @handles(RanksRevived)
    def on_revived(self, event: RanksRevived, sender: Sender) -> None:
        """Count a restart of ranks, possibly on a host that replaced a lost one."""
        self._session.num_moves += 1

    @handles(Reshaped)
    def on_reshaped(self, event: Reshaped, sender: Sender) -> None:
        """Handle a change of a group's sizes: update handles on it."""
        self._session.take_sizes(event)


def _program() -> str:
    if _NAMED:
        return _NAMED
    if "ipykernel" in sys.modules:
        return ("notebook " + os.path.basename(os.environ.get("JPY_SESSION_NAME", ""))).strip()
    folder, name = os.path.split(sys.argv[0])
    if name == "__main__.py":  # a package that was run by its name: python -m training
        name = os.path.basename(folder)
    return name or "python"


def _kernel_id() -> str:
    """Return Jupyter's id of the kernel that this program is, from the name of its connection file."""
    app = getattr(sys.modules.get("ipykernel.kernelapp"), "IPKernelApp", None)
    if app is None or not app.initialized():
        return ""
    return os.path.basename(str(app.instance().connection_file)).removeprefix("kernel-").removesuffix(".json")


# --- the session of this program

_current: Session | None = None
_lock = threading.RLock()


def current() -> Session:
    """Return this process' session: a rank's own, or a client's, which starts a mesh of its own if it has no
    session.
    """
    global _current
    session = _current
    if (
        session is not None
        and not session.transport.closed
        and not (session.private and session.transport.lost)
    ):
        return session
    with _lock:
        if _current is not None and _current.private and _current.transport.lost:
            _current.close()
        if _current is None or _current.transport.closed:
            _current = _of_rank() if process_context.rank is not None else _private()
        return _current


def in_use() -> Session | None:
    """Return the session that `this_host()` and new channels use, if there is one; starts none."""
    return _current


def use(session: Session) -> None:
    """Make `session` the one that `this_host()` and new channels use."""
    global _current
    _current = session
    process_context.set_transport(session.transport)


def _of_rank() -> Session:
    session = Session(process_context.transport(), None)
    session.transport.event_handlers.append(Handlers(HandleEvents(session)))
    return session


def _private() -> Session:
    """Start a mesh that ends with this program."""
    connection = spare.take_spare()
    session = Session.connect(connection)
    session.private = True
    process_context.set_transport(session.transport)
    process_context.set_whereabouts(rank="client", host=os.uname().nodename, pid=os.getpid())
    return session


def _show_notice(what: str | Report) -> None:
    """Show the notice of a heal or another response to a loss that nobody has asked for."""
    text = what if isinstance(what, str) else f"healed by itself: {HealReport.of(what)}"
    print(text, file=sys.stderr, flush=True)


def shutdown() -> None:
    """End this program's private mesh, and its connection."""
    global _current
    with _lock:
        if _current is not None:
            _current.close()
            process_context.set_transport(None)
            _current = None


process_context.on_demand(lambda: current().transport)


# --- other meshes, found by the handles on them

_reaching = threading.Lock()


def reach(mesh: MeshAddress) -> Transport:
    """Return this process' transport in a mesh that handles name; connect, if it has none.

    Raises:
        MeshUnreachable: if there's no way from here to that mesh.
    """
    with _reaching:
        return _transport_in(mesh) or _visit(mesh).transport


def _transport_in(mesh: MeshAddress) -> Transport | None:
    """Return a transport in a mesh, if this process has one; preferably one that shows output."""
    found = [
        s
        for s in list(by_transport.values())
        if s.transport.mesh_id == mesh.mesh_id and not s.transport.closed
    ]
    return max(found, key=lambda s: s.listens).transport if found else None


def _visit(mesh: MeshAddress) -> Session:
    """Connect to a mesh that this process knows only by handles."""
    rank = process_context.rank
    who = f"rank {rank.rank} of {rank.transport.mesh}" if rank is not None else "this program"
    refused = f"{mesh} can't be reached from {who} on {process_context.hostname()}: "
    if not mesh.is_near:
        raise MeshUnreachable(
            f"{refused}its controller is on {mesh.hostname}, and meshes can only be entered on the "
            "machine of their controller. Next: make the call in the program that has both meshes, "
            "or spawn both sides on the hosts of one job: that's one mesh"
        )
    if not mesh.lives:
        raise MeshUnreachable(f"{refused}it has ended. Next: start it anew, and hand over new handles")
    if not mesh.is_open:
        raise MeshUnreachable(f"{refused}its sockets in {mesh.directory} are gone, or are another user's")
    connection = Connection(mesh.name, mesh.pid, mesh.directory, start_time=mesh.start_time)
    if rank is None:
        return Session.connect(connection)
    session = Session.connect(connection, who, is_guest=True)
    rank.receive_guest(session.transport)
    return session


process_context.on_other_mesh(reach)


def num_open() -> int:
    """Return the number of this program's sessions."""
    return len(by_transport)


def open_transports() -> list[Transport]:
    """Return the transports of all sessions of this program."""
    return [session.transport for session in list(by_transport.values()) if not session.transport.closed]


def open_to(connection: Connection) -> Session | None:
    """Return this program's session with that controller that shows output, if it has one."""
    return next((session for session in list(by_transport.values()) if session.is_open_to(connection)), None)


def of_transport(transport: Transport) -> Session:
    """Return the session that uses `transport`."""
    session = by_transport.get(id(transport))
    if session is None and process_context.rank is not None and process_context.rank.transport is transport:
        session = current()  # a rank makes its session when it's first asked for
    if session is None or session.transport is not transport:
        if transport.closed:
            raise transport.closing_error()
        raise MeshError("this handle belongs to a mesh that this program is no longer connected to")
    return session


def open_sessions() -> list[Session]:
    """Return the connections of this program that are open."""
    return [session for session in list(by_transport.values()) if not session.transport.closed]
