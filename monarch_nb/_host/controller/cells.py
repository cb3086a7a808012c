"""Runs cells in the controller, so that they and their output outlive the program that has submitted them.

What a cell prints, and how it ends on each rank, goes into the journal; who watches reads it from there
(`watch`). What happens to cells, and what follows from it, is decided in `cell_states`; here events are
handed to it, and what it says is done.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, assert_never

from msgspec.structs import asdict, replace

from monarch_nb._cells import DefinitionCell
from monarch_nb._host.controller import cell_events as to_do
from monarch_nb._host.controller import cell_results
from monarch_nb._host.controller.cell_events import (
    Aborted,
    CellNotice,
    EndedWell,
    EndedWith,
    EndWanted,
    Event,
    GroupsRemade,
    MeshEnds,
    RankGone,
    StacksFound,
    Submitted,
    TellDone,
)
from monarch_nb._host.controller.cell_states import CellStates
from monarch_nb._host.controller.escalation import INTERRUPT_S
from monarch_nb._host.controller.exits import Exited
from monarch_nb._host.controller.groups import remake_groups
from monarch_nb._host.controller.watch import Watch
from monarch_nb._host.controller.workflow import run_workflow
from monarch_nb._host.request import RequestError
from monarch_nb._journal import record as records
from monarch_nb._journal.secrets import is_unlogged, logged_source
from monarch_nb._protocol import cells as protocol
from monarch_nb._protocol.base import encode
from monarch_nb._protocol.cells import CellOver, RunCell, WatchCell
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.journal import JournalEntry
from monarch_nb._protocol.questions import AbortCollectives, CancelCell
from monarch_nb._protocol.registry import LATER, Later, Sender, handles
from monarch_nb._protocol.states import CellStatus, EndReason, EntryKind
from monarch_nb._protocol.work import Work
from monarch_nb._shape import format_ranks, name_ranks
from monarch_nb._wire import address
from monarch_nb._wire import message as wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch_nb._host.agent.supervisor import Supervisor
    from monarch_nb._host.controller.asking import Answers, Asking
    from monarch_nb._host.controller.clients import ClientService
    from monarch_nb._host.controller.debug_service import DebugService
    from monarch_nb._host.controller.definitions import Definitions
    from monarch_nb._host.controller.journal_service import JournalService
    from monarch_nb._host.controller.output_service import OutputService
    from monarch_nb._host.controller.question_service import QuestionService
    from monarch_nb._host.controller.ranks import RankService
    from monarch_nb._host.controller.registry import Registry
    from monarch_nb._host.controller.stack_requests import StackRequests
    from monarch_nb._host.controller.status_publisher import StatusPublisher
    from monarch_nb._host.controller.time_limit import TimeLimit
    from monarch_nb._host.loop import Loop

LATE_BYTES = 16 << 20
"""Length of the journal after a cell's end that is searched for its late output."""

MAX_SOURCE_SHOWN = 100_000

WhenOver = Callable[[CellOver], None]
_ABORT_ANSWER_S = 1.0


class Parts(Protocol):
    """The parts of a controller that this module uses."""

    asking: Asking
    cells: Cells
    clients: ClientService
    debug: DebugService
    definitions: Definitions
    environment_id: str
    journal: JournalService
    stack_requests: StackRequests
    loop: Loop
    output: OutputService
    questions: QuestionService
    ranks: RankService
    registry: Registry
    time_limit: TimeLimit
    status_publisher: StatusPublisher
    supervisor: Supervisor

    def send_cell(self, receivers: Sequence[tuple[int, int]], origin: int, frame: bytes) -> None:
        """Send a cell to (proc, rank)s: one message to each other host."""
        ...


@dataclass
class _Running:
    """The data of a running cell besides its state: what ranks are sent, and its watchers."""

    frame: bytes
    when_over: WhenOver
    watches: list[Watch] = field(default_factory=list)

    @property
    def watchers(self) -> list[Watch]:
        """Watches that aren't over."""
        return [w for w in self.watches if not w.over]


class _Facts:
    """The controller's facts about ranks, as the states of cells need them."""

    def __init__(self, controller: Parts) -> None:
        self._controller = controller
        self._procs = controller.registry.procs

    def end_of(self, proc: int) -> RankExit | None:
        return self._procs[proc].end

    def is_attended(self, proc: int) -> bool:
        return self._controller.debug.is_stopped(proc) or self._controller.questions.is_asking(proc)

    def living_of(self, group: str) -> dict[int, int]:
        return {p.rank: p.proc for p in self._procs.values() if p.group == group and p.end is None}


