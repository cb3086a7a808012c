"""RDMA devices of this machine, as the kernel's files describe them: nothing is opened or imported for it.

A NIC is chosen by nearness: of several with an active port, the one whose PCI way to the GPU (or whose NUMA node, for CPU memory) is shortest.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

VARIABLE = "MONARCH_NB_RDMA_DEVICES"
"""Names of the devices that may be used, separated by commas, each with a port if wanted: `mlx5_0,mlx5_1:2`."""
CLASS = Path("/sys/class/infiniband")
NODES = Path("/dev/infiniband")
LOOK_AGAIN_S = 5.0
ROCE_V2, ROCE_V1, INFINIBAND = "RoCE v2", "RoCE v1", "IB"
_MTU = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}


@dataclass(frozen=True, slots=True)
class Gid:
    """One address of a port.

    Attributes:
        index: in the port's table.
        value: as an IPv6 address is written.
        kind: `RoCE v2`, `RoCE v1` or `IB`.
    """

    index: int
    value: str
    kind: str

    @property
    def is_ipv4(self) -> bool:
        """Whether it's an IPv4 address in IPv6's clothes."""
        return IPv6Address(self.value).ipv4_mapped is not None

    @property
    def is_link_local(self) -> bool:
        """Whether no router passes it on."""
        return IPv6Address(self.value).is_link_local

    def __str__(self) -> str:
        address = IPv6Address(self.value)
        return f"{address.ipv4_mapped or address} ({self.kind}, index {self.index})"


@dataclass(frozen=True, slots=True)
class Port:
    """A port of a device.

    Attributes:
        device, number: `mlx5_0`, 1.
        state: `ACTIVE`, `DOWN`.
        link_layer: `InfiniBand` or `Ethernet`.
        gids: those that aren't empty.
        gb_per_s: gigabits per second; 0 if not known.
        numa: the NUMA node; -1 if not known.
        pci: the way through the PCI tree, as a path; empty for software devices.
        netdev_mtu: of the network device beneath; 0 if there's none.
        is_channel_adapter: whether it speaks InfiniBand or RoCE, rather than iWARP or a cloud's own.
    """

    device: str
    number: int
    state: str
    link_layer: str
    gids: tuple[Gid, ...] = ()
    gb_per_s: float = 0.0
    numa: int = -1
    pci: str = ""
    netdev_mtu: int = 0
    is_channel_adapter: bool = True

    @property
    def is_active(self) -> bool:
        """Whether it can carry anything."""
        return self.state == "ACTIVE"

    @property
    def gid(self) -> Gid | None:
        """The address to use."""
        return choose_gid(self.gids)

    @property
    def is_usable(self) -> bool:
        """Whether a queue pair can be connected by it."""
        return self.is_active and self.is_channel_adapter and self.gid is not None

    @property
    def name(self) -> str:
        """`mlx5_0:1`."""
        return f"{self.device}:{self.number}"


def choose_gid(gids: Sequence[Gid]) -> Gid | None:
    """Return the address to use: RoCE v2 before v1, IPv4 before IPv6, what routers pass on before what they don't."""
    order = (INFINIBAND, ROCE_V2, ROCE_V1)
    known = [g for g in gids if g.kind in order]
    return min(known, key=lambda g: (order.index(g.kind), not g.is_ipv4, g.is_link_local and g.kind != INFINIBAND, g.index), default=None)


# --- reading the kernel's files


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # an empty line of the table, a file that this kernel doesn't have
        return ""


def _gids(port: Path, link_layer: str) -> Iterator[Gid]:
    for file in sorted((port / "gids").glob("*"), key=lambda f: int(f.name)):
        value = _text(file)
        if not value or not value.replace(":", "").strip("0"):
            continue
        kind = INFINIBAND if link_layer == "InfiniBand" else _text(port / "gid_attrs" / "types" / file.name)
        yield Gid(int(file.name), str(IPv6Address(value)), ROCE_V1 if kind == "IB/RoCE v1" else kind)


def _number(text: str) -> float:
    found = re.match(r"-?[\d.]+", text)
    return float(found[0]) if found else 0.0


def _port(device: Path, port: Path) -> Port:
    layer = _text(port / "link_layer")
    real = device / "device"
    netdev = _text(device / "parent") or _text(port / "gid_attrs" / "ndevs" / "0")
    return Port(
        device.name, int(port.name), _text(port / "state").partition(": ")[2], layer, tuple(_gids(port, layer)),
        gb_per_s=_number(_text(port / "rate")), numa=int(_text(real / "numa_node") or -1),
        pci=os.path.realpath(real) if real.exists() else "",
        netdev_mtu=int(_number(_text(Path("/sys/class/net") / netdev / "mtu"))) if netdev else 0,
        is_channel_adapter=_text(device / "node_type").startswith("1") and layer in ("InfiniBand", "Ethernet"),
    )  # fmt: skip


