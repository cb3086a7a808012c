"""Serves the debugger: tracks threads stopped at breakpoints, and forwards commands to them.

Ranks tell of their stops; clients send lines to some of them and get the answers together. Stops belong to
the mesh, not to a client: several clients may talk to one, and when the last one that could has been gone for
`ABANDONED_S`, the ranks run on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import asdict

from monarch_nb._host.controller.sending import SendsFrames
from monarch_nb._protocol import calls
from monarch_nb._protocol import debugging as protocol
from monarch_nb._protocol.base import encode
from monarch_nb._protocol.debugging import (
    DebugBreak,
    DebugCommand,
    DebugGroups,
    DebugLeft,
    DebugLine,
    DebugPostMortem,
    DebugRunning,
    DebugSet,
    DebugSettings,
    DebugStopped,
    DebugStops,
    LineAnswers,
    StopPlace,
    UnwatchDebug,
    WatchDebug,
)
from monarch_nb._protocol.events import DebugHold, DebugSettingsChanged, RankStopped
from monarch_nb._protocol.journal import JournalEntry
from monarch_nb._protocol.names import GroupRecord
from monarch_nb._protocol.questions import SetBreak
from monarch_nb._protocol.registry import LATER, Later, Sender, handles
from monarch_nb._protocol.states import EntryKind, StopMode, StopState
from monarch_nb._protocol.work import Work
from monarch_nb._shape import name_ranks
from monarch_nb._wire import address
from monarch_nb._wire import message as wire

if TYPE_CHECKING:
    from monarch_nb._host.controller.asking import Asking
    from monarch_nb._host.controller.cells import Cells
    from monarch_nb._host.controller.clients import ClientService
    from monarch_nb._host.controller.journal_service import JournalService
    from monarch_nb._host.controller.registry import Registry
    from monarch_nb._host.loop import Loop

ABANDONED_S = 600.0
BREAK_S = 3.0
POST_MORTEM_S = 10.0
"""Limit for ranks to stop where they failed: a busy rank doesn't get there before its work ends."""


class Parts(SendsFrames, Protocol):
    """The parts of a controller that this module uses."""

    asking: Asking
    cells: Cells
    clients: ClientService
    journal: JournalService
    loop: Loop
    registry: Registry


@dataclass
class Stop:
    """A thread that is stopped in the debugger.

    Attributes:
        id: its number in the mesh.
        key: its number in its process.
    """

    id: int
    proc: int
    key: int
    group: str
    where: StopPlace
    state: StopState = StopState.STOPPED
    mode: StopMode = StopMode.PDB


@dataclass
class Command:
    """A debugger command on its way to some stops."""

    n: int
    client: int
    ref: int
    left: set[int]
    answers: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DebugWatch:
    """A client's watch, under `ref`, on the stops of a group; it is sent each change."""

    client: int
    ref: int
    group: str


