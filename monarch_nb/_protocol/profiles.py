"""Types about profiles of cells: the request to ranks, and the recording of each."""

from __future__ import annotations

from typing import Any

from monarch_nb._protocol.base import Record


class ProfileOptions(Record, frozen=True):
    """The options of a cell's profile: what is recorded, and on which ranks.

    Attributes:
        ranks: those that record.
        trace: torch.profiler around the cell.
        memory: sizes before and after, and who has allocated.
        shapes: whether the trace has the shapes of operators' inputs.
        stacks: whether it has Python's stacks.
        base_ns: the moment from which all ranks count, in Unix time.
    """

    ranks: tuple[int, ...]
    trace: bool
    memory: bool
    shapes: bool
    stacks: bool
    base_ns: int


class MemoryReport(Record, frozen=True):
    """The change of a rank's memory during a cell; an unknown size is None.

    Attributes:
        resident_bytes, proportional_bytes: growth of these sizes of the process.
        peak_bytes: growth of the largest resident size.
        python_bytes, python_peak_bytes: of Python's own allocations.
        lines: places that hold allocations of Python: place, bytes and number, largest first.
        cuda_bytes, cuda_peak_bytes: of tensors on the GPU.
        cuda_snapshot: for pytorch.org/memory_viz; nobody here reads it.
    """

    resident_bytes: int
    proportional_bytes: int
    peak_bytes: int | None
    python_bytes: int
    python_peak_bytes: int
    lines: tuple[tuple[str, int, int], ...]
    cuda_bytes: int | None = None
    cuda_peak_bytes: int | None = None
    cuda_snapshot: bytes | None = None

    def __getitem__(self, name: str) -> Any:
        """Return a field by its name: `profile.memory[0]["resident_bytes"]`."""
        if name not in self.__struct_fields__:
            raise KeyError(name)
        return getattr(self, name)


class ProfileReport(Record, frozen=True):
    """The profile of a cell on one rank; None: that part wasn't asked for.

    Attributes:
        host, pid: of the rank's process.
        trace: events of the trace, as JSON, compressed by zlib.
        operators: name, calls, own CPU time and own time on the GPU in microseconds, of each.
    """

    host: str
    pid: int
    trace: bytes | None = None
    operators: list[tuple[str, int, float, float]] | None = None
    memory: MemoryReport | None = None
