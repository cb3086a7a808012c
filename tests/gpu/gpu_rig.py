"""What the GPU checks work with: a mesh, a folder, and words for what can't be checked on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from waiting import wait_until as wait_until_within

from monarch_nb import mesh as meshes
from monarch_nb.mesh import Mesh

REHEARSAL = "MONARCH_NB_GPU_REHEARSAL"
"""Set to 1: the checks run in host memory and with gloo. It shows that they run, not that GPUs work."""
PATIENCE_S = 90.0
wait_until = partial(wait_until_within, timeout_s=PATIENCE_S)
MIB = 1 << 20


class LeftOut(Exception):
    """This machine can't show it, and why."""


@dataclass(frozen=True)
class Check:
    """Something that holds on a machine with GPUs.

    Attributes:
        words: what it says, in the report.
        function: raises if it doesn't hold; returns the figures, if there are some.
        num_gpus: how many are needed.
    """

    words: str
    function: Callable[[Rig], str | None]
    num_gpus: int = 1


CHECKS: dict[str, Check] = {}
"""By the function's name, in the order of the report."""


def check(
    words: str, *, num_gpus: int = 1
) -> Callable[[Callable[[Rig], str | None]], Callable[[Rig], str | None]]:
    """Put a function among the checks."""

    def add(function: Callable[[Rig], str | None]) -> Callable[[Rig], str | None]:
        CHECKS[function.__name__] = Check(words, function, num_gpus)
        return function

    return add


class Rig:
    """One mesh of two ranks, started when it's first asked for, for all checks until one fails or closes it.

    Args:
        folder: where files go.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_rehearsal = os.environ.get(REHEARSAL) == "1"
        self.device = "cpu" if self.is_rehearsal else "cuda"
        self.backend = "gloo" if self.is_rehearsal else "nccl"
        self.near_path = "shm" if self.is_rehearsal else "cuda_ipc"
        """How one rank reads the other's memory of this device."""
        self._mesh: Mesh | None = None
        self._num_meshes = 0

    @cached_property
    def num_gpus(self) -> int:
        import torch

        return 2 if self.is_rehearsal else int(torch.cuda.device_count())

    @property
    def mesh(self) -> Mesh:
        if self._mesh is None:
            self._num_meshes += 1
            self._mesh = meshes.start(
                f"gpu-{os.getpid()}-{self._num_meshes}", {"gpus": 2}, with_program=True, force=True
            )
        return self._mesh

    def needs_a_gpu(self, what: str) -> None:
        """Leave the rest out of a rehearsal."""
        if self.is_rehearsal:
            raise LeftOut(f"{what}: not without a GPU")

    def run(self, name: str) -> str:
        """Run a check; returns its figures."""
        wanted = CHECKS[name]
        if wanted.num_gpus > 1 and self.num_gpus < wanted.num_gpus:
            raise LeftOut(f"needs {wanted.num_gpus} GPUs, here is {self.num_gpus}")
        try:
            return wanted.function(self) or ""
        except LeftOut:
            raise
        except BaseException:
            self.close()  # who knows how it is
            raise

    def close(self) -> None:
        """End the mesh; the next one who asks gets another."""
        if self._mesh is not None:
            mesh, self._mesh = self._mesh, None
            mesh.stop(grace_s=0.0).get(PATIENCE_S)
