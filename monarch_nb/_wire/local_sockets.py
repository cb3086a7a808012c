"""Sends frames between processes of one machine, by unix sockets that preserve message boundaries.

A process listens at one path (`LocalReceiver`); whoever sends to it connects to that path once and keeps the
connection (`LocalSender`). The thread that sends writes into the kernel, and the kernel wakes the thread that
waits. ZeroMQ has a thread of its own at each end in between: three are woken for a message instead of one,
which on two cores is most of what a fan-out costs.

The sockets are of the kind SOCK_SEQPACKET: a message is sent whole or not at all and received whole, by one C
call each, so that a Ctrl-C between two bytecodes can neither tear nor lose one. What the kernel has no room
for waits in the sender's queue, which has no limit, and is sent by one thread of its process, which calls
`SendQueues.run`. A send never blocks, so two processes that send to each other can't wait for each other.

A frame that is longer than `PIECE_BYTES` goes in pieces; `Joiner` puts them together.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import secrets
import select
import socket
import struct
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count, islice
from typing import Any, Final

from monarch_nb._wire import open_files
from monarch_nb._wire.message import PIECE_START, WireError, is_piece

PIECE_BYTES: Final = 1 << 16
"""The longest message that goes through the kernel in one piece."""
BUFFER_BYTES = 1 << 20
"""Requested kernel buffer for messages under way on one connection; the kernel may grant less."""
MIN_RETRY_S, MAX_RETRY_S = 0.01, 0.25
"""Minimum and maximum time before another attempt to reach a process that doesn't listen yet."""
RETRIES = 50
"""The next attempt follows after this part of the time without a listener: a message to a rank that is being
started arrives at most a fiftieth later than possible.
"""
MAX_BACKLOG = 4096
MAX_EVENTS = 64
BURST_S = 1e-5
"""A message received faster had arrived already: waking up takes longer."""
_BATCH = 64
_PIECE = struct.Struct("<c?xxIII")
"""Header of a piece: 0 (a message begins with its version), whether it is the first of its message, its
sender, the number of the message there, how many pieces follow.
"""
_RECEIVE_BYTES = PIECE_BYTES + _PIECE.size
_ONE = (_RECEIVE_BYTES,)
_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_READABLE = int(select.EPOLLIN)
CLOSED_BY_OTHERS = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)
"""Errors of a descriptor that somebody else has closed, and that may be another file's by now."""
_NO_FILE_PAUSE_S = 0.01
_numbers = count()


