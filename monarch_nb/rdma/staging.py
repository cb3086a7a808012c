"""Moves memory that a path can't take in place: GPU memory where it supports only the host's, and scattered
elements whose individual transfer costs more than a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monarch_nb.rdma.handle import Handle
from monarch_nb.rdma.layout import Layout
from monarch_nb.rdma.memory import Memory, memory_of
from monarch_nb.rdma.path import READ, WRITE, Job, Path

THIN_BYTES = 1024
"""Runs shorter than this are gathered or scattered here, by a copy."""
MAX_SPAN_RATIO = 4
"""Maximum ratio of read bytes to wanted bytes, when wanted ones are scattered."""
HOST_CHUNK_BYTES = 64 << 20
"""GPU memory goes through the host in pieces of this size."""


def hold(memory: Memory) -> None:
    """Make sure that registered memory isn't freed while its tensor is alive."""
    if memory.kind == "tensor" and memory.is_cpu and memory.nbytes:
        import torch

        # numpy's view makes a storage refuse `resize_`, which would free it beneath the buffer.
        torch.empty(0, dtype=torch.uint8).set_(memory.keepalive.untyped_storage()).numpy()


def queued_work(memory: Memory) -> Any:
    """Return an event that completes after the work that is now queued on the GPU's current stream; None for
    host memory.
    """
    if memory.is_cpu:
        return None
    import torch

    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(memory.device))
    return event


def run(path: Path, job: Job) -> None:
    """Run a job by a path, through intermediate memory if the path can't access the job's memory directly."""
    if job.nbytes:
        (_detour(path, job) or _straight)(path, job)


def is_plain(path: Path, job: Job) -> bool:
    """Return whether a path can run a job without intermediate memory."""
    return bool(job.nbytes) and _detour(path, job) is None


def _detour(path: Path, job: Job) -> Callable[[Path, Job], None] | None:
    """Return the function that runs a job through intermediate memory; None if the path can run the job
    directly.
    """
    if not job.local.is_cpu and not path.reaches_gpus:
        return _through_host
    if path.takes_strides:
        return None
    if job.local.is_cpu and _is_thin(job.local.layout):
        return _with_contiguous
    return _read_span if job.op == READ and _is_thin(job.handle.layout) else None


def _straight(path: Path, job: Job) -> None:
    path.transfer(job)


def _is_thin(layout: Layout) -> bool:
    return not layout.is_contiguous and layout.runs().nbytes < THIN_BYTES


def _run_part(path: Path, job: Job, handle: Handle, local: Memory) -> None:
    """Run a part of a job; it shares the job's deadline, cancellation and progress."""
    part = Job(job.op, handle, local, job.deadline, job.cancelled)

    def progress() -> None:
        job.done_bytes = min(job.nbytes, before + part.done_bytes)
        if job.on_progress is not None:
            job.on_progress()

    before = job.done_bytes
    part.on_progress = progress
    run(path, part)


def _host_bytes(nbytes: int, *, pinned: bool = False) -> Any:
    if pinned:
        import torch

        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    import numpy

    return numpy.empty(nbytes, numpy.uint8)


def _through_host(path: Path, job: Job) -> None:
    """Run a job whose local memory is on a GPU through host memory; chunk by chunk if both sides are
    contiguous.
    """
    if job.after is not None:
        job.after.synchronize()
    flat = job.handle.layout.is_contiguous and job.local.layout.is_contiguous
    if not flat:
        _piece_through_host(path, job, job.handle, job.local)
        return
    theirs = Layout.contiguous((job.nbytes,), 1, job.handle.layout.offset)
    ours = Layout.contiguous((job.nbytes,), 1, job.local.layout.offset)
    for at in range(0, job.nbytes, HOST_CHUNK_BYTES):
        part = slice(at, at + HOST_CHUNK_BYTES)
        _piece_through_host(path, job, job.handle.at(theirs[part]), job.local.at(ours[part]))


