"""Finds the addresses at which this machine can be reached, and the environment variables about them."""

from __future__ import annotations

import functools
import ipaddress
import os

import psutil

from monarch_nb.exceptions import MeshUsageError

INTERFACE_VARIABLE = "MONARCH_NB_RDMA_INTERFACE"
STREAMS_VARIABLE = "MONARCH_NB_RDMA_STREAMS"
DEFAULT_STREAMS = 4
"""Number of streams, if there are as many processors: more threads slow each other down."""
MAX_STREAMS = 64

Address = tuple[str, int]
"""Host and port."""


def num_streams() -> int:
    """Return the maximum number of streams of a transfer.

    Raises:
        MeshUsageError: if the environment variable has an invalid value.
    """
    text = os.environ.get(STREAMS_VARIABLE) or str(min(DEFAULT_STREAMS, len(os.sched_getaffinity(0))))
    if not text.isdigit() or not 0 < int(text) <= MAX_STREAMS:
        raise MeshUsageError(
            f"{STREAMS_VARIABLE}={text}: a number of streams from 1 to {MAX_STREAMS} is wanted"
        )
    return int(text)


def this_network() -> str:
    """Return an id that two processes have in common if they can connect by the loopback interface."""
    return f"{_boot_id()}/{os.readlink('/proc/self/ns/net')}"


@functools.cache
def _boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def local_addresses(near: bool) -> list[tuple[str, str]]:
    """Return pairs of an address of this machine, the fastest first, and the address to listen on for it.

    Args:
        near: for processes of this machine: addresses of the loopback interface.
    """
    wanted = [w.strip() for w in os.environ.get(INTERFACE_VARIABLE, "").split(",") if w.strip()]
    found = _all_addresses()
    if wanted:
        return [(host, host) for interface, host in found if interface in wanted or host in wanted]
    if near:
        hosts = [host for _, host in found if ipaddress.ip_address(host).is_loopback]
        return [(host, host) for host in hosts] or [("127.0.0.1", "127.0.0.1")]
    return [(h, "::" if ":" in h else "0.0.0.0") for _, h in found if not ipaddress.ip_address(h).is_loopback]


def no_address() -> str:
    """Return the message for a machine that has no usable address."""
    wanted = os.environ.get(INTERFACE_VARIABLE)
    if not wanted:
        return "this machine has no address at which others could reach it"
    there = ", ".join(f"{interface} {host}" for interface, host in _all_addresses())
    return f"{INTERFACE_VARIABLE}={wanted}: this machine has no such interface or address; it has {there}"


def _all_addresses() -> list[tuple[str, str]]:
    """Return pairs of an interface's name and one of its addresses, for all interfaces that are up; IPv4
    before IPv6, fast ones first.
    """
    states = psutil.net_if_stats()
    found = []
    for interface, addresses in psutil.net_if_addrs().items():
        state = states.get(interface)
        if state is not None and not state.isup:
            continue
        for one in addresses:
            if one.family.name in ("AF_INET", "AF_INET6") and _is_usable(one.address):
                found.append((-(state.speed if state else 0), ":" in one.address, interface, one.address))
    return [(interface, host) for _, _, interface, host in sorted(found)]


def _is_usable(host: str) -> bool:
    """Return whether other machines can connect to an address: link-local ones need the interface's name on
    the other side, too.
    """
    return not ipaddress.ip_address(host.partition("%")[0]).is_link_local


def port_range() -> str:
    """Return the range of the system's ephemeral ports, such as `32768-60999`."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            return "-".join(file.read().split())
    except OSError:
        return "32768-60999"