class LocalReceiver:
    """The receiver of messages sent to one socket path. One thread at a time calls `receive`; any thread may
    call `wake_up` and `close`.

    Args:
        path: where to listen; a socket that is left there is replaced.

    Raises:
        OSError: if that can't be done.
    """

    def __init__(self, path: str) -> None:
        self._listener = _new_socket()
        with suppress(FileNotFoundError):
            os.unlink(path)
        self._listener.bind(path)
        os.chmod(path, 0o600)
        self._listener.listen(MAX_BACKLOG)
        listener: Any = self._listener
        self._accept_next: Callable[[], tuple[int, object]] = listener._accept
        """A single C call that makes no Python object of the result."""
        self._wakeup_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._accepted: deque[tuple[int, object]] = deque()
        """Descriptors of connections that aren't watched yet."""
        self._receive: dict[int, Callable[[int], bytes]] = {}
        """Receive functions by descriptor of a connection."""
        self._closed = self._is_receiving = False
        self._closing_once = threading.Lock()
        self._epoll = select.epoll()
        self._wait = self._epoll.poll
        for fd in (self._listener.fileno(), self._wakeup_fd):
            self._epoll.register(fd, _READABLE)
        fds = (self._listener.fileno(), self._wakeup_fd, self._epoll.fileno())
        self._identity = {fd: _identity(fd) for fd in fds}

    def is_whole(self) -> bool:
        """Return whether nobody else has closed what this receives by."""
        return all(_identity(fd) == known for fd, known in self._identity.items())

    def fileno(self) -> int:
        """Return a descriptor that is readable when there's something to receive."""
        return self._epoll.fileno()

    def receive(self, wait_s: float, arrived: deque[bytes]) -> bool:
        """Append received messages to `arrived`, after waiting for at most `wait_s` (negative: without
        limit); False if nothing has happened.
        """
        try:
            self._is_receiving = True
            if self._closed:
                raise ValueError("this was closed")
            if self._accepted:  # an interrupt came before they were watched
                self._watch_accepted()
            began = time.perf_counter()
            ready = self._wait(wait_s, MAX_EVENTS)
            for fd, events in ready:
                if events == _READABLE and fd in self._receive:
                    arrived.extend(map(self._receive[fd], _ONE))
                else:
                    self._serve(fd, arrived)
            if len(ready) == 1 and time.perf_counter() - began < BURST_S:
                self._drain(ready[0][0], arrived)
            return bool(ready)
        finally:
            self._is_receiving = False
            if self._closed:
                self._close_files()

    def _drain(self, fd: int, arrived: deque[bytes]) -> None:
        """Take the messages that one connection has, up to a limit."""
        receive = self._receive.get(fd)
        if receive is not None:
            with suppress(OSError):
                arrived.extend(islice(iter(partial(receive, _RECEIVE_BYTES), b""), _BATCH))

    def _serve(self, fd: int, arrived: deque[bytes]) -> None:
        if fd == self._wakeup_fd:
            with suppress(BlockingIOError):
                os.eventfd_read(fd)
        elif fd == self._listener.fileno():
            self._accept()
        elif fd in self._receive:
            self._read_ending(fd, arrived)

    def _accept(self) -> None:
        try:
            # Accepted and recorded without a bytecode in between: an interrupt would lose the connection with
            # its messages.
            self._accepted.extend(islice(iter(self._accept_next, None), MAX_EVENTS))
        except BlockingIOError:
            pass  # there are no more connections
        except OSError:
            time.sleep(_NO_FILE_PAUSE_S)  # no descriptor is free, and the socket stays readable
        self._watch_accepted()

    def _watch_accepted(self) -> None:
        """Read from now on from the connections that were accepted. If cut short, it can be repeated."""
        while self._accepted:
            fd = self._accepted[0][0]
            os.set_blocking(fd, False)
            self._receive[fd] = partial(os.read, fd)
            with suppress(FileExistsError):
                self._epoll.register(fd, _READABLE)
            self._accepted.popleft()

    def _read_ending(self, fd: int, arrived: deque[bytes]) -> None:
        """Take the next message of a connection whose other end has closed, or forget the connection."""
        if _unread_bytes(fd):
            arrived.extend(map(self._receive[fd], _ONE))
            return
        with suppress(OSError):
            self._epoll.unregister(fd)
        del self._receive[fd]
        os.close(fd)

    def wake_up(self) -> None:
        """Have the `receive` that waits, or the next one, return. Safe from any thread or signal handler."""
        with suppress(OSError, ValueError):  # woken already, or closed
            os.eventfd_write(self._wakeup_fd, 1)

    def close(self) -> None:
        """Close everything; what has come and wasn't received is lost. A `receive` that waits returns: the
        files are closed when it has, for from files that are closed meanwhile the kernel never wakes it.
        """
        self._closed = True
        self.wake_up()
        if not self._is_receiving:  # of this and the flag above, one at least is seen by the other thread
            self._close_files()

    def _close_files(self) -> None:
        with self._closing_once:
            if self._epoll.closed:
                return
            self._epoll.close()
        self._listener.close()
        fds = [fd for fd, _ in self._accepted] + [*self._receive, self._wakeup_fd]
        self._accepted.clear()
        self._receive.clear()
        self._wakeup_fd = -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)


