"""Displays a mesh that is the last line of a notebook's cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch_nb._client.card import show_card
from monarch_nb._display import card_html
from monarch_nb._transport.transport import TransportClosed
from monarch_nb.actor.handle import transport_of
from monarch_nb.actor.proc_mesh import why_stopped
from monarch_nb.exceptions import MeshEnded, MeshError

if TYPE_CHECKING:
    from monarch_nb.mesh.core import Mesh


def show(mesh: Mesh) -> None:
    """Show the card of a mesh; of one that has ended, say so."""
    if transport_of(mesh).closed:
        print(_left(mesh))
        return
    try:
        show_card(mesh)
    except MeshEnded as error:
        print(error)  # its text explains everything
    except (MeshError, TransportClosed) as error:
        print(f"mesh {mesh.name!r} has ended ({error}). Start one anew: %mesh start {mesh.name}")


def mime(mesh: Mesh) -> tuple[str, str]:
    """Return the type and the text of a picture of the present state."""
    try:
        return "text/html", card_html.render(mesh.status())
    except (MeshError, TransportClosed) as error:
        return "text/plain", _left(mesh) if transport_of(mesh).closed else str(error)


def _left(mesh: Mesh) -> str:
    """Return why there is nothing to show: this program has stopped the mesh, or left it."""
    reason = why_stopped(mesh)
    if reason:
        return f"mesh {mesh.name!r} has ended: {reason}. Start one anew: %mesh start {mesh.name}"
    return f"this notebook has left mesh {mesh.name!r}. Come back, if it still runs: %mesh attach {mesh.name}"
