"""The meaning of completion statuses and errno values: a name, and the likely cause."""

from __future__ import annotations

import errno
import os
import resource
from typing import NamedTuple

from monarch_nb._units import size_text


class Status(NamedTuple):
    """A status with which a work request can complete: its name for people, and its likely cause."""

    name: str
    cause: str


SUCCESS = 0
LOCAL_PROTECTION = 4
FLUSHED = 5
REMOTE_INVALID = 9
REMOTE_ACCESS = 10
RETRY_EXCEEDED = 12

NETWORK = (
    "the network lets nothing through (RoCE: UDP port 4791 in firewalls, MTU, the subnet of the chosen "
    "GID; InfiniBand: the subnet manager)"
)
_OWN = "an error of this package: please report it"
_STATUSES = {
    0: Status("success", ""),
    1: Status("local length error", "a message longer than the NIC takes"),
    2: Status("local queue pair operation error", _OWN),
    LOCAL_PROTECTION: Status(
        "local protection error", "the local memory was freed or unmapped during the transfer"
    ),
    FLUSHED: Status("flushed", "an earlier request of this queue pair failed, or it was closed"),
    6: Status("memory window bind error", _OWN),
    7: Status(
        "bad response", "the NICs or their drivers don't understand each other: look at firmware versions"
    ),
    8: Status("local access error", _OWN),
    REMOTE_INVALID: Status(
        "remote invalid request", "the buffer was dropped, or the NICs disagree about limits"
    ),
    REMOTE_ACCESS: Status("remote access error", "the buffer was dropped, or the key doesn't fit"),
    11: Status("remote operation error", "the owner's NIC failed: look at its kernel log"),
    RETRY_EXCEEDED: Status("retry exceeded", f"the owner's process or host is gone, or {NETWORK}"),
    13: Status("receiver-not-ready retry exceeded", _OWN),
    19: Status("fatal error", "the local NIC failed: look at its kernel log"),
    20: Status("response time-out", "the owner's NIC doesn't answer"),
    21: Status("general error", "look at the kernel log"),
}


def status_name(status: int) -> str:
    """Return the name of a completion status."""
    return _STATUSES[status].name if status in _STATUSES else f"status {status}"


def status_text(status: int, vendor: int = 0) -> str:
    """Return the name and the likely cause of a completion status.

    >>> status_text(10)
    "remote access error: the buffer was dropped, or the key doesn't fit"
    """
    cause = _STATUSES[status].cause if status in _STATUSES else "see the vendor's documentation"
    code = f" (vendor code {vendor:#x})" if vendor else ""
    return f"{status_name(status)}{code}: {cause}"


class CompletionError(Exception):
    """The error of a failed work request; its queue pair can't be used any more."""

    def __init__(self, status: int, vendor: int = 0) -> None:
        super().__init__(status_text(status, vendor))
        self.status = status


def blocked_text() -> str:
    """Return the meaning of "retry exceeded" when the owner's process still answers."""
    return f"{status_name(RETRY_EXCEEDED)}, though its process answers: {NETWORK}"


class VerbsError(Exception):
    """The error of a failed call of libibverbs; its text gives the call and the reason."""


def memlock_text() -> str:
    """Return how much memory this process may lock, and how to raise the limit; empty if there is no
    limit.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return ""
    return (
        f"this process may lock {size_text(soft)} of memory: ulimit -l unlimited "
        "(/etc/security/limits.conf; systemd: LimitMEMLOCK=infinity; docker: --ulimit memlock=-1)"
    )


def call_text(what: str, code: int | None) -> str:
    """Return the meaning of a failed call, by its errno.

    >>> call_text("connecting", 110).startswith("connecting failed (ETIMEDOUT)")
    True
    """
    name = errno.errorcode.get(code or 0, str(code))
    return f"{what} failed ({name}): {_cause(what, code)}"


def _cause(what: str, code: int | None) -> str:
    if code in (errno.ENOMEM, errno.EAGAIN):
        return memlock_text() or "the NIC or the kernel is out of memory for it"
    if code in (errno.EPERM, errno.EACCES):
        return "not permitted: may this user open /dev/infiniband/uverbs*?"
    if code == errno.EFAULT:
        return "the memory isn't mapped, or can't be written"
    if code in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH):
        return "there's no route to the other NIC's address (GID)"
    return os.strerror(code) if code else "no reason was given"
