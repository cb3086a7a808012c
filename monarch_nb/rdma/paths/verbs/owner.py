"""The owner's side: it registers memory when first asked, connects queue pairs, and takes no part in
transfers.

Queue pairs are kept by the process that asked for them. When it makes a new one it says which of ours it has
given up; when a process of the same place in the mesh comes with another number, the old one has ended.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from monarch_nb.rdma.path import gone
from monarch_nb.rdma.paths.verbs import device as verbs_device
from monarch_nb.rdma.paths.verbs.device import usable_ports
from monarch_nb.rdma.paths.verbs.errors import VerbsError
from monarch_nb.rdma.paths.verbs.library import LibraryMissing
from monarch_nb.rdma.paths.verbs.mover import Target
from monarch_nb.rdma.paths.verbs.nic import Nic, Nics, Registration, port_named
from monarch_nb.rdma.paths.verbs.port import Port, nearest
from monarch_nb.rdma.paths.verbs.questions import NAME, Connect, Connected, Refused, Register
from monarch_nb.rdma.paths.verbs.queue import QueuePair
from monarch_nb.rdma.question import Done, Question
from monarch_nb.rdma.table import KEY_BYTES, NUM_SLOTS

if TYPE_CHECKING:
    from monarch_nb.rdma.data_plane import DataPlane
    from monarch_nb.rdma.handle import Addresses
    from monarch_nb.rdma.memory import Memory
    from monarch_nb.rdma.regions import Region

MAX_QUEUE_PAIRS = 1024


def port_for(memory: Memory, ports: list[Port], like: str = "") -> Port:
    """Return the port to use for memory of this process."""
    if memory.is_cpu:
        return nearest(ports, numa=verbs_device.own_numa(), like=like)
    return nearest(ports, pci=verbs_device.gpu_pci(memory.gpu), like=like)


class OwnerSide:
    """The owner's side of the path, which answers requests of other processes. Thread-safe."""

    def __init__(self, plane: DataPlane, nics: Nics) -> None:
        self._plane = plane
        self._nics = nics
        self._lock = threading.Lock()
        self._tables: dict[str, Registration] = {}
        self._completions: dict[str, Any] = {}
        self._queue_pairs: dict[int, list[QueuePair]] = {}
        self._process_at: dict[tuple[str, int], int] = {}

    def answer(self, question: Question[object], region: Region) -> Target | Connected | Done | Refused:
        """Return the answer to a question."""
        try:
            if isinstance(question, Register):
                return self._register(question, region)
            if isinstance(question, Connect):
                return self._connect(question)
            # the owner lives, and the buffer exists: otherwise the request would not have come here
            return Done()
        except (VerbsError, LibraryMissing) as error:
            return Refused(str(error))

    def _register(self, question: Register, region: Region) -> Target:
        why = verbs_device.no_device_reason()
        ports = [p for p in usable_ports() if p.link_layer == question.link_layer]
        if not ports:
            raise VerbsError(why or f"no active {question.link_layer} port on {self._plane.owner.host}")
        port = port_for(region.memory, ports, question.port)
        nic = self._nics.get(port)
        with region.lock:
            if (
                self._plane.regions.find(region.key) is not region
            ):  # dropped meanwhile: an object made now would never be freed
                raise gone(question.handle)
            made = region.made.setdefault(NAME, {})
            if port.name not in made:
                made[port.name] = nic.register(region.memory, remote=True)
            found: Registration = made[port.name]
        return Target(port.name, found.rkey, found.shift)

    def _connect(self, question: Connect) -> Connected:
        nic = self._nics.get(port_named(question.port))
        with self._lock:
            self._clear(question.places, question.process, question.given_up)
            table = self._table(nic)
            queue_pair = QueuePair(nic, self._completion_queue(nic), 1, 1)
            try:
                queue_pair.connect(question.qp, serves=True)
            except BaseException:
                queue_pair.close()
                raise
            self._queue_pairs.setdefault(question.process, []).append(queue_pair)
        return Connected(queue_pair.info, (self._plane.regions.table.address, table.rkey))

    def _table(self, nic: Nic) -> Registration:
        found = self._tables.get(nic.port.name)
        if found is None:
            access = nic.constants.IBV_ACCESS_REMOTE_READ
            found = nic.register_range(self._plane.regions.table.address, NUM_SLOTS * KEY_BYTES, access)
            self._tables[nic.port.name] = found
        return found

    def _completion_queue(self, nic: Nic) -> Any:
        """Return a completion queue, which libibverbs requires; it stays empty, because the owner posts no
        requests.
        """
        found = self._completions.get(nic.port.name)
        if found is None:
            found = nic.call(
                "making a completion queue", lambda: nic.library.CQ(nic.context, 16, None, None, 0)
            )
            self._completions[nic.port.name] = found
        return found

    def _clear(self, places: Addresses, process: int, given_up: list[int]) -> None:
        """Close queue pairs that are no longer used."""
        for place in places:
            before = self._process_at.get(place, process)
            if before != process:
                self._close(self._queue_pairs.pop(before, []))
            self._process_at[place] = process
        ours = self._queue_pairs.get(process, [])
        self._close([q for q in ours if q.info.number in given_up])
        self._queue_pairs[process] = [q for q in ours if q.info.number not in given_up]
        while sum(map(len, self._queue_pairs.values())) >= MAX_QUEUE_PAIRS:
            self._close(self._queue_pairs.pop(next(iter(self._queue_pairs))))

    def _close(self, queue_pairs: list[QueuePair]) -> None:
        for queue_pair in queue_pairs:
            with suppress(*queue_pair.nic.library.errors):
                queue_pair.close()

    def forget(self, region: Region) -> None:
        """Deregister a region from all NICs; when this returns, none can access it."""
        for registration in region.made.pop(NAME, {}).values():
            registration.close()

    def disconnect_all(self) -> None:
        """Close all queue pairs; a process that uses one gets an error, and connects again."""
        with self._lock:
            queue_pairs = [q for some in self._queue_pairs.values() for q in some]
            self._queue_pairs.clear()
            self._close(queue_pairs)
