"""The lives of ranks: how they're started, stopped, started again, and what is done when one has ended."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from monarch_nb._host import capacity
from monarch_nb._host.orphans import stop_orphans
from monarch_nb._host.registry import Group, Proc
from monarch_nb._host.starting import PROCESS_JOB
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.states import ProcState
from monarch_nb._shape import decode_extent, format_ranks
from monarch_nb._wire import address
from monarch_nb._wire.message import Message
from monarch_nb.exceptions import describe_end

if TYPE_CHECKING:
    from monarch_nb._host.home import HomeProcess

_LEFT_OUT_GRACE_S = 3.0


class RankDesk:
    """Owned by the loop thread."""

    def __init__(self, home: HomeProcess) -> None:
        self._home = home
        self._restarting: set[int] = set()
        """Procs that are started again as soon as they have ended."""

    # --- starting

    def do_spawn(self, message: Message, fields: dict[str, Any]) -> object:
        """Start ranks on hosts; answers with their proc ids at once."""
        procs = self.spawn(fields)
        self._home.registry.groups[fields["group"]].creator = (message.src, fields.get("creator_actor", 0))
        return {"procs": procs}

    def spawn(self, fields: dict[str, Any]) -> list[int]:
        """Start `per_host` ranks on each of `hosts`, as a group; return their proc ids."""
        registry, per_host = self._home.registry, fields["per_host"]
        self._check_room(fields["hosts"], per_host, force=fields.get("force", False))
        hosts = [self._home.hosts.get(index) for index in fields["hosts"]]
        procs = []
        for i, host in enumerate(hosts):
            ranks = list(range(i * per_host, (i + 1) * per_host))
            for local_rank, entry in enumerate(registry.new_procs(host.index, fields["group"], ranks)):
                entry.local_rank = local_rank
                procs.append(entry.proc)
        extent = decode_extent(fields["spec"]["extent"])
        group = registry.groups[fields["group"]] = Group(fields["group"], extent, procs, fields["spec"], fields["method"])
        self.start(group, procs)
        return procs

    def _check_room(self, hosts: Sequence[int], per_host: int, *, force: bool) -> None:
        """See whether hosts have room for so many more ranks each: our machine, with the hosts that are processes of it, or one like it.

        Raises:
            ValueError: if they haven't.
        """
        known = self._home.registry.hosts
        here = [h for h in hosts if not h or (h in known and known[h].kind == PROCESS_JOB)]
        capacity.check_room(per_host * max(1, len(here)), force=force, how="--force (force=True)")

    def start(self, group: Group, procs: Sequence[int]) -> None:
        """Start ranks of a group, each on its host."""
        home = self._home
        spec = {**group.spec, "extent": group.context, "procs": list(group.procs), "hosts": list(group.hosts),
                "debug": home.debug.settings, "mesh": tuple(home.mesh_address)}  # fmt: skip
        for index, theirs in home.hosts.of(procs).items():
            entries = [home.registry.procs[proc] for proc in theirs]
            own = [{"proc": e.proc, **self.place(group, e), "own_env": e.own_env} for e in entries]
            host_spec = {**spec, "elsewhere": home.hosts.get(index).elsewhere}
            home.hosts.ask(index, "start_ranks", {"ranks": own, "spec": host_spec, "method": group.method})

    def place(self, group: Group, entry: Proc) -> dict[str, int]:
        """Return what a rank is to know of its place."""
        host = address.host_of(entry.proc)
        return {
            "rank": entry.rank,
            "local_rank": entry.local_rank,
            "local_world_size": sum(address.host_of(p) == host for p in group.procs),
            "world_size": len(group.procs),
        }

    def on_up(self, src: int, fields: dict[str, Any]) -> None:
        """A rank answers."""
        home = self._home
        home.rank_is_up(src)
        home.waits.settled(home.registry.proc_is_up(src, fields["pid"]))
        home.status_publisher.touch((src,))

    def do_environment(self, message: Message, fields: dict[str, Any]) -> object:
        """Remember what environment variables ranks were given, for those that take their places."""
        procs = self._home.registry.procs
        for proc, variables in fields["variables"].items():
            if proc in procs:
                procs[proc].own_env.update(variables)
        return None

    # --- starting again

    def do_restart(self, message: Message, fields: dict[str, Any]) -> object:
        """Kill ranks and start them anew at their places; answers once they're up. Handles on them stay good."""
        self.restart(fields["procs"])
        self._home.journal.note(message.src, "command", source=f"%mesh restart --ranks {fields.get('rank_set', '')}")
        return self._home.waits.answer_when(message, set(fields["procs"]), restarted=True)

    def restart(self, procs: Sequence[int]) -> None:
        """Kill ranks, those that live; they're started anew at their places as soon as they have ended."""
        home = self._home
        for index, theirs in home.hosts.of(procs).items():
            home.hosts.get(index)
            dead = [p for p in theirs if home.registry.procs[p].end is not None]
            self._restarting.update(theirs)
            home.hosts.ask(index, "signal_ranks", {"procs": theirs, "number": int(signal.SIGKILL)})
            for proc in dead:
                self.start_again(proc)

    def start_again(self, proc: int) -> None:
        """Start a rank that has ended anew at its place, under the same proc id."""
        home = self._home
        self._restarting.discard(proc)
        entry = home.registry.procs[proc]
        entry.state, entry.end = ProcState.STARTING, None
        home.status_publisher.touch((proc,))
        for to in home.everybody():
            home.event(to, "revived", {"procs": [proc]})
        self.start(home.registry.groups[entry.group], [proc])

    # --- stopping

    def do_stop(self, message: Message, fields: dict[str, Any]) -> object:
        """Stop ranks; answers once they have ended."""
        self.stop(fields["procs"], fields["grace_s"])
        left = {p for p in fields["procs"] if self._home.registry.procs[p].end is None}
        return self._home.waits.answer_when(message, left)

    def leave_out(self, procs: Sequence[int]) -> None:
        """Stop ranks that a mesh does without from now on; dead ones count as stopped."""
        known = self._home.registry.procs
        for proc in procs:
            if known[proc].end is not None:
                known[proc].state = ProcState.STOPPED
        self.stop([p for p in procs if known[p].end is None], _LEFT_OUT_GRACE_S)
        self._home.healing.recipes.procs_stopped(list(procs))

    def stop(self, procs: Sequence[int], grace_s: float) -> None:
        """Stop ranks, here or elsewhere; their actors clean up meanwhile."""
        for index, theirs in self._home.hosts.of(procs).items():
            self._home.hosts.ask(index, "stop_ranks", {"procs": theirs, "grace_s": grace_s})

    def do_signal(self, message: Message, fields: dict[str, Any]) -> object:
        """Send a signal to ranks."""
        self.signal(fields["procs"], fields["number"])
        return None

    def signal(self, procs: Sequence[int], number: int) -> None:
        """Send a signal to ranks, here or elsewhere."""
        for index, theirs in self._home.hosts.of(procs).items():
            self._home.hosts.ask(index, "signal_ranks", {"procs": theirs, "number": number})

    # --- the end, and signs of it

    def on_pulse(self, src: int, fields: dict[str, Any]) -> None:
        """A rank of another host doesn't react, or does again."""
        self.heartbeat(fields["proc"], fields["trouble"])

    def heartbeat(self, proc: int, trouble: str) -> None:
        """A rank doesn't react, or does again (no trouble)."""
        entry = self._home.registry.procs.get(proc)
        if entry is None or entry.end is not None:
            return
        entry.trouble = trouble
        self._home.status_publisher.touch((proc,))
        self._home.cells.say_on(proc, f"rank {entry.rank} {trouble or 'reacts again'}")

    def on_rank_ended(self, src: int, fields: dict[str, Any]) -> None:
        """A rank of another host has ended."""
        self.ended(RankExit.of(fields["end"]))

    def ended(self, end: RankExit) -> None:
        """Book a rank's end, and tell everybody in the order in which they need to know."""
        home, proc = self._home, end.proc
        home.router.forget(proc)
        home.asking.forget(proc)
        entry, again = home.registry.procs.get(proc), proc in self._restarting
        end = self._describe(end, again)
        done = home.registry.proc_has_ended(end, settle=not again)
        self.tell_end(end)
        home.waits.settled(done)
        if not end.stopped and not again:
            known = {k: v for k, v in end.plain().items() if k != "last_lines"}
            home.journal.note(0, "lost", text=self._loss(end), ranks=format_ranks([end.rank]), status="lost", end=known)
            home.healing.lost(end)
        if entry is not None:
            home.checkpoints.lost(entry)
        if end.stopped:
            home.healing.recipes.procs_stopped([proc])
        stop_orphans(home, end)
        home.cells.proc_has_ended(end)
        home.status_publisher.ended(proc)
        home.debug.proc_has_ended(proc)
        home.questions.proc_has_ended(proc)
        if again:
            self.start_again(proc)

    def _loss(self, end: RankExit) -> str:
        """Return who was lost, and how, in one line."""
        of_mesh = end.group == self._home.registry.names.get("mesh", {}).get("group")
        where = f"mesh {self._home.name!r}" if of_mesh else end.group
        return f"rank {end.rank} of {where} {describe_end(end).splitlines()[0].removeprefix('the process ')}"

    def _describe(self, end: RankExit, again: bool) -> RankExit:
        """Return an end with what the books know of it."""
        home, proc = self._home, end.proc
        entry, group = home.registry.procs.get(proc), home.registry.groups.get(end.group)
        if entry is not None:
            end = replace(end, rank=entry.rank)  # it may have got another number since it started
        return replace(
            end, point=_point(end, group), told=tuple(home.cells.told_of(proc)), restarted=again,
            policy="" if group is None else group.policy.on_failure, reason="was restarted" if again else end.reason,
        )  # fmt: skip

    def tell_end(self, end: RankExit) -> None:
        """Tell all processes of this machine, all clients and all other hosts."""
        home = self._home
        home.spread_ends([end])
        for client in home.registry.clients:
            if not home.has_route(client):
                home.event(client, "exit", {"ends": [end.plain()]})
        home.hosts.tell_all("exit", {"ends": [end.plain()]})


def _point(end: RankExit, group: Group | None) -> dict[str, int]:
    """Return the coordinates of a rank."""
    if group is None or end.proc not in group.procs:  # the mesh may do without it by now
        return {}
    return dict(group.extent.point(end.rank))
