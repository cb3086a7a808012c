"""pdb on a rank: a thread that stops waits for lines sent in messages, and answers with text.

A *stop* is one thread that stands at a breakpoint. It tells the controller where it stands, and then reads
lines from an inbox as it would read mail, so it may read the process' socket itself while it waits. What pdb
prints after a line goes back as that line's answer, when pdb asks for the next line or lets the program run
on. Who may send lines is the controller's business (`_host/controller/debug_service`).
"""

from __future__ import annotations

import bdb
import code
import io
import itertools
import json
import linecache
import pdb  # noqa: T100 - this is the debugger
import sys
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from monarch_nb._frames.cells import cell_number, is_of_kernel
from monarch_nb._frames.owner import HIDDEN, module_of, owner_of
from monarch_nb._protocol.base import Request
from monarch_nb._protocol.debugging import DebugLeft, DebugRunning, DebugStopped, StopPlace
from monarch_nb._protocol.states import StopMode, StopReason
from monarch_nb._protocol.work import Work
from monarch_nb._rank.breakpoints import Breakpoints
from monarch_nb._rank.frame_variables import keep_variables
from monarch_nb._rank.this_rank import this_rank
from monarch_nb._runtime.inbox import Inbox
from monarch_nb._tracebacks import shown_frames
from monarch_nb._transport.context import call_context, current_origin
from monarch_nb._wire import address
from monarch_nb._wire import message as wire

if TYPE_CHECKING:
    from monarch_nb._transport.transport import Transport
    from monarch_nb._wire.activity_page import ActivitySlot

SOURCE_LINES = 7
"""Number of lines shown above and below the line of a stop."""
MAX_ANSWER = 200_000
MAX_VALUE = 300
_NOT_STEPPED_INTO = ["monarch_nb.*", "IPython.*", "asyncio.*", "importlib.*"]
_STEPS = {
    "n": StopReason.NEXT,
    "next": StopReason.NEXT,
    "s": StopReason.STEP,
    "step": StopReason.STEP,
    "r": StopReason.RETURN,
    "return": StopReason.RETURN,
    "unt": StopReason.UNTIL,
    "until": StopReason.UNTIL,
}


class Line:
    """A line sent to one stop.

    Attributes:
        key: number of the stop. The next stop of a thread has another one, so that a late line can't reach
            it.
        n: number of the command, which the answer repeats.
        text: None interrupts instead: a parked thread doesn't notice an exception raised in it.
    """

    __slots__ = ("key", "n", "text")

    def __init__(self, key: int, n: int, text: str | None) -> None:
        self.key = key
        self.n = n
        self.text = text