class DebugService:
    """The service that tracks threads stopped at breakpoints, and forwards debugger commands to them. Owned
    by the loop thread.
    """

    def __init__(self, controller: Parts) -> None:
        self._controller = controller
        self._stops: dict[int, Stop] = {}
        self._ids = itertools.count(1)
        self._numbers = itertools.count(1)
        self._commands: dict[int, Command] = {}
        self._watches: list[DebugWatch] = []
        self._is_due = False
        self._leaving = 0
        self._without_answer: set[int] = set()
        self._on_change_once: Callable[..., None] | None = None
        self.settings: dict[str, bool] = {"skip": False, "on_error": False}
        self.abandoned_s = ABANDONED_S

    @property
    def num_stopped(self) -> int:
        """Number of stopped threads."""
        return len(self._stops)

    def is_stopped(self, proc: int) -> bool:
        """Say whether a thread of a rank is stopped."""
        return any(stop.proc == proc for stop in self._stops.values())

    def _rows(self, group: str) -> list[protocol.Stop]:
        """Return the stops of a group, by rank."""
        found = [self._row(stop) for stop in self._stops.values() if stop.group == group]
        return sorted(found, key=lambda row: (row.rank, row.id))

    def _row(self, stop: Stop) -> protocol.Stop:
        rank = self._controller.registry.procs[stop.proc].rank
        return protocol.Stop(id=stop.id, rank=rank, state=stop.state, mode=stop.mode, **asdict(stop.where))

    # --- events of ranks

    @handles(DebugStopped)
    def do_debug_stopped(self, request: DebugStopped, sender: Sender) -> None:
        """Record that a thread of a rank has stopped at a breakpoint, or has answered a line there."""
        proc = sender.proc
        stop = self._find(proc, request.key)
        entry = self._controller.registry.procs.get(proc)
        if entry is None:
            return
        if stop is None:
            if not self._has_stops(entry.group):
                self._hold(entry.group, True)
            stop = Stop(next(self._ids), proc, request.key, entry.group, request.where)
            self._stops[stop.id] = stop
            self._check_abandoned()
            self._controller.clients.tell_listeners(RankStopped(stop.group, entry.rank, stop.where))
        stop.where, stop.state, stop.mode = request.where, StopState.STOPPED, request.mode
        self._answered(stop, request.n, request.text)
        self._changed()

    @handles(DebugRunning)
    def do_debug_running(self, request: DebugRunning, sender: Sender) -> None:
        """Record that a stopped thread executes a step, and will stop again."""
        stop = self._find(sender.proc, request.key)
        if stop is not None:
            stop.state = StopState.RUNNING
            self._changed()

    @handles(DebugLeft)
    def do_debug_left(self, request: DebugLeft, sender: Sender) -> None:
        """Note that a stopped thread runs on."""
        stop = self._find(sender.proc, request.key)
        if stop is not None:
            self._remove(stop)
            self._answered(stop, request.n, request.text, forget=True)
            self._changed()

    def proc_has_ended(self, proc: int) -> None:
        """Remove the stops of a rank that is dead."""
        for stop in [s for s in self._stops.values() if s.proc == proc]:
            self._remove(stop)
            self._answered(stop, 0, "the process has died", forget=True)
            self._changed()

    def _remove(self, stop: Stop) -> None:
        del self._stops[stop.id]
        if not self._has_stops(stop.group):
            self._hold(stop.group, False)

    def _has_stops(self, group: str) -> bool:
        return any(stop.group == group for stop in self._stops.values())

    def _hold(self, group: str, on: bool) -> None:
        """Suspend the time-outs of process groups while a rank is stopped, so that its peers don't give up;
        or resume them.
        """
        for entry in self._controller.registry.alive():
            if entry.group == group:
                self._controller.event(entry.proc, DebugHold(on))

    def _find(self, proc: int, key: int) -> Stop | None:
        return next((s for s in self._stops.values() if (s.proc, s.key) == (proc, key)), None)

    def _answered(self, stop: Stop, n: int, text: str, *, forget: bool = False) -> None:
        for command in list(self._commands.values()):
            if stop.id in command.left and (forget or command.n == n):
                command.left.discard(stop.id)
                command.answers[stop.id] = text
                if not command.left:
                    self._finish(command)

    # --- requests of clients

    @handles(DebugStops)
    def do_debug_stops(self, request: DebugStops, sender: Sender) -> list[protocol.Stop]:
        """Return all stops: thread, rank and place."""
        return self._rows(request.group)

    @handles(DebugGroups)
    def do_debug_groups(self, request: DebugGroups, sender: Sender) -> list[GroupRecord]:
        """Return the groups of this mesh whose ranks can be debugged, or those with a stopped rank, as
        records of meshes.
        """
        return [
            g.record()
            for g in self._controller.registry.groups.values()
            if self._has_stops(g.name)
            or (
                not request.stopped_only and any(e.group == g.name for e in self._controller.registry.alive())
            )
        ]

    @handles(DebugCommand)
    def do_debug_command(self, request: DebugCommand, sender: Sender) -> LineAnswers | Later:
        """Send a line to some stops; answers when all have answered, or the time is up."""
        stops = [self._stops[i] for i in request.ids if i in self._stops]
        command = Command(next(self._numbers), sender.proc, sender.ref, {s.id for s in stops})
        self._commands[command.n] = command
        command.answers.update(
            {i: "it runs on, and no longer stands there" for i in request.ids if i not in self._stops}
        )
        for stop in stops:
            if stop.state == StopState.STOPPED:
                self._send(stop, command.n, request.line)
            else:
                command.left.discard(stop.id)
                command.answers[stop.id] = "it hasn't come back from the last step"
        if not command.left:
            self._finish(command)
        else:
            self._controller.loop.call_later(request.timeout_s, lambda: self._finish(command))
        return LATER

    def _send(self, stop: Stop, n: int, line: str) -> None:
        payload = encode(DebugLine(stop.key, n, line))
        frame = wire.pack(wire.CALL, src=address.CONTROLLER, dst=stop.proc, name=calls.DEBUG, payload=payload)
        self._controller.send_to_rank(stop.proc, frame)

    def _finish(self, command: Command) -> None:
        if self._commands.pop(command.n, None) is None:
            return
        groups = {self._controller.registry.procs[s.proc].group for s in self._stops.values()}
        rows = [row for group in sorted(groups) for row in self._rows(group)]
        self._controller.reply(
            command.client, command.ref, LineAnswers(command.answers, sorted(command.left), rows)
        )

    @handles(DebugPostMortem)
    def do_debug_post_mortem(self, request: DebugPostMortem, sender: Sender) -> Later | None:
        """Have ranks stop at their last error; answers once those that have one have stopped."""
        self._post_mortem(request.procs, partial(self._controller.reply, sender.proc, sender.ref, None))
        return LATER

    def _post_mortem(self, procs: list[int], done: Callable[[], None]) -> None:
        """Have ranks stop at their last error; call `done` once each has stopped or has none, or when the
        time is up. A rank that stops doesn't answer before it runs on.
        """
        waiting = set(procs)
        before = set(self._stops)

        def look(answers: dict[int, Any] | None = None) -> None:
            standing = {s.proc for i, s in self._stops.items() if i not in before}
            if answers is not None or waiting <= standing | self._without_answer:
                self._on_change_once = None
                done()

        self._without_answer = set()
        self._on_change_once = look
        for proc in procs:
            self._controller.asking.have_done(
                {0: proc}, Work.POST_MORTEM, None, partial(self._no_more, proc), POST_MORTEM_S
            )
        self._controller.loop.call_later(
            POST_MORTEM_S, lambda: look({}) if self._on_change_once is look else None
        )

    def _no_more(self, proc: int, _answers: dict[int, Any]) -> None:
        """Record that a rank has no error to show, or runs on."""
        self._without_answer.add(proc)
        if self._on_change_once is not None:
            self._on_change_once()

    @handles(DebugBreak)
    def do_debug_break(self, request: DebugBreak, sender: Sender) -> dict[int, str] | Later:
        """Set a breakpoint on ranks; answers with each rank's message about it."""
        asked = SetBreak(request.file, request.line, request.condition)
        self._controller.asking.ask(
            request.procs, asked, partial(self._controller.reply, sender.proc, sender.ref), BREAK_S
        )
        return LATER

    @handles(DebugSet)
    def do_debug_set(self, request: DebugSet, sender: Sender) -> DebugSettings:
        """Change settings of the debugger, and return all; None leaves one as it is.

        They are: `skip` breakpoints, stop `on_error`; after how long without anybody to debug them ranks run
        on (`abandoned_s`).
        """
        if request.abandoned_s is not None:
            self.abandoned_s = request.abandoned_s
            self._check_abandoned()
        wanted = {"skip": request.skip, "on_error": request.on_error}
        self.settings.update({name: on for name, on in wanted.items() if on is not None})
        for entry in self._controller.registry.alive():
            self._controller.event(entry.proc, DebugSettingsChanged(**self.settings))
        return DebugSettings(**self.settings, abandoned_s=self.abandoned_s)

    # --- watchers

    @handles(WatchDebug)
    def do_watch_debug(self, request: WatchDebug, sender: Sender) -> Later | None:
        """Send a client the stops, now and whenever they change."""
        self._watches.append(DebugWatch(sender.proc, sender.ref, request.group))
        self._leaving += 1
        self._controller.reply(sender.proc, sender.ref, self._rows(request.group))
        return LATER

    @handles(UnwatchDebug)
    def do_unwatch_debug(self, request: UnwatchDebug, sender: Sender) -> None:
        """End a client's watch of the stops."""
        self._watches = [w for w in self._watches if (w.client, w.ref) != (sender.proc, request.watch)]
        self._check_abandoned()

    def client_gone(self, client: int) -> None:
        """End all watches of a client that is gone."""
        self._watches = [w for w in self._watches if w.client != client]
        self._check_abandoned()

    def _changed(self) -> None:
        """Notify the watchers of the debugger, once for simultaneous changes."""
        if self._on_change_once is not None:
            self._on_change_once()
        if not self._is_due:
            self._is_due = True
            self._controller.loop.call_shortly(self._tell)

    def _tell(self) -> None:
        self._is_due = False
        for watch in self._watches:
            self._controller.reply(watch.client, watch.ref, self._rows(watch.group))

    def _check_abandoned(self) -> None:
        if self._is_attended() or not self._stops:
            return
        self._leaving += 1
        mine = self._leaving
        self._controller.loop.call_later(self.abandoned_s, lambda: self._abandon(mine))

    def _is_attended(self) -> bool:
        """Say whether a user can debug: in a notebook, or by a watch on the stops."""
        return bool(self._watches) or any(c.listens for c in self._controller.registry.clients.values())

    def _abandon(self, mine: int) -> None:
        if mine != self._leaving or self._is_attended() or not self._stops:
            return
        ranks = sorted({self._controller.registry.procs[s.proc].rank for s in self._stops.values()})
        text = (
            f"nobody has been there to debug {name_ranks(ranks)} for {self.abandoned_s:g} s: "
            f"{'it runs' if len(ranks) == 1 else 'they run'} on"
        )
        self._controller.journal.note(0, JournalEntry(EntryKind.NOTE, text=text))
        for stop in list(self._stops.values()):
            self._send(stop, 0, wire.RUN_ON)
            self._controller.cells.say_on(stop.proc, text)
