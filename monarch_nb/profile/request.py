"""The request for a profile of a cell: a trace, memory, and the ranks that record them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from monarch_nb._protocol.profiles import ProfileOptions
from monarch_nb._shape import format_ranks
from monarch_nb.exceptions import MeshUsageError

SUFFIXES = (".json", ".json.gz")


@dataclass(frozen=True)
class ProfileRequest:
    """A request for a profile of one cell.

    Attributes:
        ranks: those that record.
        trace: torch.profiler around the cell.
        memory: sizes before and after, and who has allocated.
        shapes: whether the trace has the shapes of operators' inputs.
        stacks: whether it has Python's stacks; that costs time.
        file: where the trace goes; empty: into the working directory, named for the cell and the date.
        num_top: how many operators are shown.
        base_ns: the moment from which all ranks count, in Unix time.
    """

    ranks: tuple[int, ...]
    trace: bool = True
    memory: bool = False
    shapes: bool = False
    stacks: bool = False
    file: str = ""
    num_top: int = 20
    base_ns: int = field(default_factory=time.time_ns)

    @property
    def options(self) -> ProfileOptions:
        """The options that are sent to the ranks."""
        return ProfileOptions(self.ranks, self.trace, self.memory, self.shapes, self.stacks, self.base_ns)

    def path(self, n: int, kind: str = "profile", suffix: str = ".json.gz") -> Path:
        """Return the path of a file about cell `n`."""
        if self.file and kind == "profile":
            return Path(self.file).expanduser().absolute()
        date = time.strftime("%Y%m%d-%H%M%S", time.localtime(self.base_ns / 1e9))
        return Path.cwd() / f"{kind}-{n}-{date}{suffix}"


def check_request(request: ProfileRequest, cell_ranks: Sequence[int]) -> ProfileRequest:
    """Validate a request for a profile, and return it.

    Raises:
        MeshUsageError: if the request can't be fulfilled; nothing has been sent.
    """
    others = sorted(set(request.ranks) - set(cell_ranks))
    if others:
        raise MeshUsageError(
            f"the cell doesn't run on [{format_ranks(others)}], so there's nothing to profile there; "
            f"it runs on [{format_ranks(cell_ranks)}]"
        )
    if not request.ranks:
        raise MeshUsageError("a profile needs at least one rank")
    if request.file:
        if not request.file.endswith(SUFFIXES):
            raise MeshUsageError(
                "a profile is a .json or .json.gz file, as in %%mesh --profile=run.json.gz; not "
                f"{request.file!r}"
            )
        folder = request.path(0).parent
        if not folder.is_dir():
            raise MeshUsageError(f"there's no folder {folder} for the profile")
    return request
