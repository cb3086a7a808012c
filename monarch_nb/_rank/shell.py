"""Runs cells in a rank's IPython shell: one per rank, created with the first cell, whose namespace is kept
until the rank ends.
"""

from __future__ import annotations

import ast
import sys
import time
from base64 import b64encode  # by name: a cell may put something else into the module
from collections.abc import Callable
from contextlib import suppress
from types import CodeType
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from monarch_nb._cells import Namespace
from monarch_nb._protocol.shown import CellEnd
from monarch_nb._protocol.states import CellStatus, StopReason
from monarch_nb._rank.debugger import CellParts
from monarch_nb._rank.script import exit_message, run_script
from monarch_nb._rank.this_rank import this_rank
from monarch_nb._runtime.forked import end_if_forked
from monarch_nb._transport.failure import (
    _pickled,
    class_name,
    message_of,
    set_trace,
    strip_machinery,
    trace_of,
    traceback_of,
    traceback_text,
)
from monarch_nb.exceptions import ScriptExit

if TYPE_CHECKING:
    from monarch_nb._protocol.script import Script
    from monarch_nb._rank.streams import OutputPipe


class CellShell:
    """The runner of cells in the rank's shell. Owned by the main thread.

    Args:
        restore: called first when the user's code has ended.
    """

    def __init__(self, namespace: Namespace, pipe: OutputPipe, restore: Callable[[], None]) -> None:
        self.namespace = namespace
        self.last_error: BaseException | None = None
        """The error of the last cell: its frames are kept for the debugger until the next cell."""
        self.error_when = 0.0
        self.error_number = 0
        self._pipe = pipe
        self._restore = restore
        from monarch_nb._rank.interactive import shell_for

        self._shell: Any = shell_for(namespace, pipe)

    def run(
        self, source: str, number: int, on_value: Callable[[], None] | None = None
    ) -> tuple[CellEnd, Any]:
        """Run a cell; return its end and the value of the last expression.

        Args:
            on_value: called when that object is there, before it's made into text, which may take long.
        """
        shell = self._shell
        self._begin_cell(number, on_value)
        codes = None if _is_automagic(shell, source) else _plain_python(shell, source, number)
        if codes is None:
            result = shell.run_cell(source, store_history=False)
            error = result.error_before_exec or result.error_in_exec
        else:
            error = _run_plain(shell, codes, self._restore)
        end_if_forked(error)
        value, shell.last_value = shell.last_value, None
        return self._ended(error, number), value

    def rehearse(self) -> None:
        """Run an empty cell that nobody sees, so that the next one finds everything initialised."""
        _run_plain(self._shell, _compiled(self._shell, "pass", "<rehearsal>"), self._restore)

    def run_script(self, script: Script, me: int, number: int) -> CellEnd:
        """Run a script as a program of its own; return its end, as `run` does.

        Args:
            me: which of the script's processes this one is.
        """
        self._begin_cell(number)
        over: list[float] = []

        def restore() -> None:
            over.append(time.time())
            self._restore()

        error = run_script(script, me, restore)
        end_if_forked(error)
        end = self._script_ended(error, number)
        # The time before its process groups were ended: peers that fail because of that have later times.
        return replace(end, when=over[0]) if error is not None and over else end

    def _script_ended(self, error: BaseException | None, number: int) -> CellEnd:
        if isinstance(error, SystemExit) and not is_plain_exit(error):
            self._say_why(error.code)
            return describe_cell_error(ScriptExit(exit_message(error.code)))
        if (
            error is not None
            and not is_plain_exit(error)
            and (trace_of(error) or isinstance(error, SyntaxError))
        ):
            self._shell.showtraceback((type(error), error, trace_of(error)), tb_offset=0)
        return self._ended(error, number)

    def _say_why(self, code: object) -> None:
        """Print the exit message of a script, if it isn't a number, as Python does."""
        if not isinstance(code, int):
            sys.stderr.write(f"{code}\n")

    def _begin_cell(self, number: int, on_value: Callable[[], None] | None = None) -> None:
        shell = self._shell
        shell.on_value = on_value
        self.last_error = None
        shell.execution_count = number
        shell.last_bundle = None
        shell.last_traceback = ""
        shell.num_hidden, shell.raised_at = 0, 0.0

    def _ended(self, error: BaseException | None, number: int) -> CellEnd:
        """Return how a cell has ended."""
        shell = self._shell
        if error is None or is_plain_exit(error):
            return CellEnd(CellStatus.OK, shell.last_bundle)
        self._keep_error(error, number)
        traceback = (
            traceback_text(shell.last_traceback, error, shell.num_hidden) if shell.last_traceback else ""
        )
        end = describe_cell_error(error, traceback)
        return replace(end, value=shell.last_bundle, when=shell.raised_at or end.when)

    def _keep_error(self, error: BaseException, number: int) -> None:
        """Keep an error for the debugger; stop there, if the settings say so."""
        if isinstance(error, KeyboardInterrupt | SystemExit):
            return
        self.last_error, self.error_when, self.error_number = error, time.time(), number
        rank = this_rank()
        if rank is not None and rank.debugger.on_error:
            rank.debugger.post_mortem(error, StopReason.EXCEPTION)


