"""Probes the transport hardware and settings of a process: on each rank for `%mesh doctor`, and described in
words.

Files of the kernel are read and nothing is opened; a process that doesn't use its GPU yet isn't made to.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import UNSET, UnsetType

from monarch_nb._protocol.base import Record
from monarch_nb._transport import process_context
from monarch_nb._units import size_text
from monarch_nb._wire.loaded import loaded
from monarch_nb.rdma.handle import this_machine
from monarch_nb.rdma.paths.verbs.report import PortReport, describe_devices, unavailable_reason

PREFIX = "MONARCH_NB_RDMA_"
SHARED_MEMORY = Path("/dev/shm")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
GPUS = Path("/proc/driver/nvidia/gpus")
GPU_DRIVER = Path("/proc/driver/nvidia/version")
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_CAP_IPC_LOCK, _CAP_SYS_PTRACE = 14, 19


class Place(Record, frozen=True):
    """The location of a process.

    Attributes:
        boot: the kernel that it runs under.
        machine: what those share that can see each other's memory.
        ipc: its IPC namespace.
    """

    host: str
    pid: int
    boot: str
    machine: str
    ipc: str


class Memory(Record, frozen=True):
    """The host's memory; `limit_bytes` is the container's share of it, None if it has no limit."""

    total_bytes: int
    limit_bytes: int | None = None


class RDMADevices(Record, frozen=True):
    """RDMA ports, and why no transfer can go by them; empty if one can."""

    why_not: str
    ports: tuple[PortReport, ...]


class LockedMemory(Record, frozen=True):
    """The number of bytes a process may lock; None: any number. A process with CAP_IPC_LOCK is exempt."""

    bytes: int | None
    is_exempt: bool


class GPUs(Record, frozen=True):
    """The machine's GPUs.

    Attributes:
        num: how many the driver has.
        is_in_use: whether this process has initialized CUDA.
        visible: the environment's CUDA_VISIBLE_DEVICES; None if it has none.
        no_nic: why NICs can't reach GPU memory; empty if they can.
    """

    num: int
    is_in_use: bool
    visible: str | None
    no_nic: str


class Tracing(Record, frozen=True):
    """The settings that decide whether the process may read the memory of another one.

    Attributes:
        scope: kernel.yama.ptrace_scope; None without Yama.
        is_filtered: whether a seccomp filter stands between.
        is_exempt: whether the process has CAP_SYS_PTRACE.
    """

    scope: int | None
    is_filtered: bool
    is_exempt: bool


class SharedMemory(Record, frozen=True):
    """The size of /dev/shm, and how much of it is free."""

    total_bytes: int
    free_bytes: int


class Interface(Record, frozen=True):
    """A network interface that is up; its speed is 0 if not known."""

    name: str
    addresses: tuple[str, ...]
    megabits_per_s: int
    mtu: int


def _topic(field: str) -> str:
    """Return a field's name as displayed in lines and JSON."""
    return field.replace("_", " ")


class ProbeResult(Record, frozen=True, kw_only=True, omit_defaults=True, rename=_topic):
    """The findings of a probe of one process, by topic. None: that couldn't be looked at.

    Attributes:
        processors: how many of them it may run on.
        shared_memory: None: there's no /dev/shm; UNSET: it couldn't be looked at.
        huge_pages: the kernel's mode; empty if it has none.
        network: interfaces that are up and lead to others.
        settings: those of the data plane that the environment has.
        failed: why something couldn't be looked at, by topic.
    """

    place: Place | None = None
    processors: int | None = None
    memory: Memory | None = None
    rdma: RDMADevices | None = None
    memlock: LockedMemory | None = None
    gpus: GPUs | None = None
    tracing: Tracing | None = None
    shared_memory: SharedMemory | UnsetType | None = UNSET
    huge_pages: str | None = None
    network: tuple[Interface, ...] | None = None
    settings: dict[str, str] | None = None
    failed: dict[str, str]


