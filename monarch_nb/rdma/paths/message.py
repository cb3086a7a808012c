"""The last resort: bytes in the mesh's own messages, where no connection of their own can be made.

It works wherever the mesh works, for it goes the way of all messages, encrypted between machines; it costs several copies and the
time of both host processes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from monarch_nb.exceptions import MeshUsageError
from monarch_nb.rdma import staging
from monarch_nb.rdma.handle import Handle
from monarch_nb.rdma.layout import Layout
from monarch_nb.rdma.memory import Memory
from monarch_nb.rdma.path import READ, Job, Path
from monarch_nb.rdma.regions import Region

CHUNK_BYTES = 4 << 20
ANSWER_S = 60.0


class MessagePath(Path):
    """See the module."""

    name = "message"

    def refusal(self, handle: Handle, local: Memory) -> str:
        return ""

    def transfer(self, job: Job) -> None:
        for there, here, nbytes in job.pieces():
            for at in range(0, nbytes, CHUNK_BYTES):
                n = min(CHUNK_BYTES, nbytes - at)
                self._move(job, there + at, here + at, n)
                job.moved(n)

    def _move(self, job: Job, there: int, here: int, n: int) -> None:
        view = job.local.bytes_at(here, n)
        fields: dict[str, Any] = {"start": there, "nbytes": n}
        if job.op != READ:
            fields["data"] = bytes(view)
        answer = self.desk.ask(job.handle, self.name, fields, job.remaining_s(ANSWER_S))
        if job.op == READ:
            ctypes.memmove(job.local.address + here, bytes(answer["data"]), n)

    def answer(self, fields: Mapping[str, Any], region: Region | None) -> dict[str, Any]:
        assert region is not None
        start, nbytes = fields["start"], fields["nbytes"]
        if not 0 <= start <= start + nbytes <= region.memory.span_bytes:
            raise MeshUsageError(f"bytes {start} to {start + nbytes} of a buffer that has {region.memory.span_bytes}")
        part = region.memory.at(Layout.contiguous((nbytes,), 1, start))
        with region.lock:  # dropping waits
            if "data" in fields:
                if region.memory.read_only:
                    raise MeshUsageError("the buffer is read-only")
                staging.store(fields["data"], part)
                return {}
            return {"data": staging.load(part)}