class Cells:
    """The service that runs cells: it feeds events to the states of cells and carries out the effects. Owned
    by the loop thread.
    """

    def __init__(self, controller: Parts) -> None:
        self._controller = controller
        self._states = CellStates(_Facts(controller))
        self._running: dict[int, _Running] = {}
        self._to_do: deque[to_do.Effect] = deque()
        self._is_doing = False
        self.on = self._states.on
        self.at = self._states.at
        self.is_busy = self._states.is_busy

    @property
    def num_running(self) -> int:
        """Number of cells that aren't over."""
        return self._states.num_running

    def waiters_of(self, proc: int) -> list[tuple[int, int]]:
        """Return the watchers of the cells that run or wait on a rank, who are told of its end by those
        cells: clients and their refs.
        """
        return [(w.client, w.ref) for n in self._states.on(proc) for w in self._running[n].watchers]

    def is_stuck(self, proc: int) -> bool:
        """Say whether a rank is still busy with a cell that was given up."""
        return self._states.stuck_in(proc) != 0

    def busy(self, ranks: Mapping[int, int]) -> str:
        """Return which of some ranks are busy, as a rank set; empty if none is."""
        return format_ranks(r for r, p in ranks.items() if not self._states.is_free(p))

    # --- events and effects

    def _happens(self, event: Event) -> None:
        """Handle an event and carry out the effects. Events that they cause are handled afterwards.

        Raises:
            Exception: the first that was raised; whatever else is to be done has been done then.
        """
        self._to_do += self._states.handle(event)
        if self._is_doing:
            return
        self._is_doing, errors = True, []
        try:
            while self._to_do:
                try:
                    self._do(self._to_do.popleft())
                except Exception as error:
                    errors.append(error)
        finally:
            self._is_doing = False
        if errors:
            raise errors[0]

    def _do(self, effect: to_do.Effect) -> None:
        controller = self._controller
        match effect:
            case to_do.Touch():
                controller.status_publisher.touch(effect.procs)
            case to_do.Tell():
                for watch in self._running[effect.n].watches:
                    watch.tell(effect.message)
            case to_do.Send():
                controller.send_cell(effect.receivers, effect.n, self._running[effect.n].frame)
            case to_do.Write():
                controller.output.write(
                    records.RESULT, "stdout", effect.group, effect.rank, effect.n, effect.body
                )
            case to_do.Shortly():
                controller.loop.call_shortly(partial(self._happens, effect.event))
            case to_do.After():
                controller.loop.call_later(effect.delay_s, partial(self._happens, effect.event))
            case to_do.Over():
                self._end_cell(effect)
            case to_do.Interrupt():
                self._interrupt(effect)
            case to_do.Abort():
                aborted = partial(self._on_aborted, effect.n)
                controller.asking.ask(effect.procs, AbortCollectives(), aborted, _ABORT_ANSWER_S)
            case to_do.Look():
                controller.stack_requests.stacks(
                    effect.procs, lambda found: self._happens(StacksFound(effect.n, found))
                )
            case to_do.Remake():
                run_workflow(
                    remake_groups(controller, dict(effect.procs)),
                    lambda message: self._happens(GroupsRemade(effect.n, str(message))),
                )
            case _:
                assert_never(effect)

    def _interrupt(self, effect: to_do.Interrupt) -> None:
        # First the message, for a rank that hasn't begun yet; then the signal, for one that has.
        controller, n = self._controller, effect.n
        controller.asking.ask(effect.procs, CancelCell(n), lambda _answers: None, INTERRUPT_S)
        controller.ranks.signal(list(effect.procs.values()), int(signal.SIGINT), n)

    def _on_aborted(self, n: int, answers: Answers) -> None:
        self._happens(Aborted(n, sum(1 for found in answers.values() if found)))

    # --- the beginning

    @handles(RunCell)
    def do_run_cell(self, request: RunCell, sender: Sender) -> Later | None:
        """Run a cell; its asker is sent the events about it.

        Raises:
            ValueError: if a rank is stuck in a cell that was given up.
        """
        self.begin_cell(request, self._controller.clients.who(sender.proc), (sender.proc, sender.ref))
        return LATER

    def begin_cell(
        self,
        request: RunCell,
        who: str,
        watcher: tuple[int, int] = (0, 0),
        when_over: WhenOver = lambda _over: None,
    ) -> None:
        """Run a cell.

        Args:
            who: has asked for it, for the journal.
            watcher: the client that is told how it goes, and the ref of its question; ref 0: nobody is.
            when_over: called with how it has ended.

        Raises:
            ValueError: if a rank is stuck in a cell that was given up.
        """
        closed = self._controller.time_limit.why_closed()
        if closed:
            raise ValueError(closed)
        procs: dict[int, int] = dict(zip(request.ranks, request.procs, strict=True))
        self._refuse_stuck(procs)
        # raises for an unknown number
        is_free = {proc: self._states.is_free(proc) for proc in procs.values()}
        n = self._enter(request, who)
        running = self._running[n] = _Running(
            self._frame(request, n), partial(self._when_over, request, n, when_over)
        )
        submitted = Submitted(n, request.group, procs)
        if all(is_free.values()):
            self._happens(submitted)  # ranks begin while the rest is done
        self._add_asker(running, request, n, *watcher)
        if not all(is_free.values()):  # a message is due: that the cell waits, or that ranks are lost
            self._happens(submitted)
        if request.timeout_s is not None:
            time_is_up = EndWanted(n, f"timeout {request.timeout_s:g}")
            self._controller.loop.call_later(request.timeout_s, partial(self._happens, time_is_up))

    def _add_asker(self, running: _Running, request: RunCell, n: int, client: int, ref: int) -> None:
        """Make the program that has submitted a cell a watcher of it."""
        if ref:
            watch = self._controller.output.watch_cell(
                client, ref, n, None, None, may_leave_out=request.may_leave_out
            )
            watch.tell(protocol.CellBegan(n), soon=True)
            running.watches.append(watch)

    def _enter(self, request: RunCell, who: str) -> int:
        """Begin a cell's entry in the journal; return its number."""
        controller = self._controller
        source = request.source[:MAX_SOURCE_SHOWN]
        entry = JournalEntry(
            EntryKind.CELL,
            who=who,
            when=time.time(),
            source=logged_source(source),
            nolog=is_unlogged(source),
            ranks=request.rank_set,
            group=request.group,
            number=request.number,
            env=controller.environment_id,
            position=controller.journal.store.end,
            rerun_of=request.rerun_of,
            replay_of=request.replay_of,
            script=request.script is not None,
            always=request.always,
        )
        return controller.journal.entries.begin_entry(entry).n

    def _when_over(self, request: RunCell, n: int, when_over: WhenOver, over: CellOver) -> None:
        if request.always and over.status == CellStatus.OK:
            definition = DefinitionCell(request.source, request.number or n, n)
            self._controller.definitions.add(request.group, definition)
        when_over(over)

    @staticmethod
    def _frame(request: RunCell, n: int) -> bytes:
        """Return the message that is sent to ranks."""
        work = protocol.CellWork(request.source, request.number or n, request.profile, request.script)
        return wire.pack(
            wire.CALL,
            src=address.CONTROLLER,
            dst=0,
            ref=n,
            name=Work.RUN.encode(),
            origin=n,
            context=request.context,
            payload=encode(work),
        )

    def _refuse_stuck(self, procs: Mapping[int, int]) -> None:
        stuck = {rank: n for rank, proc in procs.items() if (n := self._states.stuck_in(proc))}
        if stuck:
            ranks = format_ranks(stuck)
            free = format_ranks(r for r in procs if r not in stuck)
            leave = f" leave {'it' if len(stuck) == 1 else 'them'} out: --ranks {free};" if free else ""
            raise ValueError(
                f"{name_ranks(stuck)} still {'hang' if len(stuck) > 1 else 'hangs'} in cell "
                f"#{', #'.join(map(str, sorted(set(stuck.values()))))}, which was given up.{leave} "
                f"see where: %mesh stacks --ranks {ranks}; or restart: %mesh restart --ranks {ranks}"
            )

    # --- the end on a rank

    def answered(self, n: int, rank: int, flags: int, payload: Any) -> None:
        """Handle a rank's answer to a cell."""
        (seconds,) = wire.CELL_SECONDS.unpack_from(payload)
        body = bytes(payload[wire.CELL_SECONDS.size :])
        if not body:
            self._happens(EndedWell(n, rank, seconds))
            return
        failure = cell_results.read_failure(rank, body) if flags & wire.ERROR else None
        self._happens(EndedWith(n, rank, seconds, body, failure))

    def rank_exited(self, exited: Exited) -> None:
        """Record the cells that ran or waited on a dead rank as failed there."""
        self._happens(RankGone(exited.end))

    # --- interrupts and escalation

    def interrupt(self, n: int) -> bool:
        """Begin to end a cell, at its user's request; on another request, take the next step at once. False
        if it's over.
        """
        if not self._states.knows(n):
            return False
        self._happens(EndWanted(n, EndReason.USER))
        return True

    def interrupt_procs(self, procs: set[int]) -> None:
        """Interrupt all cells that run or wait on some ranks."""
        for n in self._states.on_any(procs):
            self.interrupt(n)

    # --- the end

    def _end_cell(self, over: to_do.Over) -> None:
        self._controller.supervisor.drain()  # output of its ranks is sent before the event of the cell's end
        running = self._running.pop(over.n)
        self._enter_end(over.n, over.summary, seen=bool(running.watchers))
        if over.tells_watchers:
            for watch in running.watches:
                watch.tell(over.summary, last=True)
            running.when_over(over.summary)

    def mesh_ends(self, how: str) -> None:
        """End the entries of what runs or waits."""
        self._happens(MeshEnds(how))

    def _enter_end(self, n: int, summary: CellOver, *, seen: bool) -> None:
        """Enter the end of a cell into the journal."""
        journal = self._controller.journal
        entry = journal.entries.entries.get(n)
        if entry is None:
            return
        ended = replace(
            entry,
            ended=time.time(),
            end_position=journal.store.end,
            seen=seen,
            missing=self._missing(entry),
            **asdict(summary),
        )
        journal.entries.change(_without_messages(ended) if entry.nolog else ended)

    def _missing(self, entry: JournalEntry) -> str:
        """Return why the journal lacks a part of a cell's output; watchers have received all of it."""
        if entry.nolog:
            return "this cell's source and output are not kept: # nolog"
        trouble = self._controller.journal.trouble
        return trouble and (f"what it has printed may be missing here; the journal isn't written: {trouble}")

    # --- watching

    @handles(WatchCell)
    def do_watch_cell(self, request: WatchCell, sender: Sender) -> Later | None:
        """Show a cell from its beginning."""
        entry = self._controller.journal.entries.entries.get(request.n)
        if entry is None or entry.kind != EntryKind.CELL:
            raise RequestError(f"the journal has no cell #{request.n}; see %mesh history")
        if self._states.knows(request.n):
            self._watch_running(sender, request, entry.position)
        else:
            self._watch_over(sender, request, entry)
        return LATER

    def _watch_running(self, sender: Sender, request: WatchCell, position: int) -> None:
        n = request.n
        self._happens(TellDone(n))  # to existing watchers: a new one learns it from the history
        watch = self._controller.output.watch_cell(
            sender.proc, sender.ref, n, position, None, may_leave_out=request.may_leave_out
        )
        self._running[n].watches.append(watch)
        for message in self._states.history(n):
            watch.tell(message)

    def _watch_over(self, sender: Sender, request: WatchCell, entry: JournalEntry) -> None:
        n, controller = request.n, self._controller
        until = min(entry.end_position + LATE_BYTES, controller.journal.store.end)
        watch = controller.output.watch_cell(
            sender.proc, sender.ref, n, entry.position, until, may_leave_out=request.may_leave_out
        )
        watch.tell(protocol.CellBegan(n))
        if entry.missing:
            watch.tell(protocol.CellMessage(entry.missing))
        watch.tell(entry.over())

    def watchers(self, n: int) -> list[int]:
        """Return the clients that watch a cell that isn't over."""
        running = self._running.get(n)
        return [w.client for w in running.watchers] if running is not None else []

    def is_watched(self, n: int) -> bool:
        """Say whether a cell that isn't over has a watcher."""
        return bool(self.watchers(n))

    def say_on(self, proc: int, text: str) -> None:
        """Send a message to the watchers of the cell that runs on a rank."""
        self._happens(CellNotice(proc, text))


def _without_messages(entry: JournalEntry) -> JournalEntry:
    """Return a cell's entry without the messages of its errors."""
    return replace(entry, failures=[replace(each, message="(not kept)") for each in entry.failures])
