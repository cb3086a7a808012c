"""Runs a rank's part in measuring paths: it holds memory that another rank reads, or reads by one path after
the other.

What is held has a token. Whatever happens to the client between, `let_go` comes after `hold` in the rank's
inbox; what is left of a client that died is let go by the next one's `hold`.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from monarch_nb._protocol.base import Record
from monarch_nb._wire.loaded import loaded
from monarch_nb.exceptions import DeviceMeshError, RankTimeout
from monarch_nb.rdma.buffer import RDMABuffer, handle_of
from monarch_nb.rdma.data_plane import data_plane
from monarch_nb.rdma.memory import memory_of

SMALL_BYTES = 4096
NUM_READS, NUM_SMALL_READS = 3, 20
LONG_ENOUGH_S = 2.0
"""Time after which no further read of a kind begins."""
READ_S = 30.0
KEPT_S = 900.0
ASIDE = ("local", "message")
"""Paths that aren't measured unless they are requested, since they say nothing about the machines."""


class Reading(Record, frozen=True):
    """Reads of a buffer by one path.

    Attributes:
        reader_device: where the memory lay that was read into.
        gb_per_s: of the large reads, the best, in 1e9 bytes per second; None if there were none.
        latency_s: of reads of 4 KiB, the best.
        why_not: why there's no figure.
    """

    path: str
    reader_device: str = ""
    gb_per_s: float | None = None
    latency_s: float | None = None
    why_not: str = ""


_held: dict[str, tuple[float, RDMABuffer]] = {}


def hold(token: str, size_bytes: int, on_gpu: bool) -> RDMABuffer | None:
    """Register new memory until `let_go`. Return None if GPU memory is wanted, and this process uses no
    GPU.
    """
    for old in [t for t, (since, _) in _held.items() if time.monotonic() - since > KEPT_S]:
        let_go(old)
    torch = loaded("torch")
    if on_gpu and (torch is None or not torch.cuda.is_initialized()):
        return None
    _held[token] = time.monotonic(), RDMABuffer(_memory(torch, size_bytes, on_gpu))
    return _held[token][1]


def _memory(torch: Any, size_bytes: int, on_gpu: bool) -> Any:
    """Return memory in the state that programs have it in: its pages touched, and huge if torch or numpy ask
    for huge pages.
    """
    if torch is not None:
        return torch.ones(size_bytes, dtype=torch.uint8, device="cuda" if on_gpu else "cpu")
    import numpy

    return numpy.ones(size_bytes, numpy.uint8)


def let_go(token: str) -> None:
    """Drop the buffer that is held under a token, if there is one."""
    if token in _held:
        _held.pop(token)[1].drop()


def read_by_paths(buffer: RDMABuffer, only: Sequence[str], all_paths: bool, large: bool) -> list[Reading]:
    """Read a buffer by each path and return what was measured.

    Args:
        only: names of the paths; none: all.
        all_paths: also those whose speed doesn't depend on the machines' hardware.
        large: whether all of it is read, not just its beginning.
    """
    room = _room_for(buffer)
    local = memory_of(room)
    return [
        replace(_benchmark(buffer, room, name, large), reader_device=local.device)
        for name, path in data_plane().paths.items()
        if (name in only if only else all_paths or name not in ASIDE)
        and path.concerns(handle_of(buffer), local)
    ]


def _room_for(buffer: RDMABuffer) -> Any:
    torch = loaded("torch")
    if buffer.device != "cpu" and torch is not None and torch.cuda.is_initialized():
        return torch.empty(buffer.size(), dtype=torch.uint8, device="cuda")
    return memoryview(mmap.mmap(-1, buffer.size(), flags=mmap.MAP_PRIVATE))


def _benchmark(buffer: RDMABuffer, room: Any, path: str, large: bool) -> Reading:
    small, small_room = buffer[:SMALL_BYTES], room[:SMALL_BYTES]
    try:
        refused = _refusal(buffer, room, path)
        if refused:
            return Reading(path, why_not=refused)
        small.read_into(small_room, READ_S, path=path).get()  # opens the connection
        latency_s = _best(lambda: small.read_into(small_room, READ_S, path=path).get(), NUM_SMALL_READS)
        if not large:
            return Reading(path, latency_s=latency_s)
        buffer.read_into(room, READ_S, path=path).get()  # touches the memory, and any staging memory
        seconds = _best(lambda: buffer.read_into(room, READ_S, path=path).get(), NUM_READS)
    except Exception as error:  # paths may be other packages' code
        return Reading(path, why_not=_refusal(buffer, room, path) or reason(error))
    return Reading(path, gb_per_s=buffer.size() / seconds / 1e9, latency_s=latency_s)


def _refusal(buffer: RDMABuffer, room: Any, path: str) -> str:
    return data_plane().paths[path].refusal(handle_of(buffer), memory_of(room))


def _best(act: Callable[[], object], num: int) -> float:
    """Return the shortest duration of an action in seconds, of at most `num` runs."""
    best, end = math.inf, time.monotonic() + LONG_ENOUGH_S
    for _ in range(num):
        start = time.perf_counter()
        act()
        best = min(best, time.perf_counter() - start)
        if time.monotonic() > end:
            break
    return best


def copy_once(size_bytes: int) -> float:
    """Return the speed in GB/s of a copy within this process, by one thread, of memory whose pages were
    touched.
    """
    source, target = bytearray(size_bytes), bytearray(size_bytes)
    there, here = memory_of(source).address, memory_of(target).address
    return size_bytes / _best(lambda: ctypes.memmove(here, there, size_bytes), NUM_READS) / 1e9


def reason(error: Exception) -> str:
    """Return the message of an error in one line."""
    if isinstance(error, RankTimeout):
        return "it's busy: no answer in time. %mesh stacks shows where it stands"
    if isinstance(error, DeviceMeshError) and error.failures:
        return f"{error.failures[0].type}: {error.failures[0].message}".splitlines()[0]
    return (str(error) or type(error).__name__).splitlines()[0]
