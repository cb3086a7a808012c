"""Sends output to a watcher: a cell's display, a notebook's own calls, `logs --follow`.

The journal on disk is the one source. A watch that keeps up gets each piece as it is written; one that is
more than `WINDOW_BYTES` ahead of what its client has taken is left to read on from disk later. So a slow or
stopped client costs the host process nothing, and misses nothing but what the journal itself had to drop or
couldn't keep, which it's told.

A display of a cell has no use for millions of lines, and a kernel that folds them all is busy long after the
ranks. Where the client has said so, lines are left out of what it hasn't kept up with, all but the last ones.
"""

from __future__ import annotations

from collections.abc import Callable

from monarch_nb._host.controller.left_out import LeftOut
from monarch_nb._host.loop import Loop
from monarch_nb._journal import record as records
from monarch_nb._journal.output import SCAN_BYTES, Appended, OutputStore
from monarch_nb._journal.record import Record
from monarch_nb._protocol.base import encode
from monarch_nb._protocol.cells import CaughtUp, RecordsPrinted, WatchMessage
from monarch_nb._units import size_text
from monarch_nb._wire import address
from monarch_nb._wire import message as wire

WINDOW_BYTES = 8 << 20
KEEPS_UP_BYTES, LAST_BYTES = 1 << 21, 1 << 19
"""How far a client may be behind before lines are left out, and how many of the last bytes it's sent then."""
MANY_LINES = 2000
"""Lines in `SCAN_BYTES` from which they are left out: it's the number of lines that takes time."""
_BATCH_BYTES = 1 << 18
_MAX_CELLS = 100
"""Maximum number of watched cells; beyond that, the oldest ended one is no longer watched for late output."""

Wanted = Callable[[Record], bool]


class Watch:
    """One client's watch on part of the output. Owned by the loop thread.

    Args:
        client: proc id of the watching client.
        ref: number under which the client waits; 0: output of its own calls.
        wanted: predicate that selects records, which it sees without their data.
        position: where in the journal to begin; None: with what is printed from now on.
        until: where to end; None: when `tell` is called with `last`.
        may_leave_out: whether lines may be left out where the client doesn't keep up.
    """

    def __init__(
        self,
        loop: Loop,
        store: OutputStore,
        send: Callable[[int, bytes], None],
        client: int,
        ref: int,
        wanted: Wanted,
        position: int | None = None,
        until: int | None = None,
        may_leave_out: bool = False,
    ) -> None:
        self.client = client
        self.ref = ref
        self._loop = loop
        self._store = store
        self._send = send
        self._wanted = wanted
        self._until = until
        self._position = store.end if position is None else position
        self._live = position is None
        self._may_leave_out = may_leave_out
        self._window = KEEPS_UP_BYTES if may_leave_out else WINDOW_BYTES
        self._is_behind = False
        """Whether output has waited for the client since lines were left out last."""
        self._left_out = LeftOut()
        self._left_out_up_to = 0
        self._batch: list[bytes] = []
        self._batch_bytes = 0
        self._ahead_bytes = 0
        self._num_unkept_bytes = 0
        """Number of bytes that couldn't be sent, and aren't on disk."""
        self._scheduled = False
        self._scheduled_soon = False
        self._messages: list[WatchMessage] = []
        self._is_last = False
        self.over = False
        self.ended = False
        """Whether the cell is over; its late output is still shown in its place."""
        if not self._live:
            self._schedule()

    def offer(self, new: Appended) -> None:
        """Send a new record, or leave it for later if the client is behind. The record is at the end of the
        journal if it could be kept.
        """
        record, packed, kept = new
        if self.over or (kept and not self._live) or not self._wanted(record):
            return
        if not self._live or self._ahead_bytes > (self._window if kept else WINDOW_BYTES):
            self._leave_behind(new)
            return
        self._note_unkept()
        if record.kind == records.RESULT:
            self._batch.append(packed)  # ranks mostly end together, and then their results are sent together
            self._batch_bytes += len(packed)
            self._schedule_soon()
        else:
            self._add(self._left_out.go_on(packed))

    def _leave_behind(self, new: Appended) -> None:
        """Leave a new record in the journal, since the client hasn't acknowledged the previous ones. If the
        journal lacks the record, a cell's result is sent at once, and other output counts as missing.
        """
        if new.kept:
            self._live, self._is_behind = False, True
            self._position = self._store.end - len(new.packed)
        elif new.record.kind == records.RESULT:  # the end of a cell must be known
            self._add(new.packed)
        else:
            self._num_unkept_bytes += len(new.packed)

    def _note_unkept(self) -> None:
        """Tell the watcher how much output is missing in the journal, if any is."""
        if self._num_unkept_bytes:
            num, self._num_unkept_bytes = self._num_unkept_bytes, 0
            self._add(
                _note(
                    f"{size_text(num)} of output are missing here: the journal can't be written, and "
                    "they came faster than they could be shown"
                )
            )

    def mark(self, record: Record, packed: bytes) -> None:
        """Send a record that the journal doesn't keep, behind what was offered so far."""
        if not self.over and self._wanted(record):
            self._add(packed)

    def tell(self, message: WatchMessage, *, last: bool = False, soon: bool = False) -> None:
        """Send a message about the watched object, after all output so far.

        Args:
            last: there's no more to come.
            soon: it may wait a little for others to go with.
        """
        self._messages.append(message)
        self._is_last = self._is_last or last
        if soon:
            self._schedule_soon()
        else:
            self._schedule()

    def _schedule_soon(self) -> None:
        if not self._scheduled_soon:
            self._scheduled_soon = True
            self._loop.call_shortly(self._go_on_soon)

    def _go_on_soon(self) -> None:
        self._scheduled_soon = False
        if self._batch or self._messages:
            self._schedule()

    def taken(self, num_bytes: int) -> None:
        """Record that the client has acknowledged a number of bytes, and continue if the journal has more."""
        self._ahead_bytes -= num_bytes
        if not self._live:
            self._schedule()

    def _add(self, packed: bytes) -> None:
        self._batch.append(packed)
        self._batch_bytes += len(packed)
        if self._batch_bytes >= _BATCH_BYTES:
            self.flush()
        else:
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._scheduled = False
        if self.over:
            return
        if not self._live:
            self._catch_up()
        if self._live and (self._messages or self._is_last):
            self._send_messages()
        else:
            self.flush()

    def _catch_up(self) -> None:
        """Read one part of the journal from disk; other callbacks run before the next part."""
        if self._ahead_bytes > self._window:
            self._is_behind = True
            return  # `taken` continues
        end = self._store.end if self._until is None else min(self._until, self._store.end)
        if self._may_leave_out and self._is_behind and end - self._position > KEEPS_UP_BYTES:
            self._left_out_up_to = end - LAST_BYTES
        self._is_behind = False
        leaves_out = self._left_out_up_to - self._position
        part = min(leaves_out, SCAN_BYTES) if leaves_out > 0 else SCAN_BYTES
        scan = self._store.scan(self._position, self._wanted, part)
        self._position = scan.position
        if scan.num_lost_bytes:
            self._add(
                _note(
                    f"{size_text(scan.num_lost_bytes)} of older output were dropped: the journal keeps "
                    f"{size_text(self._store.max_bytes)}"
                )
            )
        is_left_out = leaves_out > 0 and scan.data.count(b"\n") >= MANY_LINES
        found = (self._left_out.leave_out if is_left_out else self._left_out.go_on)(scan.data)
        if found:
            self._add(found)
        if self._position >= end:
            self._live = True
            self._note_unkept()
            self._is_last = self._is_last or self._until is not None
            self._messages.append(CaughtUp())
        else:
            self._schedule()

    def flush(self) -> None:
        """Send the collected records at once."""
        if self._batch:
            payload = b"".join(self._batch)
            self._batch, self._batch_bytes = [], 0
            self._ahead_bytes += len(payload)
            self._send(
                self.client,
                wire.pack(
                    wire.OUTPUT, src=address.CONTROLLER, dst=self.client, ref=self.ref, payload=payload
                ),
            )

    def _send_messages(self) -> None:
        self._note_unkept()
        messages: list[WatchMessage] = []
        if self._batch:
            payload = b"".join(self._batch)
            self._batch, self._batch_bytes = [], 0
            self._ahead_bytes += len(payload)
            messages.append(RecordsPrinted(payload))
        messages += self._messages
        self._messages.clear()
        last, self._is_last = self._is_last, False
        self.ended = self.ended or last
        self.over = last and self._until is not None
        self._send(
            self.client,
            wire.pack(
                wire.REPLY,
                src=address.CONTROLLER,
                dst=self.client,
                ref=self.ref,
                flags=wire.END if last else 0,
                payload=encode(messages),
            ),
        )


