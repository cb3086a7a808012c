"""What a process has for moving bytes: probed on each rank for `%mesh doctor`, and described in words.

Files of the kernel are read and nothing is opened; a process that doesn't use its GPU yet isn't made to.
"""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from monarch_nb._transport import process_context
from monarch_nb.rdma.handle import this_machine
from monarch_nb.units import size_text

PREFIX = "MONARCH_NB_RDMA_"
SHARED_MEMORY = Path("/dev/shm")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
GPUS = Path("/proc/driver/nvidia/gpus")
GPU_DRIVER = Path("/proc/driver/nvidia/version")
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_CAP_IPC_LOCK, _CAP_SYS_PTRACE = 14, 19

ProbeResult = Mapping[str, Any]
"""What `probe_process` returns."""


def probe_process() -> dict[str, Any]:
    """Return what there is here, by topic. What couldn't be looked at is under `failed`, with the reason."""
    found: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for topic, look in _PROBES.items():
        try:
            found[topic] = look()
        except Exception as error:  # one thing that's odd must not hide the others
            failed[topic] = f"{type(error).__name__}: {error}"
    return {**found, "failed": failed}


# --- looking


def _place() -> dict[str, Any]:
    """Return where this process is. `machine` is what those share that can see each other's memory."""
    machine = this_machine()
    return {
        "host": process_context.hostname(),
        "pid": os.getpid(),
        "boot": machine.partition("/")[0],
        "machine": machine,
        "ipc": os.readlink("/proc/self/ns/ipc"),
    }


def _rdma() -> dict[str, Any]:
    from monarch_nb.rdma.paths.verbs.report import describe_devices, unavailable_reason

    return {"why_not": unavailable_reason(), "ports": describe_devices()}


def _memlock() -> dict[str, Any]:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return {
        "bytes": None if soft == resource.RLIM_INFINITY else soft,
        "is_exempt": _has_capability(_CAP_IPC_LOCK),
    }


