"""Sends the notebook's environment to hosts: missing content is sent in packs; prefixes are made and tried;
zygotes are started in them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from monarch_nb._client.session import Session
from monarch_nb._protocol.environment import GetEnvironments, RankEnvironment, UseEnvironments
from monarch_nb._sync.env.cache import HashCache
from monarch_nb._sync.env.interpreter import this_interpreter
from monarch_nb._sync.env.layers import find_layers
from monarch_nb._sync.env.local import FileChanged
from monarch_nb._sync.env.mounts import identity_of
from monarch_nb._sync.env.package_index import FromIndex
from monarch_nb._sync.env.place import Prefix
from monarch_nb._sync.env.scan import Scanned, scan
from monarch_nb._sync.env.snapshot import Snapshots
from monarch_nb._sync.env.store import default_store
from monarch_nb._units import elapsed_text, size_text
from monarch_nb.actor.future import Future
from monarch_nb.mesh.shipping import slow_links
from monarch_nb.mesh.shipping.agent import Lack, Survey, SyncAgent
from monarch_nb.mesh.shipping.agents import AGENT_S, Agents, agents_on
from monarch_nb.mesh.shipping.pack_sender import PackSender
from monarch_nb.mesh.shipping.plan import PlannedPart, planned
from monarch_nb.mesh.shipping.progress import Progress
from monarch_nb.mesh.shipping.report import EnvironmentPart, HostEnvironment

PLACE_S = 900.0
INDEX_S = 1800.0
ASK_INDEX_S = 1500.0
"""How long a host may wait for its package index; in what is left of `INDEX_S` it copies what has come."""
SWITCH_S = 150.0
_TRIED = ("zmq", "cloudpickle", "monarch_nb._protocol.base")

LOOKS = 4
"""How often an environment is scanned when its files change while they are sent."""

_Done = TypeVar("_Done")


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
    start = time.monotonic()
    with agents_on(session, hosts) as agents:
        bringing = _Bringing(agents, scanned, progress or Progress(), donors=donors, index=index)
        shared = bringing.survey(copies=copies)
        if dry_run:
            bringing.plan()
        else:
            bringing.bring()
        placed_s = time.monotonic() - start
        placed = {} if dry_run else bringing.placed
        switched: set[int] = set() if dry_run else switch_zygotes(session, agents, scanned, shared, placed)
        found = {host: bringing.outcome(host, shared, switched) for host in hosts}
    return EnvironmentPart(
        id=scanned.manifest.id,
        num_packages=sum(bool(part.version) for part in scanned.manifest.parts),
        num_bytes=scanned.num_bytes,
        hosts=found,
        seconds=time.monotonic() - start,
        is_dry=dry_run,
        left_out=scanned.left_out,
        edited=tuple(sorted(scanned.edited)),
        corrupting=tuple(agents.trust.corrupting()),
        placed_s=placed_s,
    )


@dataclass
class _Bringing:
    """One environment on its way to hosts.

    Attributes:
        donors, index: see `send_environment`.
        surveys: by host, what is there.
        left: hosts that shall have it, and haven't.
        lacks: by host, what is sent; hosts of one store once.
        plans: by host, how each part would come there.
        placed: by host, the prefix.
    """

    agents: Agents
    scanned: Scanned
    progress: Progress
    donors: bool
    index: bool | None
    surveys: dict[int, Survey] = field(default_factory=dict)
    left: list[int] = field(default_factory=list)
    lacks: dict[int, Lack] = field(default_factory=dict)
    plans: dict[int, tuple[PlannedPart, ...]] = field(default_factory=dict)
    placed: dict[int, Prefix] = field(default_factory=dict)

    def survey(self, *, copies: bool) -> list[int]:
        """Look what is on hosts; return those that see this program's files, and need nothing."""
        self.surveys = _survey(self.agents, self.scanned)
        shared = [] if copies else [host for host, survey in self.surveys.items() if survey.is_shared]
        for host, survey in self.surveys.items():
            if host in shared:
                continue
            if survey.refusal:
                self.agents.trust.lose(host, survey.refusal)
            elif survey.prefix is not None:
                self.placed[host] = survey.prefix
            else:
                self.left.append(host)
        return shared

    def plan(self) -> None:
        """Find out what would be sent; nothing is written."""
        first = self._one_of_each_store()
        self.lacks = _lacks(self.agents, self.scanned, first, self.surveys, dry_run=True, donors=self.donors)
        self.plans = _plans(self.agents, self.scanned, self.lacks)

    def bring(self) -> None:
        """Bring it to all hosts: to one of those that have a store together, and if that fails to another."""
        while self.left:
            first = self._one_of_each_store()
            self._bring_to(first)
            stores = {self.surveys[host].store_id for host in first if host in self.placed}
            others = [host for host in self.left if host not in first]
            served = [host for host in others if self.surveys[host].store_id in stores]
            self.placed |= _place(self.agents, served)
            self.left = [host for host in others if host not in served]

    def _one_of_each_store(self) -> list[int]:
        return list({self.surveys[host].store_id: host for host in reversed(self.left)}.values())[::-1]

    def _bring_to(self, hosts: Sequence[int]) -> None:
        lacks = _lacks(self.agents, self.scanned, hosts, self.surveys, dry_run=False, donors=self.donors)
        if self.index:
            self.progress.step("hosts ask their package indexes")
            lacks |= _taken_from_index(self.agents, lacks, ASK_INDEX_S)
        self.lacks |= _send(self.agents, self.scanned, lacks, self.progress, by_speed=self.index is None)
        self.progress.step("making the environment on hosts, and trying it")
        self.placed |= _place(self.agents, hosts)

    def outcome(self, host: int, shared: Collection[int], switched: Collection[int]) -> HostEnvironment:
        """Return what has come of a host."""
        survey, lack = self.surveys.get(host), self.lacks.get(host)
        placed = self.placed.get(host)
        return HostEnvironment(
            prefix="" if placed is None else placed.root,
            is_shared=host in shared,
            was_there=survey is not None and survey.prefix is not None,
            sent_bytes=0 if lack is None else sum(lack.sizes.values()),
            found_bytes=0 if lack is None else lack.found_bytes,
            index_bytes=0 if lack is None else lack.index_bytes,
            problem=self.agents.trust.lost.get(host, ""),
            warnings=(*(() if survey is None else survey.warnings), *_index_notes(lack)),
            has_changed=host in switched,
            plan=self.plans.get(host, ()),
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
    sender = PackSender(agents, scanned, progress)
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


def _index_notes(lack: Lack | None) -> list[str]:
    if lack is None or not lack.index_problem:
        return []
    return [f"its package index didn't give all: {lack.index_problem}; that was sent from here"]


def scan_here(*, verify: bool = False, follows: bool = False) -> Scanned:
    """Return the environment of this program.

    Args:
        verify, follows: see `scan`.
    """
    store = default_store()
    return scan(
        find_layers(this_interpreter()),
        HashCache(f"{store}/content.sqlite"),
        verify=verify,
        snapshots=Snapshots(f"{store}/scans"),
        follows=follows,
    )


def with_scan(do: Callable[[Scanned], _Done], *, verify: bool = False, follows: bool = False) -> _Done:
    """Do something with the environment of this program: once more, with what it is then, if a file has
    changed meanwhile; what was sent isn't sent again.

    Args:
        verify, follows: see `scan`.

    Raises:
        EnvironmentSyncError: if files change each time, or what is done raises it.
    """
    for _ in range(LOOKS - 1):
        with suppress(FileChanged):
            return do(scan_here(verify=verify, follows=follows))
    return do(scan_here(verify=verify, follows=follows))


__all__ = ["scan_here", "send_environment", "tried_modules", "with_scan"]
