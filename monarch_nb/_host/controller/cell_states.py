"""The states of cells: pure. `handle` takes an event and returns effects; nothing here sends, waits or looks
at a clock that wasn't given (compare sans-io libraries, and dask.distributed's worker state machine).

A rank runs one cell at a time; more wait here, in the order in which they came. A cell ends when all its
ranks have ended it, or when it's given up (`escalation`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, assert_never

from monarch_nb._host.controller import cell_results
from monarch_nb._host.controller.cell_events import (
    Abort,
    Aborted,
    After,
    CellNotice,
    Effect,
    EndedWell,
    EndedWith,
    EndWanted,
    Event,
    GroupsRemade,
    Interrupt,
    Look,
    MeshEnds,
    Over,
    RankGone,
    RankProcs,
    Remake,
    Send,
    Shortly,
    StacksFound,
    StepDue,
    Submitted,
    Tell,
    TellDone,
    Touch,
    Write,
)
from monarch_nb._host.controller.escalation import ABORT_S, INTERRUPT_S, Escalation, Step
from monarch_nb._protocol.base import Plain
from monarch_nb._protocol.cells import (
    CellBegan,
    CellFailure,
    CellMessage,
    CellOver,
    CellWaits,
    RankDone,
    WatchMessage,
)
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.states import CellStatus, EndReason
from monarch_nb._shape import name_ranks
from monarch_nb.exceptions import cause_time

GRACE_S = 2.0
"""How long other ranks may continue a cell that has raised on one."""


class RankFacts(Protocol):
    """The interface to the facts about ranks that the states of cells need."""

    def end_of(self, proc: int) -> RankExit | None:
        """Return how a rank has ended; None if it hasn't."""
        ...

    def is_attended(self, proc: int) -> bool:
        """Say whether a user inspects a rank in the debugger, or is asked by it."""
        ...

    def living_of(self, group: str) -> dict[int, int]:
        """Return the ranks of a group that haven't ended, with their procs."""
        ...


@dataclass
class Cell:
    """The state of a cell that runs or waits.

    Attributes:
        procs: proc by rank.
        waiting: ranks on which the cell hasn't begun.
        running: ranks on which the cell runs.
        began: start time by rank.
        ended: final status by rank.
        fresh: ranks that have ended well since the watchers were last told, with their run times.
        waits: what the cell waits for, until it has begun on all ranks.
        over: whether the cell has ended on all ranks; process groups may still be created again then.
    """

    n: int
    group: str
    procs: RankProcs
    waiting: set[int] = field(init=False)
    ranks: dict[int, int] = field(init=False)
    running: set[int] = field(default_factory=set)
    began: dict[int, float] = field(default_factory=dict)
    ended: dict[int, CellStatus] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    fresh: list[tuple[int, float]] = field(default_factory=list)
    failures: list[CellFailure] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    unfinished: dict[int, Plain] = field(default_factory=dict)
    waits: str = ""
    over: bool = False
    escalation: Escalation | None = None

    def __post_init__(self) -> None:
        self.waiting = set(self.procs)
        self.ranks = {proc: rank for rank, proc in self.procs.items()}

    @property
    def left(self) -> set[int]:
        """Ranks on which the cell hasn't ended."""
        return self.waiting | self.running

    @property
    def running_procs(self) -> dict[int, int]:
        """Ranks on which it runs, with their procs."""
        return {rank: self.procs[rank] for rank in sorted(self.running)}

    @property
    def status(self) -> CellStatus:
        """The status with which the cell has ended."""
        if self.escalation is not None and self.escalation.is_interrupt:
            return CellStatus.INTERRUPTED
        return CellStatus.ERROR if self.failures or self.unfinished else CellStatus.OK

    def summary(self) -> CellOver:
        """Return the summary of the cell's end on all ranks."""
        return CellOver(
            status=self.status,
            reason=self.escalation.reason if self.escalation is not None else "",
            unfinished=self.unfinished,
            failures=sorted(self.failures, key=lambda f: cause_time(f.type, f.when)),
            stopped=sorted(r for r, s in self.ended.items() if s == CellStatus.INTERRUPTED),
            messages=self.messages,
            seconds={r: round(s, 6) for r, s in sorted(self.seconds.items())},
        )


