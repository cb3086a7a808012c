"""Exports meshes on Jupyter's own `/metrics`, for Prometheus. Controllers are asked only when Prometheus
asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import REGISTRY, Collector

from monarch_nb._client import launch
from monarch_nb.exceptions import MeshError
from monarch_nb.status import STATES

SCRAPE_S = 2.0
"""Time limit for one scrape; meshes that haven't answered by then are left out."""


class MeshCollector(Collector):
    """The Prometheus collector, which asks the controllers of this user's meshes for their state."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    def describe(self) -> Iterable[Any]:
        """Return no descriptions: the registration must not send requests to meshes."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the metrics of all meshes."""
        ranks = GaugeMetricFamily("monarch_nb_ranks", "Ranks of a mesh in a state", labels=["mesh", "state"])
        cells = GaugeMetricFamily("monarch_nb_cells", "Cells that run or wait", labels=["mesh"])
        memory = GaugeMetricFamily(
            "monarch_nb_rank_memory_bytes", "Proportional set size of a rank", labels=["mesh", "rank"]
        )
        cpu = GaugeMetricFamily("monarch_nb_host_cpu_percent", "CPU use of a host", labels=["mesh", "host"])
        gpu = GaugeMetricFamily(
            "monarch_nb_gpu_utilization_percent", "Utilisation of a GPU", labels=["mesh", "host", "gpu"]
        )
        gpu_memory = GaugeMetricFamily(
            "monarch_nb_gpu_memory_bytes", "Used memory of a GPU", labels=["mesh", "host", "gpu"]
        )
        for status in self._statuses():
            name = status.name
            for state in STATES:
                ranks.add_metric([name, state], sum(r.state == state for r in status.ranks))
            cells.add_metric([name], status.num_cells)
            for rank in status.ranks:
                if rank.memory_bytes is not None:
                    memory.add_metric([name, str(rank.rank)], rank.memory_bytes)
            for host in status.hosts:
                if host.cpu_percent is not None:
                    cpu.add_metric([name, host.hostname], host.cpu_percent)
                for each in host.gpus:
                    labels = [name, host.hostname, str(each.index)]
                    gpu.add_metric(labels, each.utilization_percent or 0.0)
                    gpu_memory.add_metric(labels, each.memory_used_bytes or 0)
        yield from (ranks, cells, memory, cpu, gpu, gpu_memory)

    def _statuses(self) -> list[Any]:
        import time

        asked = [self._pool.submit(_status, c.name) for c in launch.list_connections()]
        deadline = time.monotonic() + SCRAPE_S
        found = []
        for future in asked:
            with suppress(FutureTimeout, MeshError, ValueError, OSError):
                found.append(future.result(max(0.0, deadline - time.monotonic())))
        return found


def _status(name: str) -> Any:
    from monarch_nb.actor.handle import session_of
    from monarch_nb.mesh import attach

    mesh = attach(name, listens=False, observes=True)
    try:
        return mesh.status()
    finally:
        session_of(mesh).close()


def register(pool: ThreadPoolExecutor) -> MeshCollector:
    """Add the metrics of meshes to Jupyter's registry."""
    collector = MeshCollector(pool)
    REGISTRY.register(collector)
    return collector


def unregister(collector: MeshCollector) -> None:
    """Remove a collector from Jupyter's registry."""
    with suppress(KeyError):
        REGISTRY.unregister(collector)
