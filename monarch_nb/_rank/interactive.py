"""IPython without history, files or a terminal: the shell in which a rank's cells run, and its displays of
values.

To make one takes 50 ms and touches thousands of pages, so the zygote makes one that all its forks inherit
(`prepare`); what a rank then does (`_take_up`) takes some 3. Until then nothing of it can be seen in a rank:
what IPython puts into builtins, sys and `__main__` comes when the first cell does.
"""

from __future__ import annotations

import builtins
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import UsageError
from IPython.core.formatters import DisplayFormatter
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from monarch_nb._cells import Namespace
from monarch_nb._frames.owner import Owner, owner_of_file
from monarch_nb._protocol.base import decode, encode
from monarch_nb._protocol.cells import CellWork
from monarch_nb._protocol.shown import MimeBundle, Shown
from monarch_nb._rank import keyboard, tqdm_bars
from monarch_nb._rank.bundles import encode_bundle, encode_metadata
from monarch_nb._rank.chain import bound_chain
from monarch_nb._rank.command import run_command
from monarch_nb._rank.shell import is_plain_exit, run_coroutine
from monarch_nb._transport.context import current_origin
from monarch_nb._transport.failure import (
    class_name,
    is_printable,
    message_of,
    set_trace,
    shortened,
    trace_of,
    traceback_of,
)

if TYPE_CHECKING:
    from monarch_nb._rank.streams import OutputPipe


class CellExit:
    """The exception of `quit()` and `exit()` in a cell: as `sys.exit()`, it ends the cell, and not the
    rank.
    """

    def __call__(self, code: object = None) -> None:
        print(
            "quit() ends this cell; the rank lives on, and so do its variables. To end the mesh: %mesh stop "
            "(in a terminal: monarch-nb stop)"
        )
        raise SystemExit(code)

    def __repr__(self) -> str:
        return "quit() and exit() end the cell. To end the mesh: %mesh stop"


MAX_DISPLAYS = 1000
_WIDGET = "application/vnd.jupyter.widget-view+json"


def _origin_of(shown: Shown, origins: dict[str, int]) -> int:
    """Return the cell that a display belongs to: an update goes to the cell of the first display of its
    id.
    """
    key = shown.display_id
    if key is None:
        return current_origin()
    if shown.update:
        return origins.get(key) or current_origin()
    origins[key] = current_origin()
    if len(origins) > MAX_DISPLAYS:
        del origins[next(iter(origins))]
    return origins[key]


def _without_widgets(data: MimeBundle, pipe: OutputPipe) -> MimeBundle:
    """Return a widget's bundle without the widget, which needs a kernel to communicate with: a rank is none.
    Prints a notice once.
    """
    if _WIDGET not in data:
        return data
    if not pipe.announced_widgets:
        pipe.announced_widgets = True
        print(
            "ipywidgets can't be used on a rank: nothing that is clicked or moved gets here, so they "
            "are shown as text. Show them in the notebook's own cells, and bring their values here: "
            "%mesh push NAME",
            file=sys.stderr,
        )
    rest = {mime: value for mime, value in data.items() if mime != _WIDGET}
    return rest or {"text/plain": "<a widget>"}


def _display_id(transient: Any) -> str | None:
    """Return the id under which a display is updated."""
    found = transient.get("display_id") if isinstance(transient, dict) else None
    return None if found is None else str(found)


class Publisher(DisplayPublisher):
    """The display publisher that sends displays to the cell's watchers."""

    def publish(self, data: Any, metadata: Any = None, *, transient: Any = None, update: bool = False,
                **_: Any) -> None:  # fmt: skip
        shown = Shown(
            _without_widgets(encode_bundle(data), self.shell.pipe),
            encode_metadata(metadata),
            _display_id(transient),
            bool(update),
        )
        self._flush()
        self.shell.pipe.display(_origin_of(shown, self.shell.origins), shown)

    def _flush(self) -> None:
        """Send what has been printed before, also of a line that isn't ended."""
        for stream in self.shell.pipe.streams.values():
            stream.flush()

    def clear_output(self, wait: bool = False) -> None:
        """Clear what this rank has displayed in its cell."""
        self._flush()
        self.shell.pipe.display(current_origin(), Shown(clear="wait" if wait else "now"))


