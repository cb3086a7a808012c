"""What ranks print, for those who listen: a cell's view, or by default this program's own output.

`take` is called in the reading thread and must be quick; default output is folded and written by the reader's keeper.
"""

from __future__ import annotations

import codecs
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from monarch_nb._post.office import Office
from monarch_nb._wire import marks
from monarch_nb._wire.message import Message

FOLD_S = 0.1


class Listener(Protocol):
    """Takes the output of one cell, in order for each rank. Called in the reading thread."""

    def text(self, rank: int, stream: str, text: str) -> None:
        """A rank has written."""
        ...

    def display(self, rank: int, content: dict[str, Any]) -> None:
        """A rank shows something rich."""
        ...

    def end(self, rank: int) -> None:
        """All output of the cell on this rank has come."""
        ...


class OutputHub:
    """Gives arriving output to its listener. `take` runs in the reading thread."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._listeners: dict[int, Listener] = {}
        self._decoders: dict[tuple[int, int, str], Any] = {}
        self.default = StandardOutput(office)
        office.on_output = self.take

    def listen(self, origin: int, listener: Listener) -> None:
        """Give output of cell `origin` to `listener` from now on."""
        self._listeners[origin] = listener

    def leave(self, origin: int) -> None:
        """Give output of cell `origin` to nobody in particular any more."""
        self._listeners.pop(origin, None)

    def take(self, message: Message) -> None:
        """Take an OUTPUT message."""
        kind, _, stream = message.name.decode().partition(";")
        listener = self._listeners.get(message.origin)
        if kind == marks.TEXT:
            text = self._decode(message, stream)
            if listener is not None:
                listener.text(message.slot, stream, text)
            else:
                self.default.text(message.src, message.context.decode(), message.slot, stream, text)
        elif listener is not None:
            if kind == marks.END:
                listener.end(message.slot)
            else:
                import json

                listener.display(message.slot, json.loads(message.payload.tobytes()))

    def _decode(self, message: Message, stream: str) -> str:
        """Decode UTF-8 that may be cut anywhere."""
        key = (message.src, message.origin, stream)
        decoder = self._decoders.get(key)
        if decoder is None:
            decoder = self._decoders[key] = codecs.getincrementaldecoder("utf-8")("replace")
        return str(decoder.decode(message.payload.tobytes()))


class StandardOutput:
    """Writes what ranks print to this program's stdout and stderr: folded by rank set, or as it comes."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._lock = threading.Lock()
        self._folds: dict[str, Any] = {}
        self._armed = False
        self.enabled = True
        self.window_s: float | None = FOLD_S
        self.write: Callable[[str, str], None] = _write
        self.sizes: dict[str, int] = {}
        """Number of ranks of each group of procs, as far as known."""

    def text(self, proc: int, group: str, rank: int, stream: str, text: str) -> None:
        """Take text of a rank."""
        if not self.enabled:
            return
        if self.window_s is None:
            self.write(stream, text)
            return
        with self._lock:
            fold = self._folds.get(group)
            if fold is None:
                from monarch_nb.display.fold import Fold

                size = max(self.sizes.get(group, 0), rank + 1)
                fold = self._folds[group] = Fold(range(size), max_rows=None)
            fold.feed(rank, stream, text)
            if self._armed:
                return
            self._armed = True
        self._office.reader.call_at(time.monotonic() + self.window_s, self.flush)

    def flush(self) -> None:
        """Write what has been folded."""
        with self._lock:
            self._armed = False
            texts = [fold.drain() for fold in self._folds.values()]
        for text in texts:
            if text:
                self.write("stdout", text)


def _write(stream: str, text: str) -> None:
    target = sys.stderr if stream == "stderr" else sys.stdout
    try:
        target.write(text)
        target.flush()
    except (OSError, ValueError):
        return  # the program's own output is closed: nobody to tell
