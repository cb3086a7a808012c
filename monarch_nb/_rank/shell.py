"""The IPython shell that cells run in: one per rank, made at the first cell, namespace kept until the rank ends."""

from __future__ import annotations

import ast
import base64
import time
from collections.abc import Callable
from contextlib import suppress
from types import CodeType
from typing import TYPE_CHECKING, Any

from monarch_nb._post.context import current_origin
from monarch_nb._post.failure import _pickled, strip_machinery
from monarch_nb._rank.command import run_command
from monarch_nb._rank.debugger import CellParts

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from monarch_nb._rank.streams import OutputPipe


class CellShell:
    """Runs cells. Owned by the main thread."""

    def __init__(self, namespace: dict[str, Any], pipe: OutputPipe) -> None:
        self.namespace = namespace
        self.last_error: BaseException | None = None
        """What the last cell has raised: its frames are kept for the debugger, until the next cell."""
        self.error_when = 0.0
        self.error_number = 0
        self._pipe = pipe
        self._shell = _make_shell(namespace, pipe)

    def run(self, source: str, number: int) -> tuple[dict[str, Any], Any]:
        """Run a cell; return how it ended (status, value as a mimebundle, error) and the object that the last expression gave."""
        shell = self._shell
        self.last_error = None
        shell.execution_count = number
        shell.last_bundle = None
        shell.last_traceback = ""
        codes = None if _is_automagic(shell, source) else _plain_python(shell, source, number)
        if codes is None:
            result = shell.run_cell(source, store_history=False)
            error = result.error_before_exec or result.error_in_exec
        else:
            error = _run_plain(shell, codes)
        value, shell.last_value = shell.last_value, None
        if error is None:
            return {"status": "ok", "value": shell.last_bundle}, value
        self._keep(error, number)
        return {"value": shell.last_bundle, **describe_cell_error(error, shell.last_traceback)}, value


    def _keep(self, error: BaseException, number: int) -> None:
        """Keep an error for the debugger; stop there, if that's wanted."""
        from monarch_nb._post import here

        if isinstance(error, KeyboardInterrupt | SystemExit):
            return
        self.last_error, self.error_when, self.error_number = error, time.time(), number
        if here.rank is not None and here.rank.debugger.on_error:
            here.rank.debugger.post_mortem(error, "exception")


def _run_plain(shell: Any, codes: list[CodeType]) -> BaseException | None:
    """Run a cell that is plain Python as IPython would, without what that does for others: a fifth of the time for a short one."""
    shell.events.trigger("pre_execute")
    error: BaseException | None = None
    try:
        for i, code in enumerate(codes, 1):
            CellParts.more_follow = i < len(codes)
            exec(code, shell.user_global_ns, shell.user_ns)
    except BaseException as raised:
        error = raised.with_traceback(strip_machinery(raised.__traceback__))
        shell.showtraceback((type(error), error, error.__traceback__), tb_offset=0)
    finally:
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


_MAX_EXCEPTION_BYTES = 1 << 16


def describe_cell_error(error: BaseException, traceback: str) -> dict[str, Any]:
    """Return an error as JSON can carry it; the exception itself in base64, if it can travel and isn't large."""
    pickled = _pickled(error)
    if pickled is not None and len(pickled) > _MAX_EXCEPTION_BYTES:
        pickled = None
    return {
        "status": "error",
        "ename": type(error).__name__,
        "evalue": str(error),
        "traceback": traceback,
        "exception": None if pickled is None else base64.b64encode(pickled).decode(),
        "when": time.time(),
    }


CANCEL_S = 1.0
"""How long a cancelled coroutine may take to end."""


class Diversion:
    """What is done about an interrupt instead of raising KeyboardInterrupt, while a cell's event loop runs."""

    handler: Callable[[Any], None] | None = None


