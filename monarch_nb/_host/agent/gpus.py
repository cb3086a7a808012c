"""Reads the state of this machine's GPUs from NVIDIA's management library. Without the library, or a driver,
there are none.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from monarch_nb._protocol.resources import GpuProcess, GpuStatus


class GpuReader:
    """Reads the state of GPUs; owned by the thread that samples.

    Args:
        library: the `pynvml` module; found by itself if left out.
    """

    def __init__(self, library: Any = None) -> None:
        self._nvml = library if library is not None else _load()
        self._handles: list[Any] = []
        if self._nvml is not None:
            try:
                self._nvml.nvmlInit()
                self._handles = [
                    self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(self._nvml.nvmlDeviceGetCount())
                ]
            except self._nvml.NVMLError:
                self._nvml = None

    def read(self) -> list[GpuStatus]:
        """Return one row per GPU."""
        return [self._read_one(index, handle) for index, handle in enumerate(self._handles)]

    def _read_one(self, index: int, handle: Any) -> GpuStatus:
        nvml = self._nvml
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        temperature = self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        processes = self._ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
        return GpuStatus(
            index=index,
            name=_text(self._ask(nvml.nvmlDeviceGetName, handle)),
            uuid=_text(self._ask(nvml.nvmlDeviceGetUUID, handle)),
            utilization_percent=None if rates is None else float(rates.gpu),
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            temperature_c=temperature,
            processes=tuple(GpuProcess(p.pid, p.usedGpuMemory) for p in processes),
        )

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        with suppress(self._nvml.NVMLError):
            return question(*arguments)
        return None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


def _load() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml
