"""Receives the output of ranks outside of cells: output of actors that this program has called, and output
without an origin.

It's folded by rank set and written where the cell that made the call shows its output. `receive_records` runs
in the reading thread and must be quick; the writing is done by the background reader.

What a rank prints before an answer is shown before the answer is had: the answer says up to which mark in the
rank's output that is (`Transport.owed`), and who asks for the value waits for the mark (`catch_up`). Of a
rank that hasn't printed, the answer says nothing, and nobody waits.
"""

from __future__ import annotations

import codecs
import contextvars
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from monarch_nb._client.feed import ACK_BYTES, Feed
from monarch_nb._client.preferences import preferences
from monarch_nb._client.waiting import Wakeup
from monarch_nb._journal import record as records
from monarch_nb._journal.record import Record
from monarch_nb._protocol.cells import Taken
from monarch_nb._protocol.shown import Shown
from monarch_nb._transport.pending import in_callback
from monarch_nb._transport.transport import Transport, TransportClosed
from monarch_nb._wire import address
from monarch_nb._wire.message import Message

FOLD_S = 0.1
CATCH_UP_S = 3.0
"""How long an answer waits for output that was printed before it: the controller may be busy, or the output
may have been dropped.
"""

_MAX_FOLDS = 64
_MAX_ROWS = 1000
"""How many written lines are remembered, to merge equal lines that ranks print later."""
_MAX_LATE = 50


