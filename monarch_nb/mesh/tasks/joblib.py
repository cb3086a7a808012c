"""A joblib backend on the ranks of a mesh: `joblib.parallel_config(backend="monarch_nb")`.

A mesh that is started or attached registers it, whenever joblib is imported; without one, import this
module.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from joblib import register_parallel_backend
from joblib.parallel import AutoBatchingMixin, ParallelBackendBase

from monarch_nb.exceptions import MeshUsageError
from monarch_nb.mesh.core import Mesh
from monarch_nb.mesh.starting import current
from monarch_nb.mesh.tasks.executor import MeshExecutor

NAME = "monarch_nb"


class MeshBackend(AutoBatchingMixin, ParallelBackendBase):
    """Runs joblib's batches on ranks.

    Args:
        mesh: by default the current one.
        ranks: a rank set.
    """

    supports_retrieve_callback = True
    supports_timeout = True

    def __init__(self, mesh: Mesh | None = None, ranks: str = "all", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._mesh, self._ranks = mesh, ranks
        self._executor: MeshExecutor | None = None

    def effective_n_jobs(self, n_jobs: int) -> int:
        """Return the number of batches that run at the same time; -1 means all ranks."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        num = len(self._chosen().select(self._ranks))
        return max(1, num + 1 + n_jobs) if n_jobs is not None and n_jobs < 0 else min(num, n_jobs or num)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_: Any) -> int:
        """Prepare the ranks for a `Parallel` call; return the number of batches that run at the same time."""
        num = self.effective_n_jobs(n_jobs)
        mesh = self._chosen()
        self.parallel = parallel
        self._executor = MeshExecutor(mesh, mesh.select(self._ranks)[:num])
        return num

    def submit(self, func: Callable[..., Any], callback: Callable[[Any], None] | None = None) -> Future[Any]:
        """Schedule a batch on a rank; return a future of its result."""
        assert self._executor is not None
        future = self._executor.submit(func)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """Return a batch's result, or raise its error."""
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancel the batches that haven't started."""
        self.terminate()
        if ensure_ready:
            self.configure(n_jobs=self.parallel.n_jobs, parallel=self.parallel)

    def terminate(self) -> None:
        """End a `Parallel` call, and cancel its batches that haven't started."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def _chosen(self) -> Mesh:
        mesh = self._mesh or current()
        if mesh is None:
            raise MeshUsageError(
                "joblib's backend monarch_nb needs a mesh: %mesh start, or monarch_nb.mesh.start()"
            )
        return mesh


register_parallel_backend(NAME, MeshBackend)
