"""The client's end of a watch: receives what the controller sends about a cell, or about a stretch of the
journal.

A feed is one pending under one ref. Output and events arrive in the reading thread, in order, and go straight
to the watcher, which must be quick. The thread that waits for the end usually is the reading thread.
"""

from __future__ import annotations

import codecs
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from monarch_nb._journal import record as records
from monarch_nb._protocol.cells import (
    CaughtUp,
    CellBegan,
    CellFailure,
    CellMessage,
    CellOver,
    CellWaits,
    RankDone,
    RecordsPrinted,
    Taken,
    WatchMessage,
)
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.ranks import InterruptCell
from monarch_nb._protocol.shown import CellEnd, Shown
from monarch_nb._protocol.states import CellStatus
from monarch_nb._transport.pending import Body, Pending
from monarch_nb._transport.transport import Transport
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb._wire.message import Message

ACK_BYTES = 1 << 20
"""Number of received bytes after which the controller is sent an acknowledgement."""


class Watcher(Protocol):
    """The receiver of what a watched cell, or a watched stretch of the journal, produces. Called in the
    reading thread.
    """

    def text(self, rank: int, stream: str, text: str) -> None:
        """Handle output text of a rank."""
        ...

    def display(self, rank: int, shown: Shown) -> None:
        """Handle rich output of a rank."""
        ...

    def ended(self, rank: int, end: CellEnd) -> None:
        """Handle the end of a cell on one rank."""
        ...

    def ended_well(self, seconds: Mapping[int, float]) -> None:
        """Handle the well-ended ranks without a value to show, with their run times, by rank."""
        ...

    def waits(self, text: str) -> None:
        """Handle the reason why the cell waits; an empty text: it no longer waits."""
        ...

    def message(self, text: str) -> None:
        """Handle a message for the user."""
        ...


class LeavesOut(Protocol):
    """The part of a watcher that need not be sent all lines: that lines were left out is told it."""

    may_leave_out: bool

    def left_out(self, num_lines: int) -> None:
        """Handle that lines were left out here, for they came faster than this watcher could take them."""
        ...


def may_leave_out(watcher: object) -> bool:
    """Say whether a watcher need not be sent all lines."""
    return bool(getattr(watcher, "may_leave_out", False))


