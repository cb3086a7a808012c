"""One display of everything that was missed: cells that ended unwatched, cells that still run, output of
actors.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from monarch_nb._display import CellView, LiveDisplay, StackView, ViewWatcher
from monarch_nb._protocol.journal import Seen
from monarch_nb.actor.handle import session_of, transport_of

if TYPE_CHECKING:
    from monarch_nb.mesh import CellRun, Mesh
    from monarch_nb.mesh.history import Entry

REPLAY_S = 60.0


def show_missed(mesh: Mesh) -> None:
    """Show the missed output, in order of its beginning, and mark it as seen. Running cells continue
    streaming into the display.
    """
    missed = mesh.journal.missed()
    views: list[CellView] = []
    runs: list[CellRun] = []
    if missed.position is not None:
        view = CellView(range(len(mesh)), len(mesh), title="output of actors while no client was attached")
        _replay_actors(mesh, view, missed.position)
        if view.visible():
            views.append(view)
    for entry in missed.cells:
        view = CellView(entry.ran_on, entry.width(mesh), title=_title(entry))
        views.append(view)
        run = mesh.journal.replay(entry, ViewWatcher(view, show_errors=True, may_leave_out=True))
        view.describe_rest(run.goes_on)
        view.started(ago_s=time.time() - entry.when)
        runs.append(run)
    if not views:
        return
    display = LiveDisplay(StackView(views))
    running = [
        (run, view, entry)
        for run, view, entry in zip(runs, views[-len(runs) :] if runs else [], missed.cells, strict=True)
        if entry.ended is None
    ]
    for run, entry in zip(runs, missed.cells, strict=True):
        if entry.ended is not None:
            run.wait(REPLAY_S)
            run.seen()
    if not running:
        display.finish()
        return
    for run, _, _ in running:
        run.wait_caught_up(REPLAY_S)
    display.update()
    left = [len(running)]
    for run, view, entry in running:
        run.when_done(lambda run=run, view=view, entry=entry: _ended(display, run, view, entry, left))  # type: ignore[misc]


def _ended(display: LiveDisplay, run: CellRun, view: CellView, entry: Entry, left: list[int]) -> None:
    """Handle the end of a cell that still ran: retitle its view, and finish the display after the last one.
    Called in the reading thread, one at a time.
    """
    view.retitle(_title(entry, ended=not run.is_left))
    if run.fault is not None:
        view.note(run.goes_on() if run.is_left else str(run.fault))
    if not run.is_left:
        run.seen()
    left[0] -= 1
    if not left[0]:
        display.finish_soon()


def _replay_actors(mesh: Mesh, view: CellView, position: int) -> None:
    feed = mesh.journal.output(ViewWatcher(view), position=position, actors=True)
    transport_of(mesh).reader.wait(feed, time.monotonic() + REPLAY_S)
    session_of(mesh).tell(Seen(others=True))
    view.close()


def _title(entry: Entry, *, ended: bool = False) -> str:
    first = next((line for line in entry.source.splitlines() if line.strip()), "")
    clock = time.strftime("%H:%M:%S", time.localtime(entry.when))
    state = "ended" if ended else "still running" if entry.ended is None else entry.status
    number = f"In[{entry.number}]" if entry.number else "cell"
    return f"#{entry.n} {number} of {entry.who}, {clock}, {state}: {first[:60]}"