class CellStates:
    """The state machine of all cells of a mesh that aren't over.

    Args:
        ranks: facts about ranks.
        clock: returns the time of day in seconds.
    """

    def __init__(self, ranks: RankFacts, clock: Callable[[], float] = time.time) -> None:
        self._ranks = ranks
        self._clock = clock
        self._cells: dict[int, Cell] = {}
        self._queues: dict[int, deque[Cell]] = {}
        self._stuck: dict[int, tuple[int, int]] = {}
        """Procs that are still busy with a cell that was given up: its number, and their rank in it."""
        self._effects: list[Effect] = []

    def handle(self, event: Event) -> list[Effect]:
        """Handle an event; return the effects, in order."""
        self._take_event(event)
        effects, self._effects = self._effects, []
        return effects

    def _take_event(self, event: Event) -> None:
        match event:
            case EndedWell():
                self._ended_well(event)
            case EndedWith():
                self._ended_with(event)
            case Submitted():
                self._submit(event)
            case TellDone():
                self._tell_done(event.n)
            case RankGone():
                self._rank_gone(event.end)
            case EndWanted():
                self._end_wanted(event.n, event.reason)
            case StepDue():
                self._step_due(event.n, event.level)
            case Aborted():
                self._aborted(event.n, event.num)
            case StacksFound():
                self._stacks_found(event.n, event.found)
            case GroupsRemade():
                self._groups_remade(event.n, event.text)
            case CellNotice():
                self._say_on(event.proc, event.text)
            case MeshEnds():
                self._mesh_ends(event.how)
            case _:
                assert_never(event)

    # --- queries

    @property
    def num_running(self) -> int:
        """Number of cells that aren't over."""
        return len(self._cells)

    def on(self, proc: int) -> list[int]:
        """Return the numbers of the cells that run or wait on a rank."""
        return [cell.n for cell in self._queues.get(proc, ())]

    def on_any(self, procs: set[int]) -> list[int]:
        """Return the numbers of the cells that run or wait on any of some ranks."""
        return [c.n for c in self._cells.values() if not procs.isdisjoint(c.procs[r] for r in c.left)]

    def at(self, proc: int) -> tuple[int, float] | None:
        """Return the number of the cell that runs on a rank, and its start time."""
        queue = self._queues.get(proc)
        if not queue:
            return None
        cell = queue[0]
        rank = cell.ranks[proc]
        return (cell.n, cell.began[rank]) if rank in cell.running else None

    def stuck_in(self, proc: int) -> int:
        """Return the number of the cell that was given up and that still occupies a rank; 0: none."""
        return self._stuck.get(proc, (0, 0))[0]

    def is_busy(self, proc: int) -> bool:
        """Say whether a cell runs or waits on a rank."""
        return bool(self._queues.get(proc))

    def is_free(self, proc: int) -> bool:
        """Say whether a cell would begin on a rank at once."""
        return not self.is_busy(proc) and proc not in self._stuck and self._ranks.end_of(proc) is None

    def knows(self, n: int) -> bool:
        """Say whether a cell isn't over."""
        return n in self._cells

    def history(self, n: int) -> list[WatchMessage]:
        """Return the messages that a watcher of a cell from its beginning has received, besides output."""
        cell = self._cells[n]
        done = [r for r, s in cell.ended.items() if s == CellStatus.OK]
        return [
            CellBegan(n),
            *(RankDone(r, cell.seconds[r]) for r in done),
            *(CellMessage(text) for text in cell.messages),
            *([CellWaits(cell.waits)] if cell.waits else []),
        ]

    # --- the beginning

    def _submit(self, event: Submitted) -> None:
        cell = self._cells[event.n] = Cell(event.n, event.group, event.procs)
        begin, behind = [], set()
        for rank, proc in cell.procs.items():
            end = self._ranks.end_of(proc)
            if end is not None:
                self._lost(cell, rank, end)
                continue
            queue = self._queues.setdefault(proc, deque())
            if queue:
                behind.add(queue[-1].n)
            else:
                begin.append(rank)
            queue.append(cell)
        self._touch(cell.procs.values())
        if behind:
            cell.waits = f"waits for cell {', '.join(f'#{n}' for n in sorted(behind))}"
            self._tell(cell, CellWaits(cell.waits))
        if begin:
            self._begin_cell(cell, begin)
        self._check_over(cell)

    def _begin_cell(self, cell: Cell, ranks: list[int]) -> None:
        cell.waiting.difference_update(ranks)
        cell.running.update(ranks)
        cell.began.update(dict.fromkeys(ranks, self._clock()))
        self._touch(cell.procs[r] for r in ranks)
        if cell.waits and not cell.waiting:
            cell.waits = ""
            self._tell(cell, CellWaits(""))
        self._effects.append(Send(cell.n, [(cell.procs[r], r) for r in ranks]))

    # --- the end on a rank

    def _answering(self, n: int, rank: int, seconds: float) -> Cell | None:
        """Return the cell that runs on a rank which has answered; None if the answer comes too late."""
        cell = self._cells.get(n)
        if cell is None or rank not in cell.running:
            self._free_late(n, rank)
            return None
        cell.seconds[rank] = seconds
        return cell

    def _free_late(self, n: int, rank: int) -> None:
        """Free a rank that has left a cell that was given up."""
        for proc in [p for p, where in self._stuck.items() if where == (n, rank)]:
            del self._stuck[proc]

    def _ended_well(self, event: EndedWell) -> None:
        """Record that a cell has ended well on a rank, with no value to show: this becomes part of the
        summary, without a record of its own.
        """
        cell = self._answering(event.n, event.rank, event.seconds)
        if cell is None:
            return
        cell.running.discard(event.rank)
        cell.ended[event.rank] = CellStatus.OK
        if not cell.fresh:
            self._effects.append(Shortly(TellDone(cell.n)))
        cell.fresh.append((event.rank, event.seconds))
        self._next_on(cell.procs[event.rank], cell)
        if not cell.running:
            self._check_over(cell)

    def _tell_done(self, n: int) -> None:
        """Tell watchers which ranks have ended a running cell; for one that's over, the summary does."""
        cell = self._cells.get(n)
        if cell is None:
            return
        fresh, cell.fresh = cell.fresh, []
        for rank, seconds in fresh if not cell.over else ():
            self._tell(cell, RankDone(rank, seconds))

    def _ended_with(self, event: EndedWith) -> None:
        cell = self._answering(event.n, event.rank, event.seconds)
        if cell is None:
            return
        status = CellStatus.OK if event.failure is None else self._note_failure(cell, event.failure)
        interrupted = status == CellStatus.INTERRUPTED
        body = cell_results.as_interrupted(event.body) if interrupted else event.body
        self._ended(cell, event.rank, status, body)

    def _note_failure(self, cell: Cell, failure: CellFailure) -> CellStatus:
        escalation = cell.escalation
        if escalation is not None and (failure.type == cell_results.INTERRUPT or escalation.aborted):
            return CellStatus.INTERRUPTED
        first = not cell.failures
        cell.failures.append(failure)
        if first and escalation is None:
            self._give_grace(cell)
        return CellStatus.ERROR

    def _give_grace(self, cell: Cell) -> None:
        """Give the other ranks some time to end a cell by themselves, after a rank has failed."""
        self._effects.append(After(GRACE_S, EndWanted(cell.n, EndReason.FAILURE)))

    def _ended(self, cell: Cell, rank: int, status: CellStatus, body: bytes) -> None:
        cell.waiting.discard(rank)
        cell.running.discard(rank)
        cell.ended[rank] = status
        self._effects.append(Write(cell.n, cell.group, rank, body))
        self._next_on(cell.procs[rank], cell)
        self._check_over(cell)

    def _next_on(self, proc: int, cell: Cell) -> None:
        """Begin the next cell on a rank that has ended one, unless the rank is stuck."""
        self._touch((proc,))
        queue = self._queues.get(proc)
        if not queue or cell not in queue:
            return
        was_first = queue[0] is cell
        queue.remove(cell)
        if not queue:
            del self._queues[proc]
        elif was_first and proc not in self._stuck:
            self._begin_cell(queue[0], [queue[0].ranks[proc]])

    def _lost(self, cell: Cell, rank: int, end: RankExit) -> None:
        when = self._clock()
        cell.failures.append(CellFailure(rank, "lost", "the process has died", when))
        self._ended(cell, rank, CellStatus.LOST, cell_results.lost(end, when))

    def _rank_gone(self, end: RankExit) -> None:
        """Count the cells that ran or waited on a lost rank as failed there."""
        self._stuck.pop(end.proc, None)
        for cell in self._queues.pop(end.proc, ()):
            first = not cell.failures
            self._lost(cell, cell.ranks[end.proc], end)
            if first and not cell.over and cell.escalation is None:
                self._give_grace(cell)

    # --- interrupts and escalation

    def _end_wanted(self, n: int, reason: str) -> None:
        """Begin to end a cell. Its user may request that repeatedly, and takes the next step each time."""
        cell = self._cells.get(n)
        if cell is None or cell.over or (cell.escalation is not None and reason != EndReason.USER):
            return
        if reason != EndReason.USER and any(self._ranks.is_attended(cell.procs[r]) for r in cell.left):
            # The rank is in the debugger, or asks its user: time-outs and grace periods restart when it
            # continues.
            self._effects.append(After(GRACE_S, EndWanted(n, reason)))
            return
        if cell.escalation is None:
            cell.escalation = Escalation(reason)
            self._cancel_waiting(cell)
        cell.escalation.reason = reason
        if not cell.over:
            self._escalate(cell, cell.escalation)

    def _cancel_waiting(self, cell: Cell) -> None:
        for rank in sorted(cell.waiting):
            self._ended(cell, rank, CellStatus.INTERRUPTED, cell_results.never_begun(self._clock()))

    def _step_due(self, n: int, level: int) -> None:
        cell = self._cells.get(n)
        if cell is None or cell.over or cell.escalation is None:
            return
        if cell.escalation.level == level:
            self._escalate(cell, cell.escalation)

    def _escalate(self, cell: Cell, escalation: Escalation) -> None:
        match escalation.next_step():
            case Step.INTERRUPT:
                self._effects.append(Interrupt(cell.n, cell.running_procs))
                self._effects.append(After(INTERRUPT_S, StepDue(cell.n, escalation.level)))
            case Step.ABORT:
                self._abort(cell)
                self._effects.append(After(ABORT_S, StepDue(cell.n, escalation.level)))
            case Step.GIVE_UP:
                self._effects.append(Look(cell.n, cell.running_procs))

    def _abort(self, cell: Cell) -> None:
        whose = "its" if len(cell.running) == 1 else "their"
        who = name_ranks(cell.running)
        self._say(cell, f"{who} did not react to the interrupt: {whose} collectives are aborted")
        # All ranks of the mesh: a collective may wait for one that doesn't run this cell. Those that run
        # another cell are left alone; idle ones are at the other end of the connections.
        living = self._ranks.living_of(cell.group)
        ranks = {r: p for r, p in living.items() if r in cell.procs or not self.is_busy(p)}
        self._effects.append(Abort(cell.n, ranks))

    def _aborted(self, n: int, num: int) -> None:
        cell = self._cells.get(n)
        if cell is None or cell.escalation is None:
            return
        cell.escalation.num_aborted = num
        if cell.over:
            self._remake_groups(cell, num)

    def _stacks_found(self, n: int, found: dict[int, Plain]) -> None:
        """Stop waiting for unresponsive ranks."""
        cell = self._cells.get(n)
        if cell is None or cell.over:
            return
        cell.unfinished = {rank: found.get(rank, {}) for rank in sorted(cell.running)}
        for rank in cell.unfinished:
            self._leave_stuck(cell, rank)
        self._check_over(cell)

    def _leave_stuck(self, cell: Cell, rank: int) -> None:
        """Give up a rank; cells that wait behind the present one there won't begin."""
        proc = cell.procs[rank]
        self._stuck[proc] = (cell.n, rank)
        cell.running.discard(rank)
        queue = self._queues.get(proc, deque())
        queue.remove(cell)
        if not queue:
            del self._queues[proc]
        for waiting in list(queue):
            self._say(waiting, f"cancelled: rank {rank} hangs in cell #{cell.n}")
            self._end_wanted(waiting.n, EndReason.USER)

    # --- the end

    def _check_over(self, cell: Cell) -> None:
        if cell.over or cell.left:
            return
        cell.over = True
        escalation = cell.escalation
        if escalation is None or not escalation.aborted:
            self._finish(cell, "")
        elif escalation.num_aborted is not None:  # otherwise the cell ended before the event of the abort
            self._remake_groups(cell, escalation.num_aborted)

    def _remake_groups(self, cell: Cell, num_aborted: int) -> None:
        """Create process groups again if some were aborted."""
        if num_aborted:
            self._effects.append(Remake(cell.n, self._ranks.living_of(cell.group)))
        else:
            self._finish(cell, "")

    def _groups_remade(self, n: int, text: str) -> None:
        cell = self._cells.get(n)
        if cell is not None and cell.over:
            self._finish(cell, text)

    def _finish(self, cell: Cell, message: str) -> None:
        if message:
            self._say(cell, message)
        del self._cells[cell.n]
        self._effects.append(Over(cell.n, cell.summary()))

    def _mesh_ends(self, how: str) -> None:
        """End all running and waiting cells. Watchers are told of the mesh's end, and not of each rank's."""
        cells, self._cells = list(self._cells.values()), {}
        self._queues.clear()
        self._stuck.clear()
        for cell in cells:
            now = self._clock()
            cell.failures += [CellFailure(r, "lost", f"the mesh {how}", now) for r in sorted(cell.left)]
            cell.over = True
            self._effects.append(Over(cell.n, cell.summary(), tells_watchers=False))

    # --- messages to watchers

    def _say_on(self, proc: int, text: str) -> None:
        queue = self._queues.get(proc)
        if queue:
            self._say(queue[0], text)

    def _say(self, cell: Cell, text: str) -> None:
        """Tell watchers of a cell about the step that is taken to end it."""
        cell.messages.append(text)
        self._tell(cell, CellMessage(text))

    def _tell(self, cell: Cell, message: WatchMessage) -> None:
        self._effects.append(Tell(cell.n, message))

    def _touch(self, procs: Iterable[int]) -> None:
        self._effects.append(Touch(tuple(procs)))
