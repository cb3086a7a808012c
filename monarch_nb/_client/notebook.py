"""The hooks of a session in a notebook: output of a cell's calls is shown in that cell, and the calls are
entered into the journal.

`pre_run_cell` gives the cell an origin, which its calls carry; output of that origin is written in the cell's
context, by which ipykernel routes it, also when it comes late. `post_run_cell` waits until what was printed
so far has come.
"""

from __future__ import annotations

import asyncio
import contextvars
import secrets
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from monarch_nb._client import kernel
from monarch_nb._journal.record import client_origin
from monarch_nb._protocol.programs import Leaving
from monarch_nb._protocol.states import CellStatus
from monarch_nb._transport.context import CallContext, call_context
from monarch_nb.exceptions import MeshError

if TYPE_CHECKING:
    from monarch_nb._client.session import Session

_MAX_SOURCE = 20_000

PROGRAM_NUMBER = secrets.randbits(15)
"""Number by which controllers distinguish the calls of this program from those of others."""


class NotebookHooks:
    """The hooks of one session. They run in the thread that runs cells."""

    def __init__(self, session: Session, shell: Any) -> None:
        self._session = session
        self._shell = shell
        self._num_settled = 0
        self._source = ""
        self._began = 0.0
        self._task: asyncio.Task[Any] | None = None
        self.origin = 0

    @classmethod
    def install(cls, session: Session) -> NotebookHooks | None:
        """Install the hooks of a session in the running IPython; return None if there is no IPython."""
        ipython = sys.modules.get("IPython")
        shell = ipython.get_ipython() if ipython is not None else None
        if shell is None:
            return None
        hooks = cls(session, shell)
        session.transport.calls = {}
        shell.events.register("pre_run_cell", hooks.before_cell)
        shell.events.register("post_run_cell", hooks.after_cell)
        watched = kernel.watch()
        if watched is not None:
            watched.on_end.append(hooks.leave)
        hooks.before_cell()  # the cell that connects has already begun, so its hook won't be called
        return hooks

    def remove(self) -> None:
        """Remove the hooks."""
        for event, hook in (("pre_run_cell", self.before_cell), ("post_run_cell", self.after_cell)):
            with suppress(ValueError):
                self._shell.events.unregister(event, hook)
        watched = kernel.known()
        if watched is not None and self.leave in watched.on_end:
            watched.on_end.remove(self.leave)

    def leave(self) -> None:
        """Tell the controller that this client leaves, and wake waiting threads: the kernel is being shut
        down, and later output is not seen. Called in the control thread.
        """
        with suppress(Exception):  # the mesh may have ended, or the kernel may be ending
            self._session.tell(Leaving())
        for wakeup in list(self._session.wakeups):
            wakeup.wake()

    def before_cell(self, info: Any = None) -> None:
        """Assign an origin to the cell that begins."""
        self._source = getattr(info, "raw_cell", "") or ""
        self._began = time.time()
        try:
            self._task = asyncio.current_task()
        except RuntimeError:  # no event loop: a plain IPython
            self._task = None
        # The hooks are the same for all sessions of this program: a cell may call actors of several meshes.
        self.origin = client_origin(PROGRAM_NUMBER, self._shell.execution_count)
        call_context.set(CallContext(self.origin))
        self._session.reports.begin_cell()
        if self._session.output is not None:
            self._session.output.default.remember(self.origin, contextvars.copy_context())

    def is_interrupted(self) -> bool:
        """Return whether the running (async) cell is being cancelled: ipykernel turns Ctrl-C into that."""
        return self._task is not None and self._task.cancelling() > 0

    def after_cell(self, result: Any = None) -> None:
        """Show what the cell's calls have printed before it ends; enter them into the journal."""
        transport = self._session.transport
        if transport.closed or transport.lost:
            self.remove()
        elif transport.num_sent != self._num_settled:
            with suppress(MeshError):
                self._session.settle_output()
            error = getattr(result, "error_in_exec", None) or getattr(result, "error_before_exec", None)
            self._session.note_calls(
                self._source[:_MAX_SOURCE],
                self._began,
                origin=self.origin,
                status=CellStatus.ERROR if error else CellStatus.OK,
            )
            self._num_settled = transport.num_sent
