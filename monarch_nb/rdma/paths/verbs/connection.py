"""The requesting side of a connection: it posts work requests and waits for them.

One thread at a time uses a connection. Its completions are polled for a moment, then waited for at the
channel's descriptor, so that a long transfer takes no processor. Calls of libibverbs hold the interpreter's
lock; none is made that could block.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from monarch_nb.rdma.paths.verbs.errors import SUCCESS, CompletionError
from monarch_nb.rdma.paths.verbs.nic import Nic
from monarch_nb.rdma.paths.verbs.queue import QPInfo, QueuePair

DEPTH = 256
"""Maximum number of posted requests."""
BOUNCE_BYTES = 64 << 10
"""Maximum number of bytes that are copied through memory which is registered already."""
LINE_BYTES = 64
SPIN_S = 60e-6
LOOK_UP_S = 0.25
"""Interval at which cancellation and closing are checked, even if nothing completes."""
DRAIN_S = 1.0


class Channel:
    """A completion channel, with its file descriptor, which pyverbs doesn't expose. Without the descriptor
    one polls now and then.
    """

    _making = threading.Lock()

    def __init__(self, nic: Nic) -> None:
        with Channel._making:
            before = _channel_descriptors()
            self.channel = nic.call(
                "making a completion channel", lambda: nic.library.CompChannel(nic.context)
            )
            new = _channel_descriptors() - before
        self._poll: select.poll | None = None
        if len(new) == 1:
            self._poll = select.poll()
            self._poll.register(new.pop(), select.POLLIN)

    def wait(self, timeout_s: float) -> bool:
        """Wait for a completion event; return whether there may be one."""
        if self._poll is None:
            time.sleep(min(timeout_s, 0.0005))
            return False
        return bool(self._poll.poll(max(1, int(timeout_s * 1000))))


def _channel_descriptors() -> set[int]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[infinibandevent]":
                found.add(int(name))
    return found


@dataclass(slots=True)
class Work:
    """A work request.

    Attributes:
        is_read: READ or WRITE.
        there, rkey: address at the owner, and the remote key.
        parts: address and length of each stretch here.
        lkey: local key of these.
        counts: whether its bytes are some of those that were asked for.
    """

    is_read: bool
    there: int
    rkey: int
    parts: Sequence[tuple[int, int]]
    lkey: int
    counts: bool = True


class Connection:
    """The requesting end of a connection: it posts work requests and waits for them. Its owner is the one
    thread that took it.

    Attributes:
        num_posted, posted_bytes: requests and bytes under way.
        num_polls, num_sleeps: how often completions were polled for, and how often the thread slept until
            one.
    """

    def __init__(self, nic: Nic) -> None:
        library = nic.library
        self.nic = nic
        self.depth = max(1, min(DEPTH, nic.max_requests - 1))
        self._channel = Channel(nic)
        self._completions = nic.call(
            "making a completion queue",
            lambda: library.CQ(nic.context, self.depth + 1, None, self._channel.channel, 0),
        )
        self._queue_pair = QueuePair(nic, self._completions, self.depth, nic.max_parts)
        self._chains: deque[tuple[int, int]] = deque()
        self.num_posted = self.posted_bytes = 0
        self._last_posted = self._last_seen = 0
        self.num_polls = self.num_sleeps = 0
        self.is_good = True
        self._is_closed = False
        self._scratch = mmap.mmap(-1, LINE_BYTES + BOUNCE_BYTES)
        self.scratch_address = ctypes.addressof(ctypes.c_char.from_buffer(self._scratch))
        self._line = ctypes.c_uint64.from_buffer(self._scratch)
        registration = nic.register_range(
            self.scratch_address, len(self._scratch), nic.constants.IBV_ACCESS_LOCAL_WRITE
        )
        self._registration = registration
        self.scratch_lkey = registration.lkey

    @property
    def info(self) -> QPInfo:
        """The data of this end's queue pair that the other end needs."""
        return self._queue_pair.info

    def connect(self, other: QPInfo) -> None:
        """Connect to the owner's queue pair."""
        self._queue_pair.connect(other, serves=False)

    @property
    def line(self) -> int:
        """The line of the owner's table, as read last."""
        return int(self._line.value)

    def clear_line(self) -> None:
        """Clear the last read value of the line, so that it can't be mistaken for that of the next read."""
        self._line.value = 0

    # --- posting

    def post(self, chain: Sequence[Work]) -> None:
        """Post a chain of work requests; only the last one signals its completion.

        Raises:
            VerbsError: if the NIC refuses it.
        """
        library, c = self.nic.library, self.nic.constants
        following = None
        made: list[Any] = []
        try:
            for i, work in reversed(list(enumerate(chain))):
                elements = [library.SGE(address, nbytes, work.lkey) for address, nbytes in work.parts]
                is_last = i == len(chain) - 1
                request = library.SendWR(
                    wr_id=self._last_posted + 1 if is_last else 0,
                    opcode=c.IBV_WR_RDMA_READ if work.is_read else c.IBV_WR_RDMA_WRITE,
                    num_sge=len(elements),
                    sg=elements,
                    send_flags=c.IBV_SEND_SIGNALED if is_last else 0,
                    **({} if following is None else {"next_wr": following}),
                )
                made += [*elements, request]
                request.set_wr_rdma(work.rkey, work.there)
                following = request
            nbytes = sum(n for work in chain if work.counts for _, n in work.parts)
            self._last_posted += 1
            self._chains.append((len(chain), nbytes))
            self.num_posted += len(chain)
            self.posted_bytes += nbytes
            self.nic.call("posting a work request", lambda: self._queue_pair.pair.post_send(following))
        except BaseException:
            self.is_good = False
            raise
        finally:
            if library.forgets_to_free:
                for one in made:
                    one.close()

    # --- waiting

    def wait(self, patience: Callable[[float], float]) -> int:
        """Wait for completions; return the number of bytes of the completed chains, 0 if none has completed
        for a while.

        Args:
            patience: is given a duration in seconds; returns how much of it may be waited, or raises.

        Raises:
            CompletionError: if a request failed.
        """
        start = time.perf_counter()
        while True:
            done = self._poll()
            if done >= 0:
                return done
            if time.perf_counter() - start > SPIN_S:
                break
            time.sleep(0)
        self.nic.call("arming a completion queue", self._completions.req_notify)
        done = self._poll()
        if done >= 0:
            return done
        self.num_sleeps += 1
        if self._channel.wait(patience(LOOK_UP_S)):
            self._channel.channel.get_cq_event(self._completions)  # an event is there: returns at once
            self._completions.ack_events(1)
        return max(0, self._poll())

    def _poll(self) -> int:
        """Return the number of bytes of the chains that have completed; -1 if none has."""
        self.num_polls += 1
        num, found = self._completions.poll(16)
        if not num:
            return -1
        total = 0
        self._last_seen = max(self._last_seen, *(c.wr_id for c in found))
        for completion in found:
            if completion.status != SUCCESS:
                self.is_good = False
                raise CompletionError(int(completion.status), int(completion.vendor_err))
            length, nbytes = self._chains.popleft()
            self.num_posted -= length
            self.posted_bytes -= nbytes
            total += nbytes
        return total

    # --- the end

    def close(self) -> None:
        """Stop all requests and close; when this returns, the NIC no longer accesses the memory."""
        self.is_good = False
        if self._is_closed:
            return
        self._is_closed = True
        with suppress(*self.nic.library.errors):
            if self.num_posted:
                self._queue_pair.stop()
                self._drain()
        for part in (self._queue_pair, self._completions, self._channel.channel, self._registration):
            with suppress(*self.nic.library.errors):
                part.close()

    def _drain(self) -> None:
        """Wait briefly until the last request has completed. Closing would stop it, too, but this leaves the
        NIC in a clean state.
        """
        until = time.monotonic() + DRAIN_S
        while self._last_seen < self._last_posted and time.monotonic() < until:
            num, found = self._completions.poll(16)
            self._last_seen = max(self._last_seen, *(c.wr_id for c in found), 0)
            if not num:
                time.sleep(0.0005)
