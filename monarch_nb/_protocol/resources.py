"""The readings that a host process takes of its machine and of its ranks, as sent to the controller, and as
part of a mesh's status. Shares are in per cent, sizes in bytes, times seconds since the epoch; unknown values
are None.
"""

from __future__ import annotations

from typing import Final

from monarch_nb._protocol.base import Record


class GpuProcess(Record, frozen=True):
    """A process on a GPU."""

    pid: int
    memory_bytes: int | None
    rank: int | None = None
    """Its rank; None: the process doesn't belong to the mesh."""


class GpuStatus(Record, frozen=True):
    """A GPU, as NVIDIA's driver sees it."""

    index: int
    name: str
    uuid: str
    utilization_percent: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    temperature_c: float | None
    processes: tuple[GpuProcess, ...] = ()
    """Processes that use it, including those of others."""


class History(Record, frozen=True):
    """The last minutes of a machine, oldest first; None where a reading is missing."""

    interval_s: float
    cpu_percent: tuple[float | None, ...]
    memory_percent: tuple[float | None, ...]
    gpu_percent: tuple[float | None, ...]
    """The GPUs' average."""


class Collective(Record, frozen=True):
    """The operation of a process group that a rank is in."""

    name: str
    sequence: int
    """How many of the group's operations the rank has entered, this one included; 0: the backend doesn't
    count.
    """
    since: float
    shape: tuple[int, ...] | None = None
    """Shape of its (first) tensor."""
    dtype: str = ""


class Transfers(Record, frozen=True):
    """The transfers of a rank by one path of the data plane, counting those that the rank requested."""

    path: str
    """`shm`, `cuda_ipc`, `verbs`, `tcp`, ..."""
    num: int
    """How many transfers."""
    read_bytes: int
    written_bytes: int
    seconds: float
    """Their total time, added up."""


class Standing(Record, frozen=True):
    """The place where a rank's user code is at present.

    Attributes:
        line: as in "In [3], line 4: loss.backward()"; empty if no thread runs any.
        collective: the running collective; `since`: time of the look.
        num_queued: number of messages that wait.
        in_function: whether the main thread runs a function that was called.
    """

    line: str = ""
    collective: Collective | None = None
    num_queued: int = 0
    in_function: bool = False


class MonitoredRank(Record, frozen=True):
    """The readings that a host process has of one of its ranks.

    Attributes:
        busy: whether a thread is at work, or was since the look before.
        debugging: whether one stands at a breakpoint.
        doing: what it is busy with, and `since` when.
        is_cell: whether that's a cell.
        is_before_cells: whether its main thread does something that cells wait behind.
        was_brief: whether it was at work only between two looks.
        gpus: indices of its host's GPUs that are its own.
    """

    busy: bool = False
    debugging: bool = False
    doing: str = ""
    since: float = 0.0
    is_cell: bool = False
    is_before_cells: bool = False
    was_brief: bool = False
    line: str = ""
    collective: Collective | None = None
    num_queued: int = 0
    cpu_percent: float | None = None
    memory_bytes: int | None = None
    gpus: tuple[int, ...] = ()
    gpu_memory_bytes: int | None = None
    transfers: tuple[Transfers, ...] = ()


HISTORY_S: Final = 5.0
"""Between two points of a machine's history."""
NO_HISTORY: Final = History(HISTORY_S, (), (), ())
UNMONITORED: Final = MonitoredRank()


class MonitoredHost(Record, frozen=True):
    """The readings that a host process has of its machine."""

    cpu_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    gpus: tuple[GpuStatus, ...] = ()
    history: History = NO_HISTORY
