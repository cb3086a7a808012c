"""The card as a widget, for front ends without our extension: one anywidget for all ranks; after the first
state only changes are sent.

Its buttons ask this kernel, in a thread of their own: they work while a cell runs. While nobody looks,
nothing is sent.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import msgspec
import traitlets

from monarch_nb._commands.command import Place, at_place
from monarch_nb._commands.table import COMMANDS
from monarch_nb.exceptions import MeshError
from monarch_nb.status import FullStatus, MeshStatus, StatusChange, StatusDelta

if TYPE_CHECKING:
    from monarch_nb._client.state import StatusFeed
    from monarch_nb.mesh import Mesh

SCRIPT = Path(__file__).parent / "static" / "card.js"
BUTTONS = at_place(COMMANDS, Place.CARD)
_SAYS = {"interrupt": "interrupted", "stop": "stopped"}
"""Text that a button displays instead of the command's own."""


class MeshWidget(anywidget.AnyWidget):
    """The card of a mesh as a widget.

    Attributes:
        snapshot: the state, as `MeshStatus.as_dict` gives it.
        delta: the latest change (a `StatusDelta`), with a count so that equal changes differ.
        ended: why the updates have ended.
    """

    _esm = SCRIPT.read_text(encoding="utf-8")
    snapshot = traitlets.Dict().tag(sync=True)
    delta = traitlets.Dict().tag(sync=True)
    ended = traitlets.Unicode().tag(sync=True)

    def __init__(self, mesh: Mesh, status: MeshStatus) -> None:
        super().__init__(snapshot=_as_json(status))
        self._mesh = mesh
        self._feed: StatusFeed[StatusChange] | None = None
        self._num_views = 0
        self._tick = 0
        self._lock = threading.Lock()
        self.on_msg(self._take_message)
        _answer_beside_cells(self)

    # --- state; `_take_change` runs in the reading thread

    def _take_change(self, change: StatusChange) -> None:
        with self._lock:
            self._tick += 1
            if isinstance(change, FullStatus):
                self.snapshot = _as_json(change.status)
            else:
                self.delta = {**_as_json(change), "tick": self._tick}
            feed = self._feed
        if feed is not None:
            feed.taken()

    def _watch(self) -> None:
        """Send changes while somebody looks."""
        with self._lock:
            wanted = self._num_views > 0 and not self.ended
            feed, self._feed = self._feed, self._feed if wanted else None
        if wanted and feed is None:
            with suppress(MeshError):
                self._feed = self._mesh.watch_status(self._take_change, self._mesh_ended)
        elif feed is not None and not wanted:
            feed.close()

    def _mesh_ended(self) -> None:
        self.ended = self._mesh._transport.lost or f"mesh {self._mesh.name!r} has ended"

    def show_ended(self, reason: str) -> None:
        """Show that no more changes come, and why; close the feed and the widget."""
        self.ended = reason
        self._watch()
        self.close()

    # --- buttons

    def _take_message(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        if content.get("kind") == "view":
            self._num_views = max(0, self._num_views + (1 if content.get("visible") else -1))
            threading.Thread(target=self._watch, name="monarch-nb-card", daemon=True).start()
        elif content.get("kind") == "action":
            threading.Thread(target=self._act, args=(content,), name="monarch-nb-card", daemon=True).start()

    def _act(self, content: dict[str, Any]) -> None:
        try:
            text, ok = self._do(str(content.get("action")), str(content.get("ranks") or "all")), True
        except (MeshError, ValueError) as error:
            text, ok = str(error), False
        self.send({"kind": "answer", "id": content.get("id"), "ok": ok, "text": text})

    def _do(self, action: str, ranks: str) -> str:
        if action not in BUTTONS:
            raise ValueError(f"there's no button {action!r}")
        text = BUTTONS[action].ask_text(self._mesh, ranks=ranks)
        return _SAYS.get(action, text)


def _as_json(value: MeshStatus | StatusDelta) -> dict[str, Any]:
    """Return data as JSON has it: lists for tuples."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value))
    return found


def _answer_beside_cells(widget: MeshWidget) -> None:
    """Have messages taken while a cell runs.

    JupyterLab sends them to a subshell, but ipykernel hands them to the shell that has last sent on the comm,
    which is busy. Where the kernel doesn't know this, they are taken after the cell.
    """
    comm: Any = widget.comm
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda _data, default: default
