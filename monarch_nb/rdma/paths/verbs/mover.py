"""Moves one transfer over one connection, and verifies that the buffer existed throughout.

The proof is a line of the owner's table of keys, read by the same queue pair when the last byte is there:
whoever finds the key unchanged knows that the memory was registered all the time. A write looks before the
first byte, too. The line isn't posted behind the bytes with a fence, for Soft-RoCE never sends a fenced READ
again that was lost.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from monarch_nb.rdma.layout import Piece
from monarch_nb.rdma.path import READ, Job
from monarch_nb.rdma.paths.verbs.connection import LINE_BYTES, Connection, Work
from monarch_nb.rdma.paths.verbs.plan import Request, chains, packed, requests
from monarch_nb.rdma.table import KEY_BYTES

CHUNK_BYTES = 2 << 20
MAX_CHAIN = 32
MAX_UNDER_WAY_BYTES = 8 << 20
"""Maximum number of posted bytes: the remaining work after a cancellation."""


@dataclass(frozen=True, slots=True)
class Target:
    """The access to a buffer: the owner's port, the buffer's key, and the offset that is added to its
    addresses for that NIC.
    """

    port: str
    rkey: int
    shift: int


@dataclass(frozen=True, slots=True)
class Local:
    """Registered local memory: the NIC's address of offset 0, and its key."""

    address: int
    lkey: int


class Mover:
    """The mover of one job's bytes. Raises `CompletionError` if a request failed."""

    def __init__(
        self,
        connection: Connection,
        job: Job,
        target: Target,
        table: tuple[int, int],
        silent: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._job = job
        self._target = target
        self._table, self._table_key = table
        self._silent = silent
        self._is_read = job.op == READ

    # --- the transfer

    def in_place(self, local: Local) -> None:
        """Move the bytes between the buffer and registered memory."""
        self._run(self._job.pieces(), local)

    def through_scratch(self) -> None:
        """Move a few bytes through a registered scratch buffer, which is cheaper than registering their
        memory.
        """
        job = self._job
        pieces = job.pieces()
        first = self._connection.scratch_address + LINE_BYTES
        near = packed(pieces)
        if not self._is_read:
            for piece, copy in zip(pieces, near, strict=True):
                ctypes.memmove(first + copy.here, job.local.address + piece.here, piece.nbytes)
        self._run(near, Local(first, self._connection.scratch_lkey))
        if self._is_read:
            for piece, copy in zip(pieces, near, strict=True):
                ctypes.memmove(job.local.address + piece.here, first + copy.here, piece.nbytes)

    def _run(self, pieces: Iterable[Piece], local: Local) -> None:
        if not self._is_read:
            self.check()
        nic = self._connection.nic
        wanted = requests(pieces, min(CHUNK_BYTES, nic.max_message_bytes), nic.max_parts)
        for chain in chains(wanted, min(MAX_CHAIN, self._connection.depth), CHUNK_BYTES):
            self._post([self._work(request, local) for request in chain])
        self._finish()
        self.check(self._flush())

    def check(self, before: Sequence[Work] = ()) -> None:
        """Verify that the buffer exists, and that requests reach its owner's NIC."""
        self._connection.clear_line()
        self._post([*before, self._line()])
        self._finish()
        if self._connection.line != self._job.handle.key:
            raise self._job.gone()

    # --- work requests

    def _work(self, request: Request, local: Local) -> Work:
        there = self._job.handle.address + self._target.shift + request.there
        parts = [(local.address + p.here, p.nbytes) for p in request.parts]
        return Work(self._is_read, there, self._target.rkey, parts, local.lkey)

    def _flush(self) -> list[Work]:
        if self._is_read or self._job.handle.device == "cpu":
            return []
        # Bytes written to a GPU may still be on their way through PCIe; a READ of them returns after they
        # have arrived.
        handle = self._job.handle
        first = handle.address + self._target.shift + handle.layout.span[0]
        scratch = (self._connection.scratch_address + KEY_BYTES, 1)
        return [Work(True, first, self._target.rkey, [scratch], self._connection.scratch_lkey, counts=False)]

    def _line(self) -> Work:
        there = self._table + self._job.handle.slot * KEY_BYTES
        parts = [(self._connection.scratch_address, KEY_BYTES)]
        return Work(True, there, self._table_key, parts, self._connection.scratch_lkey, counts=False)

    # --- progress

    def _post(self, chain: list[Work]) -> None:
        connection = self._connection
        while connection.num_posted and (
            connection.num_posted + len(chain) > connection.depth
            or connection.posted_bytes >= MAX_UNDER_WAY_BYTES
        ):
            self._wait()
        connection.post(chain)

    def _finish(self) -> None:
        while self._connection.num_posted:
            self._wait()

    def _wait(self) -> None:
        nbytes = self._connection.wait(self._job.remaining_s)
        if not nbytes:
            self._silent()
        self._job.moved(nbytes)
