"""The event loop of a host process: readiness of ZeroMQ sockets and file descriptors, and timers, in one
thread.

A ZeroMQ socket's descriptor is edge-triggered and may fall silent while messages wait, so each round looks at
every ZeroMQ socket before it blocks. There are five at most; the hundreds of pipes and pidfds of ranks cost
nothing in epoll.

The loop itself may stand still: its process was stopped, the machine was suspended or overloaded, a callback
took long. Whoever judges others by their silence would then blame them for its own. So there's a `clock` that
stands still meanwhile, and what has arrived is read before any timer runs.
"""

from __future__ import annotations

import heapq
import math
import os
import select
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import zmq
import zmq.backend

Callback = Callable[[], None]
_MESSAGES_PER_ROUND = 200
SHORTLY_S = 0.01
LATE_S = 1.0
"""By how much a round may be late without counting as a standstill."""
# Plain ints and the bare call: zmq's own enums would take a tenth of this process' time.
_EVENTS, _IN = int(zmq.EVENTS), int(zmq.POLLIN)
_events_of: Any = zmq.backend.Socket.get


class Loop:
    """The event loop of a host process: it runs callbacks until `stop`. Everything is called from, and must
    be called in, the thread of `run`.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._files: dict[int, Callback] = {}
        self._new_files: set[int] = set()
        """Descriptors watched since the last look at all: that look may have been at earlier files of these
        numbers.
        """
        self._sockets: dict[zmq.Socket[bytes], Callback] = {}
        self._timers: list[tuple[float, int, Callback]] = []
        self._count = 0
        self._running = False
        self._stalled_s = 0.0
        self._expected = 0.0
        """Expected end of the last round."""
        self._shortly: list[Callback] = []
        self._soon: deque[Callback] = deque()
        self._later_this_round: list[Callback] = []
        self._wakeup_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.watch_file(self._wakeup_fd, self._on_wakeup)

    def call_soon_threadsafe(self, callback: Callback) -> None:
        """Call `callback` in the loop's thread. The one method for other threads."""
        self._soon.append(callback)
        os.eventfd_write(self._wakeup_fd, 1)

    def call_soon(self, callback: Callback) -> None:
        """Call `callback` at the end of this round, before the loop blocks again."""
        self._later_this_round.append(callback)

    def _on_wakeup(self) -> None:
        os.eventfd_read(self._wakeup_fd)
        while self._soon:
            self._soon.popleft()()

    def watch_file(self, fd: int, callback: Callback) -> None:
        """Call `callback` whenever `fd` is readable or hung up."""
        self._files[fd] = callback
        self._new_files.add(fd)
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLHUP)

    def forget_file(self, fd: int) -> None:
        """Stop watching `fd`; call it before closing."""
        if self._files.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def watch_socket(self, socket: zmq.Socket[bytes], callback: Callback) -> None:
        """Call `callback` for each message; it must receive exactly one."""
        self._sockets[socket] = callback
        self._epoll.register(socket.FD, select.EPOLLIN)

    def forget_socket(self, socket: zmq.Socket[bytes]) -> None:
        """Stop watching a socket; call it before closing, by `call_soon`: this round may still look at it."""
        if self._sockets.pop(socket, None) is not None:
            self._epoll.unregister(socket.FD)

    def call_at(self, when: float, callback: Callback) -> None:
        """Call `callback` at monotonic time `when`."""
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, callback))

    def clock(self) -> float:
        """Return a time in seconds that doesn't advance while this loop stands still: for measuring how long
        others have been silent.
        """
        return time.monotonic() - self._stalled_s

    def call_later(self, delay_s: float, callback: Callback) -> None:
        """Call `callback` in `delay_s` seconds."""
        self.call_at(time.monotonic() + delay_s, callback)

    def call_shortly(self, callback: Callback) -> None:
        """Call `callback` within `SHORTLY_S`, together with others: one timer for all."""
        if not self._shortly:
            self.call_later(SHORTLY_S, self._run_shortly)
        self._shortly.append(callback)

    def _run_shortly(self) -> None:
        callbacks, self._shortly = self._shortly, []
        for callback in callbacks:
            guarded(callback)

    def stop(self) -> None:
        """Leave `run` after this round."""
        self._running = False

    def run(self) -> None:
        """Serve until `stop`."""
        self._running = True
        self._expected = time.monotonic()
        while self._running:
            if self._was_late():
                self._serve_sockets()
                self._serve_files(0.0)
            self._run_timers()
            busy = self._serve_sockets()  # last: a timer that sends may consume a socket's signal
            if self._later_this_round:
                self._end_round()
                continue  # a message that was just sent may have consumed a socket's signal, too
            if not self._running:
                break
            self._serve_files(0.0 if busy else self._wait_s())

    def _was_late(self) -> bool:
        """Say whether the loop has stood still since the last round began, and record for how long."""
        now = time.monotonic()
        late_s = now - self._expected
        self._expected = now
        if late_s < LATE_S:
            return False
        self._stalled_s += late_s
        return True

    def _end_round(self) -> None:
        callbacks, self._later_this_round = self._later_this_round, []
        for callback in callbacks:
            guarded(callback)

    def _serve_sockets(self) -> bool:
        busy = False
        for socket, callback in list(self._sockets.items()):
            for _ in range(_MESSAGES_PER_ROUND):
                if not _events_of(socket, _EVENTS) & _IN:
                    break
                guarded(callback)
                busy = True
        return busy

    def _run_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            guarded(heapq.heappop(self._timers)[2])

    def _wait_s(self) -> float | None:
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _serve_files(self, wait_s: float | None) -> None:
        now = time.monotonic()
        if now - self._expected >= LATE_S:
            return  # the next round handles it, and reads before it runs timers
        self._expected = math.inf if wait_s is None else now + wait_s
        self._new_files.clear()
        ready = self._epoll.poll(wait_s)
        # lateness from here on isn't caused by the wait
        self._expected = min(self._expected, time.monotonic())
        for fd, _ in ready:
            callback = self._files.get(fd)
            # A callback before may have closed a file that was ready, too, and the kernel gives its number to
            # the next file at once: that one's callback must not take, say, a living process for ended.
            if callback is not None and fd not in self._new_files:
                guarded(callback)


def guarded(callback: Callback) -> None:
    """Call a callback; an error is written to the log, and everything else continues: ranks must not die of
    an error here.
    """
    try:
        callback()
    except Exception:
        with suppress(OSError):  # the log's disk is full
            traceback.print_exc()