class Hook(DisplayHook):
    """The display hook that keeps the last value instead of printing it."""

    def __call__(self, result: Any = None) -> None:
        if result is None or self.quiet():
            return
        shell: Any = self.shell
        if shell.on_value is not None:
            shell.on_value()
        self.update_user_ns(result)
        data, _ = shell.display_formatter.format(result)
        shell.last_bundle = (
            _without_widgets(encode_bundle(data), self.shell.pipe) if data else None
        )  # an object that has displayed itself has none
        shell.last_value = result
        self.fill_exec_result(result)


class Formatter(DisplayFormatter):
    """The display formatter that names values it couldn't display."""

    def format(self, obj: Any, include: Any = None, exclude: Any = None) -> tuple[MimeBundle, MimeBundle]:
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


class CellIPython(InteractiveShell):
    """An IPython shell without history, files or a terminal."""

    pipe: Any = None
    """The output of displays; set when a rank takes the shell."""
    last_bundle: MimeBundle | None = None
    last_value: Any = None
    on_value: Any = None
    last_traceback = ""
    raised_at = 0.0
    """Time at which the cell raised: rendering a rank's first traceback takes a second, and the error's order
    among ranks is reported.
    """
    num_hidden = 0
    """Number of frames left out of the traceback."""
    format_errors: list[Any] | None = None
    """Errors raised while a value's representations are made."""
    display_pub_class = Publisher
    displayhook_class = Hook

    def __init__(self, **kwargs: Any) -> None:
        self.origins: dict[str, int] = {}
        # Another environment may be active where the server was started: IPython's warning goes to the
        # kernel's log, not into cells.
        super().__init__(**{"warn_venv": False, **kwargs})

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
        """Run a file for `%run`; its error becomes the cell's."""
        super().safe_execfile(*args, **{**kwargs, "raise_exceptions": not kwargs.get("exit_ignore")})

    def safe_run_module(self, mod_name: str, where: Namespace) -> None:
        """Run a module for `%run -m`; its error becomes the cell's."""
        import runpy

        try:
            where.update(runpy.run_module(str(mod_name), run_name="__main__", alter_sys=True))
        except SystemExit as error:
            if not is_plain_exit(error):
                raise

    def init_prompts(self) -> None:
        """Do nothing: libraries take a `sys.ps1` for an interactive session, and refuse to train."""

    def init_user_ns(self) -> None:
        super().init_user_ns()
        self.user_ns["exit"] = self.user_ns["quit"] = CellExit()

    def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
        self.last_traceback = self.InteractiveTB.stb2text(stb)

    def system(self, cmd: str) -> None:
        """Run `!command`: it writes where the rank does, and an interrupt ends it."""
        self.user_ns["_exit_code"] = run_command(self.var_expand(cmd, depth=1))

    def enable_gui(self, gui: Any = None) -> None:
        """Do nothing: there's no event loop to hook into."""


_ENVIRONMENT = ("HOME", "IPYTHONDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "VIRTUAL_ENV")
"""Environment variables that a new shell depends on."""


class _Prepared(NamedTuple):
    """A shell that was made in advance; a rank may use it if its environment is the same.

    Attributes:
        path: entries that it has added to `sys.path`.
    """

    shell: CellIPython
    environment: list[str | None]
    path: list[str]


_prepared: _Prepared | None = None


def prepare() -> None:
    """Make a shell in advance for forks of this process. Does nothing if there is one."""
    global _prepared
    if _prepared is None:
        # creates the decoder, which takes 0.5 ms, once for all ranks
        decode(CellWork, encode(CellWork("pass", 1)))
        with _nothing_to_be_seen():
            _prepared = _new_shell()


def _new_shell() -> _Prepared:
    before = sys.path[:]
    shell = CellIPython(user_ns={})
    path = [entry for entry in sys.path if entry not in before]
    shell.run_cell("pass", store_history=False)  # loads modules that the first cell would load
    shell.display_formatter.format(1)
    return _Prepared(shell, _environment(), path)


def _environment() -> list[str | None]:
    return [os.environ.get(name) for name in _ENVIRONMENT]


@contextmanager
def _nothing_to_be_seen() -> Iterator[None]:
    """Restore what a new shell changes in this process, except loaded modules."""
    names, system = dict(vars(builtins)), dict(vars(sys))
    main, path, meta_path, filters = (
        sys.modules["__main__"],
        sys.path[:],
        sys.meta_path[:],
        warnings.filters[:],
    )
    environment = dict(os.environ)
    try:
        yield
    finally:
        for module, before in ((builtins, names), (sys, system)):
            for name in set(vars(module)) - set(before):
                delattr(module, name)
            for name, value in before.items():
                if vars(module).get(name) is not value:
                    setattr(module, name, value)
        sys.modules["__main__"] = main
        sys.path[:], sys.meta_path[:] = path, meta_path
        warnings.filters[:] = filters  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]
        for name in set(os.environ) - set(environment):
            del os.environ[name]
        os.environ.update(environment)


