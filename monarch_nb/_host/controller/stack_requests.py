"""Inspects ranks: where they are, and what they wait for. The host process inspects ranks that don't answer
from outside.

Ranks are asked first; their control thread answers within milliseconds, unless something holds the
interpreter's lock. Those that don't are left to the services of their hosts (`stack_service`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

from monarch_nb._frames.cells import CELL_FRAME
from monarch_nb._host.agent.stack_service import NATIVE_S, PY_SPY_S, Found
from monarch_nb._host.controller.sending import Sends
from monarch_nb._protocol.events import StacksTaken, TakeStacks
from monarch_nb._protocol.hang import Hang, HangRow, RankStacks, Stacks
from monarch_nb._protocol.questions import AwaitedThings, ThreadStacks
from monarch_nb._protocol.registry import LATER, Later, Sender, handles
from monarch_nb._protocol.states import EntryKind, StacksBy
from monarch_nb._wire import address

if TYPE_CHECKING:
    from monarch_nb._host.agent.stack_service import StackService
    from monarch_nb._host.controller.asking import Answers, Asking
    from monarch_nb._host.controller.hosts import HostService
    from monarch_nb._host.controller.journal_service import JournalService
    from monarch_nb._host.controller.registry import Registry
    from monarch_nb._host.loop import Loop

ANSWER_S = 0.4
HANG_S = 1.0
"""Limit for the facts of a hang: torch's flight recorder writes out all its entries, 30 ms for 2000
operations, longer if all ranks do it at once on few cores.
"""

ByRank = dict[int, RankStacks]
Done = Callable[[ByRank], None]


class Parts(Sends, Protocol):
    """The parts of a controller that this module uses."""

    asking: Asking
    hosts: HostService
    journal: JournalService
    loop: Loop
    registry: Registry
    stack_service: StackService

    def process_state(self, proc: int) -> str:
        """Return the kernel's state of a rank of this machine; empty if nothing is special."""
        ...


class _Take:
    """A request for stacks, with the services that have been asked."""

    def __init__(self, hosts: set[int], done: Callable[[Found], None]) -> None:
        self.left = len(hosts)
        self.found: Found = {}
        self.done = done