def probe_process() -> ProbeResult:
    """Return a probe of this process. Topics that couldn't be read are in `failed`, with the reason."""
    found: dict[str, object] = {}
    failed: dict[str, str] = {}
    for name, look in _PROBES.items():
        try:
            found[name] = look()
        except Exception as error:  # one unusual fact must not hide the others
            failed[_topic(name)] = f"{type(error).__name__}: {error}"
    return ProbeResult(**found, failed=failed)  # type: ignore[arg-type]  # each of its field's type


# --- probing


def _place() -> Place:
    machine = this_machine()
    return Place(
        process_context.hostname(),
        os.getpid(),
        boot=machine.partition("/")[0],
        machine=machine,
        ipc=os.readlink("/proc/self/ns/ipc"),
    )


def _rdma() -> RDMADevices:
    return RDMADevices(unavailable_reason(), describe_devices())


def _memlock() -> LockedMemory:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return LockedMemory(None if soft == resource.RLIM_INFINITY else soft, _has_capability(_CAP_IPC_LOCK))


def _process_field(name: str) -> str:
    found = re.search(rf"^{name}:\s*(\S+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return found[1] if found else "0"


def _has_capability(number: int) -> bool:
    return bool(int(_process_field("CapEff"), 16) >> number & 1)


def _gpus() -> GPUs:
    torch = loaded("torch")
    in_use = torch is not None and torch.cuda.is_initialized()
    num = sum(1 for _ in GPUS.glob("*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return GPUs(num, in_use, visible, no_nic=_why_no_nic(in_use) if num else "")


def _why_no_nic(in_use: bool) -> str:
    """Return why NICs can't access GPU memory; if CUDA isn't in use, judged by the kind of GPU driver."""
    from monarch_nb.rdma.paths.verbs import gpu as verbs_gpu

    if in_use or verbs_gpu.has_peermem():
        return verbs_gpu.why_not()
    if "Open Kernel Module" in GPU_DRIVER.read_text():
        return ""
    return "the module nvidia-peermem is not loaded, and only NVIDIA's open kernel modules make dma-bufs"


def _tracing() -> Tracing:
    scope = int(PTRACE_SCOPE.read_text()) if PTRACE_SCOPE.exists() else None
    return Tracing(scope, _process_field("Seccomp") == "2", _has_capability(_CAP_SYS_PTRACE))


def _shared_memory() -> SharedMemory | None:
    if not SHARED_MEMORY.is_dir():
        return None
    found = os.statvfs(SHARED_MEMORY)
    return SharedMemory(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def _memory() -> Memory:
    import psutil

    limits = [file.read_text().strip() for file in _CGROUP_LIMITS if file.exists()]
    total = psutil.virtual_memory().total
    limit = next((int(text) for text in limits if text.isdigit()), total)
    return Memory(total, limit if limit < total else None)


def _huge_pages() -> str:
    if not HUGE_PAGES.exists():
        return ""
    chosen = re.search(r"\[(\w+)\]", HUGE_PAGES.read_text())
    return chosen[1] if chosen else ""


def _interfaces() -> tuple[Interface, ...]:
    """Return the network interfaces that are up and not loopback."""
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
            found.append(Interface(name, tuple(hosts), state.speed, state.mtu))
    return tuple(found)


_PROBES: dict[str, Callable[[], object]] = {
    "place": _place,
    "processors": lambda: len(os.sched_getaffinity(0)),
    "memory": _memory,
    "rdma": _rdma,
    "memlock": _memlock,
    "gpus": _gpus,
    "tracing": _tracing,
    "shared_memory": _shared_memory,
    "huge_pages": _huge_pages,
    "network": _interfaces,
    "settings": lambda: {
        name: value for name, value in sorted(os.environ.items()) if name.startswith(PREFIX)
    },
}


# --- in words

Lines = Iterator[tuple[str, str]]
"""The name of an item, and the text about it."""


def described(found: ProbeResult) -> dict[str, str]:
    """Return the findings as text, by topic."""
    lines: dict[str, str] = {}
    for name, tell in _WORDS.items():
        value = getattr(found, name)
        if value is None and name == "shared_memory":
            lines[str(SHARED_MEMORY)] = "not there"
        elif value is not None and value is not UNSET:
            lines.update(tell(value))
    return {**lines, **{topic: f"not known ({why})" for topic, why in found.failed.items()}}


def _tell_rdma(rdma: RDMADevices) -> Lines:
    for port in rdma.ports:
        yield f"{port.name}:{port.port}", ", ".join(_port_words(port))
    yield "RDMA", rdma.why_not or "works"


def _port_words(port: PortReport) -> Iterator[str]:
    yield f"{port.link_layer} {port.state or 'in no state'}"
    if port.gbit_per_s:
        yield f"{port.gbit_per_s:g} Gbit/s"
    if port.mtu:
        yield f"MTU {port.mtu}"
    if port.numa >= 0:
        yield f"NUMA node {port.numa}"
    yield f"GID {port.gid}" if port.gid else "no GID"
    if len(port.gids) > 1:
        yield f"{len(port.gids)} GIDs in all"
    if not port.usable:
        yield "can't be used"


def _tell_memlock(memlock: LockedMemory) -> Lines:
    if memlock.bytes is None:
        yield "locked memory", "no limit"
    else:
        exempt = ", which does not bind this process" if memlock.is_exempt else ""
        yield "locked memory", f"{size_text(memlock.bytes)}{exempt}"


def _tell_gpus(gpus: GPUs) -> Lines:
    if not gpus.num:
        yield "GPUs", "none"
        return
    yield "GPUs", f"{gpus.num}, {'in use here' if gpus.is_in_use else 'not used here yet'}"
    if gpus.visible is not None:
        yield "CUDA_VISIBLE_DEVICES", gpus.visible or "(empty)"
    yield "GPU memory for NICs", gpus.no_nic or "can be registered"


def _tell_tracing(tracing: Tracing) -> Lines:
    words = ["no limit by Yama" if tracing.scope is None else f"kernel.yama.ptrace_scope={tracing.scope}"]
    words += ["a seccomp filter"] if tracing.is_filtered else []
    words += ["CAP_SYS_PTRACE"] if tracing.is_exempt else []
    yield "ptrace", ", ".join(words)


def _tell_shared_memory(shared: SharedMemory) -> Lines:
    # Coarse, so that ranks of a host say the same.
    tenths = min(9, 10 * shared.free_bytes // max(shared.total_bytes, 1))
    free = f"over {tenths}0%" if tenths else "less than 10%"
    yield str(SHARED_MEMORY), f"{size_text(shared.total_bytes)}, {free} free"


def _tell_memory(memory: Memory) -> Lines:
    limit = "" if memory.limit_bytes is None else f", {size_text(memory.limit_bytes)} for this container"
    yield "memory", f"{size_text(memory.total_bytes)}{limit}"


def _tell_interfaces(interfaces: Sequence[Interface]) -> Lines:
    for one in interfaces:
        speed = f"{one.megabits_per_s / 1000:g} Gbit/s" if one.megabits_per_s > 0 else "speed not known"
        yield one.name, f"{', '.join(one.addresses)}, {speed}, MTU {one.mtu}"
    if not interfaces:
        yield "network", "no interface with an address"


_WORDS: dict[str, Callable[[Any], Any]] = {
    "place": lambda place: {"host": place.host}.items(),
    "processors": lambda num: {"processors": str(num)}.items(),
    "memory": _tell_memory,
    "rdma": _tell_rdma,
    "memlock": _tell_memlock,
    "gpus": _tell_gpus,
    "tracing": _tell_tracing,
    "shared_memory": _tell_shared_memory,
    "huge_pages": lambda mode: {"huge pages": mode or "the kernel has none"}.items(),
    "network": _tell_interfaces,
    "settings": lambda settings: settings.items(),
}
"""Functions that describe each field of `ProbeResult`."""