def run_coroutine(coroutine: Any) -> Any:
    """Run a cell's coroutine to its end; an interrupt ends it.

    A KeyboardInterrupt inside of the event loop's own code would tear it: it may come just when a task's next step has been taken from
    the queue, and the task would wait for ever. So it's raised only while a task runs code of the user's; else the cell's task is cancelled.

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
        # If another task was hit, ours still runs. Should the loop have been torn after all, it never ends: hence the limit.
        task.cancel()
        with suppress(KeyboardInterrupt):
            loop.run_until_complete(asyncio.wait([task], timeout=CANCEL_S))
        raise
    finally:
        Diversion.handler = None


def _make_shell(namespace: dict[str, Any], pipe: OutputPipe) -> Any:
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell

    class Publisher(DisplayPublisher):
        """Sends what is displayed to whoever watches the cell."""

        def publish(self, data: Any, metadata: Any = None, *, transient: Any = None, update: bool = False,
                    **_: Any) -> None:  # fmt: skip
            content = {
                "data": encode_bundle(data),
                "metadata": metadata or {},
                "display_id": (transient or {}).get("display_id"),
                "update": update,
            }
            pipe.display(current_origin(), content)

        def clear_output(self, wait: bool = False) -> None:
            """Output of many ranks is never cleared by one of them."""

    class Hook(DisplayHook):
        """Keeps the last value instead of printing it."""

        def __call__(self, result: Any = None) -> None:
            if result is None or self.quiet():
                return
            shell: Any = self.shell
            self.update_user_ns(result)
            data, _ = shell.display_formatter.format(result)
            shell.last_bundle = encode_bundle(data)
            shell.last_value = result
            self.fill_exec_result(result)

    class Shell(InteractiveShell):
        """IPython without history, files or a terminal."""

        last_bundle: dict[str, Any] | None = None
        last_value: Any = None
        last_traceback = ""
        display_pub_class = Publisher
        displayhook_class = Hook

        def init_history(self) -> None:
            from IPython.core.history import HistoryManager

            self.history_manager = HistoryManager(shell=self, parent=self, hist_file=":memory:", enabled=False)

        def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
            self.last_traceback = self.InteractiveTB.stb2text(stb)

        def system(self, cmd: str) -> None:
            """Run `!command`: it writes where the rank does, and an interrupt ends it."""
            self.user_ns["_exit_code"] = run_command(self.var_expand(cmd, depth=1))

        def enable_gui(self, gui: Any = None) -> None:
            """No event loop to hook into."""

    # Not the singleton: a library in a rank may not find "the" shell and change it; get_ipython is in the namespace.
    shell: Any = Shell(user_ns=namespace)
    shell.loop_runner = run_coroutine
    _adopt_as_current(Shell, shell)
    shell.set_hook("show_in_pager", _print_page, priority=0)
    _prepare_plots(shell)
    # All that a rank runs is a cell: what IPython puts in place for each one stays.
    shell.builtin_trap.__enter__()
    shell.display_trap.__enter__()
    return shell


def _is_automagic(shell: Any, source: str) -> bool:
    """Say whether a cell begins with a magic's name without its `%`, as `ls` or `cd ..`."""
    first = source.split(maxsplit=1)[0] if source.strip() else ""
    return first not in shell.user_ns and shell.find_line_magic(first) is not None


def _print_page(shell: Any, data: Any, start: int = 0, screen_lines: int = 0) -> None:
    """`NAME?` prints: there's nobody to turn pages here."""
    print(data["text/plain"] if isinstance(data, dict) else data)


def _adopt_as_current(cls: type[InteractiveShell], shell: Any) -> None:
    """Make `IPython.get_ipython()` find this shell: `display()` looks there."""
    cls._instance = shell
    for parent in cls._walk_mro():
        parent._instance = shell


def _prepare_plots(shell: Any) -> None:
    """Plots become images, if matplotlib is there: its inline backend shows them at the end of a cell."""
    import os

    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")


def encode_bundle(data: dict[str, Any]) -> dict[str, Any]:
    """Return a mimebundle that JSON can carry: bytes become base64."""
    return {k: base64.b64encode(v).decode() if isinstance(v, bytes) else v for k, v in data.items()}
