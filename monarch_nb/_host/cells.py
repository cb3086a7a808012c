"""Cells: the controller runs them, so that they and what they print outlive whoever typed them.

A rank runs one cell at a time; more wait here, in the order in which they came. What a cell prints, and how
it ends on each rank, goes into the journal; who watches reads it from there (`watch`). A cell ends when all
its ranks have ended it, or when it's given up (`escalation`).
"""

from __future__ import annotations

import json
import pickle
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import convert
from msgspec.structs import asdict

from monarch_nb._host.escalation import Escalation
from monarch_nb._host.request import RequestError
from monarch_nb._host.watch import Watch
from monarch_nb._journal import record as records
from monarch_nb._journal.secrets import logged_source
from monarch_nb._protocol.base import Plain
from monarch_nb._protocol.cells import (
    CellBegan,
    CellFailure,
    CellOver,
    CellSaid,
    CellWaits,
    RankDone,
    RunCell,
    WatchCell,
    WatchMessage,
)
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.registry import LATER, Later, Sender, handles
from monarch_nb._protocol.states import CellStatus, EndReason, EntryKind
from monarch_nb._protocol.work import Work
from monarch_nb._shape import format_ranks, name_ranks
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb.cells import DefinitionCell
from monarch_nb.exceptions import cause_time

if TYPE_CHECKING:
    from monarch_nb._host.controller import ControllerProcess

GRACE_S = 2.0
"""How long the other ranks may go on with a cell that has raised on one."""

LATE_BYTES = 16 << 20
"""How much of the journal after a cell's end is searched for its late output."""

MAX_SOURCE_SHOWN = 100_000


@dataclass
class Cell:
    """A cell that runs or waits.

    Attributes:
        procs: proc by rank.
        waiting: ranks on which it hasn't begun.
        running: ranks on which it runs.
        began: since when, by rank.
        ended: status by rank.
        waits: for what it waits, as long as it hasn't begun on all ranks.
    """

    n: int
    group: str
    procs: Mapping[int, int]
    payload: bytes
    context: bytes
    waiting: set[int]
    running: set[int] = field(default_factory=set)
    began: dict[int, float] = field(default_factory=dict)
    ended: dict[int, CellStatus] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    fresh: list[tuple[int, float]] = field(default_factory=list)
    failures: list[CellFailure] = field(default_factory=list)
    watches: list[Watch] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    unfinished: dict[int, dict[str, Any]] = field(default_factory=dict)
    waits: str = ""
    over: bool = False
    when_over: Callable[[CellOver], None] = lambda _over: None

    @property
    def left(self) -> set[int]:
        """Ranks on which it hasn't ended."""
        return self.waiting | self.running


