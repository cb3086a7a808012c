"""RDMA devices of this machine, read from the kernel's files, without opening or importing anything.

Looking costs some milliseconds where a table of addresses is long (Soft-RoCE's has 1,024 files), and seconds
where a busy machine has no time for it. So what was seen is believed for some seconds, and for long enough
that looking takes a small part of the time; and one thread looks, not all.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

from monarch_nb.rdma.paths.verbs.port import INFINIBAND, ROCE_V1, Gid, Port

VARIABLE = "MONARCH_NB_RDMA_DEVICES"
"""Names of the devices that may be used, separated by commas, each with a port if wanted:
`mlx5_0,mlx5_1:2`.
"""
CLASS = Path("/sys/class/infiniband")
NODES = Path("/dev/infiniband")
MAX_TEXT_BYTES = 64 << 10
LOOK_AGAIN_S = 5.0
MIN_REST = 20.0
"""The next look at the ports follows after at least this many times the duration of the last one."""


# --- reading the kernel's files


def _text(path: str | Path) -> str:
    """Return the text of a kernel file. Uses os calls, because many files are read in a row, and pathlib with
    a text decoder for each is slow.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # a file that this kernel doesn't have
        return ""
    try:
        return os.read(fd, MAX_TEXT_BYTES).decode(errors="replace").strip()
    except OSError:  # an empty line of the table
        return ""
    finally:
        os.close(fd)


def _gids(port: Path, link_layer: str) -> Iterator[Gid]:
    try:
        numbers = sorted(map(int, os.listdir(port / "gids")))
    except OSError:
        return
    for number in numbers:
        value = _text(f"{port}/gids/{number}")
        if not value or not value.replace(":", "").strip("0"):
            continue
        kind = INFINIBAND if link_layer == "InfiniBand" else _text(port / "gid_attrs" / "types" / str(number))
        yield Gid(number, str(IPv6Address(value)), ROCE_V1 if kind == "IB/RoCE v1" else kind)


def _number(text: str) -> float:
    found = re.match(r"-?[\d.]+", text)
    return float(found[0]) if found else 0.0


def _port(device: Path, port: Path) -> Port:
    layer = _text(port / "link_layer")
    real = device / "device"
    netdev = _text(device / "parent") or _text(port / "gid_attrs" / "ndevs" / "0")
    return Port(
        device.name,
        int(port.name),
        _text(port / "state").partition(": ")[2],
        layer,
        tuple(_gids(port, layer)),
        gbit_per_s=_number(_text(port / "rate")),
        numa=int(_text(real / "numa_node") or -1),
        pci=os.path.realpath(real) if real.exists() else "",
        netdev_mtu=int(_number(_text(Path("/sys/class/net") / netdev / "mtu"))) if netdev else 0,
        is_channel_adapter=_text(device / "node_type").startswith("1")
        and layer in ("InfiniBand", "Ethernet"),
    )


def read_ports(root: Path = CLASS) -> list[Port]:
    """Return all ports of all devices."""
    if not root.is_dir():
        return []
    devices = sorted(root.iterdir(), key=_natural)
    return [_port(d, p) for d in devices for p in sorted((d / "ports").glob("*"), key=_natural)]


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(part or 0), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", path.name)]


def permitted(ports: Sequence[Port], names: str) -> list[Port]:
    """Return the ports that `MONARCH_NB_RDMA_DEVICES` permits; all if it's empty."""
    wanted = {name.strip() for name in names.split(",") if name.strip()}
    return [p for p in ports if not wanted or p.device in wanted or p.name in wanted]


def why_none(ports: Sequence[Port], names: str, nodes: Path = NODES) -> str:
    """Return why none of these ports can be used; empty if one can."""
    if not ports:
        return "there's no RDMA device on this machine"
    allowed = permitted(ports, names)
    if not allowed:
        return f"{VARIABLE}={names} permits none of {', '.join(p.name for p in ports)}"
    adapters = [p for p in allowed if p.is_channel_adapter]
    if not adapters:
        return f"none of {', '.join(p.name for p in allowed)} speaks InfiniBand or RoCE"
    return _why_not_opened(nodes) or _why_not_active(adapters)


def _why_not_opened(nodes: Path) -> str:
    if not any(nodes.glob("uverbs*")):
        return (
            "the RDMA device can't be opened: there's no /dev/infiniband/uverbs* (docker: "
            "--device=/dev/infiniband; host: modprobe ib_uverbs)"
        )
    if not any(os.access(n, os.R_OK | os.W_OK) for n in nodes.glob("uverbs*")):
        return "the RDMA device can't be opened: this user may not open /dev/infiniband/uverbs*"
    return ""


def _why_not_active(ports: Sequence[Port]) -> str:
    if not any(p.is_active for p in ports):
        return "no RDMA port is active: " + ", ".join(
            f"{p.name} is {p.state or 'in no state'}" for p in ports
        )
    if not any(p.is_usable for p in ports):
        return "no active RDMA port has an address (GID): give its network device one"
    return ""


# --- locations


def gpu_pci(uuid: str, root: Path = Path("/proc/driver/nvidia/gpus")) -> str:
    """Return a GPU's path in the PCI tree; empty if unknown."""
    wanted = uuid.removeprefix("GPU-")
    for folder in root.glob("*"):
        if wanted and wanted in _text(folder / "information"):
            return os.path.realpath(f"/sys/bus/pci/devices/{folder.name.lower()}")
    return ""


def own_numa() -> int:
    """Return the NUMA node that this process is bound to; -1 if it may run on several."""
    mine = os.sched_getaffinity(0)
    for node in Path("/sys/devices/system/node").glob("node[0-9]*"):
        if mine <= _cpus(_text(node / "cpulist")):
            return int(node.name.removeprefix("node"))
    return -1


def _cpus(listed: str) -> set[int]:
    found: set[int] = set()
    for part in filter(None, listed.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


# --- devices usable by this process


@dataclass(frozen=True, slots=True)
class _Look:
    """The cached result of the last look at the machine's ports: the settings that it is valid for, and until
    when.
    """

    ports: tuple[Port, ...] = ()
    why: str = ""
    key: tuple[Any, ...] = ()
    until: float = 0.0


_last = _Look()
_looking = threading.Lock()


def _seen() -> _Look:
    """Return the cached ports, or read them again if the cache is too old. One thread at a time reads; the
    others use the old result meanwhile.
    """
    key = (CLASS, NODES, os.environ.get(VARIABLE, ""))
    last = _last
    if last.key == key and time.monotonic() < last.until:
        return last
    if not _looking.acquire(blocking=last.key != key):
        return last
    try:
        return _look(key)
    finally:
        _looking.release()


def _look(key: tuple[Any, ...]) -> _Look:
    global _last
    start = time.monotonic()
    if _last.key == key and start < _last.until:  # another thread has looked during the wait for the lock
        return _last
    root, nodes, names = key
    ports = read_ports(root)
    usable = tuple(p for p in permitted(ports, names) if p.is_usable)
    end = time.monotonic()
    _last = _Look(
        usable, why_none(ports, names, nodes), key, end + max(LOOK_AGAIN_S, MIN_REST * (end - start))
    )
    return _last


def look_again() -> None:
    """Invalidate the cached ports."""
    global _last
    _last = replace(_last, until=0.0)


def usable_ports() -> list[Port]:
    """Return the ports that are permitted and usable."""
    return list(_seen().ports)


def no_device_reason() -> str:
    """Return why there is no usable port; empty if there is one. Cheap: cached for a few seconds."""
    return _seen().why
