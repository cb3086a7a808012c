"""What this machine has for RDMA, for people: the doctor, receipts, refusals."""

from __future__ import annotations

import time
from typing import Any

from monarch_nb.rdma.paths.verbs import device as verbs_device
from monarch_nb.rdma.paths.verbs.errors import memlock_text
from monarch_nb.rdma.paths.verbs.library import LibraryMissing, library

__all__ = ["describe_devices", "memlock_text", "unavailable_reason"]

_missing = ("", 0.0)
"""Why there's no library, and until when that's believed."""


def unavailable_reason() -> str:
    """Return why no transfer can go by RDMA from here; empty if one can. Cheap; imports nothing where
    there's no device.
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


def describe_devices() -> list[dict[str, Any]]:
    """Return all RDMA ports of this machine, usable or not.

    Each has `name`, `port`, `state`, `link_layer`, `gid` (the address that would be used), `gids` (all),
    `mtu` (bytes, of the network device beneath; 0 if not known), `gb_per_s` (gigabits; 0 if not known),
    `numa` (-1 if not known), and `usable`.
    """
    usable = {p.name for p in verbs_device.usable_ports()}
    return [
        {
            "name": port.device,
            "port": port.number,
            "state": port.state,
            "link_layer": port.link_layer,
            "gid": "" if port.gid is None else str(port.gid),
            "gids": [str(g) for g in port.gids],
            "mtu": port.netdev_mtu,
            "gb_per_s": port.gb_per_s,
            "numa": port.numa,
            "usable": port.name in usable,
        }
        for port in verbs_device.read_ports(verbs_device.CLASS)
    ]