class SendQueues:
    """The queues of a process' senders whose messages the kernel had no room for, or whose receiver wasn't
    there.

    Args:
        call_later: calls back after a number of seconds, in the thread that calls `run`.
        on_broken: called by a thread that sends and finds a connection that other code has closed.
    """

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], None],
        on_broken: Callable[[], None] = lambda: None,
    ) -> None:
        self._call_later = call_later
        self.on_broken = on_broken
        self._noted: deque[LocalSender] = deque()
        self._full: dict[int, LocalSender] = {}
        self._absent: dict[LocalSender, None] = {}
        """Senders without a receiver, or that can't be watched, each once; tried again at `_due`."""
        self._due = math.inf
        self._epoll = select.epoll()
        self._wakeup_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wakeup_fd, select.EPOLLIN)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `run` has something to do."""
        return self._epoll.fileno()

    def note(self, sender: LocalSender) -> None:
        """Have the thread that calls `run` send what `sender` has queued."""
        self._noted.append(sender)
        with suppress(OSError, ValueError):  # closed: `LocalSender.close` sends the queued messages
            os.eventfd_write(self._wakeup_fd, 1)

    def run(self) -> None:
        """Send queued frames while connections have room."""
        for fd, _ in self._epoll.poll(0):
            sender = self._full.pop(fd, None)
            if sender is not None:
                with suppress(OSError):  # closed by now
                    self._epoll.unregister(fd)
                self._noted.append(sender)
        with suppress(BlockingIOError):
            os.eventfd_read(self._wakeup_fd)
        while self._noted:
            self._send(self._noted.popleft())

    def _send(self, sender: LocalSender) -> None:
        fd = sender.send_queued()
        if fd is None:
            return
        if fd < 0 or not self._watch(fd):
            self._absent[sender] = None
            self._try_absent_in(sender.retry_s)
        else:
            self._full[fd] = sender

    def _watch(self, fd: int) -> bool:
        """Have `run` called when a connection has room again; False if that isn't possible."""
        try:
            self._epoll.register(fd, select.EPOLLOUT)
        except FileExistsError:
            return True
        except OSError:
            return False  # closed by another thread meanwhile, or the user watches too many
        return True

    def _try_absent_in(self, delay_s: float) -> None:
        due = time.monotonic() + delay_s
        if due < self._due:
            self._due = due
            self._call_later(delay_s, lambda: self._try_absent(due))

    def _try_absent(self, due: float) -> None:
        if due != self._due:
            return  # a timer that was replaced: otherwise each would start others
        absent, self._absent, self._due = self._absent, {}, math.inf
        for sender in absent:
            self._send(sender)

    def close(self) -> None:
        """Send nothing more."""
        self._epoll.close()
        fd, self._wakeup_fd = self._wakeup_fd, -1
        if fd >= 0:
            os.close(fd)