def read_ports(root: Path = CLASS) -> list[Port]:
    """Return all ports of all devices."""
    if not root.is_dir():
        return []
    devices = sorted(root.iterdir(), key=_natural)
    return [_port(d, p) for d in devices for p in sorted((d / "ports").glob("*"), key=_natural)]


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(part or 0), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", path.name)]


def permitted(ports: Sequence[Port], names: str) -> list[Port]:
    """Return those that `MONARCH_NB_RDMA_DEVICES` leaves; all if it's empty."""
    wanted = {name.strip() for name in names.split(",") if name.strip()}
    return [p for p in ports if not wanted or p.device in wanted or p.name in wanted]


def why_none(ports: Sequence[Port], names: str, nodes: Path = NODES) -> str:
    """Return why none of these ports can be used; empty if one can."""
    if not ports:
        return "there's no RDMA device on this machine"
    allowed = permitted(ports, names)
    if not allowed:
        return f"{VARIABLE}={names} leaves none of {', '.join(p.name for p in ports)}"
    if not any(nodes.glob("uverbs*")):
        return "the RDMA device can't be opened: there's no /dev/infiniband/uverbs* (docker: --device=/dev/infiniband; host: modprobe ib_uverbs)"
    if not any(os.access(n, os.R_OK | os.W_OK) for n in nodes.glob("uverbs*")):
        return "the RDMA device can't be opened: this user may not open /dev/infiniband/uverbs*"
    if not any(p.is_channel_adapter for p in allowed):
        return f"none of {', '.join(p.name for p in allowed)} speaks InfiniBand or RoCE"
    if not any(p.is_active for p in allowed):
        return "no RDMA port is active: " + ", ".join(f"{p.name} is {p.state or 'in no state'}" for p in allowed)
    if not any(p.is_usable for p in allowed):
        return "no active RDMA port has an address (GID): give its network device one"
    return ""


# --- choosing


def common_depth(one: str, other: str) -> int:
    """Return how many steps two ways through the PCI tree share from the root.

    >>> common_depth("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0", "/sys/devices/pci0000:00/0000:00:02.0")
    3
    """
    pairs = list(zip(one.strip("/").split("/"), other.strip("/").split("/"), strict=False))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))


def nearest(ports: Sequence[Port], pci: str = "", numa: int = -1, like: str = "") -> Port:
    """Return the port to take for memory at a place; ports that are equally near go by speed, then by name as the other side's (`like`)."""
    return min(
        ports,
        key=lambda p: (
            -common_depth(p.pci, pci) if pci and p.pci else 0,
            p.numa != numa if numa >= 0 and p.numa >= 0 else False,
            -p.gb_per_s,
            p.name != like,
        ),
    )


def gpu_pci(uuid: str, root: Path = Path("/proc/driver/nvidia/gpus")) -> str:
    """Return a GPU's way through the PCI tree; empty if not known."""
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


# --- what this process can use


class _Look:
    """What was seen last, and when: looking costs some milliseconds where a table of addresses is long."""

    def __init__(self) -> None:
        self.ports: list[Port] = []
        self.why = ""
        self.until = 0.0
        self.key: tuple[Any, ...] = ()


_look = _Look()


def _seen() -> _Look:
    names = os.environ.get(VARIABLE, "")
    key = (CLASS, NODES, names)
    if _look.key != key or time.monotonic() > _look.until:
        ports = read_ports(CLASS)
        _look.why = why_none(ports, names, NODES)
        _look.ports = [p for p in permitted(ports, names) if p.is_usable]
        _look.key, _look.until = key, time.monotonic() + LOOK_AGAIN_S
    return _look


def usable_ports() -> list[Port]:
    """Return the ports that may be used, and can be."""
    return list(_seen().ports)


def no_device_reason() -> str:
    """Return why there's none; empty if there is. Cheap: looked up every few seconds."""
    return _seen().why


def mtu_code(netdev_mtu: int) -> int:
    """Return libibverbs' code of the largest packet that fits through a network device.

    >>> mtu_code(1500), mtu_code(9000)
    (3, 5)
    """
    room = netdev_mtu - 78  # IPv6, UDP and RoCE headers, and checksums
    return max((code for size, code in _MTU.items() if size <= room), default=1)
