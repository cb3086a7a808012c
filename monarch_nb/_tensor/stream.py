"""Sends the commands of one engine to the ranks: it decides when they are sent, and how far the controller
may run ahead.
"""

from __future__ import annotations

import array
import logging
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from monarch_nb._rank.tensor.protocol import DROP, Batch, Definition, GridDefinition, RecordedPart
from monarch_nb._tensor.slots import Slots
from monarch_nb.exceptions import SupervisionError

_log = logging.getLogger(__name__)
MAX_WORDS = 4096
ACK_EVERY = 16
"""Number of messages between two that the ranks are asked to acknowledge."""
MAX_ACKS = 4
"""Maximum number of acknowledgements under way."""
LATEST_S = 0.002
"""Maximum delay of an unsent command."""


class Stream:
    """The sender of an engine's commands, which collects them into batches.

    Args:
        worker: the actors that execute the commands.
        slots: the ranks' tables.
        lose: is told that a rank is dead.
        count: number of commands of earlier streams.
    """

    def __init__(
        self, worker: Any, slots: Slots, lose: Callable[[SupervisionError], None], count: int = 0
    ) -> None:
        self._worker = worker
        self._lose = lose
        self._slots = slots
        self.lock = threading.RLock()
        self.words: list[int] = []
        self.count = count
        """Number of commands so far."""
        self._first = count
        self._is_closed = False
        self._forgotten: list[int] = []
        self._grids: list[GridDefinition] = []
        self._definitions: list[Definition] = []
        self._parcels: list[Any] = []
        self._unsent: list[Batch] = []
        """Messages that couldn't be sent yet, the oldest first."""
        self._num_batches = 0
        self._recorded: list[RecordedPart] = []
        self._replays: list[tuple[int, int]] = []
        self._forgotten_parts: list[int] = []
        self._acks: deque[tuple[Any, int]] = deque()
        self.num_done = 0
        """Number of commands that all ranks have certainly executed."""
        self.num_messages = self.num_bytes = 0
        self.num_held = 0
        """Number of open blocks in which nothing is sent before their end."""
        self._clock = _Clock(self)

    def define(self, what: Definition | GridDefinition) -> None:
        """Send a plan or a grid to the ranks with the next message."""
        with self.lock:  # the clock's thread may be sending the commands so far
            if isinstance(what, Definition):
                self._definitions.append(what)
            else:
                self._grids.append(what)

    def forget(self, plans: Sequence[int]) -> None:
        """Tell the ranks of plans that aren't used any more."""
        with self.lock:
            self._forgotten.extend(plans)

    def add(self, command: Sequence[int]) -> None:
        """Add a command: the number of its plan, the slots of its inputs, its scalars (`words_of`), and the
        slots of its new tensors. The caller holds the lock.
        """
        words = self.words
        if not words:
            self._clock.ring()
        words.extend(command)  # at once: a Ctrl-C in between would leave half a command
        self.count += 1
        if len(words) > MAX_WORDS and not self.num_held:
            self.flush()

    def replay(self, number: int, slots: Sequence[int], seeds: Sequence[float], num_commands: int) -> int:
        """Add the commands of a recorded part; return the number of the first. The caller holds the lock."""
        if not self.words:
            self._clock.ring()
        self._replays.append((len(self.words), len(self._parcels)))
        self.words.extend((number, *slots, *words_of(seeds)))
        self.count += num_commands
        return self.count - num_commands

    def define_recorded(self, part: RecordedPart) -> None:
        """Send recorded commands to the ranks with the next message."""
        with self.lock:
            self._recorded.append(part)

    def forget_recorded(self, number: int) -> None:
        """Tell the ranks with the next message that a recorded part isn't replayed any more. Any thread may
        call it, also the garbage collector.
        """
        self._forgotten_parts.append(number)

    def add_parcel(self, value: Any) -> None:
        """Add a plain value to the next command."""
        self._parcels.append(value)

    def drop(self) -> bool:
        """Tell the ranks which slots are free; say whether there are any. The caller holds the lock."""
        slots = self._slots.collect()
        if slots:
            self.words.extend((DROP, len(slots), *slots))
            self.count += 1
        return bool(slots)

    def flush(self) -> None:
        """Send the collected commands."""
        with self.lock:
            if self._is_closed:
                return
            if self._has_news():
                self._unsent.append(self._batch())
            if not self._unsent:
                return
            while self._unsent:  # more than one, if this was interrupted, or the disk was full
                self._send(self._unsent[0])
                del self._unsent[0]
        self._hold_back()

    def _send(self, batch: Batch) -> None:
        try:
            self._worker.run.broadcast(batch)
        except SupervisionError as error:
            self._lose(error)
            raise
        self.num_messages += 1
        self.num_bytes += len(batch.words)

    def _has_news(self) -> bool:
        return bool(self.words or self._grids or self._definitions or self._forgotten)

    def _batch(self) -> Batch:
        """Return the collected commands."""
        num = len(self._forgotten_parts)  # the garbage collector may add some meanwhile
        batch = Batch(
            self._first,
            self._slots.top,
            array.array("I", self.words).tobytes(),
            tuple(self._grids),
            tuple(self._definitions),
            tuple(self._parcels),
            tuple(self._recorded),
            tuple(self._replays),
            tuple(self._forgotten),
            tuple(self._forgotten_parts[:num]),
            self._num_batches + 1,
        )
        self._num_batches += 1
        self.words = []
        self._first = self.count
        self._grids, self._definitions, self._parcels, self._forgotten = [], [], [], []
        self._recorded, self._replays = [], []
        del self._forgotten_parts[:num]
        return batch

    def unsent(self) -> list[Batch]:
        """Return the messages that couldn't be sent, without their values; of a stream that was closed."""
        with self.lock:
            self._unsent.append(self._batch())
            return [replace(each, parcels=()) for each in self._unsent]

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Send all commands of a block in one message, when it ends, or a value is waited for in it."""
        self.num_held += 1
        try:
            yield
        finally:
            self.num_held -= 1
            if not self.num_held:
                self.flush()

    def _hold_back(self) -> None:
        """Wait if the ranks are far behind."""
        if self.num_messages % ACK_EVERY == 0:
            self._acks.append((self._worker.reached.call(), self.count))
        while len(self._acks) > MAX_ACKS:
            try:
                ack, count = self._acks.popleft()
                ack.get()
                self.num_done = count
            except SupervisionError as error:
                self._lose(error)
                raise

    def close(self) -> None:
        """Stop sending."""
        self._is_closed = True
        self._clock.close()
        for ack, _ in self._acks:
            ack.drop()


def words_of(numbers: Sequence[float]) -> tuple[int, ...]:
    """Return the words of a command that carry its scalars."""
    num = len(numbers)
    return struct.unpack(f"<{2 * num}I", struct.pack(f"<{num}d", *numbers))


class _Clock:
    """The thread that sends the commands a cell has left unsent when it ended: none waits longer than some
    milliseconds.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._rings = threading.Event()
        self._closed = False
        self.ring = self._rings.set
        threading.Thread(target=self._live, name="tensor-clock", daemon=True).start()

    def _live(self) -> None:
        pause = threading.Event()
        while True:
            self._rings.wait()
            if self._closed:
                return
            self._rings.clear()
            pause.wait(LATEST_S)
            try:
                if not self._stream.num_held:
                    self._stream.flush()
            except SupervisionError:  # the next user of the engine gets the error: the mesh is dead
                return
            except Exception as error:  # the next user of the engine tries again
                _log.debug("commands weren't sent: %r", error)

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._rings.set()