def _run_plain(shell: Any, codes: list[CodeType], restore: Callable[[], None]) -> BaseException | None:
    """Run a cell that is plain Python like IPython, without IPython's transformations and hooks: a fifth of
    the time for a short one.
    """
    shell.events.trigger("pre_execute")
    error: BaseException | None = None
    try:
        for i, code in enumerate(codes, 1):
            CellParts.more_follow = i < len(codes)
            exec(code, shell.user_global_ns, shell.user_ns)
    except BaseException as raised:
        restore()
        error = raised
        set_trace(error, strip_machinery(trace_of(error)))
        if not is_plain_exit(error):
            shell.showtraceback((type(error), error, trace_of(error)), tb_offset=0)
    finally:
        restore()
        shell.events.trigger("post_execute")
    return error


def _plain_python(shell: Any, source: str, number: int) -> list[CodeType] | None:
    """Compile a cell; its last statement by itself, if it's an expression whose value is shown.

    None if only IPython can run it: `!ls`, `%time f()`, a top-level await.
    """
    name = shell.compile.cache(source, number, raw_code=source)
    try:
        return _compiled(shell, source, name)
    except (SyntaxError, ValueError):
        return None


def _compiled(shell: Any, source: str, name: str) -> list[CodeType]:
    nodes = shell.transform_ast(shell.compile.ast_parse(source, name)).body
    shown = [nodes.pop()] if nodes and isinstance(nodes[-1], ast.Expr) else []
    codes = [shell.compile(ast.Module(nodes, []), name, "exec")] if nodes else []
    return codes + [shell.compile(ast.Interactive([node]), name, "single") for node in shown]


def is_plain_exit(error: BaseException) -> bool:
    """Say whether an error is a program's normal exit: `sys.exit()`, `sys.exit(0)`."""
    return type(error) is SystemExit and (error.code is None or (type(error.code) is int and error.code == 0))


_MAX_EXCEPTION_BYTES = 1 << 16


def describe_cell_error(error: BaseException, traceback: str = "") -> CellEnd:
    """Return how a cell has ended that has raised; the exception itself in base64, if it can travel and isn't
    large.
    """
    pickled = _pickled(error)
    if pickled is not None and len(pickled) > _MAX_EXCEPTION_BYTES:
        pickled = None
    return CellEnd(
        CellStatus.ERROR,
        ename=class_name(error),
        evalue=message_of(error),
        traceback=traceback or traceback_of(error),
        exception=None if pickled is None else b64encode(pickled).decode(),
        when=time.time(),
    )


CANCEL_S = 1.0
"""Limit for a cancelled coroutine to end."""


class Diversion:
    """The handler that an interrupt calls instead of raising KeyboardInterrupt, while a cell's event loop
    runs.
    """

    handler: Callable[[Any], None] | None = None


def run_coroutine(coroutine: Any) -> Any:
    """Run a cell's coroutine to its end; an interrupt ends it.

    A KeyboardInterrupt inside of the event loop's own code would tear it: it may come just when a task's next
    step has been taken from the queue, and the task would wait for ever. So it's raised only while a task
    runs code of the user's; else the cell's task is cancelled.

    Raises:
        KeyboardInterrupt: if the cell was interrupted.
    """
    import asyncio

    from IPython.core.async_helpers import get_asyncio_loop

    loop = get_asyncio_loop()
    task = loop.create_task(coroutine)
    was_cancelled = False

    def on_interrupt(frame: Any) -> None:
        nonlocal was_cancelled
        module = frame.f_globals.get("__name__", "") if frame is not None else ""
        if asyncio.current_task(loop) is not None and not module.startswith("asyncio"):
            raise KeyboardInterrupt
        was_cancelled = True
        task.cancel()
        loop.call_soon_threadsafe(lambda: None)  # the loop may be asleep

    Diversion.handler = on_interrupt
    try:
        return loop.run_until_complete(task)
    except asyncio.CancelledError:
        if was_cancelled:
            raise KeyboardInterrupt from None
        raise
    except KeyboardInterrupt:
        # If another task was hit, the cell's task still runs. If the loop was left inconsistent after all, it
        # never ends: hence the limit.
        task.cancel()
        with suppress(KeyboardInterrupt):
            loop.run_until_complete(asyncio.wait([task], timeout=CANCEL_S))
        raise
    finally:
        Diversion.handler = None


def _is_automagic(shell: Any, source: str) -> bool:
    """Say whether a cell begins with a magic's name without its `%`, as `ls` or `cd ..`."""
    first = source.split(maxsplit=1)[0] if source.strip() else ""
    return first not in shell.user_ns and shell.find_line_magic(first) is not None
