"""The IPython shell that cells run in: one per rank, made at the first cell, namespace kept until the rank ends."""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING, Any

from monarch_nb._post.context import current_origin
from monarch_nb._post.failure import _pickled

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from monarch_nb._rank.streams import OutputPipe


class CellShell:
    """Runs cells. Owned by the main thread."""

    def __init__(self, namespace: dict[str, Any], pipe: OutputPipe) -> None:
        self.namespace = namespace
        self._pipe = pipe
        self._shell = _make_shell(namespace, pipe)

    def run(self, source: str, number: int) -> dict[str, Any]:
        """Run a cell; return how it ended: status, error, value (a mimebundle), seconds.

        The object that the last expression gave is under "object".
        """
        shell = self._shell
        shell.execution_count = number
        shell.last_bundle = None
        shell.last_traceback = ""
        start = time.perf_counter()
        result = shell.run_cell(source, store_history=False)
        seconds = time.perf_counter() - start
        error = result.error_before_exec or result.error_in_exec
        ended: dict[str, Any] = {"seconds": seconds, "value": shell.last_bundle, "object": result.result}
        if error is None:
            return {**ended, "status": "ok"}
        return {**ended, "status": "error", **_describe(error, shell.last_traceback)}


def _describe(error: BaseException, traceback: str) -> dict[str, Any]:
    return {
        "ename": type(error).__name__,
        "evalue": str(error),
        "traceback": traceback,
        "exception": _pickled(error),
        "when": time.time(),
    }


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
            self.fill_exec_result(result)

    class Shell(InteractiveShell):
        """IPython without history, files or a terminal."""

        last_bundle: dict[str, Any] | None = None
        last_traceback = ""
        display_pub_class = Publisher
        displayhook_class = Hook

        def init_history(self) -> None:
            from IPython.core.history import HistoryManager

            self.history_manager = HistoryManager(shell=self, parent=self, hist_file=":memory:", enabled=False)

        def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
            self.last_traceback = self.InteractiveTB.stb2text(stb)

        def enable_gui(self, gui: Any = None) -> None:
            """No event loop to hook into."""

    # Not the singleton: a library in a rank may not find "the" shell and change it; get_ipython is in the namespace.
    shell: Any = Shell(user_ns=namespace)
    _adopt_as_current(Shell, shell)
    _prepare_plots(shell)
    return shell


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