def shell_for(namespace: Namespace, pipe: OutputPipe) -> CellIPython:
    """Return the shell of this rank; to be called once.

    Args:
        namespace: where cells run.
        pipe: where what they display goes.
    """
    global _prepared
    prepared, _prepared = _prepared, None
    if prepared is None or prepared.environment != _environment():
        prepared = _new_shell()
    sys.path[:0] = [entry for entry in prepared.path if entry not in sys.path]
    _take_up(prepared.shell, namespace, pipe)
    return prepared.shell


def _take_up(shell: Any, namespace: Namespace, pipe: OutputPipe) -> None:
    """Make a shell this process's own: namespace, output, and IPython's global references."""
    shell.pipe = pipe
    shell.user_ns = namespace
    shell.user_module, _ = shell.prepare_user_module(None, namespace)
    shell.Completer.namespace = shell.Completer.global_namespace = namespace
    shell.user_ns_hidden.clear()
    shell.starting_dir = os.getcwd()
    shell.raw_input_original, shell.sys_excepthook = input, sys.excepthook
    shell.history_manager.dir_hist[:] = [Path.cwd()]
    shell.execution_count = 1
    shell.save_sys_module_state()
    shell.init_sys_modules()
    shell.init_user_ns()
    vars(builtins).update(__IPYTHON__=True, display=display)
    shell.loop_runner = run_coroutine
    # Not the singleton: a library in a rank may not find "the" shell and change it; get_ipython is in the
    # namespace.
    _adopt_as_current(CellIPython, shell)
    shell.set_hook("show_in_pager", _print_page, priority=0)
    _prepare_plots(shell)
    _prepare_colours()
    tqdm_bars.install(pipe)
    warnings.filterwarnings("ignore", "To exit: use")  # sys.exit() ends a cell, and that's all
    # Everything that a rank runs is a cell: hooks that IPython installs for each cell can stay.
    shell.builtin_trap.__enter__()
    shell.display_trap.__enter__()


def _users_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this module, which stand between a cell and what `%run`
    runs, and of `input()`.
    """
    if trace is None:
        return None
    rest = _users_frames(trace.tb_next)
    if trace.tb_frame.f_code.co_filename in (__file__, keyboard.__file__):
        return rest
    return (
        trace
        if rest is trace.tb_next
        else TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
    )


def _place_of(error: BaseException) -> str:
    """Return the place where a representation has raised, if it's in the user's code."""
    trace = trace_of(error)
    while trace is not None and owner_of_file(trace.tb_frame.f_code.co_filename) is Owner.SHELL:
        trace = trace.tb_next
    if trace is None:
        return ""
    set_trace(error, trace)
    return traceback_of(error)


def _print_page(shell: Any, data: Any, start: int = 0, screen_lines: int = 0) -> None:
    """Print the text of `NAME?` without a pager."""
    print(data["text/plain"] if isinstance(data, dict) else data)


def _adopt_as_current(cls: type[InteractiveShell], shell: Any) -> None:
    """Make `IPython.get_ipython()` find this shell: `display()` looks there."""
    cls._instance = shell
    for parent in cls._walk_mro():
        parent._instance = shell


def _prepare_plots(shell: Any) -> None:
    """Show plots as images, if matplotlib is there: its inline backend shows them at the end of a cell."""
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")


def _prepare_colours() -> None:
    """Have programs and rich colour what they print, as in a notebook, but not move the cursor: other ranks
    print, too.
    """
    for name, value in (
        ("TERM", "xterm-color"),
        ("FORCE_COLOR", "1"),
        ("CLICOLOR_FORCE", "1"),
        ("TTY_INTERACTIVE", "0"),
    ):
        os.environ.setdefault(name, value)
