"""Explains a cell that makes no progress, without a request: once, and again only if the answer changes.

The thread that draws displays asks ten times a second whether it's time (`tick`: two comparisons); the
looking is done by a thread of its own, so that neither the cell nor its display waits. Whatever goes wrong
there, the cell knows nothing of it.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from monarch_nb._why.diagnoses import Diagnosis
from monarch_nb._why.settings import why_after_s
from monarch_nb.actor.handle import session_of

if TYPE_CHECKING:
    from monarch_nb._display import CellView
    from monarch_nb._why.report import HangReport
    from monarch_nb.mesh import CellRun, Mesh


class StallDetector:
    """The detector of a cell that has made no progress for too long. Progress is any change of its view:
    output, a rank that ends.

    Args:
        view: shows the cell; the diagnosis is put below its output.
    """

    def __init__(self, mesh: Mesh, view: CellView) -> None:
        self._mesh = mesh
        self._view = view
        self._run: CellRun | None = None
        self._seen = -1
        self._since = time.monotonic()
        self._is_looking = False
        self._noted: tuple[object, ...] | None = None

    def watch(self, run: CellRun) -> None:
        """Begin to watch a cell."""
        self._since, self._run = time.monotonic(), run

    def tick(self) -> None:
        """Check whether it's time to look. Called by the thread of displays; quick."""
        version = self._view.version
        # a user of the debugger isn't disturbed
        if version != self._seen or session_of(self._mesh).num_prompts:
            self._seen, self._since = version, time.monotonic()
            return
        limit_s = why_after_s()
        if (
            self._run is None
            or limit_s is None
            or self._is_looking
            or time.monotonic() - self._since < limit_s
        ):
            return
        self._is_looking = True
        threading.Thread(target=self._look, name="monarch-nb-why", daemon=True).start()

    def _look(self) -> None:
        try:
            self._note(self._mesh.why())
        except Exception:
            return  # the mesh has ended, or is too busy to answer
        finally:
            self._since = time.monotonic()
            self._is_looking = False

    def _note(self, report: HangReport) -> None:
        diagnosis = report.diagnoses[0]
        key = _key(diagnosis)
        if self._run is None or self._run.done or key == self._noted or session_of(self._mesh).num_prompts:
            return
        self._noted = key
        if not diagnosis.is_harmless:
            self._view.note(f"why: {diagnosis.text}. More: %mesh why")
            self._seen = self._view.version


def _key(diagnosis: Diagnosis) -> tuple[object, ...]:
    """Return the facts that tell one diagnosis from another: not how long it has been so."""
    return (diagnosis.kind, diagnosis.ranks)
