"""The protocol of a stream of the tcp path: requests, answers, the bytes, and their checksum.

A stream has one that asks and one that owns memory. A request names a chunk: stretches of one region, in
order. Many small stretches travel as one, gathered and scattered by a copy; a large one goes from memory to
memory. Several requests are on their way at once.

    read   ->  request                      <-  answer, bytes, trailer
    write  ->  request, bytes, trailer      <-  answer

The bytes are not encrypted. Who may connect is decided before (`handshake.py`).
"""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from monarch_nb.rdma.paths.tcp.checksum import MASK, ROW_BYTES, Sum, sealed, summed_up

BLOCK_ROWS = 256
BLOCK_BYTES = BLOCK_ROWS * ROW_BYTES
"""Number of bytes (2 MiB) that are sent or received at a time, and summed while they are in the processor's
cache. Smaller blocks cost more in overhead than they save.
"""
SMALL_BYTES = 64 << 10
"""A chunk up to this size is copied before it's sent: one system call, and the sent bytes are the summed
ones.
"""
JOINED_BYTES = 256 << 10
"""Number of bytes gathered from small stretches."""
MAX_CHUNK_BYTES = 16 << 20
MAX_STRETCHES = 1024

OP_READ, OP_WRITE = 1, 2
OK, GONE, REFUSED, CORRUPT = 0, 1, 2, 3

Stretch = tuple[int, int]
"""Offset in the region, and length."""
Wait = Callable[[int], None]
"""Called whenever no bytes moved during the socket's time-out, with the number of such times in a row; raises
to give up.
"""

_REQUEST = struct.Struct("<HBxHxxIQQQQ")
_ANSWER = struct.Struct("<HBxHxxIQ")
_TRAILER: Final = struct.Struct("<QQ")
_CHECK = struct.Struct("<I")
_MAGIC = 0x7C9E
# As plain numbers: `|` of the enumeration's members takes longer than a small transfer's copy.
_WAIT_ALL = int(socket.MSG_WAITALL)
_NO_SIGNAL = int(socket.MSG_NOSIGNAL)
_MORE = int(socket.MSG_NOSIGNAL | socket.MSG_MORE)


class Broken(ConnectionError):
    """The error of a connection that ended, or on which invalid data arrived."""


class Corrupt(Exception):
    """The error of bytes that changed on their way."""


# --- requests and answers


@dataclass(frozen=True, slots=True)
class Request:
    """A request to read or write a chunk.

    Attributes:
        op: OP_READ or OP_WRITE.
        tag: its number on this stream.
        key, slot: the registration.
        stretches: of the region.
    """

    op: int
    tag: int
    key: int
    slot: int
    stretches: Sequence[Stretch]

    @property
    def nbytes(self) -> int:
        """The number of bytes of all stretches."""
        return sum(n for _, n in self.stretches)

    @property
    def is_copied(self) -> bool:
        """Whether the bytes are sent as one copied block; otherwise as one stretch, straight from memory to
        memory.
        """
        return len(self.stretches) > 1 or self.stretches[0][1] <= SMALL_BYTES

    @property
    def seed(self) -> int:
        """The seed of the checksum, which keeps the answer to another request from being accepted."""
        offset, nbytes = self.stretches[0]
        return (self.key * 3 + self.tag * 5 + offset * 7 + nbytes * 11 + self.op) & MASK

    def encode(self) -> bytes:
        """Return the request as bytes."""
        num = len(self.stretches)
        first, *more = self.stretches
        head = _REQUEST.pack(_MAGIC, self.op, num, self.tag, self.key, self.slot, *first)
        rest = struct.pack(f"<{2 * num - 2}Q", *[x for pair in more for x in pair]) if more else b""
        return head + _CHECK.pack(zlib.crc32(rest, zlib.crc32(head))) + rest


def receive_request(sock: socket.socket, wait: Wait) -> Request:
    """Receive a request.

    Raises:
        Broken: if the connection has ended, or the bytes aren't a request.
    """
    head = received(sock, _REQUEST.size + _CHECK.size, wait)
    magic, op, num, tag, key, slot, offset, nbytes = _REQUEST.unpack_from(head)
    if magic != _MAGIC or op not in (OP_READ, OP_WRITE) or not 0 < num <= MAX_STRETCHES:
        raise Broken("the received bytes are no request")
    rest = received(sock, 16 * (num - 1), wait)
    if zlib.crc32(rest, zlib.crc32(head[: _REQUEST.size])) != _CHECK.unpack_from(head, _REQUEST.size)[0]:
        raise Broken("a request changed on its way")
    numbers = struct.unpack_from(f"<{2 * num - 2}Q", rest)
    return Request(op, tag, key, slot, [(offset, nbytes), *zip(numbers[::2], numbers[1::2], strict=True)])


def encode_answer(tag: int, status: int, nbytes: int = 0, text: str = "") -> bytes:
    """Encode the owner's answer to a request. The data follow it; if it's an error, it has a text instead."""
    words = text.encode()[:0xFFFF]
    head = _ANSWER.pack(_MAGIC, status, len(words), tag, nbytes)
    return head + _CHECK.pack(zlib.crc32(words, zlib.crc32(head))) + words


def receive_answer(sock: socket.socket, request: Request, wait: Wait) -> tuple[int, str]:
    """Receive the owner's answer: the status, and the text of an error.

    Raises:
        Corrupt: if it isn't the answer to `request`.
        Broken: if the connection has ended.
    """
    head = received(sock, _ANSWER.size + _CHECK.size, wait)
    magic, status, length, tag, nbytes = _ANSWER.unpack_from(head)
    if magic != _MAGIC or tag != request.tag:
        raise Corrupt("the answer")
    words = received(sock, length, wait) if length else b""
    if zlib.crc32(words, zlib.crc32(head[: _ANSWER.size])) != _CHECK.unpack_from(head, _ANSWER.size)[0]:
        raise Corrupt("the answer")
    if status == OK and request.op == OP_READ and nbytes != request.nbytes:
        raise Corrupt("the answer's length")
    return status, words.decode()


