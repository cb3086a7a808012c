"""The thread that waits for an answer reads the socket itself (leader and followers).

A hand-over between two Python threads costs 10 to 40 us, a third of a round trip. So there is no receiving
thread that everybody waits for. A thread that has to wait becomes the *leader* if nobody leads: it blocks in
`recv`, hands each message to whom it concerns, and leaves when its own has come. Others are *followers*:
parked until the leader has something for them, or leaves and appoints one of them.

Two kinds of waiter differ in what happens when the leader leaves:

    urgent      waits for an answer (a `Future.get()`): is appointed leader at once
    background  an idle actor that waits for work: is left parked. If work for it arrives, the lead moves to
    it
                together with the message, so that an actor that is called often reads its own mail and runs
                it with no hand-over

Between two reads nobody leads; that is the normal state while an endpoint runs for some microseconds. A
*background reader* thread looks every `TICK_S` during activity and takes the lead when nobody has had it for
a whole tick; so a rank whose endpoint runs for an hour answers pings after two ticks. Each look costs as much
CPU as a call, and more where cores are short: as long as it finds some thread reading, or messages that came
more often than one in `TICK_S`, each tick is twice the one before, up to `MAX_TICK_S`. Once things have been
quiet for `QUIET_S`, the background reader blocks in poll: idle processes do not wake up at all.

A leader that finds a message there already, without having to wait for it, takes along all that are there
(`LocalReceiver`): in a burst of pipelined calls the lead isn't left and taken for each.

Thread contract: `LocalReceiver.receive` is called only by the current leader (`_leader`, guarded by
`_mutex`). `_mutex` is never held while user code or a blocking call runs.

Interrupts: a signal that comes just before the main thread blocks in C isn't seen until the call returns; so,
while it waits for an answer, the main thread never blocks for longer than `SIGNAL_S`. It may get a
KeyboardInterrupt between any two bytecodes. `deque.extend(map(receive, ...))` moves a message from the kernel
to `_arrived` without one in between; a dispatch that was cut short is repeated, and dispatching is idempotent
for all that clients receive.
"""

from __future__ import annotations

import heapq
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from monarch_nb._wire.local_sockets import CLOSED_BY_OTHERS, LocalReceiver, SendQueues
from monarch_nb._wire.segment import OwnerGone
from monarch_nb.exceptions import TransportClosed

TICK_S = 0.002
MAX_TICK_S = 0.016
QUIET_S = 0.04
SIGNAL_S = 0.2
FINAL_READ_S = 0.02
"""How long messages are still read after the file says that no more will come."""
PIPELINED = 8
"""Number of calls between two looks for answers at which the program counts as pipelining."""
GATHERING_MS = 2
"""How long answers to pipelined calls are gathered, unless a thread waits for one."""
_BATCH = 64
_MAIN = threading.main_thread().ident


def _call(function: Callable[[], None]) -> None:
    """Call what the background reader was asked to; whatever it raises is shown, and the background reader
    goes on: nothing moves without it."""
    try:
        function()
    except BaseException:
        _report()


def _report() -> None:
    """Show the exception that is being handled, as that of a thread."""
    kind, error, trace = sys.exc_info()
    with suppress(BaseException):  # an exception hook of the user's, or a closed stderr
        threading.excepthook(
            threading.ExceptHookArgs((kind or BaseException, error, trace, threading.current_thread()))
        )


class Waiter(Protocol):
    """The interface of objects that a thread can wait for."""

    park: threading.Lock | None
    """Held by the waiter while it is parked; released to wake it."""
    urgent: bool

    @property
    def ready(self) -> bool:
        """Whether the wait is over."""
        ...

    @property
    def due(self) -> float | None:
        """Monotonic time at which `expire` wants to be called, if any."""
        ...

    def expire(self) -> None:
        """Take note that `due` has passed."""
        ...