class StackRequests:
    """The service that collects the stacks of ranks, and what they wait for. Owned by the loop thread."""

    def __init__(self, controller: Parts) -> None:
        self._controller = controller
        self._takes: dict[int, _Take] = {}
        self._num_takes = 0

    @handles(Stacks)
    def do_stacks(self, request: Stacks, sender: Sender) -> ByRank | Later:
        """Return the stacks of ranks, by rank."""
        ranks = self._controller.registry.by_rank(request.procs)
        self.stacks(ranks, partial(self._controller.reply, sender.proc, sender.ref), native=request.native)
        return LATER

    @handles(Hang)
    def do_hang(self, request: Hang, sender: Sender) -> dict[int, HangRow] | Later:
        """Return what ranks wait for, by rank."""
        self.hang(
            self._controller.registry.by_rank(request.procs),
            partial(self._controller.reply, sender.proc, sender.ref),
        )
        return LATER

    def stacks(self, ranks: Mapping[int, int], done: Done, *, native: bool = False) -> None:
        """Take the stacks of ranks (rank to proc); `done` is called with them by rank."""
        if native:
            self._take_stacks(ranks.values(), True, lambda taken: self._after_native(ranks, taken, done))
        else:
            self._controller.asking.ask(
                ranks, ThreadStacks(), lambda answers: self._after_asking(ranks, answers, done), ANSWER_S
            )

    def hang(self, ranks: Mapping[int, int], done: Callable[[dict[int, HangRow]], None]) -> None:
        """Ask ranks what they wait for; `done` is called with the answers by rank, or the stacks of ranks
        that don't answer.
        """

        def answered(answers: Answers) -> None:
            def taken(found: ByRank) -> None:
                done({r: HangRow(answers[r]) if r in answers else HangRow(stacks=found[r]) for r in ranks})

            self._after_asking({r: p for r, p in ranks.items() if r not in answers}, {}, taken)

        self._controller.asking.ask(ranks, AwaitedThings(), answered, HANG_S)

    # --- ranks that don't answer

    def _after_asking(self, ranks: Mapping[int, int], answers: Answers, done: Done) -> None:
        silent = [p for r, p in ranks.items() if r not in answers]

        def taken(found: Found) -> None:
            rows: ByRank = {}
            for rank, proc in ranks.items():
                if rank in answers:
                    rows[rank] = {
                        "stacks": answers[rank],
                        "how": StacksBy.ASKED,
                        "missing": "",
                        "process": self._controller.process_state(proc),
                    }
                else:
                    rows[rank] = self._row(proc, found)
            done(rows)

        self._take_stacks(silent, False, taken)

    def _after_native(self, ranks: Mapping[int, int], found: Found, done: Done) -> None:
        """Ask ranks whose native frames couldn't be taken for their Python stacks; what couldn't be taken
        stays recorded.
        """
        rows = {rank: self._row(proc, found) for rank, proc in ranks.items()}
        left = {r: p for r, p in ranks.items() if rows[r]["stacks"] is None}

        def asked(others: ByRank) -> None:
            for rank, row in others.items():
                row["missing"] = "; ".join(
                    filter(None, [f"no native frames: {rows[rank]['missing']}", row["missing"]])
                )
            done({**rows, **others})

        if left:
            self.stacks(left, asked)
        else:
            done(rows)

    def _row(self, proc: int, found: Found) -> RankStacks:
        nothing: RankStacks = {
            "stacks": None,
            "how": "",
            "missing": "its host process did not say in time",
            "process": "",
        }
        row = found.get(proc, nothing)
        if row["stacks"]:
            row["stacks"] = {name: self._with_source(text) for name, text in row["stacks"].items()}
        return row

    def _with_source(self, stack: str) -> str:
        """Return a stack with the lines of cells added: their source isn't in a file, but in the journal."""

        def with_line(match: re.Match[str]) -> str:
            line = self._cell_line(int(match[1]), match[2], int(match[3]))
            return match[0] + (f"    {line}\n" if line else "")

        return CELL_FRAME.sub(with_line, stack)

    def _cell_line(self, number: int, digest: str, line: int) -> str:
        for entry in reversed(list(self._controller.journal.entries.entries.values())):
            if entry.kind == EntryKind.CELL and entry.number in (0, number):
                source = entry.source
                if hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest().startswith(digest):
                    lines = source.splitlines()
                    return lines[line - 1].strip() if line <= len(lines) else ""
        return ""

    # --- the services that are asked

    def _take_stacks(self, procs: Iterable[int], native: bool, done: Callable[[Found], None]) -> None:
        """Have the hosts of ranks take their stacks."""
        by_host = self._controller.hosts.of(procs)
        if not by_host:
            done({})
            return
        self._num_takes += 1
        ref = self._num_takes
        self._takes[ref] = _Take(set(by_host), done)
        for host, theirs in by_host.items():
            if host == 0:
                here = self._controller.stack_service
                here.take_stacks(theirs, native, lambda found: self._taken(ref, found))
            else:
                self._controller.event(address.host_proc(host), TakeStacks(ref, tuple(theirs), native))
        self._controller.loop.call_later(
            (NATIVE_S if native else PY_SPY_S) + 1.0, lambda: self._end_take(ref)
        )

    @handles(StacksTaken)
    def on_stacks(self, event: StacksTaken, sender: Sender) -> None:
        """Handle the stacks that another host has taken of its ranks."""
        self._taken(event.ref, event.found)

    def _taken(self, ref: int, found: Found) -> None:
        take = self._takes.get(ref)
        if take is not None:
            take.found.update(found)
            take.left -= 1
            if not take.left:
                self._end_take(ref)

    def _end_take(self, ref: int) -> None:
        take = self._takes.pop(ref, None)
        if take is not None:
            take.done(take.found)
