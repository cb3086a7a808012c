"""Sends the notebook's environment to hosts: missing content is sent in packs; prefixes are made and tried;
zygotes are started in them.
"""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from monarch_nb._client.session import Session
from monarch_nb._protocol.environment import GetEnvironments, RankEnvironment, UseEnvironments
from monarch_nb._sync.env.cache import HashCache
from monarch_nb._sync.env.interpreter import this_interpreter
from monarch_nb._sync.env.layers import find_layers
from monarch_nb._sync.env.local import FileChanged, changed
from monarch_nb._sync.env.mounts import identity_of
from monarch_nb._sync.env.package_index import FromIndex
from monarch_nb._sync.env.place import Prefix
from monarch_nb._sync.env.scan import Scanned, scan
from monarch_nb._sync.env.store import default_store
from monarch_nb._sync.env.treatment import Treater
from monarch_nb._units import elapsed_text, size_text
from monarch_nb.actor.future import Future
from monarch_nb.exceptions import MeshError
from monarch_nb.mesh.shipping import slow_links
from monarch_nb.mesh.shipping.agent import Lack, Survey, SyncAgent, Taken, bytes_of
from monarch_nb.mesh.shipping.agents import AGENT_S, Agents, agents_on, reason_of
from monarch_nb.mesh.shipping.host_broadcast import Outcome, Refused, broadcast
from monarch_nb.mesh.shipping.packs import PACK_BYTES, Pack, packs_of
from monarch_nb.mesh.shipping.plan import PlannedPart, planned
from monarch_nb.mesh.shipping.progress import Progress
from monarch_nb.mesh.shipping.receiving import sums_of
from monarch_nb.mesh.shipping.report import EnvironmentPart, HostEnvironment
from monarch_nb.rdma import RDMABuffer, empty

SLOTS = 3
"""Packs under way at once."""
PLACE_S = 900.0
INDEX_S = 1800.0
ASK_INDEX_S = 1500.0
"""How long a host may wait for its package index; in what is left of `INDEX_S` it copies what has come."""
SWITCH_S = 150.0
_TRIED = ("zmq", "cloudpickle", "monarch_nb._protocol.base")

LOOKS = 4
"""How often an environment is scanned when its files change while they are sent."""

_Done = TypeVar("_Done")
_Room = Mapping[int, Sequence[RDMABuffer]]
"""Buffers of agents, by host."""


def send_environment(
    session: Session,
    hosts: Sequence[int],
    scanned: Scanned,
    *,
    copies: bool = False,
    dry_run: bool = False,
    donors: bool = True,
    index: bool | None = None,
    progress: Progress | None = None,
) -> EnvironmentPart:
    """Have hosts start ranks in the environment of this program from now on.

    Args:
        hosts: indices of hosts.
        scanned: the environment, as `monarch_nb._sync.env.scan` has found it.
        copies: make prefixes of their own also on hosts that see this program's files.
        dry_run: only say what would be done.
        donors: hosts copy what they have in environments of their own, and in caches of uv and conda.
        index: whether hosts get what they lack of distributions from the package index that they are
            configured to use, if content there is the same; None: if the link to them turns out to be slow.
        progress: told how far it is, and shown by who waits.

    Raises:
        EnvironmentSyncError: if a file here isn't what was believed. What hosts can't do is in the result.
    """
    start, progress = time.monotonic(), progress or Progress()
    with agents_on(session, hosts) as agents:
        surveys = _survey(agents, scanned)
        shared = [] if copies else [host for host, survey in surveys.items() if survey.is_shared]
        for host, survey in surveys.items():
            if survey.refusal and host not in shared:
                agents.trust.lose(host, survey.refusal)
        able = [host for host in surveys if host not in shared and host not in agents.trust.lost]
        wanting = [host for host in able if surveys[host].prefix is None]
        lacks = _lacks(agents, scanned, wanting, surveys, dry_run=dry_run, donors=donors)
        plans = _plans(agents, scanned, lacks) if dry_run else {}
        if not dry_run:
            if index:
                progress.step("hosts ask their package indexes")
                lacks |= _taken_from_index(agents, lacks, ASK_INDEX_S)
            lacks = _send(agents, scanned, lacks, progress, by_speed=index is None)
            progress.step("making the environment on hosts, and trying it")
        there = {host: prefix for host in able if (prefix := surveys[host].prefix) is not None}
        placed = {} if dry_run else there | _place(agents, wanting)
        placed_s = time.monotonic() - start
        switched: set[int] = set() if dry_run else switch_zygotes(session, agents, scanned, shared, placed)
        lost = agents.trust.lost
        found = {}
        for host in hosts:
            each = _host_environment(surveys.get(host), lacks.get(host), placed.get(host), lost.get(host, ""))
            found[host] = replace(
                each, is_shared=host in shared, has_changed=host in switched, plan=plans.get(host, ())
            )
    return EnvironmentPart(
        id=scanned.manifest.id,
        num_packages=sum(bool(part.version) for part in scanned.parts.values()),
        num_bytes=scanned.num_bytes,
        hosts=found,
        seconds=time.monotonic() - start,
        is_dry=dry_run,
        left_out=scanned.left_out,
        edited=tuple(sorted(scanned.edited)),
        corrupting=tuple(agents.trust.corrupting()),
        placed_s=placed_s,
    )


