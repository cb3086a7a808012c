"""`mesh` as the last line of a cell: a live card, and a static picture of its last state.

One output holds four things, and each front end takes the best that it knows: our own type, which the
JupyterLab extension draws and keeps live through the server, so that it needs no kernel; a widget, for front
ends without the extension; HTML; and text. The last three are renewed after each cell in which the mesh has
changed and when it ends, so a saved notebook shows what was last.
"""

from __future__ import annotations

import sys
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from monarch_nb._display import card_html
from monarch_nb._protocol.shown import MimeBundle
from monarch_nb.exceptions import MeshError
from monarch_nb.status import MeshStatus

if TYPE_CHECKING:
    from monarch_nb._widgets.mesh_widget import MeshWidget
    from monarch_nb.mesh import Mesh

MIME = "application/vnd.monarch-nb.mesh+json"
WIDGET_MIME = "application/vnd.jupyter.widget-view+json"


class Card:
    """The card of one mesh in one kernel; only its latest output is updated."""

    def __init__(self, mesh: Mesh, shell: Any) -> None:
        self._mesh = weakref.proxy(mesh)
        self._name = mesh.name
        self._shell = shell
        self._handle: Any = None
        self._widget: MeshWidget | None = None
        self._gist: object = None
        self._last: MeshStatus | None = None
        self._ended = ""

    def show(self) -> None:
        """Show the card in the running cell."""
        from IPython.display import display

        status = self._mesh.status()
        self._ended = ""
        if self._widget is None:
            self._widget = _make_widget(self._mesh, status, self._shell)
            self._shell.events.register("post_run_cell", self._after_cell)
        bundle = self._bundle(status)
        self._handle = display(bundle, raw=True, display_id=True)

    def _bundle(self, status: MeshStatus) -> MimeBundle:
        self._last, self._gist = status, _gist(status)
        bundle: MimeBundle = {
            "text/plain": status.text(),
            "text/html": card_html.render(status, self._ended),
            MIME: {"snapshot": status.as_dict(), "ended": self._ended, "when": round(time.time(), 3)},
        }
        if self._widget is not None:
            bundle[WIDGET_MIME] = {"version_major": 2, "version_minor": 0, "model_id": self._widget.model_id}
        return bundle

    def _after_cell(self, result: object = None) -> None:
        """Update the picture if the mesh has changed."""
        if self._handle is None or self._ended:
            return
        try:
            status = self._mesh.status(fresh=False)
        except (MeshError, ReferenceError):
            self.show_ended(f"mesh {self._name!r} has ended, or this kernel has left it")
            return
        if _gist(status) != self._gist:
            self._handle.update(self._bundle(status), raw=True)

    def show_ended(self, reason: str) -> None:
        """Show that no more changes come, and why: the picture stays, and the widget goes."""
        if self._handle is None or self._ended or self._last is None:
            return
        self._ended = reason
        if self._widget is not None:
            self._widget.show_ended(reason)
            self._widget = None
            with suppress(ValueError):
                self._shell.events.unregister("post_run_cell", self._after_cell)
        with suppress(Exception):  # the front end may have left already
            self._handle.update(self._bundle(self._last), raw=True)


def _gist(status: MeshStatus) -> object:
    """Return the part of a state that is worth a new picture."""
    return (
        status.sizes,
        [(r.state, r.doing, r.reason) for r in status.ranks],
        [h.state for h in status.hosts],
        status.health,
    )


def _make_widget(mesh: Mesh, status: MeshStatus, shell: Any) -> MeshWidget | None:
    """Return a widget where a kernel can talk to a front end."""
    if not hasattr(shell, "kernel") or "ipykernel" not in sys.modules:
        return None
    try:
        from monarch_nb._widgets.mesh_widget import MeshWidget
    except ImportError:
        return None
    return MeshWidget(mesh, status)


_cards: weakref.WeakKeyDictionary[Mesh, Card] = weakref.WeakKeyDictionary()


def show_card(mesh: Mesh) -> None:
    """Show a mesh's card in the running cell; as text where there's no notebook."""
    from IPython import get_ipython

    shell = get_ipython()
    if shell is None:
        print(mesh.status())
        return
    card = _cards.get(mesh)
    if card is None:
        card = _cards[mesh] = Card(mesh, shell)
        _end_with(mesh)
    card.show()


def _end_with(mesh: Mesh) -> None:
    """Leave a picture as soon as the mesh has ended, whoever has ended it."""
    known = weakref.ref(mesh)

    def lost(reason: str) -> None:
        found = known()
        if found is not None:
            end_cards(reason, found)

    mesh._session.when_lost.append(lost)
    mesh.when_stopped.append(lost)


def end_cards(reason: str, mesh: Mesh | None = None) -> None:
    """Leave pictures instead of the cards of a mesh, or of all."""
    for each, card in list(_cards.items()):
        if mesh is None or each is mesh:
            card.show_ended(reason)