class LocalSender:
    """The sender to the process that listens at a path; messages are queued when that can't receive yet. Any
    thread may call any method.

    Args:
        path: where the other process listens.
        queues: sends queued messages.
    """

    __slots__ = (
        "_absent_since",
        "_closed",
        "_number",
        "_path",
        "_queue",
        "_queues",
        "_send",
        "_socket",
        "lock",
    )

    def __init__(self, path: str, queues: SendQueues) -> None:
        self._path = path
        self._queues = queues
        self._queue: deque[bytes] = deque()
        self._socket: socket.socket | None = None
        self._send: Callable[[bytes, int], int] = _send_nothing
        self._number = secrets.randbits(32)
        self._closed = False
        self._absent_since = math.inf
        self.lock = threading.Lock()
        self._connect()

    def send(self, frame: bytes) -> None:
        """Send one frame; never blocks."""
        with self.lock:
            if not self._queue and len(frame) <= PIECE_BYTES:
                try:
                    self._send(frame, _FLAGS)
                    return
                except BlockingIOError:
                    pass
                except OSError as error:
                    if error.errno in CLOSED_BY_OTHERS:
                        self._queues.on_broken()
                    if self._send_anew(frame):
                        return
            # First the note, then the frame: an interrupt in between must not leave a frame that is never
            # sent.
            self._queues.note(self)
            self._queue.extend((frame,) if len(frame) <= PIECE_BYTES else self._pieces(frame))

    def _send_anew(self, frame: bytes) -> bool:
        """Send on a new connection, since the previous one has ended; False if that isn't possible now."""
        self._disconnect()
        if not self._connect():
            return False
        try:
            self._send(frame, _FLAGS)
        except OSError:
            return False
        return True

    def _pieces(self, frame: bytes) -> Iterator[bytes]:
        number, view = next(_numbers) & 0xFFFFFFFF, memoryview(frame)
        starts = range(0, len(frame), PIECE_BYTES)
        for left, start in zip(reversed(range(len(starts))), starts, strict=True):
            head = _PIECE.pack(PIECE_START, start == 0, self._number, number, left)
            yield b"".join((head, view[start : start + PIECE_BYTES]))

    def _connect(self) -> bool:
        try:
            connection = _new_socket()
        except OSError:
            return False  # no descriptor is free: tried again later, as if the receiver were absent
        open_files.note_open(connection.fileno())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        try:
            connection.connect(self._path)
        except OSError:
            connection.close()
            return False
        self._socket, self._send, self._absent_since = connection, connection.send, math.inf
        return True

    def _disconnect(self) -> None:
        connection, self._socket, self._send = self._socket, None, _send_nothing
        if connection is not None:
            connection.close()

    @property
    def retry_s(self) -> float:
        """The time until the next try to reach a process that doesn't listen."""
        absent_s = max(0.0, time.monotonic() - self._absent_since)
        return min(max(absent_s / RETRIES, MIN_RETRY_S), MAX_RETRY_S)

    def send_queued(self) -> int | None:
        """Send queued frames. For the thread of `SendQueues`.

        Returns:
            None if nothing is left, the connection's descriptor if the kernel has no more room, -1 if the
            other process isn't there.
        """
        with self.lock:
            while self._queue and not self._closed:
                if self._socket is None and not (os.path.exists(self._path) and self._connect()):
                    self._absent_since = min(self._absent_since, time.monotonic())
                    return -1
                try:
                    self._send(self._queue[0], _FLAGS)
                except BlockingIOError:
                    return -1 if self._socket is None else self._socket.fileno()
                except OSError:
                    self._disconnect()
                    continue
                self._queue.popleft()
        return None

    def close(self, linger_s: float = 0.0) -> None:
        """Close the connection; what is queued is sent within `linger_s`, or lost."""
        deadline = time.monotonic() + linger_s
        while linger_s > 0.0 and self._queue:
            fd = self.send_queued()
            left_s = deadline - time.monotonic()
            if fd is None or left_s <= 0.0:
                break
            if fd < 0:
                time.sleep(min(left_s, MIN_RETRY_S))
            else:
                select.select([], [fd], [], left_s)
        with self.lock:
            self._closed = True
            self._queue.clear()
            self._disconnect()


class Joiner:
    """The assembler of frames that arrive in pieces."""

    def __init__(self) -> None:
        self._begun: dict[int, tuple[int, dict[int, bytes]]] = {}
        """By sender: the message that its pieces belong to, and the pieces by the number that follow."""

    def whole(self, frame: bytes) -> bytes | None:
        """Return `frame`, or what was sent if it is the last piece of that; None if more must come first.

        The same piece may be given twice.

        Raises:
            WireError: if it is shorter than any piece.
        """
        if not is_piece(frame):
            return frame
        if len(frame) < _PIECE.size:
            raise WireError(f"a piece of a message has {len(frame)} bytes; expected {_PIECE.size} at least")
        _, _, sender, number, left = _PIECE.unpack_from(frame)
        begun = self._begun.get(sender)
        if begun is None or begun[0] != number:
            begun = self._begun[sender] = (number, {})
        begun[1][left] = frame
        if left:
            return None
        pieces = [begun[1][i] for i in sorted(begun[1], reverse=True)]
        _, is_first, *_, first_left = _PIECE.unpack_from(pieces[0])
        if not is_first or len(pieces) != first_left + 1:
            del self._begun[sender]
            return None  # its beginning went to an earlier process at this path
        return b"".join(memoryview(piece)[_PIECE.size :] for piece in pieces)

    def done(self, frame: bytes) -> None:
        """Drop the pieces of the message whose last piece is `frame`, which was handled."""
        if is_piece(frame):
            self._begun.pop(_PIECE.unpack_from(frame)[2], None)


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


def _identity(fd: int) -> tuple[int, int] | None:
    """Return device and inode, which tell a file from others; None if the descriptor is closed."""
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _send_nothing(_frame: bytes, _flags: int) -> int:
    raise NotConnectedError


def _unread_bytes(fd: int) -> int:
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), "little")


class NotConnectedError(OSError):
    """The error of a message that can't be sent now, because the other process doesn't listen."""