def _process_field(name: str) -> str:
    found = re.search(rf"^{name}:\s*(\S+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return found[1] if found else "0"


def _has_capability(number: int) -> bool:
    return bool(int(_process_field("CapEff"), 16) >> number & 1)


def _gpus() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    in_use = torch is not None and torch.cuda.is_initialized()
    num = sum(1 for _ in GPUS.glob("*"))
    return {
        "num": num, "is_in_use": in_use, "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "no_nic": _why_no_nic(in_use) if num else "",
    }  # fmt: skip


def _why_no_nic(in_use: bool) -> str:
    """Return why NICs can't reach GPU memory; without CUDA, what the kind of driver lets expect."""
    from monarch_nb.rdma.paths.verbs import gpu as verbs_gpu

    if in_use or verbs_gpu.has_peermem():
        return verbs_gpu.why_not()
    if "Open Kernel Module" in GPU_DRIVER.read_text():
        return ""
    return "the module nvidia-peermem is not loaded, and only NVIDIA's open kernel modules make dma-bufs"


def _tracing() -> dict[str, Any]:
    scope = int(PTRACE_SCOPE.read_text()) if PTRACE_SCOPE.exists() else None
    return {
        "scope": scope,
        "is_filtered": _process_field("Seccomp") == "2",
        "is_exempt": _has_capability(_CAP_SYS_PTRACE),
    }


def _shared_memory() -> dict[str, int] | None:
    if not SHARED_MEMORY.is_dir():
        return None
    found = os.statvfs(SHARED_MEMORY)
    return {"total_bytes": found.f_blocks * found.f_frsize, "free_bytes": found.f_bavail * found.f_frsize}


def _memory() -> dict[str, Any]:
    import psutil

    limits = [file.read_text().strip() for file in _CGROUP_LIMITS if file.exists()]
    total = psutil.virtual_memory().total
    limit = next((int(text) for text in limits if text.isdigit()), total)
    return {"total_bytes": total, "limit_bytes": limit if limit < total else None}


def _huge_pages() -> str:
    if not HUGE_PAGES.exists():
        return ""
    chosen = re.search(r"\[(\w+)\]", HUGE_PAGES.read_text())
    return chosen[1] if chosen else ""


def _interfaces() -> list[dict[str, Any]]:
    """Return the network interfaces that are up and lead to others."""
    import psutil

    states, found = psutil.net_if_stats(), []
    for name, addresses in psutil.net_if_addrs().items():
        state = states.get(name)
        hosts = [
            a.address
            for a in addresses
            if a.family.name in ("AF_INET", "AF_INET6") and not a.address.startswith("fe80:")
        ]
        if state is not None and state.isup and hosts and "loopback" not in state.flags.split(","):
            found.append({"name": name, "addresses": hosts, "megabits_per_s": state.speed, "mtu": state.mtu})
    return found


_PROBES: dict[str, Callable[[], Any]] = {
    "place": _place,
    "processors": lambda: len(os.sched_getaffinity(0)),
    "memory": _memory,
    "rdma": _rdma,
    "memlock": _memlock,
    "gpus": _gpus,
    "tracing": _tracing,
    "shared memory": _shared_memory,
    "huge pages": _huge_pages,
    "network": _interfaces,
    "settings": lambda: {
        name: value for name, value in sorted(os.environ.items()) if name.startswith(PREFIX)
    },
}


# --- in words


def described(found: ProbeResult) -> dict[str, str]:
    """Return what was found as lines for people, by what they're about."""
    lines: dict[str, str] = {}
    for topic, tell in _WORDS.items():
        if topic in found:
            lines.update(tell(found[topic]))
    return {**lines, **{topic: f"not known ({why})" for topic, why in found["failed"].items()}}


def _tell_rdma(rdma: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for port in rdma["ports"]:
        yield f"{port['name']}:{port['port']}", ", ".join(_port_words(port))
    yield "RDMA", rdma["why_not"] or "works"


def _port_words(port: Mapping[str, Any]) -> Iterator[str]:
    yield f"{port['link_layer']} {port['state'] or 'in no state'}"
    if port["gb_per_s"]:
        yield f"{port['gb_per_s']:g} Gbit/s"
    if port["mtu"]:
        yield f"MTU {port['mtu']}"
    if port["numa"] >= 0:
        yield f"NUMA node {port['numa']}"
    yield f"GID {port['gid']}" if port["gid"] else "no GID"
    if len(port["gids"]) > 1:
        yield f"{len(port['gids'])} GIDs in all"
    if not port["usable"]:
        yield "can't be used"


def _tell_memlock(memlock: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    limit = "no limit" if memlock["bytes"] is None else size_text(memlock["bytes"])
    yield (
        "locked memory",
        f"{limit}{', which does not bind this process' if memlock['is_exempt'] and memlock['bytes'] is not None else ''}",  # noqa: E501
    )


def _tell_gpus(gpus: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if not gpus["num"]:
        yield "GPUs", "none"
        return
    yield (
        "GPUs",
        f"{gpus['num']}, {'in use process_context' if gpus['is_in_use'] else 'not used process_context yet'}",
    )
    if gpus["visible"] is not None:
        yield "CUDA_VISIBLE_DEVICES", gpus["visible"] or "(empty)"
    yield "GPU memory for NICs", gpus["no_nic"] or "can be registered"


def _tell_tracing(tracing: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    scope = "no limit by Yama" if tracing["scope"] is None else f"kernel.yama.ptrace_scope={tracing['scope']}"
    yield (
        "ptrace",
        f"{scope}{', a seccomp filter' if tracing['is_filtered'] else ''}{', CAP_SYS_PTRACE' if tracing['is_exempt'] else ''}",  # noqa: E501
    )


def _tell_shared_memory(shared: Mapping[str, int] | None) -> Iterator[tuple[str, str]]:
    if shared is None:
        yield str(SHARED_MEMORY), "not there"
        return
    tenths = min(
        9, 10 * shared["free_bytes"] // max(shared["total_bytes"], 1)
    )  # coarse, so that ranks of a host say the same
    yield (
        str(SHARED_MEMORY),
        f"{size_text(shared['total_bytes'])}, {f'over {tenths}0%' if tenths else 'less than 10%'} free",
    )


def _tell_memory(memory: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    limit = (
        "" if memory["limit_bytes"] is None else f", {size_text(memory['limit_bytes'])} for this container"
    )
    yield "memory", f"{size_text(memory['total_bytes'])}{limit}"


def _tell_interfaces(interfaces: list[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for one in interfaces:
        speed = f"{one['megabits_per_s'] / 1000:g} Gbit/s" if one["megabits_per_s"] > 0 else "speed not known"
        yield one["name"], f"{', '.join(one['addresses'])}, {speed}, MTU {one['mtu']}"
    if not interfaces:
        yield "network", "no interface with an address"


_WORDS: dict[str, Callable[[Any], Any]] = {
    "place": lambda place: {"host": place["host"]}.items(),
    "processors": lambda num: {"processors": str(num)}.items(),
    "memory": _tell_memory,
    "rdma": _tell_rdma,
    "memlock": _tell_memlock,
    "gpus": _tell_gpus,
    "tracing": _tell_tracing,
    "shared memory": _tell_shared_memory,
    "huge pages": lambda mode: {"huge pages": mode or "the kernel has none"}.items(),
    "network": _tell_interfaces,
    "settings": lambda settings: settings.items(),
}
