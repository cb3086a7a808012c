"""Ports of RDMA devices as plain data, and the choice of one. Pure.

A NIC is chosen by nearness: of several with an active port, the one whose PCI way to the GPU (or whose NUMA
node, for CPU memory) is shortest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address

ROCE_V2, ROCE_V1, INFINIBAND = "RoCE v2", "RoCE v1", "IB"


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
        """Whether the GID is an IPv4-mapped IPv6 address."""
        return IPv6Address(self.value).ipv4_mapped is not None

    @property
    def is_link_local(self) -> bool:
        """Whether the GID is a link-local address, which routers don't forward."""
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
        gbit_per_s: 0 if not known.
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
    gbit_per_s: float = 0.0
    numa: int = -1
    pci: str = ""
    netdev_mtu: int = 0
    is_channel_adapter: bool = True

    @property
    def is_active(self) -> bool:
        """Whether the port is active."""
        return self.state == "ACTIVE"

    @property
    def gid(self) -> Gid | None:
        """The GID to use; None if there is none."""
        return choose_gid(self.gids)

    @property
    def is_usable(self) -> bool:
        """Whether a queue pair can be connected through this port."""
        return self.is_active and self.is_channel_adapter and self.gid is not None

    @property
    def name(self) -> str:
        """The name of the port, such as `mlx5_0:1`."""
        return f"{self.device}:{self.number}"


def choose_gid(gids: Sequence[Gid]) -> Gid | None:
    """Return the GID to use: RoCE v2 before v1, IPv4 before IPv6, routable before link-local; None if there
    is none.
    """
    order = (INFINIBAND, ROCE_V2, ROCE_V1)
    known = [g for g in gids if g.kind in order]
    return min(
        known,
        key=lambda g: (order.index(g.kind), not g.is_ipv4, g.is_link_local and g.kind != INFINIBAND, g.index),
        default=None,
    )


def common_depth(one: str, other: str) -> int:
    """Return how many levels two paths in the PCI tree share, from the root.

    >>> root = "/sys/devices/pci0000:00"
    >>> common_depth(f"{root}/0000:00:01.0/0000:01:00.0", f"{root}/0000:00:02.0")
    3
    """
    pairs = list(zip(one.strip("/").split("/"), other.strip("/").split("/"), strict=False))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))


def nearest(ports: Sequence[Port], pci: str = "", numa: int = -1, like: str = "") -> Port:
    """Return the port nearest to memory at a PCI path or NUMA node. Ties are broken by speed, then by the
    name of the other side's port (`like`).
    """
    return min(
        ports,
        key=lambda p: (
            -common_depth(p.pci, pci) if pci and p.pci else 0,
            p.numa != numa if numa >= 0 and p.numa >= 0 else False,
            -p.gbit_per_s,
            p.name != like,
        ),
    )
