"""The IPython shell that cells run in: one per rank, made at the first cell, namespace kept until the rank ends."""

from __future__ import annotations

import ast
import sys
import time
import warnings
from base64 import b64encode  # by name: a cell may put something else into the module
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, TracebackType
from typing import TYPE_CHECKING, Any

from monarch_nb._post.context import current_origin
from monarch_nb._post.failure import (
    _pickled,
    class_name,
    is_printable,
    message_of,
    set_trace,
    shortened,
    strip_machinery,
    trace_of,
    traceback_of,
    traceback_text,
)
from monarch_nb._rank import tqdm_bars
from monarch_nb._rank.bundles import encode_bundle, encode_metadata
from monarch_nb._rank.chain import bound_chain
from monarch_nb._rank.command import run_command
from monarch_nb._rank.debugger import CellParts
from monarch_nb._rank.forked import end_if_forked

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from monarch_nb._rank.streams import OutputPipe


class CellShell:
    """Runs cells. Owned by the main thread.

    Args:
        restore: called when the user's code is over, first of all.
    """

    def __init__(self, namespace: dict[str, Any], pipe: OutputPipe, restore: Callable[[], None]) -> None:
        self.namespace = namespace
        self.last_error: BaseException | None = None
        """What the last cell has raised: its frames are kept for the debugger, until the next cell."""
        self.error_when = 0.0
        self.error_number = 0
        self._pipe = pipe
        self._restore = restore
        self._shell = _make_shell(namespace, pipe)

    def run(self, source: str, number: int, on_value: Callable[[], None] | None = None) -> tuple[dict[str, Any], Any]:
        """Run a cell; return how it ended (status, value as a mimebundle, error) and the object that the last expression gave.

        Args:
            on_value: called when that object is there, before it's made into text, which may take long.
        """
        shell = self._shell
        shell.on_value = on_value
        self.last_error = None
        shell.execution_count = number
        shell.last_bundle = None
        shell.last_traceback = ""
        shell.num_hidden, shell.raised_at = 0, 0.0
        codes = None if _is_automagic(shell, source) else _plain_python(shell, source, number)
        if codes is None:
            result = shell.run_cell(source, store_history=False)
            error = result.error_before_exec or result.error_in_exec
        else:
            error = _run_plain(shell, codes, self._restore)
        end_if_forked(error)
        value, shell.last_value = shell.last_value, None
        if error is None or _is_plain_exit(error):
            return {"status": "ok", "value": shell.last_bundle}, value
        self._keep(error, number)
        traceback = traceback_text(shell.last_traceback, error, shell.num_hidden) if shell.last_traceback else ""
        ended = describe_cell_error(error, traceback)
        ended["when"] = shell.raised_at or ended["when"]
        return {"value": shell.last_bundle, **ended}, value

    def _keep(self, error: BaseException, number: int) -> None:
        """Keep an error for the debugger; stop there, if that's wanted."""
        from monarch_nb._post import here

        if isinstance(error, KeyboardInterrupt | SystemExit):
            return
        self.last_error, self.error_when, self.error_number = error, time.time(), number
        if here.rank is not None and here.rank.debugger.on_error:
            here.rank.debugger.post_mortem(error, "exception")


def _run_plain(shell: Any, codes: list[CodeType], restore: Callable[[], None]) -> BaseException | None:
    """Run a cell that is plain Python as IPython would, without what that does for others: a fifth of the time for a short one."""
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
        if not _is_plain_exit(error):
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


class CellExit:
    """`quit()` and `exit()` in a cell: as `sys.exit()`, they end the cell, and not the rank."""

    def __call__(self, code: object = None) -> None:
        print("quit() ends this cell; the rank lives on, and so do its variables. To end the mesh: %mesh stop")
        raise SystemExit(code)

    def __repr__(self) -> str:
        return "quit() and exit() end the cell. To end the mesh: %mesh stop"


MAX_DISPLAYS = 1000
_WIDGET = "application/vnd.jupyter.widget-view+json"


def _origin_of(content: dict[str, Any], origins: dict[str, int]) -> int:
    """Return the cell that a display belongs to: an update goes where the first one of its id was shown."""
    key = content["display_id"]
    if key is None:
        return current_origin()
    if content["update"]:
        return origins.get(key) or current_origin()
    origins[key] = current_origin()
    if len(origins) > MAX_DISPLAYS:
        del origins[next(iter(origins))]
    return origins[key]