def _survey(agents: Agents, scanned: Scanned) -> dict[int, Survey]:
    text = scanned.manifest.text
    roots = {root: identity_of(root) for root in scanned.roots.values()}
    return agents.ask(lambda agent: agent.survey.call_one(text, roots), AGENT_S)


def _lacks(
    agents: Agents,
    scanned: Scanned,
    hosts: Sequence[int],
    surveys: Mapping[int, Survey],
    *,
    dry_run: bool,
    donors: bool,
) -> dict[int, Lack]:
    """Return the contents that hosts lack; for a dry run, nothing is written there."""
    lacks: dict[int, Lack] = {}
    for unknown in dict.fromkeys(surveys[host].unknown for host in hosts):
        texts = [scanned.parts[part].text for part in unknown]
        alike = [host for host in hosts if surveys[host].unknown == unknown]
        if dry_run:
            sizes = agents.ask(_lacking(texts, donors), PLACE_S, alike)
            lacks |= {host: Lack(each, "") for host, each in sizes.items()}
        else:
            lacks |= agents.ask(_learning(texts, donors), PLACE_S, alike)
    for host, lack in list(lacks.items()):
        if lack.refusal:
            agents.trust.lose(host, lack.refusal)
            del lacks[host]
    return lacks


def _learning(texts: list[bytes], donors: bool) -> Callable[[SyncAgent], Future[Lack]]:
    return lambda agent: agent.learn.call_one(texts, donors)


def _lacking(texts: list[bytes], donors: bool) -> Callable[[SyncAgent], Future[dict[str, int]]]:
    return lambda agent: agent.lacking.call_one(texts, donors)


def _taken_from_index(agents: Agents, lacks: Mapping[int, Lack], limit_s: float) -> dict[int, Lack]:
    """Have hosts get content from their package indexes; return what they lack then."""
    asked = [host for host, lack in lacks.items() if lack.sizes]
    found = agents.ask(lambda agent: agent.take_from_index.call_one(limit_s), INDEX_S, asked)
    return {host: _without(lacks[host], each) for host, each in found.items()}


def _without(lack: Lack, found: FromIndex) -> Lack:
    sizes = {sha256: size for sha256, size in lack.sizes.items() if sha256 not in found.taken}
    return replace(lack, sizes=sizes, index_bytes=sum(found.taken.values()), index_problem=found.problem)


def _plans(agents: Agents, scanned: Scanned, lacks: Mapping[int, Lack]) -> dict[int, tuple[PlannedPart, ...]]:
    """Return how each part would come to hosts."""
    there = agents.ask(lambda agent: agent.packages.call_one(), AGENT_S, lacks)
    versions = {host: {name: p.version for name, p in found.items()} for host, found in there.items()}
    parts = list(scanned.parts.values())
    return {host: planned(parts, lack.sizes, versions.get(host, {})) for host, lack in lacks.items()}


def _send(
    agents: Agents, scanned: Scanned, lacks: Mapping[int, Lack], progress: Progress, *, by_speed: bool
) -> dict[int, Lack]:
    """Send hosts what they lack; return that, without what their package indexes had.

    Args:
        by_speed: they ask these if the first contents arrive slowly.
    """
    progress.begin_sending({host: sum(lack.sizes.values()) for host, lack in lacks.items()})
    sender = _Sender(agents, scanned, progress)
    sent: Mapping[str, int] = {}
    found = dict(lacks)
    if by_speed:
        everything = {sha256: size for lack in lacks.values() for sha256, size in lack.sizes.items()}
        sent, began = slow_links.first_of(everything, slow_links.FIRST_BYTES), time.monotonic()
        sender.send_all({host: _only(lack.sizes, sent) for host, lack in lacks.items()})
        num_sent, took_s = sum(sent.values()), time.monotonic() - began
        limit_s = slow_links.index_limit_s(num_sent, took_s, sum(everything.values()) - num_sent)
        if limit_s:
            rate = f"{size_text(num_sent / took_s)}/s from here"
            found |= _asked_instead(agents, lacks, progress, rate, limit_s)
    sender.send_all({host: _but(lack.sizes, sent) for host, lack in found.items()})
    return found