class Cells:
    """The cells of a mesh that aren't over. Owned by the loop thread."""

    def __init__(self, controller: ControllerProcess) -> None:
        self._controller = controller
        self._cells: dict[int, Cell] = {}
        self._queues: dict[int, deque[Cell]] = {}
        self._stuck: dict[int, int] = {}
        """Procs that are still busy with a cell that was given up, and its number."""
        self._escalations: dict[int, Escalation] = {}

    @property
    def num_running(self) -> int:
        """Cells that aren't over."""
        return len(self._cells)

    def on(self, proc: int) -> list[int]:
        """Return the numbers of the cells that run or wait on a rank."""
        return [cell.n for cell in self._queues.get(proc, ())]

    def at(self, proc: int) -> tuple[int, float] | None:
        """Return the number of the cell that runs on a rank, and since when."""
        queue = self._queues.get(proc)
        if not queue:
            return None
        cell = queue[0]
        rank = self._controller.registry.procs[proc].rank
        return (cell.n, cell.began.get(rank, 0.0)) if rank in cell.running else None

    def waiters_of(self, proc: int) -> list[tuple[int, int]]:
        """Return who watches the cells that run or wait on a rank, and so hears of its end: clients and
        their refs.
        """
        return [(w.client, w.ref) for cell in self._queues.get(proc, ()) for w in cell.watches if not w.over]

    def is_stuck(self, proc: int) -> bool:
        """Say whether a rank is still busy with a cell that was given up."""
        return proc in self._stuck

    def is_busy(self, proc: int) -> bool:
        """Say whether a cell runs or waits on a rank."""
        return bool(self._queues.get(proc))

    # --- beginning

    @handles(RunCell)
    def do_run_cell(self, request: RunCell, sender: Sender) -> Later | None:
        """Run a cell; news of it go to whoever asked.

        Raises:
            ValueError: if a rank is stuck in a cell that was given up.
        """
        self.begin(request, self._controller.clients.who(sender.proc), (sender.proc, sender.ref))
        return LATER

    def begin(
        self, request: RunCell, who: str, watcher: tuple[int, int] = (0, 0),
        when_over: Callable[[CellOver], None] = lambda _over: None,
    ) -> None:  # fmt: skip
        """Run a cell.

        Args:
            who: has asked for it, for the journal.
            watcher: the client that is told how it goes, and the ref of its question; ref 0: nobody is.
            when_over: called with how it has ended.

        Raises:
            ValueError: if a rank is stuck in a cell that was given up.
        """
        procs: dict[int, int] = dict(zip(request.ranks, request.procs, strict=True))
        self._refuse_stuck(procs)
        controller = self._controller
        entry = controller.journal.entries.begin_entry(
            EntryKind.CELL,
            who=who,
            when=time.time(),
            **logged_source(request.source[:MAX_SOURCE_SHOWN]),
            ranks=request.rank_set,
            group=request.group,
            number=request.number,
            env=controller.environment_id,
            position=controller.journal.store.end,
            **_repeated(request),
            **({"script": True} if request.script is not None else {}),
            **({"always": True} if request.always else {}),
        )
        n = entry["n"]
        wanted = {k: v for k, v in (("profile", request.profile), ("script", request.script)) if v}
        payload = pickle.dumps({"source": request.source, "number": request.number or n, **wanted}, 5)
        cell = Cell(n, request.group, procs, payload, request.context, set(procs))
        cell.when_over = partial(self._when_over, request, n, when_over)
        self._cells[n] = cell
        free = all(
            not self._queues.get(p) and controller.registry.procs[p].end is None for p in procs.values()
        )
        if free:
            self._enqueue(cell)  # the ranks begin while the rest is done
        client, ref = watcher
        if ref:
            cell.watches.append(controller.output.watch_cell(client, ref, n, None, None))
        self._tell(cell, CellBegan(n), soon=True)
        if not free:  # there's something to tell: that it waits, or that ranks are lost
            self._enqueue(cell)
        if request.timeout_s is not None:
            controller.loop.call_later(request.timeout_s, partial(self.time_is_up, n, request.timeout_s))

    def _when_over(
        self, request: RunCell, n: int, when_over: Callable[[CellOver], None], over: CellOver
    ) -> None:
        if request.always and over.status == CellStatus.OK:
            self._controller.definitions.add(
                request.group, DefinitionCell(request.source, request.number or n, n)
            )
        when_over(over)

    def _refuse_stuck(self, procs: Mapping[int, int]) -> None:
        stuck = {rank: self._stuck[proc] for rank, proc in procs.items() if proc in self._stuck}
        if stuck:
            ranks = format_ranks(stuck)
            free = format_ranks(r for r in procs if r not in stuck)
            leave = f" leave {'it' if len(stuck) == 1 else 'them'} out: --ranks {free};" if free else ""
            raise ValueError(
                f"{name_ranks(stuck)} still {'hang' if len(stuck) > 1 else 'hangs'} in cell "
                f"#{', #'.join(map(str, sorted(set(stuck.values()))))}, which was given up.{leave} "
                f"see where: %mesh stacks --ranks {ranks}; or restart: %mesh restart --ranks {ranks}"
            )

    def _enqueue(self, cell: Cell) -> None:
        begin, behind = [], set()
        for rank, proc in cell.procs.items():
            end = self._controller.registry.procs[proc].end
            if end is not None:
                self._lost(cell, rank, end)
                continue
            queue = self._queues.setdefault(proc, deque())
            if queue:
                behind.add(queue[-1].n)
            else:
                begin.append(rank)
            queue.append(cell)
        self._controller.status_publisher.touch(cell.procs.values())
        if behind:
            cell.waits = f"waits for cell {', '.join(f'#{n}' for n in sorted(behind))}"
            self._tell(cell, CellWaits(cell.waits))
        if begin:
            self._begin(cell, begin)
        self._check_over(cell)

    def _begin(self, cell: Cell, ranks: list[int]) -> None:
        cell.waiting.difference_update(ranks)
        cell.running.update(ranks)
        cell.began.update(dict.fromkeys(ranks, time.time()))
        self._controller.status_publisher.touch(cell.procs[r] for r in ranks)
        if cell.waits and not cell.waiting:
            cell.waits = ""
            self._tell(cell, CellWaits(""))
        frame = wire.pack(
            wire.CALL,
            src=address.CONTROLLER,
            dst=0,
            ref=cell.n,
            name=Work.RUN.encode(),
            origin=cell.n,
            context=cell.context,
            payload=cell.payload,
        )
        self._controller.send_cell([(cell.procs[r], r) for r in ranks], cell.n, frame)

    # --- ending on a rank

    def answered(self, n: int, rank: int, flags: int, payload: Any) -> None:
        """Take a rank's answer to a cell."""
        data = bytes(payload)
        (seconds,) = wire.CELL_SECONDS.unpack_from(data)
        cell = self._cells.get(n)
        if cell is None or rank in cell.unfinished:  # the latter while its process groups are made anew
            self._free_late(n, rank)
            return
        cell.seconds[rank] = seconds
        body = data[wire.CELL_SECONDS.size :]
        if not body:
            self._done(cell, rank, seconds)
            return
        status = CellStatus.OK
        if flags & wire.ERROR:
            status = self._note_failure(cell, rank, json.loads(body))
        self._ended(cell, rank, status, body)

    def _done(self, cell: Cell, rank: int, seconds: float) -> None:
        """The cell has ended well on a rank, with no value to show: that goes into the summary, with no
        record of its own.
        """
        cell.running.discard(rank)
        cell.ended[rank] = CellStatus.OK
        if not cell.fresh:
            self._controller.loop.call_shortly(partial(self._tell_done, cell))
        cell.fresh.append((rank, seconds))
        self._next_on(cell.procs[rank], cell)
        if not cell.running:
            self._check_over(cell)

    def _tell_done(self, cell: Cell) -> None:
        """Tell who watches which ranks have ended a cell that goes on; of one that's over, the summary
        tells.
        """
        fresh, cell.fresh = cell.fresh, []
        for each in fresh if not cell.over else ():
            self._tell(cell, RankDone(*each))

    def _note_failure(self, cell: Cell, rank: int, ended: dict[str, Any]) -> CellStatus:
        escalation = self._escalations.get(cell.n)
        if escalation is not None and (ended["ename"] == "KeyboardInterrupt" or escalation.aborted):
            return CellStatus.INTERRUPTED
        first = not cell.failures
        cell.failures.append(CellFailure(rank, ended["ename"], ended["evalue"][:2000], ended["when"]))
        if first and escalation is None:
            self._controller.loop.call_later(GRACE_S, lambda: self._climb(cell, EndReason.FAILURE))
        return CellStatus.ERROR

    def _ended(self, cell: Cell, rank: int, status: CellStatus, body: bytes) -> None:
        cell.waiting.discard(rank)
        cell.running.discard(rank)
        cell.ended[rank] = status
        if status == CellStatus.INTERRUPTED:
            ended = json.loads(body)
            ended["status"] = status
            body = json.dumps(ended).encode()
        self._controller.output.write(records.RESULT, "stdout", cell.group, rank, cell.n, body)
        self._next_on(cell.procs[rank], cell)
        self._check_over(cell)

    def _next_on(self, proc: int, cell: Cell) -> None:
        self._controller.status_publisher.touch((proc,))
        queue = self._queues.get(proc)
        if queue and cell in queue:
            was_first = queue[0] is cell
            queue.remove(cell)
            if queue and was_first:
                rank = next(r for r, p in queue[0].procs.items() if p == proc)
                self._begin(queue[0], [rank])

    def _free_late(self, n: int, rank: int) -> None:
        """A rank has come out of a cell that was given up."""
        for proc, number in list(self._stuck.items()):
            if number == n and self._controller.registry.procs[proc].rank == rank:
                del self._stuck[proc]

    def _lost(self, cell: Cell, rank: int, end: RankExit) -> None:
        when = time.time()
        cell.failures.append(CellFailure(rank, "lost", "the process has died", when))
        body = json.dumps({"status": CellStatus.LOST, "end": end.plain(), "when": when}, default=str).encode()
        self._ended(cell, rank, CellStatus.LOST, body)

    def proc_has_ended(self, end: RankExit) -> None:
        """A rank is dead: what ran or waited there has failed."""
        proc = end.proc
        self._stuck.pop(proc, None)
        for cell in list(self._queues.pop(proc, ())):
            rank = next(r for r, p in cell.procs.items() if p == proc)
            first = not cell.failures
            self._lost(cell, rank, end)
            if first and not cell.over and cell.n not in self._escalations:
                self._controller.loop.call_later(GRACE_S, partial(self._climb, cell, EndReason.FAILURE))

    # --- interrupting

    def time_is_up(self, n: int, timeout_s: float) -> None:
        """A cell has run for as long as it may."""
        cell = self._cells.get(n)
        if cell is not None and n not in self._escalations:
            self._climb(cell, f"timeout {timeout_s:g}")

    def interrupt(self, n: int) -> bool:
        """The user wants a cell to end; asked again, the next step is taken at once. False if it's over."""
        cell = self._cells.get(n)
        if cell is None:
            return False
        self._climb(cell, EndReason.USER)
        return True

    def interrupt_procs(self, procs: set[int]) -> None:
        """Interrupt all cells that run or wait on some ranks."""
        for cell in [c for c in self._cells.values() if procs & {c.procs[r] for r in c.left}]:
            self.interrupt(cell.n)

    def _climb(self, cell: Cell, reason: str) -> None:
        if cell.over or not cell.left:
            return
        if reason != EndReason.USER and any(self._is_attended(cell.procs[r]) for r in cell.left):
            # Somebody looks at it in the debugger, or is asked: time-outs and graces begin anew when the rank
            # runs on.
            self._controller.loop.call_later(GRACE_S, partial(self._climb, cell, reason))
            return
        escalation = self._escalations.get(cell.n)
        if escalation is None:
            escalation = self._escalations[cell.n] = Escalation(self._controller, self, cell, reason)
            self._cancel_waiting(cell)
        elif reason == EndReason.FAILURE:
            return
        else:
            escalation.reason = escalation.reason if reason.startswith("timeout") else reason
        if not cell.over:
            escalation.escalate()

    def _cancel_waiting(self, cell: Cell) -> None:
        for rank in sorted(cell.waiting):
            body = json.dumps(
                {
                    "status": CellStatus.INTERRUPTED,
                    "ename": "KeyboardInterrupt",
                    "evalue": "",
                    "traceback": "",
                    "when": time.time(),
                }
            )
            self._ended(cell, rank, CellStatus.INTERRUPTED, body.encode())

    def give_up(self, cell: Cell, stuck: dict[int, dict[str, Any]]) -> None:
        """Wait no longer for ranks that don't react; `stuck` says what is known about each."""
        cell.unfinished = stuck
        for rank in stuck:
            proc = cell.procs[rank]
            self._stuck[proc] = cell.n
            cell.running.discard(rank)
            queue = self._queues.get(proc)
            if queue and cell in queue:
                queue.remove(cell)
            for waiting in list(queue or ()):
                self.say(waiting, f"cancelled: rank {rank} hangs in cell #{cell.n}")
                self._climb(waiting, EndReason.USER)
        self._check_over(cell)

    # --- the end

    def _check_over(self, cell: Cell) -> None:
        if cell.over or cell.left:
            return
        cell.over = True
        escalation = self._escalations.get(cell.n)
        if escalation is not None and escalation.aborted:
            escalation.remake_groups(lambda text: self._finish(cell, text))
        else:
            self._finish(cell, "")

    def _finish(self, cell: Cell, said: str) -> None:
        if said:
            self.say(cell, said)
        escalation = self._escalations.pop(cell.n, None)
        self._cells.pop(cell.n, None)
        self._controller.supervisor.drain()  # what its ranks have printed goes before the news of its end
        summary = self._book(cell, escalation)
        for watch in cell.watches:
            watch.tell(summary, last=True)
        cell.when_over(summary)

    def mesh_ends(self, how: str) -> None:
        """End the entries of what runs or waits. Who watches is told of the mesh's end, which says it all,
        and not of each rank's."""
        self._controller.supervisor.drain()
        cells, self._cells = list(self._cells.values()), {}
        self._queues.clear()
        for cell in cells:
            cell.over = True
            now = time.time()
            cell.failures += [CellFailure(r, "lost", f"the mesh {how}", now) for r in sorted(cell.left)]
            self._book(cell, self._escalations.pop(cell.n, None))

    def _book(self, cell: Cell, escalation: Escalation | None) -> CellOver:
        """Enter the end of a cell into the journal; return it."""
        summary = CellOver(
            status=self._status(cell, escalation),
            reason=escalation.reason if escalation is not None else "",
            unfinished=cell.unfinished,
            failures=sorted(cell.failures, key=lambda f: cause_time(f.type, f.when)),
            stopped=sorted(r for r, s in cell.ended.items() if s == CellStatus.INTERRUPTED),
            said=cell.messages,
            seconds={r: round(s, 6) for r, s in sorted(cell.seconds.items())},
        )
        kept = {
            **asdict(summary),
            "failures": [asdict(f) for f in summary.failures],
            **self._unkept(cell, summary),
        }
        self._controller.journal.entries.add(
            cell.n,
            ended=time.time(),
            end_position=self._controller.journal.store.end,
            seen=any(not w.over for w in cell.watches),
            **kept,
        )
        return summary

    def _unkept(self, cell: Cell, summary: CellOver) -> dict[str, Any]:
        """Return what the journal has otherwise than those who watch; they have seen it all."""
        journal = self._controller.journal
        if journal.is_unlogged(cell.n):
            failures = [{**asdict(f), "message": "(not kept)"} for f in summary.failures]
            return {"failures": failures, "missing": "this cell's source and output are not kept: # nolog"}
        return (
            {
                "missing": (
                    f"what it has printed may be missing here; the journal isn't written: {journal.trouble}"
                )
            }
            if journal.trouble
            else {}
        )

    @staticmethod
    def _status(cell: Cell, escalation: Escalation | None) -> CellStatus:
        if escalation is not None and escalation.reason != EndReason.FAILURE:
            return CellStatus.INTERRUPTED
        return CellStatus.ERROR if cell.failures or cell.unfinished else CellStatus.OK

    # --- watching

    @handles(WatchCell)
    def do_watch_cell(self, request: WatchCell, sender: Sender) -> Later | None:
        """Show a cell from its beginning."""
        entry = self._controller.journal.entries.entries.get(request.n)
        if entry is None or entry["kind"] != EntryKind.CELL:
            raise RequestError(f"the journal has no cell #{request.n}; see %mesh history")
        self._watch(sender.proc, sender.ref, entry)
        return LATER

    def _watch(self, client: int, ref: int, entry: Mapping[str, Any]) -> None:
        controller, n = self._controller, entry["n"]
        cell = self._cells.get(n)
        if cell is not None:
            watch = controller.output.watch_cell(client, ref, n, entry["position"], None)
            cell.watches.append(watch)
            watch.tell(CellBegan(n))
            for rank, status in cell.ended.items():
                if status == CellStatus.OK:
                    watch.tell(RankDone(rank, cell.seconds[rank]))
            for text in cell.messages:
                watch.tell(CellSaid(text))
            if cell.waits:
                watch.tell(CellWaits(cell.waits))
            return
        until = min(entry["end_position"] + LATE_BYTES, controller.journal.store.end)
        watch = controller.output.watch_cell(client, ref, n, entry["position"], until)
        watch.tell(CellBegan(n))
        if "missing" in entry:
            watch.tell(CellSaid(entry["missing"]))
        watch.tell(convert({k: entry[k] for k in CellOver.__struct_fields__}, CellOver))

    def _is_attended(self, proc: int) -> bool:
        return self._controller.debug.is_stopped(proc) or self._controller.questions.is_asking(proc)

    def watchers(self, n: int) -> list[int]:
        """Return the clients that watch a cell that isn't over."""
        cell = self._cells.get(n)
        return [w.client for w in cell.watches if not w.over] if cell is not None else []

    def is_watched(self, n: int) -> bool:
        """Say whether somebody watches a cell that isn't over."""
        cell = self._cells.get(n)
        return cell is not None and any(not w.over for w in cell.watches)

    def busy(self, ranks: Mapping[int, int]) -> str:
        """Return which of some ranks can't do anything just now, as a rank set; empty if all can."""
        procs = self._controller.registry.procs
        return format_ranks(
            r for r, p in ranks.items() if self._queues.get(p) or p in self._stuck or procs[p].end is not None
        )

    def say_on(self, proc: int, text: str) -> None:
        """Tell those who watch the cell that runs on a rank."""
        for cell in list(self._queues.get(proc, ()))[:1]:
            self.say(cell, text)

    def say(self, cell: Cell, text: str) -> None:
        """Tell those who watch a cell what is being done about it."""
        cell.messages.append(text)
        self._tell(cell, CellSaid(text))

    @staticmethod
    def _tell(cell: Cell, message: WatchMessage, *, soon: bool = False) -> None:
        for watch in cell.watches:
            watch.tell(message, soon=soon)


def _repeated(request: RunCell) -> dict[str, Plain]:
    """Return which entries of the journal a cell repeats, for its own."""
    found = {"rerun_of": request.rerun_of, "replay_of": request.replay_of}
    return {name: of for name, of in found.items() if of}