# --- bytes


def received(sock: socket.socket, nbytes: int, wait: Wait) -> bytearray:
    """Receive exactly `nbytes` bytes."""
    found = bytearray(nbytes)
    receive_exactly(sock, memoryview(found), wait)
    return found


def receive_exactly(sock: socket.socket, into: memoryview, wait: Wait) -> None:
    """Fill memory with bytes from a stream.

    Raises:
        Broken: if the stream ends before.
    """
    left, idle = len(into), 0
    while left:
        try:
            num = sock.recv_into(into, 0, _WAIT_ALL)
            if num == left:
                return
        except BlockingIOError:
            idle += 1
            wait(idle)
            continue
        except OSError as error:
            raise Broken(str(error)) from None
        if not num:
            raise Broken("the other side has closed the connection")
        into, left, idle = into[num:], left - num, 0


def send_all(
    sock: socket.socket, buffers: Iterable[memoryview | bytes], wait: Wait, *, more: bool = False
) -> None:
    """Send all bytes of some buffers; `more`: further bytes follow at once."""
    todo, idle = [memoryview(b) for b in buffers], 0
    while todo:
        try:
            sent = sock.sendmsg(todo, (), _MORE if more else _NO_SIGNAL)
        except BlockingIOError:
            idle += 1
            _check_not_ended(sock)
            wait(idle)
            continue
        except OSError as error:
            raise Broken(str(error)) from None
        idle = 0
        while todo and sent >= len(todo[0]):
            sent -= len(todo.pop(0))
        if sent:
            todo[0] = todo[0][sent:]


def _check_not_ended(sock: socket.socket) -> None:
    """Raise if the other side has closed: TCP doesn't tell a process that only sends, as long as the other
    one keeps its socket open.
    """
    try:
        ended = not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return
    except OSError as error:
        raise Broken(str(error)) from None
    if ended:
        raise Broken("the other side has closed the connection")


def send_chunk(
    sock: socket.socket,
    head: bytes,
    data: memoryview,
    seed: int,
    wait: Wait,
    settled: Callable[[], int] = lambda: OK,
) -> None:
    """Send a header, a chunk and its trailer; `settled` returns the status after the last byte was read from
    memory.
    """
    summed = Sum(data, BLOCK_ROWS)
    send_all(sock, [head], wait, more=True)
    for i, block in enumerate(summed.blocks):
        summed.add(i)
        _send_block(sock, block, wait)
    status = settled()
    send_all(sock, [_TRAILER.pack(sealed(summed.total(seed), status), status)], wait)


def _send_block(sock: socket.socket, block: memoryview, wait: Wait) -> None:
    """Send a block that more bytes follow."""
    try:
        sent = sock.send(block, _MORE)
    except BlockingIOError:
        sent = 0
    except OSError as error:
        raise Broken(str(error)) from None
    if sent != len(block):
        send_all(sock, [block[sent:]], wait, more=True)


def send_copied(
    sock: socket.socket, head: bytes, data: memoryview, seed: int, wait: Wait, status: int = OK
) -> None:
    """Send a header, a chunk and its trailer at once, for bytes that no other thread changes."""
    trailer = _TRAILER.pack(sealed(summed_up(data, seed), status), status)
    send_all(sock, [head, data, trailer], wait)


def receive_chunk(sock: socket.socket, into: memoryview, seed: int, wait: Wait) -> int:
    """Receive a chunk and its trailer; return the status in it.

    Raises:
        Corrupt: if the checksum isn't right.
        Broken: if the stream ends before.
    """
    summed = Sum(into, BLOCK_ROWS)
    for i, block in enumerate(summed.blocks):
        receive_exactly(sock, block, wait)
        summed.add(i)
    checksum, status = _TRAILER.unpack(received(sock, _TRAILER.size, wait))
    if checksum != sealed(summed.total(seed), status):
        raise Corrupt("the bytes")
    return int(status)


def receive_copied(sock: socket.socket, nbytes: int, seed: int, wait: Wait) -> tuple[memoryview, int]:
    """Receive a small chunk and its trailer at once; return the bytes and the status. Raises the same errors
    as `receive_chunk`.
    """
    whole = received(sock, nbytes + _TRAILER.size, wait)
    data = memoryview(whole)[:nbytes]
    checksum, status = _TRAILER.unpack_from(whole, nbytes)
    if checksum != sealed(summed_up(data, seed), status):
        raise Corrupt("the bytes")
    return data, int(status)


def skip(sock: socket.socket, nbytes: int, wait: Wait) -> None:
    """Receive a chunk and its trailer, and discard them."""
    left = nbytes + _TRAILER.size
    while left:
        left -= len(received(sock, min(left, SMALL_BYTES), wait))


# --- small stretches


def gathered(memory: memoryview, stretches: Sequence[Stretch]) -> memoryview:
    """Return a contiguous copy of stretches of memory."""
    return memoryview(b"".join([memory[at : at + n] for at, n in stretches]))


def scatter(data: memoryview, memory: memoryview, stretches: Sequence[Stretch]) -> None:
    """Copy bytes to stretches of memory, in order."""
    start = 0
    for at, n in stretches:
        memory[at : at + n] = data[start : start + n]
        start += n