def _note(text: str) -> bytes:
    return records.pack(Record(records.NOTE, "stderr", 0, 0, 0, 0, 0.0, text.encode()))


class Watches:
    """All watches of a controller: those of cells by number, so that each record is offered to few; and the
    others.
    """

    def __init__(self) -> None:
        self._of_cells: dict[int, list[Watch]] = {}
        self._others: list[Watch] = []

    def add(self, watch: Watch, cell: int | None = None) -> Watch:
        """Enter a watch; `cell`: it is of this cell only."""
        if cell is None:
            self._others = [w for w in self._others if not w.over]
            self._others.append(watch)
            return watch
        self._of_cells.setdefault(cell, []).append(watch)
        if len(self._of_cells) > _MAX_CELLS:
            oldest = next(iter(self._of_cells))
            if all(w.over or w.ended for w in self._of_cells[oldest]):
                del self._of_cells[oldest]
        return watch

    def offer(self, new: Appended) -> None:
        """Offer a new record to the watches that may include it."""
        for watch in self._of_cells.get(new.record.origin, ()):
            watch.offer(new)
        for watch in self._others:
            watch.offer(new)

    def _all(self) -> list[Watch]:
        return [*self._others, *(w for watches in self._of_cells.values() for w in watches)]

    def find(self, client: int, ref: int) -> Watch | None:
        """Return a client's watch."""
        return next((w for w in self._all() if w.client == client and w.ref == ref and not w.over), None)

    def drop_client(self, client: int) -> None:
        """End all watches of a client that is gone."""
        for watch in self._all():
            if watch.client == client:
                watch.over = True
        self._others = [w for w in self._others if not w.over]
        kept = {n: [w for w in watches if not w.over] for n, watches in self._of_cells.items()}
        self._of_cells = {n: watches for n, watches in kept.items() if watches}

    def drop(self, client: int, ref: int) -> None:
        """End one watch of a client."""
        watch = self.find(client, ref)
        if watch is not None:
            watch.over = True
