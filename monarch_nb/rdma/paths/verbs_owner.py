"""The owner's side: it registers memory when first asked, connects queue pairs, and has no part in any transfer.

Queue pairs are kept by the process that asked for them. When it makes a new one it says which of ours it has given up; when a process of
the same place in the mesh comes with another number, the old one has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from monarch_nb.rdma.path import gone
from monarch_nb.rdma.paths import verbs_device
from monarch_nb.rdma.paths.verbs_device import usable_ports
from monarch_nb.rdma.paths.verbs_errors import VerbsError
from monarch_nb.rdma.paths.verbs_library import LibraryMissing
from monarch_nb.rdma.paths.verbs_nic import Nic, Nics, Registration, port_named
from monarch_nb.rdma.paths.verbs_port import Port, nearest
from monarch_nb.rdma.paths.verbs_queue import Half
from monarch_nb.rdma.table import KEY_BYTES, NUM_SLOTS

if TYPE_CHECKING:
    from monarch_nb.rdma.desk import Desk
    from monarch_nb.rdma.handle import Addresses
    from monarch_nb.rdma.memory import Memory
    from monarch_nb.rdma.regions import Region

NAME = "verbs"
MAX_HALVES = 1024


def port_for(memory: Memory, ports: list[Port], like: str = "") -> Port:
    """Return the port to take for memory of this process."""
    if memory.is_cpu:
        return nearest(ports, numa=verbs_device.own_numa(), like=like)
    return nearest(ports, pci=verbs_device.gpu_pci(memory.gpu), like=like)


class OwnerSide:
    """Answers other processes. Thread-safe."""

    def __init__(self, desk: Desk, nics: Nics) -> None:
        self._desk = desk
        self._nics = nics
        self._lock = threading.Lock()
        self._tables: dict[str, Registration] = {}
        self._completions: dict[str, Any] = {}
        self._halves: dict[int, list[Half]] = {}
        self._process_at: dict[tuple[str, int], int] = {}

    def answer(self, fields: Mapping[str, Any], region: Region) -> dict[str, Any]:
        """Answer one question; `refused` tells why there's no answer."""
        try:
            if fields["op"] == "register":
                return self._register(fields, region)
            if fields["op"] == "connect":
                return self._connect(fields)
            return {}  # alive, and the buffer holds: else nobody would have come here
        except (VerbsError, LibraryMissing) as error:
            return {"refused": str(error)}

    def _register(self, fields: Mapping[str, Any], region: Region) -> dict[str, Any]:
        why = verbs_device.no_device_reason()
        ports = [p for p in usable_ports() if p.link_layer == fields["link_layer"]]
        if not ports:
            raise VerbsError(why or f"no active {fields['link_layer']} port on {self._desk.owner.host}")
        port = port_for(region.memory, ports, fields["port"])
        nic = self._nics.get(port)
        with region.lock:
            if self._desk.regions.find(region.key) is not region:  # dropped meanwhile, and nobody will forget what we make now
                raise gone(fields["handle"])
            made = region.made.setdefault(NAME, {})
            if port.name not in made:
                made[port.name] = nic.register(region.memory, remote=True)
            found: Registration = made[port.name]
        return {"port": port.name, "rkey": found.rkey, "shift": found.shift}

    def _connect(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        nic = self._nics.get(port_named(fields["port"]))
        with self._lock:
            self._clear(fields["places"], fields["process"], fields["given_up"])
            table = self._table(nic)
            half = Half(nic, self._completion_queue(nic), 1, 1)
            try:
                half.connect(fields["card"], serves=True)
            except BaseException:
                half.close()
                raise
            self._halves.setdefault(fields["process"], []).append(half)
        return {"card": half.card, "table": self._desk.regions.table.address, "rkey": table.rkey}

    def _table(self, nic: Nic) -> Registration:
        found = self._tables.get(nic.port.name)
        if found is None:
            access = nic.constants.IBV_ACCESS_REMOTE_READ
            found = nic.register_range(self._desk.regions.table.address, NUM_SLOTS * KEY_BYTES, access)
            self._tables[nic.port.name] = found
        return found

    def _completion_queue(self, nic: Nic) -> Any:
        """Return a queue in which nothing is ever announced: we ask for nothing."""
        found = self._completions.get(nic.port.name)
        if found is None:
            found = nic.call("making a completion queue", lambda: nic.library.CQ(nic.context, 16, None, None, 0))
            self._completions[nic.port.name] = found
        return found

    def _clear(self, places: Addresses, process: int, given_up: list[int]) -> None:
        """Close queue pairs that nobody uses any more."""
        for place in places:
            before = self._process_at.get(place, process)
            if before != process:
                self._close(self._halves.pop(before, []))
            self._process_at[place] = process
        ours = self._halves.get(process, [])
        self._close([h for h in ours if h.card.number in given_up])
        self._halves[process] = [h for h in ours if h.card.number not in given_up]
        while sum(map(len, self._halves.values())) >= MAX_HALVES:
            self._close(self._halves.pop(next(iter(self._halves))))

    def _close(self, halves: list[Half]) -> None:
        for half in halves:
            with suppress(*half.nic.library.errors):
                half.close()

    def forget(self, region: Region) -> None:
        """Take a region from all NICs: when this returns, none can reach it."""
        for registration in region.made.pop(NAME, {}).values():
            registration.close()

    def disconnect_all(self) -> None:
        """Close all queue pairs: whoever uses them gets an error, and connects anew."""
        with self._lock:
            halves = [h for some in self._halves.values() for h in some]
            self._halves.clear()
            self._close(halves)
