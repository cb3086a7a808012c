"""Sends packs of content to agents: reads them here, and has them broadcast, several at a time."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from monarch_nb._sync.env.local import changed
from monarch_nb._sync.env.scan import Scanned
from monarch_nb._sync.env.treatment import Treater
from monarch_nb.exceptions import MeshError
from monarch_nb.mesh.shipping.agent import Taken, bytes_of
from monarch_nb.mesh.shipping.agents import AGENT_S, Agents, reason_of
from monarch_nb.mesh.shipping.host_broadcast import Outcome, Refused, broadcast
from monarch_nb.mesh.shipping.packs import PACK_BYTES, Pack, packs_of
from monarch_nb.mesh.shipping.progress import Progress
from monarch_nb.mesh.shipping.receiving import sums_of
from monarch_nb.rdma import RDMABuffer, empty

SLOTS = 3
"""Packs under way at once."""

_Room = Mapping[int, Sequence[RDMABuffer]]
"""Buffers of agents, by host."""


class PackSender:
    """The sender that reads packs and has them broadcast, `SLOTS` at a time."""

    def __init__(self, agents: Agents, scanned: Scanned, progress: Progress) -> None:
        self._agents = agents
        self._scanned = scanned
        self._treater = Treater(scanned.roots)
        self._progress = progress

    def send_all(self, lacks: Mapping[int, Mapping[str, int]]) -> None:
        """Send hosts what they lack, by content its size: hosts that lack the same as one."""
        groups: dict[frozenset[int], dict[str, int]] = {}
        for sha256, size in {s: n for sizes in lacks.values() for s, n in sizes.items()}.items():
            who = frozenset(host for host, sizes in lacks.items() if sha256 in sizes)
            groups.setdefault(who, {})[sha256] = size
        for who, sizes in groups.items():
            self.send(sorted(who), list(packs_of(sizes)))

    def send(self, hosts: Sequence[int], packs: Sequence[Pack]) -> None:
        """Send packs to hosts.

        Raises:
            EnvironmentSyncError: if a file here isn't what was believed.
        """
        room = self._agents.ask(lambda agent: agent.make_room.call_one(SLOTS), AGENT_S, hosts)
        left: queue.SimpleQueue[Pack] = queue.SimpleQueue()
        ordered, loose = _in_order(packs)
        for pack in loose:
            left.put(pack)
        with ThreadPoolExecutor(SLOTS, "monarch_nb-sync-send") as pool:
            chains = [pool.submit(self._send_chain, 0, ordered, left, room)]
            chains += [pool.submit(self._send_chain, slot, [], left, room) for slot in range(1, SLOTS)]
            for chain in chains:
                chain.result()

    def _send_chain(
        self, slot: int, first: Sequence[Pack], left: queue.SimpleQueue[Pack], room: _Room
    ) -> None:
        """Send packs one after the other by one buffer: first some that must stay in order, then what nobody
        else has taken."""
        memory = empty((PACK_BYTES,), dtype="uint8")
        buffer = RDMABuffer(memory)
        try:
            for pack in _and_then(first, left):
                self._send_pack(slot, pack, bytes_of(memory), buffer, room)
        finally:
            buffer.drop()

    def _send_pack(self, slot: int, pack: Pack, memory: memoryview, buffer: RDMABuffer, room: _Room) -> None:
        self._read(pack, memory)
        sums = sums_of(pack, memory) if len(room) > 1 else ()

        def copy(holder: int | None, target: int) -> Outcome:
            source = buffer if holder is None else room[holder][slot]
            try:
                taken: Taken = (
                    self._agents.by_host[target].fetch_pack.call_one(slot, pack, source, sums).get(AGENT_S)
                )
            except MeshError as error:
                self._agents.trust.lose(target, reason_of(error))
                raise
            if not taken.wrong and not taken.problem:
                self._progress.took(target, pack.num_bytes)
            return taken.wrong, taken.problem

        try:
            broadcast(list(room), self._agents.trust, copy)
        except Refused as error:
            raise changed(self._scanned.sources[error.wrong[0]].file) from None
        for host in room.keys() & self._agents.trust.lost.keys():
            self._progress.left_out(host)

    def _read(self, pack: Pack, memory: memoryview) -> None:
        at = 0
        for each in pack.slices:
            source = self._scanned.sources[each.sha256]
            view = memory[at : at + each.length]
            num = self._treater.read_slice(source, each.offset, view)
            if num != each.length:
                raise changed(source.file)
            at += each.length


def _in_order(packs: Iterable[Pack]) -> tuple[list[Pack], list[Pack]]:
    """Divide packs into those with a part of large content, which go one after the other, and all others."""
    ordered: list[Pack] = []
    loose: list[Pack] = []
    for pack in packs:
        (ordered if any(each.length < each.size for each in pack.slices) else loose).append(pack)
    return ordered, loose


def _and_then(first: Sequence[Pack], left: queue.SimpleQueue[Pack]) -> Iterator[Pack]:
    yield from first
    with suppress(queue.Empty):
        while True:
            yield left.get_nowait()