class OutputHub:
    """The dispatcher of output that no watch has asked for, to this program's own streams. `receive_records`
    runs in the reading thread.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._decoders: dict[tuple[int, int, int, str], Any] = {}
        self._num_taken = 0
        self._late: dict[int, Feed] = {}
        self.groups: dict[int, str] = {}
        self.default = StandardOutput(transport)
        self._reached: dict[int, int] = {}
        """The last mark that has arrived from each proc."""
        self._wakeups: list[Wakeup] = []
        transport.on_output = self.receive_records
        transport.on_printed = self._owe
        transport.catch_up = self.catch_up

    def learn_groups(self, groups: dict[str, int]) -> None:
        """Learn the names of groups of ranks."""
        self.groups.update((index, name) for name, index in groups.items())

    def expect_late(self, feed: Feed) -> None:
        """Deliver late records of an ended feed to its watcher: output that a cell's threads print after the
        cell has ended.
        """
        self._late[feed.ref] = feed
        if len(self._late) > _MAX_LATE:
            del self._late[next(iter(self._late))]

    def receive_records(self, message: Message) -> None:
        """Handle records of output."""
        if message.ref:
            feed = self._late.get(message.ref)
            if feed is not None:
                feed.output(message)
            return
        data = message.payload
        for record in records.unpack(data):
            if record.kind == records.TEXT:
                group = self.groups.get(record.group, str(record.group))
                self.default.text(record.origin, group, record.rank, record.stream, self._decode(record))
            elif record.kind == records.DISPLAY:
                self.default.display(record.origin, Shown.of_json(record.data))
            elif record.kind == records.SETTLED:
                self._settled(*records.MARK.unpack(record.data))
        self._num_taken += len(data)
        if self._num_taken >= ACK_BYTES:
            num, self._num_taken = self._num_taken, 0
            self._transport.ask(address.CONTROLLER, Taken(0, num))

    def _owe(self, proc: int, number: int) -> None:
        """Record the mark up to which a rank's output must arrive before its answer is shown: the rank
        printed it before it answered. Called in the reading thread.
        """
        self._transport.owed[proc] = number

    def _settled(self, proc: int, number: int) -> None:
        self._reached[proc] = number
        self._ring_if_all_has_come()

    def forget(self, proc: int) -> None:
        """Forget the marks of a rank that has died: missing output won't arrive, and a restarted rank counts
        from the beginning. Called in the reading thread.
        """
        self._reached.pop(proc, None)
        self._transport.owed.pop(proc, None)
        self._ring_if_all_has_come()

    def _ring_if_all_has_come(self) -> None:
        for wakeup in list(self._wakeups) if self._wakeups and self._has_come(self._transport.owed) else ():
            wakeup.wake()

    def _has_come(self, owed: dict[int, int]) -> bool:
        return not any(_is_before(self._reached.get(proc, 0), number) for proc, number in list(owed.items()))

    def catch_up(self) -> None:
        """Show the output that ranks printed before the answers that have arrived; wait for it for a bounded
        time.
        """
        if in_callback() or not self.default.enabled:
            return
        owed = dict(self._transport.owed)
        if not self._has_come(owed):
            self._wait_for_the_rest()
        for proc, number in owed.items():
            if self._transport.owed.get(proc) == number:
                self._transport.owed.pop(proc, None)
        self.default.flush()

    def _wait_for_the_rest(self) -> None:
        wakeup = Wakeup(self._transport)
        self._wakeups.append(wakeup)
        if self._has_come(self._transport.owed):
            wakeup.ready = True  # the output arrived before anybody could be woken
        try:
            with suppress(TransportClosed):
                self._transport.reader.wait(wakeup, time.monotonic() + CATCH_UP_S)
        finally:
            self._wakeups.remove(wakeup)

    def _decode(self, record: Record) -> str:
        """Decode UTF-8 that may be split anywhere."""
        key = (record.group, record.rank, record.origin, record.stream)
        decoder = self._decoders.get(key)
        if decoder is None:
            decoder = self._decoders[key] = codecs.getincrementaldecoder("utf-8")("replace")
        return str(decoder.decode(record.data))


def _is_before(one: int, other: int) -> bool:
    """Compare numbers of marks, which wrap around after 32 bits."""
    return 0 < (other - one) & 0xFFFFFFFF < 1 << 31


class StandardOutput:
    """The writer of what ranks print to this program's stdout and stderr: folded by rank set, or in order of
    arrival.

    In a notebook, output that a cell's calls have caused goes to that cell, even if it arrives late.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        self._writing = threading.RLock()
        self._printed: dict[tuple[int, str], Any] = {}
        self._contexts: dict[int, contextvars.Context] = {}
        self._armed = False
        self.enabled = True
        self.window_s: float | None = FOLD_S
        self.write: Callable[[str, str], None] = _write
        self.show: Callable[[Shown], None] = _show
        self.sizes: dict[str, int] = {}
        """Number of ranks of each group of procs, as far as known."""

    @property
    def _is_on(self) -> bool:
        return self.enabled and preferences.shows_output

    def remember(self, origin: int, context: contextvars.Context) -> None:
        """Route output with the origin `origin` to this context from now on, as ipykernel does."""
        self._contexts[origin] = context
        if len(self._contexts) > 1000:
            del self._contexts[next(iter(self._contexts))]

    def text(self, origin: int, group: str, rank: int, stream: str, text: str) -> None:
        """Handle text of a rank."""
        if not self._is_on:
            return
        if self.window_s is None:
            self._run(origin, self.write, stream, text)
            return
        with self._lock:
            key = (origin, group)
            printed = self._printed.get(key)
            if printed is None:
                from monarch_nb._display.printed import Printed

                printed = self._printed[key] = Printed(max(self.sizes.get(group, 0), rank + 1))
            printed.feed(rank, stream, text)
            if self._armed:
                return
            self._armed = True
        self._transport.reader.call_at(time.monotonic() + self.window_s, self.flush)

    def display(self, origin: int, shown: Shown) -> None:
        """Display rich output."""
        if self._is_on:
            self._run(origin, self.show, shown)

    def _run(self, origin: int, function: Callable[..., None], *args: Any) -> None:
        context = self._contexts.get(origin)
        if context is None:
            function(*args)
        else:
            context.copy().run(function, *args)

    def flush(self) -> None:
        """Write the folded output. When it returns, all output received before has been written, by this
        thread or another one.
        """
        with self._writing:
            with self._lock:
                self._armed = False
                texts = [(origin, printed.drain(_MAX_ROWS)) for (origin, _), printed in self._printed.items()]
                for key in list(self._printed)[:-_MAX_FOLDS]:
                    del self._printed[key]
            for origin, text in texts:
                if text:
                    self._run(origin, self.write, "stdout", text)


def _write(stream: str, text: str) -> None:
    target = sys.stderr if stream == "stderr" else sys.stdout
    try:
        target.write(text)
        target.flush()
    except (OSError, ValueError):
        return  # the program's own output is closed


def _show(shown: Shown) -> None:
    """Display an actor's rich output, where there is a front end; otherwise print its text."""
    if shown.bar is not None:
        _write("stdout", f"\r{shown.bar.text}" if shown.bar.text else "")
    if not shown.data:
        return  # an actor doesn't clear output of others
    ipython = sys.modules.get("IPython")
    if ipython is not None and ipython.get_ipython() is not None:
        from IPython.display import display

        display(shown.data, raw=True, metadata=shown.metadata)
    else:
        _write("stdout", str(shown.data.get("text/plain", "")) + "\n")