def _asked_instead(
    agents: Agents, lacks: Mapping[int, Lack], progress: Progress, why: str, limit_s: float
) -> dict[int, Lack]:
    """Have hosts ask their package indexes while they are being sent what they lack; return what they lack
    then.
    """
    limit_s = min(limit_s, ASK_INDEX_S)
    progress.step(f"{why}: hosts ask their package indexes first, {elapsed_text(limit_s)} at most")
    alive = {host: lack for host, lack in lacks.items() if host not in agents.trust.lost}
    found = _taken_from_index(agents, alive, limit_s)
    progress.found_elsewhere({host: lack.index_bytes for host, lack in found.items()})
    return found


def _only(sizes: Mapping[str, int], contents: Mapping[str, int]) -> dict[str, int]:
    return {sha256: size for sha256, size in sizes.items() if sha256 in contents}


def _but(sizes: Mapping[str, int], contents: Mapping[str, int]) -> dict[str, int]:
    return {sha256: size for sha256, size in sizes.items() if sha256 not in contents}


class _Sender:
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


def _place(agents: Agents, hosts: Sequence[int]) -> dict[int, Prefix]:
    modules = tried_modules()
    return agents.ask(lambda agent: agent.place.call_one(modules), PLACE_S, hosts)


def tried_modules() -> list[str]:
    """Return what a prefix is tried with: extension modules of the interpreter that this program has
    imported, and what ranks need."""
    files = {name: getattr(module, "__file__", None) or "" for name, module in list(sys.modules.items())}
    return [*sorted(name for name, file in files.items() if "lib-dynload" in file), *_TRIED]


def switch_zygotes(
    session: Session, agents: Agents, scanned: Scanned, shared: Sequence[int], placed: Mapping[int, Prefix]
) -> set[int]:
    """Have host processes start zygotes in the environment; return those that ran another one."""
    here = RankEnvironment(scanned.manifest.id, sys.executable, tuple(sys.path))
    wanted = dict.fromkeys(shared, here) | {h: _rank_environment(p, scanned) for h, p in placed.items()}
    in_use = session.request(GetEnvironments())
    wanted = {host: environment for host, environment in wanted.items() if in_use.get(host) != environment}
    problems = session.request(UseEnvironments(wanted), SWITCH_S)
    for host, problem in problems.items():
        agents.trust.lose(host, problem)
    return set(wanted) - set(problems)


def _rank_environment(prefix: Prefix, scanned: Scanned) -> RankEnvironment:
    roots = tuple((root, f"{prefix.root}/{layer}") for layer, root in scanned.roots.items())
    folder = prefix.python.rpartition("/bin/")[0]
    return RankEnvironment(prefix.id, prefix.python, prefix.path, roots, folder, f"{prefix.root}.lock")


def _host_environment(
    survey: Survey | None, lack: Lack | None, placed: Prefix | None, problem: str
) -> HostEnvironment:
    return HostEnvironment(
        prefix="" if placed is None else placed.root,
        was_there=survey is not None and survey.prefix is not None,
        sent_bytes=0 if lack is None else sum(lack.sizes.values()),
        found_bytes=0 if lack is None else lack.found_bytes,
        index_bytes=0 if lack is None else lack.index_bytes,
        problem=problem,
        warnings=(*(() if survey is None else survey.warnings), *_index_notes(lack)),
    )


def _index_notes(lack: Lack | None) -> list[str]:
    if lack is None or not lack.index_problem:
        return []
    return [f"its package index didn't give all: {lack.index_problem}; that was sent from here"]


def scan_here(*, verify: bool = False) -> Scanned:
    """Return the environment of this program."""
    cache = HashCache(f"{default_store()}/content.sqlite")
    return scan(find_layers(this_interpreter()), cache, verify=verify)


def with_scan(do: Callable[[Scanned], _Done], *, verify: bool = False) -> _Done:
    """Do something with the environment of this program: once more, with what it is then, if a file has
    changed meanwhile; what was sent isn't sent again.

    Raises:
        EnvironmentSyncError: if files change each time, or what is done raises it.
    """
    for _ in range(LOOKS - 1):
        with suppress(FileChanged):
            return do(scan_here(verify=verify))
    return do(scan_here(verify=verify))


__all__ = ["scan_here", "send_environment", "tried_modules", "with_scan"]