def _piece_through_host(path: Path, job: Job, handle: Handle, local: Memory) -> None:
    host = memory_of(_host_bytes(handle.nbytes, pinned=True))
    there = device_bytes(local)
    if job.op == WRITE:
        host.keepalive.copy_(there.reshape(-1))
    _run_part(path, job, handle, host)
    if job.op == READ:
        there.copy_(host.keepalive.view(there.shape))


def device_bytes(memory: Memory) -> Any:
    """Return GPU memory as a tensor of bytes: its shape, plus a last dimension for the bytes of an
    element.
    """
    import torch

    layout = memory.layout
    storage = memory.keepalive.untyped_storage()
    first = memory.address + layout.offset - storage.data_ptr()
    base = torch.empty(0, dtype=torch.uint8, device=memory.device)
    return base.set_(storage, first, (*layout.shape, layout.itemsize), (*layout.strides, 1))


def tensor_of_bytes(memory: Memory) -> Any:
    """Return memory on any device as a tensor of bytes, in the shape of `device_bytes`."""
    if not memory.is_cpu:
        return device_bytes(memory)
    import torch

    layout = memory.layout
    flat = torch.frombuffer(memory.bytes_at(0, memory.span_bytes), dtype=torch.uint8)
    return flat.as_strided((*layout.shape, layout.itemsize), (*layout.strides, 1), layout.offset)


def load(memory: Memory) -> bytes:
    """Return contiguous memory on any device as bytes."""
    if memory.is_cpu:
        return bytes(memory.bytes_at(memory.layout.offset, memory.nbytes))
    return bytes(device_bytes(memory).cpu().numpy())


def store(data: bytes | memoryview, memory: Memory) -> None:
    """Write bytes into contiguous memory on any device."""
    if memory.is_cpu:
        memory.bytes_at(memory.layout.offset, memory.nbytes)[:] = data
        return
    import torch

    into = device_bytes(memory)
    into.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8).view(into.shape))


def strided(memory: Memory) -> Any:
    """Return host memory as a numpy array of the same shape, whose elements are `itemsize` raw bytes."""
    import numpy

    layout = memory.layout
    data = memory.bytes_at(0, memory.span_bytes)
    return numpy.ndarray(layout.shape, f"V{layout.itemsize}", data, layout.offset, layout.strides)


def _with_contiguous(path: Path, job: Job) -> None:
    """Run a job whose local elements are scattered, through one contiguous block of host memory."""
    whole = _host_bytes(job.nbytes)
    elements = whole.view(f"V{job.local.layout.itemsize}").reshape(job.local.layout.shape)
    if job.op == WRITE:
        elements[...] = strided(job.local)
    _run_part(path, job, job.handle, memory_of(whole))
    if job.op == READ:
        strided(job.local)[...] = elements


def _read_span(path: Path, job: Job) -> None:
    """Read a buffer whose elements are scattered together with the gaps between them, unless the gaps are too
    large.
    """
    low, high = job.handle.layout.span
    if high - low > MAX_SPAN_RATIO * job.nbytes:
        path.transfer(job)
        return
    span = _host_bytes(high - low)
    inner = Job(
        READ,
        job.handle.at(Layout.contiguous((high - low,), 1, low)),
        memory_of(span),
        job.deadline,
        job.cancelled,
    )
    run(path, inner)
    import numpy

    layout = job.handle.layout
    found = numpy.ndarray(layout.shape, f"V{layout.itemsize}", span, layout.offset - low, layout.strides)
    put(found, job.local)
    job.moved(job.nbytes)


def put(elements: Any, local: Memory) -> None:
    """Copy raw elements into host memory, in order; both have the same number of bytes, but shapes may
    differ.
    """
    layout = local.layout
    if elements.shape != layout.shape or elements.itemsize != layout.itemsize:
        import numpy

        flat = numpy.ascontiguousarray(elements).reshape(-1)
        elements = flat.view(f"V{layout.itemsize}").reshape(layout.shape)
    strided(local)[...] = elements
