"""The prompt: lines go to all stops in focus, answers come back folded.

It runs wherever somebody can type: in the cell that waits, after `%mesh debug`, in a terminal. It returns
when nobody stands anywhere any more, or on `detach`. Several prompts may talk to one mesh: if another one, or
the debugger's tab, lets those run on that a prompt is about, its question is taken back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from monarch_nb._debug import grammar
from monarch_nb._debug.client import Answers, MeshDebugger
from monarch_nb._debug.fold import answers_text, places, stops_text
from monarch_nb._debug.grammar import PromptError
from monarch_nb._debug.question import Question, TakenBack
from monarch_nb._protocol.debugging import Stop
from monarch_nb._protocol.states import StopMode, StopState
from monarch_nb._shape import format_ranks, parse_ranks
from monarch_nb._shape.rank_set import RankSetError
from monarch_nb.exceptions import MeshError

if TYPE_CHECKING:
    from monarch_nb.mesh.core import Mesh

GATHER_S = 1.0
QUIET_S = 0.15


class Prompt:
    """A debugging session in a terminal or a cell: it reads lines, sends them to the stops of a mesh, and
    prints the answers.

    Args:
        read: shows a prompt and returns the typed line; EOFError leaves.
        write: prints text.
    """

    def __init__(self, mesh: Mesh, read: Callable[[str], str], write: Callable[[str], None] = print) -> None:
        self._mesh = mesh
        self._debugger = MeshDebugger(mesh)
        self._read = read
        self._write = write
        self._ranks: tuple[int, ...] | None = None
        self._thread = ""
        self._last = ""
        self._lock = threading.Lock()
        self._num_changes = 0
        self._asked: set[int] = set()

    def run(self) -> bool:
        """Run the session until no thread is stopped (True), or the user leaves (False)."""
        if not isinstance(self._read, Question):
            return self._talk()
        feed = self._debugger.watch(self._changed, self._ended)
        try:
            return self._talk()
        finally:
            with suppress(MeshError):
                feed.close()

    def _talk(self) -> bool:
        seen = self._num_changes
        stops = self._gathered()
        if stops:
            self._write(stops_text(stops))
        while stops:
            focus = self._focus(stops)
            stops_before = stops
            try:
                line = self._ask(focus, seen)
                if not self._do(line or self._last, stops, focus):
                    return False
                self._last = line or self._last
            except TakenBack:
                pass
            except (PromptError, RankSetError) as error:
                self._write(f"*** {error}")
            seen = self._num_changes
            stops = self._gathered({s.rank for s in stops_before})
            self._say_moved(stops_before, stops)
        return True

    def _ask(self, focus: list[Stop], seen: int) -> str:
        """Prompt for a line.

        Args:
            seen: number of the change before the focus was looked up.

        Raises:
            TakenBack: if nobody of the focus stands there any more.
        """
        with self._lock:
            if self._num_changes != seen:
                raise TakenBack  # perhaps the stops have gone meanwhile: look again
            self._asked = {s.id for s in focus}
        try:
            return self._read(self._prompt(focus)).strip()
        except EOFError:
            return "detach"
        finally:
            self._asked = set()

    def _changed(self, rows: list[Stop]) -> None:
        """Record the new stops. Called in the reading thread."""
        with self._lock:
            self._num_changes += 1
            asked = self._asked
            is_over = bool(asked) and asked.isdisjoint(row.id for row in rows)
        if is_over and isinstance(self._read, Question):
            self._read.take_back()

    def _ended(self) -> None:
        self._changed([])

    def _gathered(self, wanted: set[int] | None = None) -> list[Stop]:
        """Return the stops once all wanted ranks have stopped, or none has for a while: most stop together.

        Args:
            wanted: those that have stood before and may come to the next breakpoint; all, if left out.
        """
        stops = self._debugger.stops()
        if wanted is None and not stops:
            return stops
        limit = time.monotonic() + GATHER_S
        quiet = time.monotonic() + QUIET_S
        expected = set(range(len(self._mesh))) if wanted is None else wanted
        while not expected <= {s.rank for s in stops} and time.monotonic() < min(limit, quiet):
            found = self._debugger.stops()
            if len(found) != len(stops):
                quiet = time.monotonic() + QUIET_S
            stops = found
        return stops

    def _prompt(self, focus: list[Stop]) -> str:
        ranks = format_ranks(sorted({s.rank for s in focus})) or "nobody"
        thread = f" {self._thread}" if self._thread and self._thread != "main" else ""
        return (
            f"(mesh-pdb {ranks}{thread}) "
            if all(s.mode == StopMode.PDB for s in focus)
            else f"({ranks}{thread}) >>> "
        )

    def _focus(self, stops: list[Stop]) -> list[Stop]:
        found = [s for s in stops if self._has(s, self._ranks, self._thread)]
        if not found:  # the ranks of the focus have run on
            self._ranks, self._thread = None, ""
            found = list(stops)
        return found

    @staticmethod
    def _has(stop: Stop, ranks: tuple[int, ...] | None, thread: str) -> bool:
        return (ranks is None or stop.rank in ranks) and (not thread or stop.thread == thread)

    def _do(self, line: str, stops: list[Stop], focus: list[Stop]) -> bool:
        """Carry out a line; return False to leave the prompt."""
        in_python = any(s.mode == StopMode.PYTHON for s in focus)
        command: grammar.Command = grammar.Line(line) if in_python and line else grammar.parse(line)
        match command:
            case grammar.ListStops():
                self._write(stops_text(stops, lines=0))
            case grammar.Focus(ranks, thread):
                self._set_focus(stops, ranks, thread)
            case grammar.Cast(thread, ranks, text):
                self._send(self._chosen(stops, ranks, thread), text)
            case grammar.Detach():
                who = format_ranks(sorted({s.rank for s in stops}))
                self._write(f"ranks {who} stay where they are; come back: %mesh debug")
                return False
            case grammar.Quit():
                self._send(stops, "quit")
            case grammar.Help(about):
                self._help(focus, about)
            case grammar.Line(text):
                if text:
                    self._send([s for s in focus if s.state == StopState.STOPPED], text)
        return True

    def _set_focus(self, stops: list[Stop], ranks: str, thread: str) -> None:
        found = self._chosen(stops, ranks, thread)
        self._ranks = tuple(s.rank for s in found)
        self._thread = thread
        self._write(stops_text(found))

    def _chosen(self, stops: list[Stop], ranks: str, thread: str) -> list[Stop]:
        threads = sorted({s.thread for s in stops})
        if thread and thread not in threads:
            raise PromptError(
                f"no such actor: {thread!r}; stopped are {', '.join(threads)} (main: the rank's main thread)"
            )
        chosen = set(parse_ranks(ranks, self._mesh.extent))
        found = [s for s in stops if self._has(s, tuple(chosen), thread)]
        if not found:
            who = format_ranks(sorted({s.rank for s in stops}))
            raise PromptError(f"of ranks {ranks} nobody stands at a breakpoint; stopped are ranks {who}")
        return found

    def _send(self, stops: list[Stop], text: str) -> None:
        answers = self._debugger.send(stops, text)
        shown = answers_text(answers, len(self._mesh))
        if shown:
            self._write(shown)
        if answers.left:
            ranks = format_ranks(sorted({answers.ranks[i] for i in answers.left}))
            self._write(f"ranks {ranks} haven't come back yet; list shows who has")

    def _help(self, focus: list[Stop], about: str) -> None:
        if about and focus:
            first = focus[0]
            self._write(
                answers_text(
                    Answers(self._debugger.send([first], f"help {about}").texts, (), {first.id: first.rank}),
                    1,
                )
            )
        else:
            assert grammar.__doc__ is not None
            self._write(grammar.__doc__.strip())

    def _say_moved(self, before: list[Stop], after: list[Stop]) -> None:
        """Show the new places of stops that were elsewhere before."""
        known = {(s.id, s.line, s.file, s.function, s.state) for s in before}
        moved = [s for s in after if (s.id, s.line, s.file, s.function, s.state) not in known]
        if moved:
            self._write(stops_text(moved, lines=0) if len(places(moved)) > 4 else stops_text(moved, lines=1))
        gone = sorted({s.rank for s in before} - {s.rank for s in after})
        if gone:
            one = len(gone) == 1
            self._write(f"rank{'' if one else 's'} {format_ranks(gone)} run{'s' if one else ''} on")
