"""An opened NIC: its capabilities, and memory registered with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from monarch_nb.rdma.memory import Memory
from monarch_nb.rdma.paths.verbs import gpu as verbs_gpu
from monarch_nb.rdma.paths.verbs.device import usable_ports
from monarch_nb.rdma.paths.verbs.errors import VerbsError, call_text
from monarch_nb.rdma.paths.verbs.library import library
from monarch_nb.rdma.paths.verbs.port import Port

T = TypeVar("T")
MAX_SGE = 16
MAX_READS = 16
"""Maximum number of concurrent READs of one queue pair, if the NICs support as many."""


class Registration:
    """Memory that the NIC may reach.

    Attributes:
        lkey, rkey: its local and its remote key.
        shift: what is added to an address for the NIC: 0, except for dma-bufs.
    """

    def __init__(self, region: Any, shift: int = 0) -> None:
        self._region = region
        self.lkey: int = region.lkey
        self.rkey: int = region.rkey
        self.shift = shift

    def close(self) -> None:
        """Deregister the memory; when this returns, the NIC can't access it any more."""
        self._region.close()


class Nic:
    """An opened port: a context, a protection domain and its limits.

    Raises:
        VerbsError: if it can't be opened.
    """

    def __init__(self, port: Port) -> None:
        self.port = port
        self.library = library()
        self.constants = self.library.constants
        gid = port.gid
        assert gid is not None, port
        self.gid = gid
        self.context = self.call(f"opening {port.device}", lambda: self.library.Context(name=port.device))
        self.domain = self.call("making a protection domain", lambda: self.library.PD(self.context))
        device = self.call(f"asking {port.device}", lambda: self.context.query_device())
        state = self.call(f"asking {port.name}", lambda: self.context.query_port(port.number))
        self.lid = int(state.lid)
        self.mtu = int(state.active_mtu)
        self.max_message_bytes = int(state.max_msg_sz) or 1 << 30
        self.max_requests = int(device.max_qp_wr)
        self.max_parts = max(1, min(int(device.max_sge), MAX_SGE))
        self.max_reads_answered = max(1, min(int(device.max_qp_rd_atom), MAX_READS))
        self.max_reads_asked = max(1, min(int(device.max_qp_init_rd_atom), MAX_READS))

    def call(self, what: str, function: Callable[[], T]) -> T:
        """Call a function of libibverbs, and translate its errors.

        Raises:
            VerbsError: if the call fails; it names the call and the cause.
        """
        try:
            return function()
        except self.library.errors as error:
            raise VerbsError(
                call_text(f"{what} with {self.port.name}", getattr(error, "error_code", None))
            ) from error

    def register(self, memory: Memory, *, remote: bool) -> Registration:
        """Register memory for transfers from this process, or (`remote`) for other processes to read and,
        unless it's read-only, to write.

        Raises:
            VerbsError: if that fails; it names the limit that was exceeded.
        """
        access = self._access(not memory.read_only, remote)
        if not memory.is_cpu:
            return Registration(
                *self.call(
                    "registering GPU memory",
                    lambda: verbs_gpu.register(self.library, self.domain, memory, access),
                )
            )
        return self.register_range(memory.address, memory.span_bytes, access)

    def register_range(self, address: int, nbytes: int, access: int) -> Registration:
        """Register a range of host memory."""
        what = f"registering {nbytes:,} bytes"
        return Registration(
            self.call(what, lambda: self.library.MR(self.domain, nbytes, access, address=address))
        )

    def _access(self, writable: bool, remote: bool) -> int:
        c = self.constants
        local = c.IBV_ACCESS_LOCAL_WRITE if writable else 0
        if not remote:
            return local
        return local | c.IBV_ACCESS_REMOTE_READ | (c.IBV_ACCESS_REMOTE_WRITE if writable else 0)

    def close(self) -> None:
        """Close the NIC, and everything that was created from it."""
        with suppress(*self.library.errors):
            self.context.close()


class Nics:
    """The NICs of this process, opened when first used. Thread-safe."""

    def __init__(self) -> None:
        self._by_name: dict[str, Nic] = {}
        self._lock = threading.Lock()
        self._closed = False

    def get(self, port: Port) -> Nic:
        """Return the NIC of a port, opened at the first call.

        Raises:
            VerbsError: if it can't be opened.
        """
        with self._lock:
            if self._closed:
                raise VerbsError("this process is leaving its mesh")
            found = self._by_name.get(port.name)
            if found is None:
                if not self._by_name:
                    _fork_safely()
                found = self._by_name[port.name] = Nic(port)
            return found

    def close(self) -> None:
        """Close all NICs."""
        with self._lock:
            self._closed = True
            nics, self._by_name = list(self._by_name.values()), {}
        for nic in nics:
            nic.close()


def _fork_safely() -> None:
    """Prepare libibverbs for forks: before Linux 5.12 a fork takes registered pages from the parent
    otherwise. Has no effect on later kernels.
    """
    library()
    with suppress(Exception):
        from pyverbs import fork  # type: ignore[import-not-found, unused-ignore]

        fork.fork_init()


def port_named(name: str) -> Port:
    """Return the usable port with this name.

    Raises:
        VerbsError: if it's no longer usable.
    """
    for port in usable_ports():
        if port.name == name:
            return port
    raise VerbsError(f"RDMA port {name} can't be used any more")
