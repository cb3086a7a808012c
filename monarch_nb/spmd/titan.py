"""TorchTitan's trainer, on CPUs too: `%mesh run -m monarch_nb.spmd.titan` takes the arguments that
`torchtitan.train` takes. Where there's a GPU, and torch is new enough, it only runs that module.

TorchTitan 0.3 takes a GPU for granted in four places; each gets what does the same on a CPU:

- the device's type and module, of which it asks names and memory;
- kernels of expert parallelism, which need triton when they are imported;
- FlexAttention, which has no backward pass on CPUs: its mask, made dense, in `scaled_dot_product_attention`;
- FSDP's reduction with a factor, which gloo lacks: a sum, where the factor is 1 anyway.

Example:
    >>> # %mesh run -m monarch_nb.spmd.titan --module llama3 --config llama3_debugmodel   # in a notebook
"""

from __future__ import annotations

import importlib
import importlib.util
import resource
import runpy
import sys
from types import ModuleType
from typing import Any

import psutil
import torch

_NEEDS_TRITON = "torchtitan.distributed.minimal_async_ep.kernels"
_PEAKS = ("active_bytes.all.peak", "reserved_bytes.all.peak")


class CpuDevice(ModuleType):
    """The module `torch.cpu`, extended by the functions of `torch.cuda` that TorchTitan calls: name and
    memory of the device.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def current_device(self) -> int:
        """Return the index of the device; there is one."""
        return 0

    def get_device_name(self, device: object = None) -> str:
        """Return the device's name."""
        return "CPU"

    def get_device_properties(self, device: object = None) -> Properties:
        """Return the device's properties: the size of this machine's memory."""
        return Properties(psutil.virtual_memory().total)

    def memory_stats(self, device: object = None) -> dict[str, int]:
        """Return the peak memory of this process, under the names that CUDA uses."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts KiB
        return dict.fromkeys(_PEAKS, peak) | {"num_alloc_retries": 0, "num_ooms": 0}

    def reset_peak_memory_stats(self, device: object = None) -> None:
        """Do nothing: the operating system's peak can't be reset."""

    def empty_cache(self) -> None:
        """Do nothing: there is no cache."""


class Properties:
    """The properties of a device: `total_memory`, in bytes."""

    def __init__(self, total_memory: int) -> None:
        self.total_memory = total_memory


class _WithoutTriton(ModuleType):
    """A replacement for Triton's kernels, which can be imported, and raises an error that names the
    requirement when called.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def kernel(*args: object, **kwargs: object) -> None:
            raise RuntimeError(f"{name} of TorchTitan's expert parallelism needs a GPU and triton")

        return kernel


def adapt_to_torch() -> None:
    """Add the function of newer versions than torch 2.13 that TorchTitan needs:
    `torch.distributed.set_timeout`.
    """
    distributed: Any = torch.distributed
    if not hasattr(distributed, "set_timeout"):
        distributed.set_timeout = distributed.distributed_c10d._set_pg_timeout


def adapt_to_cpu() -> None:
    """Adapt TorchTitan to this process' CPU; do nothing if torch finds a GPU.

    Raises:
        ModuleNotFoundError: if torchtitan isn't installed.
    """
    if torch.accelerator.is_available():
        return
    _set_device()
    if importlib.util.find_spec("triton") is None:
        sys.modules.setdefault(_NEEDS_TRITON, _WithoutTriton(_NEEDS_TRITON))
    _set_attention()
    _set_reduction()


def _set_device() -> None:
    importlib.import_module("torchtitan.tools.utils")
    cpu = {"device_type": "cpu", "device_module": CpuDevice("torch.cpu")}
    # also modules that have imported one of them by name already
    for name, module in list(sys.modules.items()):
        if name.startswith("torchtitan."):
            vars(module).update({each: cpu[each] for each in cpu.keys() & vars(module).keys()})


def _set_attention() -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    attention: Any = importlib.import_module("torchtitan.models.common.attention")
    attention.FlexAttention._compiled_flex_attn = staticmethod(dense_attention)
    attention._compiled_create_block_mask = create_block_mask  # compiling takes longer than running it


def dense_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    score_mod: object,
    block_mask: Any,
    scale: float | None,
    enable_gqa: bool,
    return_aux: Any,
    kernel_options: object,
) -> tuple[torch.Tensor, None]:
    """Compute `flex_attention` with a mask, on a CPU and with a backward pass.

    Args:
        q, k, v: batch x heads x length x width; k and v may have fewer heads.
        block_mask: the keys that each query attends to; expanded to a dense mask of batch x 1 x length x
            length.

    Raises:
        NotImplementedError: if `score_mod` is given, or the sums of exponentials are requested.
    """
    from torch.nn.attention.flex_attention import create_mask

    if score_mod is not None or return_aux.lse:
        raise NotImplementedError(
            "on CPUs, this model's attention can't be had: it changes scores, or asks for their sums. "
            "Run it where there's a GPU, by the same command"
        )
    mask = create_mask(block_mask.mask_mod, q.shape[0], 1, q.shape[2], k.shape[2], device="cpu")
    found = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa
    )
    return found, None


def _set_reduction() -> None:
    from torch.distributed.fsdp import FSDPModule

    fsdp: Any = importlib.import_module("torchtitan.distributed.fsdp")

    def sum_gradients(model: torch.nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)

    fsdp.disable_fsdp_gradient_division = sum_gradients


def main() -> None:
    """Run `torchtitan.train` with this program's arguments.

    Raises:
        ModuleNotFoundError: if torchtitan isn't installed.
    """
    if importlib.util.find_spec("torchtitan") is None:
        raise ModuleNotFoundError(
            "TorchTitan isn't installed on the ranks' machine: %pip install torchtitan, then %mesh restart"
        )
    adapt_to_torch()
    adapt_to_cpu()
    runpy.run_module("torchtitan.train", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