class Debugger:
    """The debugger of this process, with its stops. `take_line` and `settings` are for the reading thread;
    the rest runs in the threads that stop.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.skip = False
        """Whether breakpoints do nothing."""
        self.on_error = False
        """Whether an error stops where it was raised."""
        self._keys = itertools.count(1)
        self.in_use = False
        """Whether any thread has stopped yet."""
        self._stops: dict[int, MeshPdb] = {}
        self._local = threading.local()
        self.breakpoints: Breakpoints | None = None
        """Breakpoints set by other processes, once there are any."""

    def add_break(self, file: str, line: int, condition: str) -> str:
        """Set a breakpoint for another process; return a message about it."""
        if self.breakpoints is None:
            return "not set: this process has no breakpoints"
        self.in_use = True
        return self.breakpoints.add(file, line, condition)

    def arm(self) -> None:
        """Arm the calling thread for new breakpoints, before a cell or a call."""
        if self.breakpoints is not None and self.breakpoints.version:
            self.breakpoints.arm(sys._getframe(1))

    def set(self, *, skip: bool = False, on_error: bool = False) -> None:
        """Apply settings."""
        self.skip, self.on_error = skip, on_error

    def install(self) -> None:
        """Have `breakpoint()` and `pdb.set_trace()` stop here; IPython's `set_trace`, too, once it's
        there.
        """
        self.breakpoints = Breakpoints(self)
        sys.breakpointhook = self._on_breakpoint
        pdb.set_trace = self._set_trace

    def _on_breakpoint(self, *_args: Any, **_kwargs: Any) -> None:
        if not self.skip:
            self._stop_at(sys._getframe(1))

    def _set_trace(self, *, header: str | None = None, **_kwargs: Any) -> None:
        if not self.skip:
            self._stop_at(sys._getframe(1))

    def _stop_at(self, frame: FrameType) -> None:
        """Stop at a frame's next line; where breakpoints of other processes are traced already, skip bdb's
        own lines before that.
        """
        sys.settrace(None)
        self.mine().set_trace(frame)

    def mine(self) -> MeshPdb:
        """Return the debugger of the calling thread."""
        found: MeshPdb | None = getattr(self._local, "pdb", None)
        if found is None:
            found = self._local.pdb = MeshPdb(self)
            self.in_use = True
        return found

    def done(self) -> None:
        """End stepping in the calling thread, whose cell or call has ended."""
        found: MeshPdb | None = getattr(self._local, "pdb", None)
        if found is not None:
            found.finish()

    def post_mortem(
        self, error: BaseException, reason: StopReason = StopReason.POST_MORTEM, what: str = ""
    ) -> None:
        """Stop where an error was raised; returns when the debugger lets the program continue."""
        trace = shown_frames(error.__traceback__)
        if trace is None or self.skip:
            return
        debugger = MeshPdb(self)
        debugger.reason, debugger.what, debugger.is_post_mortem = reason, what, True
        debugger.raised = f"{type(error).__name__}: {error}"
        debugger.reset()
        with suppress(bdb.BdbQuit):
            debugger.interaction(None, trace)

    # --- stops

    def enter(self, stop: MeshPdb) -> int:
        """Register the stop of a thread; return its key."""
        key = next(self._keys)
        self._stops[key] = stop
        return key

    def leave(self, key: int) -> None:
        """Forget the stop of a thread, which runs on."""
        self._stops.pop(key, None)

    def interrupt(self, ident: int) -> bool:
        """Interrupt a thread of this process if it stands at a breakpoint: it raises KeyboardInterrupt
        there. Called in the reading thread.
        """
        stop = next((stop for stop in list(self._stops.values()) if stop.thread == ident), None)
        if stop is not None:
            self.transport.reader.notify(stop.inbox.put_message(Line(stop.key, 0, None)))
        return stop is not None

    def take_line(self, key: int, n: int, text: str) -> Any:
        """Pass a line to a stop; return the waiter to wake."""
        stop = self._stops.get(key)
        if stop is None:
            self.notify_controller(DebugLeft(key, n, "it runs on, and no longer stands there"))
            return None
        return stop.inbox.put_message(Line(key, n, text))

    def notify_controller(self, request: Request[None]) -> None:
        """Tell the controller."""
        self.transport.ask(address.CONTROLLER, request)


class CellParts:
    """The parts of a cell: the last expression runs separately, and stepping continues there from the end of
    the part before.
    """

    more_follow = False


class MeshPdb(pdb.Pdb):
    """The pdb of one thread."""

    def __init__(self, debugger: Debugger) -> None:
        self._text = io.StringIO()
        lines: Any = _Lines(self)
        super().__init__(stdin=lines, stdout=self._text, skip=_NOT_STEPPED_INTO, nosigint=True, readrc=False)
        self.use_rawinput = False
        self.prompt = ""
        self.inbox: Inbox[Line] = Inbox()
        self.reason = StopReason.BREAKPOINT
        self.what = ""
        self.raised = ""
        self.is_post_mortem = False
        self.armed = 0
        """Version of these breakpoints that this thread is armed for."""
        self.thread = threading.get_ident()
        self._debugger = debugger
        self._key = 0
        self._line: Line | None = None
        self._console: code.InteractiveConsole | None = None
        self._activity_slot: ActivitySlot | None = None

    def begin_tracing(self, frame: FrameType | None) -> None:
        """Trace only for breakpoints from now on."""
        self.reset()
        self.botframe = frame
        while self.botframe is not None and self.botframe.f_back is not None:
            self.botframe = self.botframe.f_back
        self._set_stopinfo(self.botframe, None, -1)  # type: ignore[attr-defined]

    # --- overrides of pdb

    def interaction(self, frame: FrameType | None, traceback: TracebackType | None) -> None:
        """Stop: report the place, and execute lines until one lets the program continue."""
        if self._key == 0:
            self._key = self._debugger.enter(self)
        self._activity_slot = _activity_slot()
        if self._activity_slot is not None:
            self._activity_slot.set_debugging(True)
        try:
            super().interaction(frame, traceback)
        except BaseException:
            self._left("")
            raise
        finally:
            if self._activity_slot is not None:
                self._activity_slot.set_debugging(False)
        if self._line is not None and self._line.text == wire.RUN_ON:
            self.set_continue()
        if self._goes_on_by_steps():
            self._debugger.notify_controller(DebugRunning(self._key))
        else:
            self._left(self._taken())

    def user_return(self, frame: FrameType, return_value: Any) -> None:
        """Stop at a function's return, if pdb would; the end of a cell's first part is passed as a step."""
        if CellParts.more_follow and _is_cell(frame):
            self.set_step()
        else:
            super().user_return(frame, return_value)

    def user_call(self, frame: FrameType, argument_list: None) -> None:
        """Stop at a function's call, if pdb would; the beginning of a cell's next part isn't a call."""
        if not _is_cell(frame):
            super().user_call(frame, argument_list)

    def _cmdloop(self) -> None:
        self.cmdloop()  # pdb's own method would swallow an interrupt, which is meant to end the cell

    def print_stack_entry(self, frame_lineno: Any, prompt_prefix: str = pdb.line_prefix) -> None:
        """Do nothing: each answer says where the program stands."""

    def do_where(self, arg: str) -> None:
        """Show the stack, without the frames of this package."""
        for i, (frame, lineno) in enumerate(self.stack):
            if not _is_ours(frame):
                mark = ">" if i == self.curindex else " "
                text = linecache.getline(frame.f_code.co_filename, lineno, frame.f_globals).strip()
                self.message(
                    f"{mark} {place(frame.f_code.co_filename)}({lineno}) {frame.f_code.co_name}(): {text}"
                )

    do_w = do_bt = do_where

    def do_quit(self, arg: str) -> bool | None:
        """Let the program continue, without breakpoints: leaving the debugger doesn't end the cell."""
        self.clear_all_breaks()
        self.set_continue()
        return True

    do_q = do_exit = do_quit

    def do_interact(self, arg: str) -> None:
        """Take the next lines as Python, in the frame's names, until `exit`."""
        assert self.curframe is not None
        names = {**self.curframe.f_globals, **self.curframe_locals}
        self._console = code.InteractiveConsole(names)
        self.message("Python; exit goes back to the debugger")

    def do_run(self, arg: str) -> None:
        """Refuse to run the program again, which belongs to the mesh; say how to rerun a cell or restart a
        rank.
        """
        self.message(
            "*** run: a cell is run again by running the cell; %mesh restart --ranks R starts a rank anew"
        )

    do_restart = do_run

    def default(self, line: str) -> None:
        """Execute a statement; what it assigns to the function's variables counts at once."""
        super().default(line)
        if self.curframe is not None:
            keep_variables(self.curframe)

    def do_EOF(self, arg: str) -> bool | None:  # noqa: N802 - pdb looks for this name
        """Let the program continue: no more lines come."""
        return self.do_quit(arg)

    # --- lines

    @property
    def key(self) -> int:
        """The number by which the controller knows the stop; 0 while the thread runs."""
        return self._key

    def next_line(self) -> str:
        """Answer the last line, and wait for the next line for pdb."""
        self._report()
        while True:
            line = self.inbox.take_message(self._debugger.transport)
            if line is None:
                return "quit\n"
            if line.key != self._key:
                continue  # for an earlier stop, which has answered the line by its end
            if line.text is None:
                raise KeyboardInterrupt
            self._line = line
            if line.text == wire.RUN_ON:
                return "continue\n"
            if self._console is not None:
                self._push(line.text)
            elif line.text.startswith("!!"):
                self.message(self._special(line.text[2:].strip()))
            else:
                self.reason = _STEPS.get(line.text.split(" ")[0], StopReason.BREAKPOINT)
                return line.text + "\n"
            self._report()

    def _push(self, text: str) -> None:
        assert self._console is not None
        if text.strip() in ("exit", "exit()", "quit", "quit()"):
            self._console = None
            self.message("back in the debugger")
            return
        out, err = sys.stdout, sys.stderr
        sys.stdout = sys.stderr = self._text
        try:
            more = self._console.push(text)
        except SystemExit:
            self._console, more = None, False
        finally:
            sys.stdout, sys.stderr = out, err
        if more:
            self.message("...")

    def _special(self, text: str) -> str:
        """Answer a command of front ends: `vars`, `complete TEXT`."""
        verb, _, rest = text.partition(" ")
        if verb == "vars":
            names = {k: v for k, v in self.curframe_locals.items() if not k.startswith("_")}
            return json.dumps(
                {k: {"type": type(v).__name__, "value": _short(v)} for k, v in sorted(names.items())}
            )
        if verb == "complete":
            return json.dumps(self._completions(rest))
        return f"no such request: {verb}"

    def _completions(self, text: str) -> list[str]:
        import rlcompleter

        assert self.curframe is not None
        completer = rlcompleter.Completer({**self.curframe.f_globals, **self.curframe_locals})
        found: list[str] = []
        for i in itertools.count():
            each = completer.complete(text, i)
            if each is None or i > 200:
                return sorted(set(found))
            found.append(each)
        return found

    # --- sending

    def _taken(self) -> str:
        text = self._text.getvalue()
        self._text.seek(0)
        self._text.truncate()
        return text[:MAX_ANSWER].rstrip("\n")

    def _report(self) -> None:
        n = self._line.n if self._line is not None else 0
        mode = StopMode.PYTHON if self._console is not None else StopMode.PDB
        self._debugger.notify_controller(DebugStopped(self._key, n, self._taken(), self._where(), mode))
        self._line = None

    def _where(self) -> StopPlace:
        frame, lineno = self.stack[self.curindex]
        file = frame.f_code.co_filename
        lines = linecache.getlines(file, frame.f_globals)
        first = max(1, lineno - SOURCE_LINES)
        return StopPlace(
            thread=_thread_name(),
            what=self.what or _doing(),
            file=place(file),
            path=file,
            line=lineno,
            function=frame.f_code.co_name,
            text=lines[lineno - 1].strip() if 0 < lineno <= len(lines) else "",
            source=tuple(
                (first + i, text.rstrip("\n"))
                for i, text in enumerate(lines[first - 1 : lineno + SOURCE_LINES])
            ),
            reason=self.reason,
            error=self.raised if self.curindex == len(self.stack) - 1 else "",
            origin=current_origin(),
        )

    def _goes_on_by_steps(self) -> bool:
        """Say whether the program will stop here again without a breakpoint."""
        return not (self.quitting or self.is_post_mortem) and self.stoplineno != -1

    def finish(self) -> None:
        """End the stop, if there is one: the program has ended while it was stepped through."""
        if self._key:
            self.set_continue()
            self._left(self._taken() or "it has come to its end")

    def _left(self, text: str) -> None:
        line, self._line = self._line, None
        self._console = None  # an interrupt may have come between two statements of pdb
        self._debugger.leave(self._key)
        self._debugger.notify_controller(DebugLeft(self._key, line.n if line is not None else 0, text))
        self._key = 0


class _Lines:
    """The input of pdb in place of stdin: lines that arrive in messages."""

    def __init__(self, stop: MeshPdb) -> None:
        self._stop = stop

    def readline(self) -> str:
        return self._stop.next_line()


def place(file: str) -> str:
    """Return the display name of a file: cells of the mesh by their number."""
    cell = cell_number(file)
    if cell is not None:
        return f"In [{cell}]"
    return "a notebook's cell" if is_of_kernel(file) else file


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:
        text = f"<no repr: {type(error).__name__}>"
    return text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 3] + "..."


def _is_cell(frame: FrameType) -> bool:
    """Say whether a frame is a cell itself, not a function in it."""
    return frame.f_code.co_name == "<module>" and cell_number(frame.f_code.co_filename) is not None


def _is_ours(frame: FrameType) -> bool:
    return owner_of(frame) in HIDDEN or module_of(frame) in ("bdb", "pdb")


def _thread_name() -> str:
    """Return the display name of the calling thread: that of the actor it works for."""
    name = threading.current_thread().name
    runner = _runner()
    if runner is not None and name != "MainThread":
        return str(runner.name)
    return "main" if name == "MainThread" else name.removeprefix("actor-")


def _runner() -> Any:
    return call_context.get().actor


def _activity_slot() -> ActivitySlot | None:
    """Return the activity slot of the calling thread."""
    if threading.current_thread() is threading.main_thread():
        rank = this_rank()
        return rank.worker.activity_slot if rank is not None else None
    runner = _runner()
    return runner.activity_slot if runner is not None else None


def _doing() -> str:
    rank = this_rank()
    if threading.current_thread() is threading.main_thread() and rank is not None:
        current = rank.worker.current
        return (
            f"cell #{current.origin}"
            if current is not None and current.name == Work.RUN.encode()
            else "function"
        )
    runner = _runner()
    return "" if runner is None else runner.label.decode() or runner.name
