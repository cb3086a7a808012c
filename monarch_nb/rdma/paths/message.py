"""The path of last resort: bytes in the mesh's own messages, where no separate connection can be made.

It works wherever the mesh works, for it goes the way of all messages, encrypted between machines; it costs
several copies and the time of both host processes.
"""

from __future__ import annotations

from collections.abc import Sequence

from monarch_nb.exceptions import MeshUsageError
from monarch_nb.rdma import staging
from monarch_nb.rdma.handle import Handle
from monarch_nb.rdma.layout import Layout, Piece, batches
from monarch_nb.rdma.memory import Memory
from monarch_nb.rdma.path import READ, Job, Path
from monarch_nb.rdma.question import Done, Question
from monarch_nb.rdma.regions import Region

CHUNK_BYTES = 4 << 20
MAX_PIECES = 10_000
ANSWER_S = 60.0
NAME = "message"


class ReadBytes(Question[bytes], frozen=True):
    """The request for parts of a region, one after the other: the offset of each, and its length in bytes."""

    to = NAME
    parts: list[tuple[int, int]]


class WriteBytes(Question[Done], frozen=True):
    """The request to write `data` into parts of a region, one after the other."""

    to = NAME
    parts: list[tuple[int, int]]
    data: bytes


class MessagePath(Path):
    """The path that moves bytes in the messages of the mesh."""

    name = NAME
    encrypts = True

    def refusal(self, handle: Handle, local: Memory) -> str:
        return ""

    def transfer(self, job: Job) -> None:
        for batch in batches(job.pieces(), CHUNK_BYTES, MAX_PIECES):
            self._move(job, batch)
            job.moved(sum(piece.nbytes for piece in batch))

    def _move(self, job: Job, batch: Sequence[Piece]) -> None:
        parts = [(piece.there, piece.nbytes) for piece in batch]
        timeout_s = job.remaining_s(ANSWER_S)
        if job.op != READ:
            data = b"".join(job.local.bytes_at(piece.here, piece.nbytes) for piece in batch)
            self.plane.ask(WriteBytes(job.handle, parts, data), timeout_s)
            return
        found, at = memoryview(self.plane.ask(ReadBytes(job.handle, parts), timeout_s)), 0
        for piece in batch:
            job.local.bytes_at(piece.here, piece.nbytes)[:] = found[at : at + piece.nbytes]
            at += piece.nbytes

    def answer(self, question: Question[object], region: Region) -> bytes | Done:
        assert isinstance(question, ReadBytes | WriteBytes)
        memory = region.memory
        if not all(0 <= start <= start + nbytes <= memory.span_bytes for start, nbytes in question.parts):
            raise MeshUsageError(f"bytes beyond the {memory.span_bytes:,} of a buffer")
        parts = [memory.at(Layout.contiguous((nbytes,), 1, start)) for start, nbytes in question.parts]
        with region.lock:  # a drop waits until this is done
            if isinstance(question, ReadBytes):
                return b"".join(staging.load(part) for part in parts)
            if memory.read_only:
                raise MeshUsageError("the buffer is read-only")
            data, at = memoryview(question.data), 0
            for part in parts:
                staging.store(data[at : at + part.nbytes], part)
                at += part.nbytes
        return Done()
