"""Describes this machine's RDMA hardware in words: for the doctor, receipts and refusals."""

from __future__ import annotations

import time

from monarch_nb._protocol.base import Record
from monarch_nb.rdma.paths.verbs import device as verbs_device
from monarch_nb.rdma.paths.verbs.errors import memlock_text
from monarch_nb.rdma.paths.verbs.library import LibraryMissing, library

__all__ = ["PortReport", "describe_devices", "memlock_text", "unavailable_reason"]

_missing = ("", 0.0)
"""Why the library is missing, and until when that is assumed."""


def unavailable_reason() -> str:
    """Return why this process can't transfer by RDMA; empty if it can. Cheap; imports nothing on a machine
    without a device.
    """
    return verbs_device.no_device_reason() or _library_reason()


def _library_reason() -> str:
    global _missing
    reason, until = _missing
    if reason and time.monotonic() < until:
        return reason
    try:
        library()
    except LibraryMissing as error:
        _missing = (str(error), time.monotonic() + verbs_device.LOOK_AGAIN_S)
        return str(error)
    return ""


class PortReport(Record, frozen=True):
    """An RDMA port.

    Attributes:
        name, port: of the device, and the port's number on it.
        gid: the address that is used; empty if there is none.
        gids: all addresses.
        mtu: bytes, of the network device beneath; 0 if not known.
        gbit_per_s: 0 if not known.
        numa: the NUMA node; -1 if not known.
    """

    name: str
    port: int
    state: str
    link_layer: str
    gid: str
    gids: tuple[str, ...]
    mtu: int
    gbit_per_s: float
    numa: int
    usable: bool


def describe_devices() -> tuple[PortReport, ...]:
    """Return all RDMA ports of this machine, usable or not."""
    usable = {p.name for p in verbs_device.usable_ports()}
    return tuple(
        PortReport(
            name=port.device,
            port=port.number,
            state=port.state,
            link_layer=port.link_layer,
            gid="" if port.gid is None else str(port.gid),
            gids=tuple(map(str, port.gids)),
            mtu=port.netdev_mtu,
            gbit_per_s=port.gbit_per_s,
            numa=port.numa,
            usable=port.name in usable,
        )
        for port in verbs_device.read_ports(verbs_device.CLASS)
    )
