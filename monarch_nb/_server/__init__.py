"""The Jupyter server extension: this user's meshes over REST and one WebSocket, on Jupyter's own port.

    browser -- handlers, stream -- meshes -- links -- controllers

`handlers` and `stream` only translate; `meshes` knows which meshes there are; a `link` is the connection to
one controller, with a `mirror` of its state. No kernel takes part: it all works while kernels are busy, or
gone. With no page open there is no connection and no timer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch_nb._server.extension import MeshExtension


def extension_class() -> type[MeshExtension]:
    """Return the class of the extension."""
    from monarch_nb._server.extension import MeshExtension

    return MeshExtension