class Reader:
    """The reader of one `LocalReceiver`, with a leader thread and followers. See the module's text for the
    thread contract.
    """

    def __init__(self, receiver: LocalReceiver, dispatch: Callable[[bytes], Waiter | None]) -> None:
        self._receiver = receiver
        self._dispatch = dispatch
        self._arrived: deque[bytes] = deque()
        self._mutex = threading.Lock()
        self._leader: object | None = None
        self._followers: list[Waiter] = []
        self._successor: Waiter | None = None
        self._turns = 0
        self._reading = False
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_count = 0
        self._urgent: deque[Callable[[], None]] = deque()
        self._watched: dict[int, Callable[[], None]] = {}
        self._wakeup_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._background_asleep = False
        self._closing = False
        self._poller = select.poll()
        """The poll object of the background reader."""
        self.send_queues = SendQueues(
            lambda delay_s, call: self.call_at(time.monotonic() + delay_s, call), lambda: self.on_broken()
        )
        """Messages that couldn't be sent at once: the background reader sends them."""
        self.closing_error: Callable[[], TransportClosed] = TransportClosed
        """Makes the error for waiters when no messages can arrive any more."""
        self.on_broken: Callable[[], None] = lambda: None
        """Called when other code has closed the descriptors of messages, in the thread that notices."""
        self.num_calls: Callable[[], int] = lambda: 0
        """Returns how many calls this process has made."""
        self.idle_work: Callable[[], float | None] = lambda: None
        """Called by the background reader between its waits; returns the seconds until the next call."""
        self._background_reader = threading.Thread(
            target=self._run_background_reader, name="monarch_nb-reader", daemon=True
        )

    @property
    def background_thread_id(self) -> int:
        """The kernel's id of the background reader's thread; 0 before `start`."""
        return self._background_reader.native_id or 0

    def end_with(self, fd: int, callback: Callable[[], None]) -> None:
        """Have the background reader call `callback` soon after `fd` has become readable: what is under way
        has arrived then. Call this before `start`.

        The callback is to see that nobody waits any more. `fd` is closed by then, or by `close`.
        """
        self._watched[fd] = callback

    def start(self) -> None:
        """Let the background reader begin: from now on messages are dispatched even if no thread waits."""
        self._background_reader.start()

    # --- waiting

    def described(self) -> str:
        """Return who reads, in words, for an answer that should have come."""
        leader = self._leader
        who = (
            "nobody" if leader is None
            else "the background reader" if leader is self._background_reader
            else "a thread that waits"
        )  # fmt: skip
        return (
            f"{who} reads messages, {len(self._followers)} threads wait in line, "
            f"{len(self._arrived)} messages are unread"
        )

    def wait(self, waiter: Waiter, deadline: float | None = None) -> bool:
        """Block the calling thread until `waiter.ready`; False if `deadline` (monotonic) passed first.

        Raises:
            TransportClosed: if the transport closes meanwhile.
        """
        try:
            while not waiter.ready:
                if self._closing:
                    raise self.closing_error()
                leads = self._enter(waiter)
                if not (self._take_lead(waiter, deadline) if leads else self._follow(waiter, deadline)):
                    break
        finally:
            # Appointed at the moment when it became ready, or interrupted between two steps: a lead that
            # nobody uses would block all threads.
            if self._leader is waiter or waiter in self._followers:
                self._leave_followers(waiter)
                if self._leader is waiter:
                    self._step_down()
        return waiter.ready

    def _take_lead(self, waiter: Waiter, deadline: float | None) -> bool:
        moved = False
        try:
            in_time, moved = self._lead(waiter, deadline)
        finally:
            self._step_down(waiter if moved else None)
        return self._follow(waiter, deadline) if moved else in_time

    def _enter(self, waiter: Waiter) -> bool:
        """Become leader (True) or get in line (False)."""
        with self._mutex:
            leader = self._leader
            if leader is None and not self._closing:
                self._leader = waiter
                return True
            if leader is waiter:
                return True
            if waiter.ready or self._closing:
                waiter.park = None
                return False
            waiter.park = threading.Lock()
            waiter.park.acquire()
            self._followers.append(waiter)
            if leader is not self._background_reader:
                return False
            if self._successor is None:
                self._successor = waiter
        self.wake_up()
        return False

    def _follow(self, waiter: Waiter, deadline: float | None) -> bool:
        """Stay parked until woken; False if the deadline passed."""
        park = waiter.park
        if park is None:
            return True
        due = waiter.due
        until = self._until(waiter, deadline)
        limit = min((t for t in (until, due) if t is not None), default=None)
        try:
            woken = park.acquire(timeout=-1 if limit is None else max(0.0, limit - time.monotonic()))
        except BaseException:
            self._leave_followers(waiter)
            raise
        if woken:
            return True
        if self._leave_followers(waiter):
            return True  # the thread was appointed at the same moment
        return self._expired(waiter, deadline)

    def _leave_followers(self, waiter: Waiter) -> bool:
        """Leave the line of followers; True if `waiter` is the leader by now."""
        with self._mutex:
            if waiter in self._followers:
                self._followers.remove(waiter)
            if self._successor is waiter:
                self._successor = None
            return self._leader is waiter

    @staticmethod
    def _expired(waiter: Waiter, deadline: float | None) -> bool:
        """Let the waiter know of a passed due time; False if the deadline itself has passed."""
        now = time.monotonic()
        due = waiter.due
        if due is not None and now >= due:
            waiter.expire()
        return deadline is None or now < deadline

    # --- the leader

    def _lead(self, waiter: Waiter, deadline: float | None) -> tuple[bool, bool]:
        """Read until `waiter` is ready; return (whether in time, whether the lead has moved on)."""
        arrived = self._arrived
        while not waiter.ready:
            if not arrived and not self._receive(waiter, deadline):
                return False, False
            moved = False
            while arrived:
                moved = self._deliver(arrived, waiter) or moved
            if moved:
                return True, True
            if self._closing:
                break
        return True, False

    def _receive(self, waiter: Waiter, deadline: float | None) -> bool:
        """Wait for a message, and take along those behind it; False if the deadline has passed."""
        if deadline is None and waiter.due is None:
            wait_s = SIGNAL_S if waiter.urgent and threading.get_ident() == _MAIN else -1.0
        else:
            wait_s = self._timeout(waiter.due, self._until(waiter, deadline))
        self._reading = True
        try:
            if self._receiver.receive(wait_s, self._arrived):
                return True
        except (OSError, ValueError):
            if self._closing:  # closed by another thread
                raise self.closing_error() from None
            if not self._receiver.is_whole():
                self.on_broken()
            raise
        finally:
            self._reading = False
        return self._expired(waiter, deadline)

    def _deliver(self, arrived: deque[bytes], waiter: Waiter) -> bool:
        """Dispatch the oldest message; True if the lead has gone to the one it was for."""
        self._turns += 1
        target = self._dispatch_oldest(arrived)
        if target is None or target is waiter:
            return False
        return self._wake(target) and not target.urgent and not waiter.urgent

    def _dispatch_oldest(self, arrived: deque[bytes]) -> Waiter | None:
        """Dispatch the oldest message; return whom it was for."""
        try:
            target = self._dispatch(arrived[0])
        except OwnerGone:  # who waits for the message hears of the end of the process that has sent it
            target = None
        except Exception:  # a KeyboardInterrupt leaves the message where it is: it's dispatched again
            _report()
            target = None
        arrived.popleft()
        return target

    @staticmethod
    def _until(waiter: Waiter, deadline: float | None) -> float | None:
        """Return until when the calling thread may block."""
        if not waiter.urgent or threading.get_ident() != _MAIN:
            return deadline
        soon = time.monotonic() + SIGNAL_S
        return soon if deadline is None else min(soon, deadline)

    @staticmethod
    def _timeout(due: float | None, deadline: float | None) -> float:
        """Return for how many seconds to block at most; -1: without end."""
        limit = due if deadline is None else deadline if due is None else min(due, deadline)
        return -1.0 if limit is None else max(0.0, limit - time.monotonic())

    def _step_down(self, park: Waiter | None = None) -> None:
        """Leave the lead; `park` is put in line at the same time, so that it doesn't take the lead back."""
        with self._mutex:
            self._leader = None
            if park is not None and not park.ready and not self._closing:
                park.park = threading.Lock()
                park.park.acquire()
                self._followers.append(park)
            elif park is not None:
                park.park = None
            if self._followers:
                self._appoint_urgent()
            asleep = self._background_asleep
        if asleep:
            self.wake_up()

    def _appoint_urgent(self) -> None:
        """With the mutex held and no leader: appoint the first urgent follower."""
        for follower in self._followers:
            if follower.urgent:
                self._appoint(follower)
                return

    def _appoint(self, follower: Waiter) -> None:
        self._followers.remove(follower)
        self._leader = follower
        if follower.park is not None:
            follower.park.release()

    def _wake(self, target: Waiter) -> bool:
        """Wake `target` if it is parked."""
        with self._mutex:
            if target not in self._followers:
                return False
            self._followers.remove(target)
            if self._successor is target:
                self._successor = None
            if target.park is not None:
                target.park.release()
            return True

    def notify(self, target: Waiter) -> None:
        """Wake `target`, made ready by another thread than the leader's. A leader must be woken by a
        message.
        """
        self._wake(target)

    def interrupt_waiters(self) -> None:
        """Wake all threads that are parked until an answer comes: one of them has been raised an exception,
        which a parked thread doesn't notice."""
        self._release_parked(lambda follower: follower.urgent)

    def _release_parked(self, is_meant: Callable[[Waiter], bool]) -> None:
        with self._mutex:
            parked = [f for f in self._followers if is_meant(f) and f.park is not None]
            for follower in parked:
                self._followers.remove(follower)
                if self._successor is follower:
                    self._successor = None
                if follower.park is not None:
                    follower.park.release()

    # --- the background reader

    def wake_up(self) -> None:
        """Wake the background reader. Safe from any thread, signal handler or finalizer."""
        try:
            os.eventfd_write(self._wakeup_fd, 1)
        except (OSError, ValueError):
            return  # woken already, or closed

    def ensure_reading(self) -> None:
        """Ask the background reader to read if nobody does: something is expected that no thread waits
        for."""
        if self._leader is None:
            self.wake_up()

    def call_at(self, when: float, function: Callable[[], None]) -> None:
        """Have the background reader call `function` at monotonic time `when`."""
        with self._mutex:
            self._timer_count += 1
            heapq.heappush(self._timers, (when, self._timer_count, function))
        self.wake_up()

    def call_from_signal(self, function: Callable[[], None]) -> None:
        """Have the background reader call `function`. Takes no lock: for signal handlers, which may run while
        their thread holds any."""
        self._urgent.append(function)
        self.wake_up()

    def _run_background_reader(self) -> None:
        try:
            self._read_or_sleep()
        except OSError as error:
            if not self._closing and error.errno in CLOSED_BY_OTHERS:
                self.on_broken()
            raise

    def _read_or_sleep(self) -> None:
        """Read while nobody else does, and sleep otherwise, until the transport closes."""
        poller = self._poller
        for fd in (self._wakeup_fd, self.send_queues.fileno(), *self._watched):
            poller.register(fd, select.POLLIN)
        quiet_s = 0.0
        tick_s = TICK_S
        seen = -1
        while not self._closing:
            due_s = self._run_idle_work()
            if self._take_lead_if_free(seen):
                self._read_in_background()
                seen, quiet_s, tick_s = self._turns, 0.0, TICK_S
                continue
            is_read = self._reading or (self._turns - seen) * TICK_S >= tick_s
            quiet_s = quiet_s + tick_s if self._reading and seen == self._turns else 0.0
            tick_s = min(2 * tick_s, MAX_TICK_S) if is_read else TICK_S
            seen = self._turns
            if quiet_s < QUIET_S:
                self._sleep(tick_s if due_s is None else min(tick_s, due_s), asleep=False)
            else:
                self._sleep(due_s, asleep=True)
                quiet_s = 0.0

    def _take_lead_if_free(self, seen: int) -> bool:
        with self._mutex:
            if self._leader is not None or (seen != self._turns and seen != -1) or self._closing:
                return False
            self._leader = self._background_reader
            return True

    def _sleep(self, timeout_s: float | None, *, asleep: bool) -> None:
        with self._mutex:
            if asleep and (self._leader is None or not self._reading):
                return  # the leader left between the last look and now
            self._background_asleep = asleep
        ready = self._poller.poll(None if timeout_s is None else max(1, int(timeout_s * 1000)))
        self._background_asleep = False
        self._answer({fd for fd, _ in ready})

    def _answer(self, ready: set[Any]) -> None:
        """Handle descriptors that are readable."""
        if self._wakeup_fd in ready:
            self._clear_wakeup()
        if self.send_queues.fileno() in ready:
            _call(self.send_queues.run)
        for fd in [fd for fd in self._watched if fd in ready]:
            callback = self._watched.pop(fd)
            self._poller.unregister(fd)
            os.close(fd)
            self.call_at(time.monotonic() + FINAL_READ_S, callback)

    def _clear_wakeup(self) -> None:
        try:
            os.eventfd_read(self._wakeup_fd)
        except BlockingIOError:
            return

    def _read_in_background(self) -> None:
        """Lead until somebody wants to, or the transport closes."""
        seen = self.num_calls()
        while not self._closing:
            due_s = self._run_idle_work()
            if self._hand_over():
                return
            wait_ms = -1 if due_s is None else max(1, int(due_s * 1000))
            if self._arrived:
                wait_ms = 0
            ready = {fd for fd, _ in self._poll_all(wait_ms)}
            self._read_batch()
            self._answer(ready)
            before, seen = seen, self.num_calls()
            if seen - before >= PIPELINED and not self._arrived:
                self._let_gather()
        with self._mutex:
            self._leader = None

    def _poll_all(self, wait_ms: int) -> list[tuple[int, int]]:
        """Wait for a message, or for what the background reader waits for at other times."""
        self._poller.register(self._receiver.fileno(), select.POLLIN)
        try:
            return self._poller.poll(wait_ms)
        finally:
            self._poller.unregister(self._receiver.fileno())

    def _let_gather(self) -> None:
        """Let more answers come before they are read: each look takes the interpreter lock from the thread
        that makes the calls. Ends at once for who waits."""
        self._answer({fd for fd, _ in self._poller.poll(GATHERING_MS)})

    def _read_batch(self) -> None:
        arrived = self._arrived
        if not arrived:
            self._receiver.receive(0.0, arrived)
        for _ in range(min(len(arrived), _BATCH)):
            target = self._dispatch_oldest(arrived)
            if target is not None:
                self._wake(target)

    def _hand_over(self) -> bool:
        """Give the lead to the successor, if there's one and it still waits."""
        with self._mutex:
            successor, self._successor = self._successor, None
            if successor is not None and successor in self._followers:
                self._appoint(successor)
                return True
            self._leader = None
            self._appoint_urgent()
            if self._leader is not None:
                return True
            self._leader = self._background_reader
            return False

    def _run_idle_work(self) -> float | None:
        """Run due timers and idle work; return the seconds until the next is due."""
        while self._urgent:
            _call(self._urgent.popleft())
        while True:
            with self._mutex:
                if not self._timers or self._timers[0][0] > time.monotonic():
                    next_s = self._timers[0][0] - time.monotonic() if self._timers else None
                    break
                _, _, function = heapq.heappop(self._timers)
            _call(function)
        other_s = self.idle_work()
        return min((s for s in (next_s, other_s) if s is not None), default=None)

    def begin_close(self) -> None:
        """Let nobody wait any more. Who waits already must be woken by the caller, or is by `close`."""
        self._closing = True

    def close(self) -> None:
        """Stop the background reader, and wake who is parked; the socket is the caller's to close
        afterwards.
        """
        self._closing = True
        self._release_parked(lambda _: True)
        self.wake_up()
        if self._background_reader.is_alive() and threading.current_thread() is not self._background_reader:
            self._background_reader.join()
        # the program that stops a mesh and the one told of its end may close at the same time
        with self._mutex:
            is_own = threading.current_thread() is self._background_reader
            fds = [*self._watched] if is_own else [*self._watched, self._wakeup_fd]
            self._watched.clear()
            if self._wakeup_fd in fds:
                self._wakeup_fd = -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)
