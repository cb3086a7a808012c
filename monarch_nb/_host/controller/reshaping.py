"""Grows and shrinks meshes: ranks are added and removed, remaining ranks are renumbered, handles are
notified.

A rank keeps its process, its memory and its proc id; only its number changes, which is its place in the
extent, row by row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from monarch_nb._host import capacity
from monarch_nb._host.controller.groups import remake_groups
from monarch_nb._host.controller.registry import Group, Host
from monarch_nb._host.controller.sending import SendsFrames
from monarch_nb._host.controller.workflow import Workflow
from monarch_nb._host.starting import PROCESS_JOB
from monarch_nb._protocol.events import Renumbered, Reshaped
from monarch_nb._protocol.healing import Report
from monarch_nb._protocol.journal import JournalEntry
from monarch_nb._protocol.runs import runs_of
from monarch_nb._protocol.states import CheckpointKind, EntryKind, HostState, ProcState
from monarch_nb._shape import Extent, elastic_numbers, format_ranks
from monarch_nb._wire import address

if TYPE_CHECKING:
    from monarch_nb._host.controller.asking import Asking
    from monarch_nb._host.controller.cells import Cells
    from monarch_nb._host.controller.definitions import Definitions
    from monarch_nb._host.controller.healing import Healing
    from monarch_nb._host.controller.hosts import HostService
    from monarch_nb._host.controller.journal_service import JournalService
    from monarch_nb._host.controller.ranks import RankService
    from monarch_nb._host.controller.registry import Registry
    from monarch_nb._host.loop import Loop

HOSTS = "hosts"
_STOP_S = 5.0
_SAVE_S = 120.0


class Parts(SendsFrames, Protocol):
    """The parts of a controller that this module uses."""

    asking: Asking
    cells: Cells
    definitions: Definitions
    healing: Healing
    hosts: HostService
    journal: JournalService
    loop: Loop
    ranks: RankService
    registry: Registry


class Reshaping:
    """The service that changes the sizes of groups. Owned by the loop thread; its workflows run one at a
    time, like heals (see `Healing`).
    """

    def __init__(self, controller: Parts, client: int = 0) -> None:
        self._controller = controller
        self._client = client

    def resize(
        self, group: Group, sizes: Mapping[str, int], joined: Sequence[int] = (), *, force: bool = False
    ) -> Workflow[Report]:
        """Change the sizes of a group; new rows are put on the hosts `joined`, if any are given.

        Args:
            force: as many as the system allows, though the machine seems too small.

        Raises:
            ValueError: for a dimension that it doesn't have, a size below 1, or cells that run on it.
        """
        unknown = [n for n in sizes if n not in group.extent.labels]
        if unknown:
            raise ValueError(
                f"there is no dimension {unknown[0]!r}; the mesh has {', '.join(group.extent.labels)}"
            )
        wrong = [f"{n}={s}" for n, s in sizes.items() if s < 1]
        if wrong:
            raise ValueError(
                f"a dimension has a size of at least 1, not {wrong[0]}; end a mesh with %mesh stop"
            )
        new = Extent(group.extent.labels, [sizes.get(n, group.extent[n]) for n in group.extent.labels])
        capacity.check_room(
            new.nelements - group.extent.nelements, force=force, how="%mesh resize --force (force=True)"
        )
        kept = [dict(p) for p in group.extent.points()]
        places = {tuple(point.values()): proc for point, proc in zip(kept, group.procs, strict=True)}
        return (
            yield from self._rearrange(
                group, new, [places.get(tuple(dict(p).values())) for p in new.points()], joined
            )
        )

    def leave(self, group: Group, hosts: Sequence[int]) -> Workflow[Report]:
        """Continue without some hosts: their rows leave the dimension `hosts`.

        Raises:
            ValueError: for a host without ranks of the group, or if none would be left.
        """
        strange = [i for i in hosts if i not in group.hosts]
        if strange or HOSTS not in group.extent.labels:
            raise ValueError(f"the mesh has no ranks of its own on host {(strange or hosts)[0]}: %mesh hosts")
        left = [i for i in group.hosts if i not in hosts]
        if not left:
            raise ValueError("no host would be left; end a mesh with %mesh stop")
        sizes = [len(left) if n == HOSTS else group.extent[n] for n in group.extent.labels]
        kept = [proc for proc in group.procs if address.host_of(proc) in left]
        return (yield from self._rearrange(group, Extent(group.extent.labels, sizes), kept))

    def shrink(self, group: Group) -> Workflow[Report]:
        """Leave out lost parts: of the dimensions, the one whose reduction costs the fewest living ranks
        becomes smaller.
        """
        registry = self._controller.registry
        lost = [
            dict(p)
            for p, proc in zip(group.extent.points(), group.procs, strict=True)
            if registry.procs[proc].end is not None
        ]
        if not lost:
            return Report()
        label = min(
            group.extent.labels,
            key=lambda n: len({p[n] for p in lost}) * (len(group.procs) // group.extent[n]),
        )
        gone = {p[label] for p in lost}
        size = group.extent[label] - len(gone)
        if not size:
            raise ValueError("no rank would be left; heal the mesh instead: %mesh heal")
        new = Extent(
            group.extent.labels, [size if n == label else group.extent[n] for n in group.extent.labels]
        )
        kept = [
            proc for p, proc in zip(group.extent.points(), group.procs, strict=True) if p[label] not in gone
        ]
        return (yield from self._rearrange(group, new, kept))

    def _rearrange(
        self, group: Group, new: Extent, procs: Sequence[int | None], joined: Sequence[int] = ()
    ) -> Workflow[Report]:
        """Assign `procs` to the group, in the order of the extent `new`; None stands for a rank to be
        started.
        """
        controller, report, began = self._controller, Report(), time.monotonic()
        self._refuse_running(group)
        old_procs, size_before = list(group.procs), len(group.procs)
        hosts = yield from self._hosts_for(group, new, procs, report, joined)
        one_state = [
            r
            for r in controller.healing.spawn_specs.on(set(old_procs))
            if r.checkpointed in (CheckpointKind.REPLICATED, CheckpointKind.SHARDED)
        ]
        if all(
            controller.registry.procs[p].end is None for p in old_procs
        ):  # otherwise the other ranks' states may be half a step old
            yield from controller.healing.save(one_state, _SAVE_S)
        gone = [p for p in old_procs if p not in procs]
        controller.ranks.leave_out(gone)
        fresh = []
        for place, proc in enumerate(procs):
            if proc is None:
                fresh.append(controller.registry.new_procs(hosts[place], group.name, [place])[0].proc)
        waiting = iter(fresh)
        group.procs = [next(waiting) if p is None else p for p in procs]
        group.extent = new
        actors = controller.healing.spawn_specs.widen(old_procs, group.procs, group.context)
        self._renumber(group)
        controller.ranks.start(group, fresh)
        self._tell_all(group, actors)
        yield partial(controller.healing.when_settled, set(fresh))
        yield partial(self._when_ended, set(gone))
        living = {
            controller.registry.procs[p].rank: p
            for p in group.procs
            if controller.registry.procs[p].end is None
        }
        message = yield from remake_groups(controller, living, size_before=size_before)
        anew = frozenset(r.actor_id for r in one_state if r.actor_id in actors)
        report.ranks = sorted(controller.registry.procs[p].rank for p in fresh)
        started = {rank: living[rank] for rank in report.ranks if rank in living}
        yield from controller.definitions.run(group, started, report)
        yield from controller.healing.make_actors(set(living.values()), report, anew)
        report.messages += [f"{len(gone)} ranks left" if len(gone) > 1 else "1 rank left"] if gone else []
        report.messages += [f"the mesh is now {new}", *([message] if message else [])]
        report.seconds = time.monotonic() - began
        return report

    def _refuse_running(self, group: Group) -> None:
        running = sorted({n for p in group.procs for n in self._controller.cells.on(p)})
        if running:
            raise ValueError(f"cell #{running[0]} runs on this mesh: wait for it, or %mesh interrupt")

    def _hosts_for(
        self, group: Group, new: Extent, procs: Sequence[int | None], report: Report, joined: Sequence[int]
    ) -> Workflow[dict[int, int]]:
        """Return the host of each rank to be started."""
        row = group.extent.nelements // group.extent[HOSTS] if HOSTS in group.extent.labels else 0
        by_row = [address.host_of(group.procs[i]) for i in range(0, len(group.procs), row)] if row else []
        own_hosts = len(set(by_row)) > 1 or (by_row and by_row[0] != 0)
        missing = new[HOSTS] - len(by_row) if own_hosts else 0
        if missing > 0:
            added = self._free(joined, missing) if joined else (yield from self._add_hosts(missing, by_row))
            by_row += [h.index for h in added]
            report.messages.append(f"on host{'s' * (len(added) > 1)} {', '.join(h.label for h in added)}")
        found = {}
        for place, point in enumerate(new.points()):
            if procs[place] is None:
                found[place] = by_row[point[HOSTS]] if own_hosts else address.host_of(group.procs[0])
        return found

    def _free(self, joined: Sequence[int], num: int) -> list[Host]:
        """Return hosts that are up and have no ranks."""
        registry = self._controller.registry
        hosts = [registry.hosts[i] for i in joined if i in registry.hosts]
        free = [h for h in hosts if h.state == HostState.UP and not registry.alive_on(h.index)]
        if len(free) < num:
            raise ValueError(f"{num} free hosts are needed, and there are {len(free)}: %mesh hosts")
        return free[:num]

    def _add_hosts(self, num: int, like: Sequence[int]) -> Workflow[list[Host]]:
        controller = self._controller
        model = controller.registry.hosts[like[0]]
        if model.kind != PROCESS_JOB:
            raise ValueError(
                f"hosts of this mesh can't be added from here. If an engine has given them: %mesh grow "
                f"{num}; else start a mesh with {HOSTS}={len(like) + num}"
            )
        added = [controller.registry.new_host(f"host{len(like) + i}", PROCESS_JOB) for i in range(num)]
        for host in added:
            host.env = model.env
            controller.hosts.link.start(controller.hosts.link.ticket(host, model.endpoint), host.env)
        yield partial(controller.healing.when_settled, {address.host_proc(h.index) for h in added})
        late = [h.label for h in added if h.state != HostState.UP]
        if late:
            raise ValueError(f"{', '.join(late)} did not start")
        return added

    def _when_ended(self, procs: set[int], go_on: Callable[[Any], None]) -> None:
        controller, limit = self._controller, time.monotonic() + _STOP_S

        def look() -> None:
            if time.monotonic() > limit or all(controller.registry.procs[p].end is not None for p in procs):
                go_on(None)
            else:
                controller.loop.call_later(0.01, look)

        look()

    def _renumber(self, group: Group) -> None:
        """Tell each rank its new number, and enter it into the registry."""
        controller = self._controller
        local: dict[int, int] = {}
        for rank, proc in enumerate(group.procs):
            entry, host = controller.registry.procs[proc], address.host_of(proc)
            entry.rank, entry.local_rank = rank, local.get(host, 0)
            local[host] = entry.local_rank + 1
        entries = [controller.registry.procs[proc] for proc in group.procs]
        model = next((each.own_env for each in entries if each.own_env), {})
        procs, hosts = runs_of(group.procs), runs_of(group.hosts)
        for proc, entry, place in zip(group.procs, entries, group.places(entries), strict=True):
            if "RANK" in model or "RANK" in entry.own_env:
                entry.own_env = {**model, **entry.own_env, **elastic_numbers(place)}
            if entry.state == ProcState.RUNNING:
                controller.event(proc, Renumbered(**place, extent=group.context, procs=procs, hosts=hosts))

    def _tell_all(self, group: Group, actors: Mapping[int, tuple[int, ...]]) -> None:
        record = group.record()
        event = Reshaped(record.group, record.procs, record.labels, record.sizes, record.hosts, dict(actors))
        registry = self._controller.registry
        if registry.mesh is not None and registry.mesh.group == group.name:
            registry.mesh = group.record(registry.mesh.env)
        entry = JournalEntry(
            EntryKind.RESIZE,
            text=f"the mesh is now {group.extent}",
            group=group.name,
            ranks=format_ranks(range(len(group.procs))),
        )
        self._controller.journal.note(self._client, entry)
        for to in self._controller.everybody():
            self._controller.event(to, event)
