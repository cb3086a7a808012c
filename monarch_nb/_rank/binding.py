"""Binds a rank to CPUs and memory, as `numactl` and `taskset` do; the rank does it itself before it has
threads.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping

from monarch_nb._shape import format_ranks, parse_cpu_set

_NODES = "/sys/devices/system/node"
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_MPOL_BIND = 2
_BITS = 64


class BindingError(Exception):
    """The error of a CPU or NUMA node that this machine doesn't have, or doesn't let the process use."""


def bind(binding: Mapping[str, str]) -> None:
    """Bind this process, and what it starts, as `proc_bind` says.

    Raises:
        BindingError: saying what can't be had.
    """
    cpus = os.sched_getaffinity(0)
    for key, value in binding.items():
        wanted = parse_cpu_set(value)
        if wanted is None:
            continue
        if key == "membind":
            _bind_memory(wanted)
            continue
        chosen = set(wanted) if key != "cpunodebind" else {cpu for node in wanted for cpu in _cpus_of(node)}
        if not chosen <= cpus and key != "cpunodebind":
            raise BindingError(
                f"proc_bind: {key}={value!r}: {_missing(chosen - cpus)}; there are {_text(cpus)}"
            )
        cpus = cpus & chosen
        if not cpus:
            raise BindingError(
                f"proc_bind: {key}={value!r} leaves no CPU; others were chosen before, or this "
                "process may not use those"
            )
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise BindingError(f"proc_bind: CPUs {_text(cpus)}: {error.strerror}") from None


def _cpus_of(node: int) -> tuple[int, ...]:
    _check_node(node)
    with open(f"{_NODES}/node{node}/cpulist") as file:
        return parse_cpu_set(file.read().strip()) or ()


def _check_node(node: int) -> None:
    if not os.path.isdir(f"{_NODES}/node{node}"):
        known = sorted(int(n.removeprefix("node")) for n in _entries() if n.removeprefix("node").isdigit())
        there = f"there are nodes {_text(known)}" if known else "this machine doesn't say which it has"
        raise BindingError(f"proc_bind: there is no NUMA node {node} here; {there}")


def _entries() -> list[str]:
    return os.listdir(_NODES) if os.path.isdir(_NODES) else []


def _bind_memory(nodes: tuple[int, ...]) -> None:
    for node in nodes:
        _check_node(node)
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        raise BindingError(f"proc_bind: membind isn't known on {platform.machine()}")
    words = [0] * (max(nodes) // _BITS + 1)
    for node in nodes:
        words[node // _BITS] |= 1 << node % _BITS
    mask = (ctypes.c_ulong * len(words))(*words)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, _MPOL_BIND, mask, len(words) * _BITS + 1):
        raise BindingError(f"proc_bind: membind={_text(nodes)}: {os.strerror(ctypes.get_errno())}")


def _missing(cpus: set[int]) -> str:
    return f"this process may not use CPU{'s' if len(cpus) > 1 else ''} {_text(cpus)}, or there is none"


def _text(numbers: object) -> str:
    return format_ranks(sorted(numbers))  # type: ignore[call-overload]