class Feed(Pending):
    """The client's end of one watch: it receives records and events until the watch ends.

    Attributes:
        n: number of the cell in the journal, once known.
        summary: how the cell ended; see `Cells._finish`.
        error: why the controller refused, if it did.
    """

    __slots__ = (
        "_decoders",
        "_ended",
        "_events",
        "_num_interrupts",
        "_num_taken",
        "_reached",
        "_watcher",
        "error",
        "n",
        "summary",
        "when_late",
    )

    def __init__(self, transport: Transport, watcher: Watcher) -> None:
        super().__init__(transport, (address.CONTROLLER,))
        self._watcher = watcher
        self._decoders: dict[tuple[int, str], Any] = {}
        self._ended: set[int] = set()
        self._num_taken = 0
        self._num_interrupts = 0
        self.n = 0
        self.summary: CellOver | None = None
        self.error = ""
        self._reached: set[str] = set()
        self._events: dict[str, threading.Event] = {}
        self.when_late: Callable[[Feed], None] | None = None
        """Called with this feed once it is over: output under its ref may still arrive."""

    def wait_for(self, what: str, timeout_s: float) -> bool:
        """Wait until the watch has begun ("began"), or has caught up with the journal ("live"); say whether
        it has.
        """
        with self.transport.callback_lock:
            if what in self._reached:
                return True
            event = self._events.setdefault(what, threading.Event())  # most are never waited for
        return event.wait(timeout_s)

    def _reach(self, what: str) -> None:
        with self.transport.callback_lock:
            self._reached.add(what)
            event = self._events.get(what)
        if event is not None:
            event.set()

    def output(self, message: Message) -> None:
        """Handle records of output."""
        self._take_records(message.payload)

    def _take_records(self, data: bytes | memoryview) -> None:
        for record in records.unpack(data):
            if record.kind == records.TEXT:
                self._watcher.text(record.rank, record.stream, self._decode(record))
            elif record.kind == records.DISPLAY:
                self._watcher.display(record.rank, Shown.of_json(record.data))
            elif record.kind == records.RESULT:
                self._ended.add(record.rank)
                self._watcher.ended(record.rank, CellEnd.of_json(record.data))
            elif record.kind == records.LEFT_OUT:
                self._decoders.clear()
                if may_leave_out(self._watcher):
                    cast(LeavesOut, self._watcher).left_out(*records.NUMBER.unpack(record.data))
            else:
                self._watcher.message(record.data.decode())
        self._acknowledge(len(data))

    def _decode(self, record: records.Record) -> str:
        """Decode UTF-8 that may be split anywhere."""
        key = (record.rank, record.stream)
        decoder = self._decoders.get(key)
        if decoder is None:
            decoder = self._decoders[key] = codecs.getincrementaldecoder("utf-8")("replace")
        return str(decoder.decode(record.data))

    def _acknowledge(self, num_bytes: int) -> None:
        self._num_taken += num_bytes
        if self._num_taken >= ACK_BYTES:
            num, self._num_taken = self._num_taken, 0
            self.transport.ask(address.CONTROLLER, Taken(self.ref, num))

    def deliver(self, slot: int, body: Body) -> Pending | None:
        if body.flags & wire.ERROR:
            self.error = body.read(str)
            self._reach("began")
            self.complete()
            return self
        for message in body.read(list[WatchMessage]):
            self._take_message(message)
        if not body.flags & wire.END:
            return None
        if self.when_late is not None:
            self.when_late(self)
        self.complete()
        return self

    def _take_message(self, message: WatchMessage) -> None:
        match message:
            case RecordsPrinted():
                self._take_records(message.records)
            case CellBegan():
                self.n = message.n
                self._reach("began")
                for _ in range(self._num_interrupts):
                    self.interrupt()
            case CaughtUp():
                self._reach("live")
            case RankDone():
                self._done(message.rank, message.seconds)
            case CellMessage():
                self._watcher.message(message.text)
            case CellWaits():
                self._watcher.waits(message.text)
            case CellOver():
                self._over(message)

    def _over(self, summary: CellOver) -> None:
        self.summary = summary
        for failure in summary.failures:
            self._failed(failure)
        new = {rank: seconds for rank, seconds in summary.seconds.items() if rank not in self._ended}
        if new:
            self._ended.update(new)
            self._watcher.ended_well(new)

    def _failed(self, failure: CellFailure) -> None:
        """Tell the watcher of a rank's failure, unless the journal has the rank's own report of that."""
        rank, ename, evalue = failure.rank, failure.type, failure.message
        if rank not in self._ended:
            self._ended.add(rank)
            text = f"{ename}: {evalue} (its traceback was not kept)"
            end = CellEnd(CellStatus.ERROR, None, ename, evalue, text, when=failure.when)
            self._watcher.ended(rank, end)

    def _done(self, rank: int, seconds: float) -> None:
        """Tell the watcher that a rank has ended the cell: the only event of a rank with nothing to show."""
        if rank not in self._ended:
            self._ended.add(rank)
            self._watcher.ended_well({rank: seconds})

    def interrupt(self) -> None:
        """Have the controller interrupt the cell, as soon as the controller has received the cell."""
        if not self.n:
            self._num_interrupts += 1
            return
        self.transport.ask(address.CONTROLLER, InterruptCell(self.n))

    def give_up(self, fault: Exception) -> None:
        super().give_up(fault)
        for what in ("began", "live"):
            self._reach(what)

    def handles_end(self, end: RankExit) -> bool:
        return not self.ready and (self.transport.me, self.ref) in end.notified

    def lost(self, proc: int, end: RankExit) -> Pending | None:
        # exits of ranks are the controller's business; if the controller goes, the transport is closed
        return None
