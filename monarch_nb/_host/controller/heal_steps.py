"""Plans the steps of a heal, in order: pure. `healing` carries the steps out.

`heal_steps` reads the registry, yields what is to be done next (an effect), is sent what came of it, and
returns the report. It sends nothing, waits for nothing and looks at no clock, so a unit test can let any step
fail.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from monarch_nb._host.controller.registry import Host, Proc, Registry
from monarch_nb._protocol.healing import Heal, Report
from monarch_nb._protocol.states import HostState, ProcState
from monarch_nb._shape import name_ranks
from monarch_nb._wire import address
from monarch_nb.exceptions import describe_end

START_S = 60.0
"""How long to wait for hosts and ranks that are being started."""


@dataclass(frozen=True)
class AwaitTaken:
    """The step: wait for hosts that are being taken away; their ranks save their states and then are lost."""

    group: str


@dataclass(frozen=True)
class RestartRanks:
    """The step: kill ranks that live, and start them again."""

    procs: tuple[int, ...]


@dataclass(frozen=True)
class StartRanks:
    """The step: start ranks that have ended, each in its place."""

    procs: tuple[int, ...]


@dataclass(frozen=True)
class ReplaceHost:
    """The step: let another host process take a lost one's place; answered with the problem, if there is
    one.
    """

    index: int


@dataclass(frozen=True)
class Settle:
    """The step: wait until ranks or hosts are up or have ended, for `START_S` at most."""

    who: frozenset[int]


@dataclass(frozen=True)
class RemakeGroup:
    """The step: create the process group of ranks (numbers to procs) again; answered with a message for
    people.
    """

    ranks: Mapping[int, int]
    if_torn: bool


@dataclass(frozen=True)
class RunDefinitions:
    """The step: run on new ranks the cells that are to run on every rank."""

    group: str
    ranks: Mapping[int, int]
    report: Report = field(compare=False)


@dataclass(frozen=True)
class MakeActors:
    """The step: create again the actors that belong on some procs and are missing there."""

    procs: frozenset[int]
    report: Report = field(compare=False)


@dataclass(frozen=True)
class FindBusy:
    """The step: ask ranks (numbers to procs) which of them still run a function; answered with their
    numbers.
    """

    ranks: Mapping[int, int]


@dataclass(frozen=True)
class TellHealed:
    """The step: make handles on actors that were created again usable in all programs."""

    group: str
    actor_ids: tuple[int, ...]


Effect = (
    AwaitTaken | RestartRanks | StartRanks | ReplaceHost | Settle | RemakeGroup | RunDefinitions | MakeActors
    | FindBusy | TellHealed
)  # fmt: skip
T = TypeVar("T")
Steps = Generator[Effect, Any, T]


def heal_steps(registry: Registry, request: Heal, is_stuck: Callable[[int], bool]) -> Steps[Report]:
    """Repair the losses of a group: hosts first, then ranks, their process group, cells that run on every
    rank, actors.

    Args:
        registry: what there is; the one who carries the steps out changes it.
        is_stuck: whether a rank hangs in a cell that was given up.

    Example:
        >>> steps = heal_steps(registry, Heal("workers"), lambda proc: False)      # doctest: +SKIP
        >>> next(steps)                                                            # doctest: +SKIP
        AwaitTaken(group='workers')
    """
    group, report = request.group, Report()
    yield AwaitTaken(group)
    members = [p for p in registry.procs.values() if p.group == group and p.state != ProcState.STOPPED]
    wanted = {p.proc for p in members} if request.procs is None else set(request.procs)
    lost = [p for p in members if p.end is not None and p.proc in wanted]
    # A heal on request must give a working mesh. An automatic one ends nothing that still lives: its user may
    # want to inspect it.
    hanging = [p for p in members if p.proc in (request.procs or ()) and is_stuck(p.proc)]
    yield from _restart(hanging, report)
    yield from _start(registry, lost, report)
    ranks = {p.rank: p.proc for p in members if p.end is None}
    report.ranks = sorted(p.rank for p in (*lost, *hanging) if p.end is None)
    message = yield RemakeGroup(ranks, if_torn=not report.ranks)
    report.messages += [message] if message else []
    yield RunDefinitions(group, {rank: ranks[rank] for rank in report.ranks}, report)
    yield MakeActors(frozenset(ranks.values()) & frozenset(wanted), report)
    if report.ranks and request.procs:
        yield from _say_who_is_busy({r: p for r, p in ranks.items() if r not in report.ranks}, report)
    yield TellHealed(group, tuple(report.actor_ids))
    return report


def _restart(hanging: list[Proc], report: Report) -> Steps[None]:
    if hanging:
        yield RestartRanks(tuple(p.proc for p in hanging))
        report.messages.append(f"{name_ranks(p.rank for p in hanging)} hung in a cell that was given up")
        yield from _await_start(hanging, report)


def _start(registry: Registry, lost: list[Proc], report: Report) -> Steps[None]:
    """Start lost ranks on hosts that are up, after replacing lost hosts."""
    indices = sorted({address.host_of(p.proc) for p in lost})
    yield from _replace([h for i in indices if (h := registry.hosts[i]).state != HostState.UP], report)
    startable = [p for p in lost if registry.hosts[address.host_of(p.proc)].state == HostState.UP]
    if startable:
        yield StartRanks(tuple(p.proc for p in startable))
        yield from _await_start(startable, report)


def _await_start(entries: list[Proc], report: Report) -> Steps[None]:
    """Wait until ranks that are being started are up, or have failed."""
    yield Settle(frozenset(p.proc for p in entries))
    for entry in entries:
        if entry.end is not None:
            report.problems.append(f"rank {entry.rank} did not start: {describe_end(entry.end)}")
        elif entry.state == ProcState.STARTING:
            report.problems.append(f"rank {entry.rank} did not start within {START_S:g} s")


def _replace(hosts: list[Host], report: Report) -> Steps[None]:
    for host in hosts:
        problem = yield ReplaceHost(host.index)
        report.problems += [problem] if problem else []
    replaced = frozenset(address.host_proc(h.index) for h in hosts if h.state == HostState.EXPECTED)
    if replaced:
        yield Settle(replaced)
    for host in hosts:
        if host.state == HostState.UP:
            report.hosts.append(host.label or host.hostname)
        elif host.state == HostState.EXPECTED:
            report.problems.append(f"host {host.label or host.index} did not come back within {START_S:g} s")


def _say_who_is_busy(ranks: Mapping[int, int], report: Report) -> Steps[None]:
    """Report the ranks that still run functions of a failed call: their next work waits, and nothing else
    would tell the user.
    """
    busy: list[int] = yield FindBusy(ranks)
    if busy:
        runs = "still runs a function that was" if len(busy) == 1 else "still run functions that were"
        report.messages.append(
            f"{name_ranks(busy)} {runs} called before; to end that: %mesh interrupt (mesh.interrupt())"
        )


def common_version(kept: Iterable[set[int]], num_survivors: int, on_disk: int | None) -> int | None:
    """Return the newest version of a replicated actor's state that all survivors have in memory; None if
    there is none, not all have answered, or the version on disk is newer.

    Example:
        >>> common_version([{1, 2, 3}, {2, 3}], 2, on_disk=2), common_version([{1, 2}], 2, on_disk=None)
        (3, None)
    """
    versions = list(kept)
    common = set.intersection(*versions) if versions and len(versions) == num_survivors else set()
    newest = max(common, default=None)
    return None if newest is None or (on_disk is not None and newest < on_disk) else newest