def _without_widgets(data: dict[str, Any], pipe: OutputPipe) -> dict[str, Any]:
    """Return what can be shown of a widget: it needs a kernel to talk to, and a rank is none. Says so, once."""
    if _WIDGET not in data:
        return data
    if not pipe.has_told_of_widgets:
        pipe.has_told_of_widgets = True
        print(
            "ipywidgets can't be used on a rank: nothing that is clicked or moved gets here, so they are shown as text. "
            "Show them in the notebook's own cells, and bring their values here: %mesh push NAME",
            file=sys.stderr,
        )
    rest = {mime: value for mime, value in data.items() if mime != _WIDGET}
    return rest or {"text/plain": "<a widget>"}


def _display_id(transient: Any) -> str | None:
    """Return the id under which a display is updated."""
    found = transient.get("display_id") if isinstance(transient, dict) else None
    return None if found is None else str(found)


def _is_plain_exit(error: BaseException) -> bool:
    """Say whether an error is a program's way to say that it's done: `sys.exit()`, `sys.exit(0)`."""
    return type(error) is SystemExit and (error.code is None or (type(error.code) is int and error.code == 0))


_MAX_EXCEPTION_BYTES = 1 << 16


def describe_cell_error(error: BaseException, traceback: str = "") -> dict[str, Any]:
    """Return an error as JSON can carry it; the exception itself in base64, if it can travel and isn't large."""
    pickled = _pickled(error)
    if pickled is not None and len(pickled) > _MAX_EXCEPTION_BYTES:
        pickled = None
    return {
        "status": "error",
        "ename": class_name(error),
        "evalue": message_of(error),
        "traceback": traceback or traceback_of(error),
        "exception": None if pickled is None else b64encode(pickled).decode(),
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
    from IPython.core.error import UsageError
    from IPython.core.formatters import DisplayFormatter
    from IPython.core.interactiveshell import InteractiveShell

    origins: dict[str, int] = {}

    class Publisher(DisplayPublisher):
        """Sends what is displayed to whoever watches the cell."""

        def publish(self, data: Any, metadata: Any = None, *, transient: Any = None, update: bool = False,
                    **_: Any) -> None:  # fmt: skip
            content = {
                "data": _without_widgets(encode_bundle(data), pipe),
                "metadata": encode_metadata(metadata),
                "display_id": _display_id(transient),
                "update": bool(update),
            }
            pipe.display(_origin_of(content, origins), content)

        def clear_output(self, wait: bool = False) -> None:
            """Take away what this rank has shown in its cell."""
            for stream in pipe.streams.values():
                stream.flush()
            content: dict[str, Any] = {"data": {}, "metadata": {}, "display_id": None, "update": False}
            content["clear"] = "wait" if wait else "now"
            pipe.display(current_origin(), content)

    class Hook(DisplayHook):
        """Keeps the last value instead of printing it."""

        def __call__(self, result: Any = None) -> None:
            if result is None or self.quiet():
                return
            shell: Any = self.shell
            if shell.on_value is not None:
                shell.on_value()
            self.update_user_ns(result)
            data, _ = shell.display_formatter.format(result)
            shell.last_bundle = _without_widgets(encode_bundle(data), pipe) if data else None  # an object that has displayed itself has none
            shell.last_value = result
            self.fill_exec_result(result)

    class Formatter(DisplayFormatter):
        """Names what couldn't be shown."""

        def format(self, obj: Any, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
            errors: list[BaseException] = []
            before, self.parent.format_errors = self.parent.format_errors, errors
            try:
                data, metadata = super().format(obj, include, exclude)
            finally:
                self.parent.format_errors = before
            for text in dict.fromkeys(map(_place_of, errors)):
                print(text, end="", file=sys.stderr)
            if errors and "text/plain" not in data:
                what = f"{class_name(errors[-1])}: {message_of(errors[-1])}"
                data["text/plain"] = f"<{class_name(obj)} object that can't be shown: {what}>"
            return data, metadata

    class Shell(InteractiveShell):
        """IPython without history, files or a terminal."""

        last_bundle: dict[str, Any] | None = None
        last_value: Any = None
        on_value: Any = None
        last_traceback = ""
        raised_at = 0.0
        """When the cell has raised: the first traceback of a rank takes a second to render, and which rank was first is told."""
        num_hidden = 0
        """Frames that aren't in the traceback."""
        format_errors: list[Any] | None = None
        """What has been raised by what makes a value's representations, while that goes on."""
        display_pub_class = Publisher
        displayhook_class = Hook

        def init_history(self) -> None:
            from IPython.core.history import HistoryManager

            self.history_manager = HistoryManager(shell=self, parent=self, hist_file=":memory:", enabled=False)

        def init_display_formatter(self) -> None:
            self.display_formatter = Formatter(parent=self)
            self.configurables.append(self.display_formatter)

        def init_traceback_handlers(self, custom_exceptions: Any) -> None:
            super().init_traceback_handlers(custom_exceptions)
            bound_chain(self.InteractiveTB)

        def showtraceback(self, exc_tuple: Any = None, *args: Any, **kwargs: Any) -> None:
            """Keep the traceback for the answer, if it can be made."""
            error = exc_tuple[1] if exc_tuple else sys.exc_info()[1]
            if self.format_errors is not None:
                self.format_errors.append(error)
                return
            self.raised_at = time.time()
            if error is None:
                return
            sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace_of(error)
            ends, self.num_hidden = shortened(trace_of(error))
            trace = _users_frames(ends)
            if isinstance(error, BaseExceptionGroup) or not is_printable(error):
                return  # Python's own text does: IPython would print something else
            try:
                if isinstance(error, SyntaxError | UsageError):
                    super().showtraceback((type(error), error, trace), *args, **kwargs)
                else:
                    self._showtraceback(type(error), error, self._lines_of(error, trace, kwargs.get("tb_offset")))
            except Exception:
                self.last_traceback = ""  # the same

        def _lines_of(self, error: BaseException, trace: Any, tb_offset: int | None) -> Any:
            render = getattr(error, "_render_traceback_", None)
            if render is not None:
                return render()
            return self.InteractiveTB.structured_traceback(type(error), error, trace, tb_offset=tb_offset)

        def safe_execfile(self, *args: Any, **kwargs: Any) -> None:
            """Run a file for `%run`; what it raises, the cell raises."""
            super().safe_execfile(*args, **{**kwargs, "raise_exceptions": not kwargs.get("exit_ignore")})

        def safe_run_module(self, mod_name: str, where: dict[str, Any]) -> None:
            """Run a module for `%run -m`; what it raises, the cell raises."""
            import runpy

            try:
                where.update(runpy.run_module(str(mod_name), run_name="__main__", alter_sys=True))
            except SystemExit as error:
                if not _is_plain_exit(error):
                    raise

        def init_user_ns(self) -> None:
            super().init_user_ns()
            self.user_ns["exit"] = self.user_ns["quit"] = CellExit()

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
    _prepare_colours()
    tqdm_bars.install(pipe)
    warnings.filterwarnings("ignore", "To exit: use")  # sys.exit() ends a cell, and that's all
    # All that a rank runs is a cell: what IPython puts in place for each one stays.
    shell.builtin_trap.__enter__()
    shell.display_trap.__enter__()
    return shell


def _users_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this module, which stand between a cell and what `%run` runs."""
    if trace is None:
        return None
    rest = _users_frames(trace.tb_next)
    if trace.tb_frame.f_code.co_filename == __file__:
        return rest
    return trace if rest is trace.tb_next else TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def _place_of(error: BaseException) -> str:
    """Return where a representation has raised, if that was in the user's code."""
    trace = trace_of(error)
    while trace is not None and "/IPython/" in trace.tb_frame.f_code.co_filename:
        trace = trace.tb_next
    if trace is None:
        return ""
    set_trace(error, trace)
    return traceback_of(error)


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


def _prepare_colours() -> None:
    """Programs and rich colour what they print, as in a notebook, but don't move the cursor: other ranks print, too."""
    import os

    for name, value in (("TERM", "xterm-color"), ("FORCE_COLOR", "1"), ("CLICOLOR_FORCE", "1"), ("TTY_INTERACTIVE", "0")):
        os.environ.setdefault(name, value)
