"""The home: the first host process of a mesh. Registry, cells, journal, lease; what clients talk to."""

from __future__ import annotations

import json
import os
import pickle
import secrets
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from monarch_nb._host.asking import Asking
from monarch_nb._host.board import Board
from monarch_nb._host.cells import Cells
from monarch_nb._host.checkpoints import CheckpointDesk
from monarch_nb._host.debug_desk import DebugDesk
from monarch_nb._host.environment import describe_environment
from monarch_nb._host.healing import Healing
from monarch_nb._host.link import HostLink
from monarch_nb._host.looks import Looks
from monarch_nb._host.process import LATER, LOST_AFTER_S, PREEMPT_S, HostProcess, RequestError, count_gpus
from monarch_nb._host.pulse import process_trouble
from monarch_nb._host.recipes import Recipes
from monarch_nb._host.registry import Client, Group, Host, Policy, Proc, Registry, Waiting
from monarch_nb._host.script import run_script
from monarch_nb._host.supervisor import Rank
from monarch_nb._host.vitals import Rows
from monarch_nb._host.watch import Watch, Watches
from monarch_nb._journal import record as records
from monarch_nb._journal.entries import EntryLog
from monarch_nb._journal.output import OutputStore
from monarch_nb._journal.record import CLIENT_BITS, CLIENT_MASK, CLIENT_ORIGIN, Record, is_cell
from monarch_nb._shape import decode_extent
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb._wire.marks import TEXT, Piece
from monarch_nb._wire.message import Message


class HomeProcess(HostProcess):
    """The first host process of a mesh: registry, connection file, lease."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.registry = Registry()
        own = self.registry.new_host(self.hostname)
        own.state, own.hostname, own.pid = "up", self.hostname, os.getpid()
        own.num_cores, own.num_gpus = os.cpu_count() or 1, count_gpus()
        self.name: str = config.get("name") or ""
        journal = os.path.join(self.directory, "journal")
        self.store = OutputStore(journal, **config.get("journal_limits", {}))
        self.entries = EntryLog(journal)
        self.entries.when_dirty = lambda: self.loop.call_shortly(self.entries.flush)
        self.watches = Watches()
        self.board = Board(self)
        self.debug = DebugDesk(self)
        self.cells = Cells(self)
        self.asking = Asking(self.loop, self.send_to_rank)
        self.looks = Looks(self)
        self.environment_id = ""
        self.mesh_id = secrets.token_hex(8)
        self.versions: dict[str, str] = {}
        self._missed_from: int | None = None
        self.checkpoints = CheckpointDesk(self)
        self.healing = Healing(self, Recipes(os.path.join(self.directory, "recipes")))
        self._restarting: set[int] = set()
        self.link = HostLink(self, self._host_lost)
        self.owner: int | None = config.get("owner_pid")
        self.idle_timeout_s: float | None = config.get("idle_timeout_s")
        self._idle_since = time.monotonic()
        if self.owner:
            self._watch_owner(self.owner)
        if self.idle_timeout_s:
            self.loop.call_later(min(self.idle_timeout_s, 5.0), self._check_lease)
        if config.get("connection_file"):
            self._write_connection_file()

    # --- clients

    def do_hello(self, message: Message, fields: dict[str, Any]) -> object:
        """A client comes."""
        client = Client(message.src, fields["pid"], fields["what"], fields["number"], fields["listens"], fields.get("observes", False))
        with suppress(OSError):
            client.pidfd = os.pidfd_open(client.pid)
            self.loop.watch_file(client.pidfd, lambda: self._client_gone(client))
        self.registry.clients[message.src] = client
        self.board.touch()
        if client.listens:
            self.watches.add(Watch(self.loop, self.store, self.send_local, client.proc, 0, _own_output(client.number)))
        return {
            "pid": os.getpid(),
            "name": self.name,
            "mesh_id": self.mesh_id,
            "groups": self.store.groups,
            "python": sys.version_info[:3],
        }

    def do_goodbye(self, message: Message, fields: dict[str, Any]) -> object:
        """A client goes."""
        client = self.registry.clients.get(message.src)
        if client is not None:
            self._client_gone(client)
        return None

    def _client_gone(self, client: Client) -> None:
        if client.pidfd >= 0:
            self.loop.forget_file(client.pidfd)
            os.close(client.pidfd)
            client.pidfd = -1
        self.registry.clients.pop(client.proc, None)
        if client.listens and self._missed_from is None and not any(c.listens for c in self.registry.clients.values()):
            self._missed_from = self.store.end
        self.watches.drop_client(client.proc)
        self.board.drop(client.proc)
        self.debug.client_gone(client.proc)
        self.board.touch()
        self.drop_route(client.proc)
        self.router.forget(client.proc)
        if not client.observes:
            self._idle_since = time.monotonic()
        with suppress(OSError):
            os.unlink(address.socket_path(self.directory, client.proc))

    def who(self, client: int) -> str:
        """Return what people know a client by."""
        found = self.registry.clients.get(client)
        return f"{found.what} (pid {found.pid})" if found is not None else "a program that has left"

    def _watch_owner(self, pid: int) -> None:
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            self.loop.call_later(0, self.shut_down)
            return

        def gone() -> None:
            self.loop.forget_file(fd)
            if self.owner == pid:
                self.shut_down()

        self.loop.watch_file(fd, gone)

    def do_adopt(self, message: Message, fields: dict[str, Any]) -> object:
        """Become a named mesh that belongs to its user, not to a process."""
        self.owner = None
        self.name = fields["name"]
        self.idle_timeout_s = fields["idle_timeout_s"]
        self.config["connection_file"] = fields["connection_file"]
        if fields.get("journal"):
            self.store.move(fields["journal"])
            self.entries.move(fields["journal"])
        environment = describe_environment(self.hostname, fields.get("env") or {})
        self.environment_id = environment["id"]
        self.versions = {"python": environment["python"], **environment["packages"]}
        self.entries.begin(
            "start", who=self.who(message.src), when=self.registry.started, ended=time.time(), status="ok",
            ranks=fields.get("rank_set", ""), dims=fields.get("dims"), environment=environment,
        )  # fmt: skip
        self._write_connection_file()
        if self.idle_timeout_s:
            self.loop.call_later(min(self.idle_timeout_s, 5.0), self._check_lease)
        return None

    def _check_lease(self) -> None:
        if self.idle_timeout_s is None:
            return
        if self._is_held():
            self._idle_since = time.monotonic()
        if time.monotonic() - self._idle_since >= self.idle_timeout_s:
            self.shut_down()
        else:
            self.loop.call_later(min(self.idle_timeout_s, 5.0), self._check_lease)

    def _is_held(self) -> bool:
        """Say whether a client or a cell keeps the mesh alive; who only looks on doesn't."""
        return self.cells.num_running > 0 or self.debug.num_stopped > 0 or any(not c.observes for c in self.registry.clients.values())

    def lease_left_s(self) -> float | None:
        """Return the seconds until the mesh ends if nobody comes; None while somebody is there, or if it has no lease."""
        if self.idle_timeout_s is None or self._is_held():
            return None
        return round(max(0.0, self.idle_timeout_s - (time.monotonic() - self._idle_since)), 1)

    def do_set_lease(self, message: Message, fields: dict[str, Any]) -> object:
        """Say after how long without client and running cell the mesh ends; the time begins anew."""
        had_none = not self.idle_timeout_s
        self.idle_timeout_s, self._idle_since = fields["idle_timeout_s"], time.monotonic()
        if had_none:
            self._check_lease()
        self.note(message.src, "command", source=f"%mesh lease {fields['idle_timeout_s']:g}s")
        return None

    def _write_connection_file(self) -> None:
        path = self.config["connection_file"]
        content = {
            "name": self.name,
            "pid": os.getpid(),
            "directory": self.directory,
            "hostname": self.hostname,
            "wire_version": wire.VERSION,
            "started": self.registry.started,
            "journal": self.store.directory,
        }
        temporary = f"{path}.{os.getpid()}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(fd, "w") as file:
            json.dump(content, file)
        os.replace(temporary, path)

    # --- ranks

    def do_spawn(self, message: Message, fields: dict[str, Any]) -> object:
        """Start ranks on hosts; answers with their proc ids at once."""
        per_host, hosts = fields["per_host"], [self._host(index) for index in fields["hosts"]]
        entries = [
            self.registry.new_procs(host.index, fields["group"], list(range(i * per_host, (i + 1) * per_host)))
            for i, host in enumerate(hosts)
        ]
        procs = [entry.proc for row in entries for entry in row]
        for row in entries:
            for local_rank, entry in enumerate(row):
                entry.local_rank = local_rank
        extent = decode_extent(fields["spec"]["extent"])
        group = self.registry.groups[fields["group"]] = Group(fields["group"], extent, procs, fields["spec"], fields["method"])
        self.start_ranks(group, procs)
        return {"procs": procs}

    def start_ranks(self, group: Group, procs: Sequence[int]) -> None:
        """Start ranks of a group, each on its host."""
        spec = {**group.spec, "extent": group.context, "procs": list(group.procs), "hosts": list(group.hosts),
                "debug": self.debug.settings, "mesh_id": self.mesh_id}
        for index, theirs in self._by_host(procs).items():
            own = []
            for proc in theirs:
                entry = self.registry.procs[proc]
                own.append({"proc": proc, **self.place(group, entry), "own_env": entry.own_env})
            self._to_host(self._host(index), "start_ranks", {"ranks": own, "spec": spec, "method": group.method})

    def place(self, group: Group, entry: Proc) -> dict[str, int]:
        """Return what a rank is to know of its place."""
        host = address.host_of(entry.proc)
        return {
            "rank": entry.rank,
            "local_rank": entry.local_rank,
            "local_world_size": sum(address.host_of(p) == host for p in group.procs),
            "world_size": len(group.procs),
        }

    def do_controller_proc(self, message: Message, fields: dict[str, Any]) -> object:
        """Return the proc that named singletons live in; started when first asked for."""
        known = self.registry.names.get(fields["name"])
        if known is not None and self.registry.procs[known["proc"]].end is None:
            return known["proc"]
        request = {"hosts": [0], "per_host": 1, "group": "controllers", "spec": fields["spec"], "method": "fork"}
        answer: Any = self.do_spawn(message, request)
        self.registry.names[fields["name"]] = {"proc": answer["procs"][0]}
        return answer["procs"][0]

    def _host(self, index: int) -> Host:
        host = self.registry.hosts.get(index)
        if host is None or host.state in ("leaving", "lost", "stopped"):
            state = host.state if host is not None else "unknown"
            raise RequestError(f"host {index} is {state}; hosts: {[h.index for h in self.registry.hosts.values()]}")
        return host

    def _to_host(self, host: Host, op: str, fields: dict[str, Any]) -> None:
        if host.index == 0:
            getattr(self, "do_" + op)(None, fields)
            return
        to = address.host_proc(host.index)
        frame = wire.pack(wire.CONTROL, src=self.me, dst=to, name=op.encode(), payload=pickle.dumps(fields, 5))
        self.send_far(host.index, [frame])

    def _by_host(self, procs: Sequence[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for proc in procs:
            if proc not in self.registry.procs:
                raise RequestError(f"this mesh has no process {proc:#x}")
            found.setdefault(address.host_of(proc), []).append(proc)
        return found

    def do_stop(self, message: Message, fields: dict[str, Any]) -> object:
        """Stop ranks; answers once they have ended."""
        for index, procs in self._by_host(fields["procs"]).items():
            self._to_host(self.registry.hosts[index], "stop_ranks", {"procs": procs, "grace_s": fields["grace_s"]})
        left = {p for p in fields["procs"] if self.registry.procs[p].end is None}
        return self._answer_when(message, left)

    def do_signal(self, message: Message, fields: dict[str, Any]) -> object:
        """Send a signal to ranks."""
        self.signal_procs(fields["procs"], fields["number"])
        return None

    def signal_procs(self, procs: Sequence[int], number: int) -> None:
        """Send a signal to ranks, here or elsewhere."""
        for index, theirs in self._by_host(procs).items():
            self._to_host(self.registry.hosts[index], "signal_ranks", {"procs": theirs, "number": number})

    def do_restart(self, message: Message, fields: dict[str, Any]) -> object:
        """Kill ranks and start them anew at their places; answers once they're up. Handles on them stay good."""
        self.restart_ranks(fields["procs"])
        self.note(message.src, "command", source=f"%mesh restart --ranks {fields.get('rank_set', '')}")
        return self._answer_when(message, set(fields["procs"]), restarted=True)

    def restart_ranks(self, procs: Sequence[int]) -> None:
        """Kill ranks, those that live; they're started anew at their places as soon as they have ended."""
        for index, theirs in self._by_host(procs).items():
            host = self._host(index)
            dead = [p for p in theirs if self.registry.procs[p].end is not None]
            self._restarting.update(theirs)
            self._to_host(host, "signal_ranks", {"procs": theirs, "number": int(signal.SIGKILL)})
            for proc in dead:
                self.start_again(proc)

    def start_again(self, proc: int) -> None:
        """Start a rank that has ended anew at its place, under the same proc id."""
        self._restarting.discard(proc)
        entry = self.registry.procs[proc]
        entry.state, entry.end = "starting", None
        self.board.touch((proc,))
        for to in self.everybody():
            self.event(to, "revived", {"procs": [proc]})
        self.start_ranks(self.registry.groups[entry.group], [proc])

    def everybody(self) -> list[int]:
        """Return all who have been told of an end: clients, ranks, other hosts."""
        ranks = [p.proc for p in self.registry.alive() if p.state == "running"]
        return [*self.registry.clients, *ranks, *(address.host_proc(h.index) for h in self.link.far_hosts())]

    def do_wait_procs(self, message: Message, fields: dict[str, Any]) -> object:
        """Answer once ranks are up or have ended: with the ends."""
        left = {p for p in fields["procs"] if self.registry.procs[p].state == "starting"}
        return self._answer_when(message, left)

    def do_wait_hosts(self, message: Message, fields: dict[str, Any]) -> object:
        """Answer once hosts have joined."""
        left = {address.host_proc(h) for h in fields["hosts"] if self._host(h).state == "expected"}
        return self._answer_when(message, left)

    def _answer_when(self, message: Message, left: set[int], *, restarted: bool = False) -> object:
        if not left and not restarted:
            return self._settled_answer()
        self.registry.waiting.append(Waiting(message.src, message.ref, left))
        return LATER

    def _settled_answer(self) -> dict[str, Any]:
        return {"hosts": self._host_rows()}

    def _answer(self, done: list[Waiting]) -> None:
        for waiting in done:
            if waiting.done is not None:
                waiting.done()
            else:
                self.reply(waiting.src, waiting.ref, self._settled_answer())

    def on_event(self, src: int, name: str, fields: dict[str, Any]) -> None:
        if name == "up":
            self.rank_is_up(src)
            self._answer(self.registry.proc_is_up(src, fields["pid"]))
            self.board.touch((src,))
        elif name == "rank_ended":
            self._book_end(fields["end"])
        elif name == "output":
            self._pass_output(fields["rank"], src, Piece(*fields["piece"]))
        elif name == "vitals":
            self.board.take(address.host_of(src), fields["rows"], fields["host"])
        elif name == "looked":
            self.board.looked(address.host_of(src), fields["ref"])
        elif name == "stacks":
            self.looks.taken(fields["ref"], fields["found"])
        elif name == "pulse":
            self.rank_pulse(fields["proc"], fields["trouble"])
        elif name == "join":
            self.link.has_joined(address.host_of(src), fields)
            self._answer(self.registry.host_is_up(address.host_of(src)))
            if self.board.watched:
                self.event(src, "watch_vitals", {"on": True})
            self.board.touch()
        elif name == "preempted":
            index = address.host_of(src)
            theirs = {p.proc for p in self.registry.alive() if address.host_of(p.proc) == index}
            self._save_then(theirs, lambda: self.event(address.host_proc(index), "leave", {}))
        elif name == "leaving":
            self.link.leaves(address.host_of(src))
        elif name == "beat":
            self.registry.hosts[address.host_of(src)].last_beat = time.monotonic()

    def rank_ended(self, end: dict[str, Any]) -> None:
        super().rank_ended(end)
        self._book_end(end)

    def rank_pulse(self, proc: int, trouble: str) -> None:
        entry = self.registry.procs.get(proc)
        if entry is None or entry.end is not None:
            return
        entry.trouble = trouble
        self.board.touch((proc,))
        self.cells.say_on(proc, f"rank {entry.rank} {trouble or 'reacts again'}")

    def _book_end(self, end: dict[str, Any]) -> None:
        self.router.forget(end["proc"])
        self.asking.forget(end["proc"])
        again = end["proc"] in self._restarting
        entry = self.registry.procs.get(end["proc"])
        if entry is not None:
            end = {**end, "rank": entry.rank}  # it may have got another number since it started
        end = {**end, "point": self._point(end), "told": self.cells.told_of(end["proc"]), "restarted": again}
        group = self.registry.groups.get(end["group"])
        if group is not None:
            end["policy"] = group.policy.on_failure
        if again:
            end["reason"] = "was restarted"
        done = self.registry.proc_has_ended(end, settle=not again)
        self.spread_ends([end])
        for client in self.registry.clients:
            if client not in self._routes:
                self.event(client, "exit", {"ends": [end]})
        for host in self.link.far_hosts():
            self.event(address.host_proc(host.index), "exit", {"ends": [end]})
        self._answer(done)
        if not end["stopped"] and not again:
            self.note(0, "lost", text=f"rank {end['rank']} of {end['group']} is lost", end=_without_lines(end))
            self.healing.lost(end)
        if entry is not None:
            self.checkpoints.lost(entry)
        if end["stopped"]:
            self.healing.recipes.procs_stopped([end["proc"]])
        self.cells.proc_has_ended(end)
        self.board.ended(end["proc"])
        self.debug.proc_has_ended(end["proc"])
        if again:
            self.start_again(end["proc"])

    def _point(self, end: dict[str, Any]) -> dict[str, int]:
        """Return the coordinates of a rank."""
        group = self.registry.groups.get(end["group"])
        if group is None or end["proc"] not in group.procs:  # the mesh may do without it by now
            return {}
        return dict(group.extent.point(end["rank"]))

    # --- healing

    def do_actor_spawned(self, message: Message, fields: dict[str, Any]) -> object:
        """Keep what makes some actors again."""
        self.healing.recipes.add(fields)
        return None

    def do_actor_stopped(self, message: Message, fields: dict[str, Any]) -> object:
        """Forget what made some actors."""
        self.healing.recipes.stopped(fields["actor_id"], fields["procs"])
        return None

    def do_checkpoint_gather(self, message: Message, fields: dict[str, Any]) -> object:
        """A rank that saves has got to a phase; answers once all have."""
        self.checkpoints.join(message.src, message.ref, fields)
        return LATER

    def do_environment(self, message: Message, fields: dict[str, Any]) -> object:
        """Remember what environment variables ranks were given, for those that take their places."""
        for proc, variables in fields["variables"].items():
            if proc in self.registry.procs:
                self.registry.procs[proc].own_env.update(variables)
        return None

    def preempted(self) -> None:
        self._save_then({p.proc for p in self.registry.alive()}, self.shut_down)

    def _save_then(self, procs: set[int], go_on: Callable[[], None]) -> None:
        """Have the actors that some ranks belong to save what they hold, as far as they can in the time there is."""
        deadline_s = self.config.get("preempt_s", PREEMPT_S)
        recipes = [r for r in self.healing.recipes.on(procs) if r.checkpointed]
        left = [True]

        def once(_outcome: object = None) -> None:
            if left:
                left.clear()
                go_on()

        if recipes:
            self.note(0, "note", text="this host is about to be taken away: states are saved")
            self.loop.call_later(deadline_s, once)
        run_script(self.healing.save(recipes, deadline_s), once)

    def do_resize(self, message: Message, fields: dict[str, Any]) -> object:
        """Give a group other sizes; answers with a report."""
        src, ref = message.src, message.ref
        self.healing.resize(fields, lambda report: self.reply(src, ref, report))
        return LATER

    def do_policy(self, message: Message, fields: dict[str, Any]) -> object:
        """Say what is done when a rank of a group dies."""
        group = self.registry.groups[fields.pop("group")]
        group.policy = Policy(**fields)
        self.board.touch()
        return None

    def stop_ranks_of(self, procs: Sequence[int]) -> None:
        """Stop ranks that a mesh does without from now on; dead ones count as stopped."""
        for proc in procs:
            if self.registry.procs[proc].end is not None:
                self.registry.procs[proc].state = "stopped"
        for index, theirs in self._by_host([p for p in procs if self.registry.procs[p].end is None]).items():
            self._to_host(self.registry.hosts[index], "stop_ranks", {"procs": theirs, "grace_s": 3.0})
        self.healing.recipes.procs_stopped(list(procs))

    def do_heal(self, message: Message, fields: dict[str, Any]) -> object:
        """Put back what a group has lost; answers with a report."""
        src, ref = message.src, message.ref
        self.healing.heal(fields, lambda report: self.reply(src, ref, report))
        return LATER

    # --- output

    def rank_printed(self, rank: Rank, piece: Piece) -> None:
        self._pass_output(rank.rank, rank.proc, piece)

    def _pass_output(self, rank: int, proc: int, piece: Piece) -> None:
        entry = self.registry.procs.get(proc)
        kind = records.TEXT if piece.kind == TEXT else records.DISPLAY
        if piece.kind == TEXT:
            self.board.printed(proc, piece.data)
        self.write_record(
            kind, piece.stream, entry.group if entry is not None else "unknown", entry.rank if entry is not None else rank,
            piece.origin, piece.data,
        )

    def write_record(self, kind: int, stream: str, group: str, rank: int, origin: int, data: bytes) -> None:
        """Put a piece into the journal and show it to those who watch."""
        if group not in self.store.groups:
            groups = {**self.store.groups, group: len(self.store.groups)}
            for client in self.registry.clients.values():
                if client.listens:
                    self.event(client.proc, "groups", {"groups": groups})
        self.watches.offer(*self.store.append(kind, stream, group, rank, origin, data))

    def do_settle_output(self, message: Message, fields: dict[str, Any]) -> object:
        """Answer once what ranks of this machine have written before now has been passed on."""
        self.supervisor.drain()
        watch = self.watches.find(message.src, 0)
        if watch is None:
            return None
        watch.flush()
        return None

    def do_taken(self, message: Message, fields: dict[str, Any]) -> object:
        """A client has taken some of what it watches."""
        watch = self.watches.find(message.src, fields["watch"])
        if watch is not None:
            watch.taken(fields["bytes"])
        return None

    def do_unwatch(self, message: Message, fields: dict[str, Any]) -> object:
        """A client doesn't watch something any more."""
        self.watches.drop(message.src, fields["watch"])
        return None

    def watch_cell(self, client: int, ref: int, n: int, position: int | None, until: int | None) -> Watch:
        """Let a client watch what a cell prints and how it ends."""

        def wanted(record: Record) -> bool:
            return record.origin == n

        watch = Watch(self.loop, self.store, self.send_local, client, ref, wanted, position, until)
        return self.watches.add(watch, n)

    def do_watch_output(self, message: Message, fields: dict[str, Any]) -> object:
        """Send a client what ranks of a group print: from a position, or the last bytes; then on, or not."""
        group, ranks, origin = fields.get("group"), fields.get("ranks"), fields.get("origin")
        chosen = None if ranks is None else set(ranks)
        if group is not None and group not in self.store.groups and not fields.get("follow"):
            self.reply(message.src, message.ref, [], last=True)
            return LATER

        def wanted(record: Record) -> bool:
            return (
                record.kind != records.RESULT
                and (group is None or self.store.groups.get(group) == record.group)
                and (chosen is None or record.rank in chosen)
                and (origin is None or record.origin == origin)
                and not (fields.get("actors") and is_cell(record.origin))
            )

        position = fields.get("position")
        if position is None:
            position = self.store.tail_start(fields["tail_bytes"])
        until = None if fields.get("follow") else self.store.end
        if not fields.get("follow") and position >= self.store.end:
            self.reply(message.src, message.ref, [], last=True)
            return LATER
        self.watches.add(
            Watch(self.loop, self.store, self.send_local, message.src, message.ref, wanted, position, until)
        )
        return LATER

    def do_read_output(self, message: Message, fields: dict[str, Any]) -> object:
        """Return a stretch of what ranks of a group have printed: the one before a position, or after one.

        "data" (records), "begin" and "end" (positions), "start" and "now" (of all that there is).
        """
        group, chosen = self.store.groups.get(fields["group"]), set(fields["ranks"])

        def wanted(record: Record) -> bool:
            return record.kind in (records.TEXT, records.NOTE) and record.group == group and record.rank in chosen

        after = fields.get("after")
        if after is None:
            before = fields.get("before")
            end = self.store.end if before is None else min(before, self.store.end)
            scan, begin = self.store.scan_back(end, wanted)
        else:
            begin = after
            scan = self.store.scan(after, wanted)
            end = scan.position
        return {"data": scan.data, "begin": begin, "end": end, "start": self.store.start, "now": self.store.end}

    # --- the debugger

    def do_debug_stopped(self, message: Message, fields: dict[str, Any]) -> object:
        """A thread of a rank stands at a breakpoint, or has answered a line there."""
        self.debug.stopped(message.src, fields)
        return None

    def do_debug_running(self, message: Message, fields: dict[str, Any]) -> object:
        """A thread steps on, and will come back."""
        self.debug.running(message.src, fields["key"])
        return None

    def do_debug_left(self, message: Message, fields: dict[str, Any]) -> object:
        """A thread runs on."""
        self.debug.left(message.src, fields)
        return None

    def do_debug_stops(self, message: Message, fields: dict[str, Any]) -> object:
        """Return who stands where."""
        return self.debug.rows(fields["group"])

    def do_debug_command(self, message: Message, fields: dict[str, Any]) -> object:
        """Have some stops do what a line says; answers when all have, or the time is up."""
        self.debug.command(message.src, message.ref, fields)
        return LATER

    def do_watch_debug(self, message: Message, fields: dict[str, Any]) -> object:
        """Tell a client who stands where, now and whenever that changes."""
        self.debug.watch(message.src, message.ref, fields["group"])
        return LATER

    def do_unwatch_debug(self, message: Message, fields: dict[str, Any]) -> object:
        """A client doesn't want to know any more."""
        self.debug.unwatch(message.src, fields["watch"])
        return None

    def do_debug_set(self, message: Message, fields: dict[str, Any]) -> object:
        """Take settings of the debugger; None leaves one as it is. Returns all."""
        return self.debug.set(fields)

    def do_debug_post_mortem(self, message: Message, fields: dict[str, Any]) -> object:
        """Have ranks stop where they've raised last; answers once those that have something to show stand there."""
        src, ref = message.src, message.ref
        self.debug.post_mortem(fields["procs"], lambda: self.reply(src, ref, None))
        return LATER

    def do_debug_break(self, message: Message, fields: dict[str, Any]) -> object:
        """Set a breakpoint on ranks; answers with what each says of it."""
        src, ref = message.src, message.ref
        procs = fields.pop("procs")
        self.asking.ask(procs, "__break__", fields, lambda answers: self.reply(src, ref, answers), 3.0)
        return LATER

    # --- cells

    def do_run_cell(self, message: Message, fields: dict[str, Any]) -> object:
        """Run a cell; news of it go to whoever asked."""
        self.cells.run(message.src, message.ref, fields)
        return LATER

    def do_watch_cell(self, message: Message, fields: dict[str, Any]) -> object:
        """Show a cell from its beginning."""
        entry = self.entries.entries.get(fields["n"])
        if entry is None or entry["kind"] != "cell":
            raise RequestError(f"the journal has no cell #{fields['n']}; see %mesh history")
        self.cells.watch(message.src, message.ref, fields["n"])
        return LATER

    def do_interrupt_cell(self, message: Message, fields: dict[str, Any]) -> object:
        """Interrupt a cell; once more takes the next step at once."""
        return self.cells.interrupt(fields["n"])

    def do_interrupt(self, message: Message, fields: dict[str, Any]) -> object:
        """Interrupt whatever runs on ranks: cells, or functions on their main threads."""
        procs = set(fields["procs"])
        self.cells.interrupt_procs(procs)
        idle = [p for p in procs if not self.cells.is_busy(p)]
        self.signal_procs(idle, int(signal.SIGINT))
        self.note(message.src, "command", source="%mesh interrupt", ranks=fields.get("rank_set", ""))
        return None

    def do_abort_call(self, message: Message, fields: dict[str, Any]) -> object:
        """Abort collectives on ranks whose actors don't react to an interrupt; answers once done."""
        ranks = {self.registry.procs[p].rank: p for p in fields["procs"]}
        src, ref = message.src, message.ref
        self.asking.ask(ranks, "__abort__", None, lambda answers: self.reply(src, ref, answers), 1.0)
        return LATER

    def do_stacks(self, message: Message, fields: dict[str, Any]) -> object:
        """Return where ranks stand: by rank, the fields that `Looks.stacks` describes."""
        ranks = {self.registry.procs[p].rank: p for p in fields["procs"]}
        src, ref = message.src, message.ref
        self.looks.stacks(ranks, lambda found: self.reply(src, ref, found), native=fields.get("native", False))
        return LATER

    def do_hang(self, message: Message, fields: dict[str, Any]) -> object:
        """Return what ranks wait for: by rank, the fields that `Looks.hang` describes."""
        ranks = {self.registry.procs[p].rank: p for p in fields["procs"]}
        src, ref = message.src, message.ref
        self.looks.hang(ranks, lambda found: self.reply(src, ref, found))
        return LATER

    def process_state(self, proc: int) -> str:
        """Return what the kernel says of a rank of this machine, in words; empty if nothing is special."""
        rank = self.supervisor.ranks.get(proc)
        return process_trouble(rank.pid) if rank is not None and rank.pid else ""

    def on_answer(self, message: Message) -> None:
        if message.kind == wire.COMBINED:
            for flags, slots, payload in wire.unpack_combined(message):
                for slot in slots:
                    self._take_answer(message, slot, flags, payload)
        else:
            self._take_answer(message, message.slot, message.flags, message.payload)

    def _take_answer(self, message: Message, slot: int, flags: int, payload: Any) -> None:
        if message.ref in self.entries.entries:
            self.cells.answered(message.ref, slot, flags, payload)
        else:
            self.asking.answered(message.ref, slot, flags, payload)

    def send_to_rank(self, proc: int, frame: bytes) -> None:
        """Send a frame to a rank, here or elsewhere."""
        if address.host_of(proc) == self.index:
            self.send_local(proc, frame)
        else:
            self.send_far(address.host_of(proc), [frame])

    def send_cell(self, receivers: Sequence[tuple[int, int]], origin: int, frame: bytes) -> None:
        """Send a cell to (proc, rank)s: one message to each other host."""
        far: dict[int, list[tuple[int, int]]] = {}
        self.begin_cell([proc for proc, _ in receivers if address.host_of(proc) == self.index], origin)
        for proc, slot in receivers:
            if address.host_of(proc) == self.index:
                self.send_local(proc, wire.readdress(frame, slot, proc))
            else:
                far.setdefault(address.host_of(proc), []).append((proc, slot))
        for host, theirs in far.items():
            self.send_far(host, [wire.pack_fanout(self.me, address.host_proc(host), theirs, frame)])

    # --- journal

    def note(self, client: int, kind: str, **fields: Any) -> None:
        """Enter a command, or an event, that is over already."""
        now = time.time()
        who = self.who(client) if client else "the host process"
        self.entries.begin(kind, who=who, **{"when": now, "ended": now, "status": "ok", **fields})

    def do_note(self, message: Message, fields: dict[str, Any]) -> object:
        """Enter what a client has done without the home: calls, pushes."""
        kind = fields.pop("kind")
        self.note(message.src, kind, env=self.environment_id, **fields)
        return None

    def do_history(self, message: Message, fields: dict[str, Any]) -> object:
        """Return the last entries, oldest first, and how much output was dropped."""
        entries = sorted(self.entries.entries.values(), key=lambda e: int(e["n"]))
        return {"entries": entries[-fields["limit"] :], "num_dropped_bytes": self.store.start}

    def do_entry(self, message: Message, fields: dict[str, Any]) -> object:
        """Return one entry, or None."""
        return self.entries.entries.get(fields["n"])

    def do_missed(self, message: Message, fields: dict[str, Any]) -> object:
        """Return what nobody has seen: cells, and from where in the journal on other output."""
        cells = [
            dict(e)
            for e in self.entries.entries.values()
            if e["kind"] == "cell" and not e.get("seen") and not self._is_watched(e["n"])
        ]
        return {"cells": cells, "position": self._missed_from}

    def _is_watched(self, n: int) -> bool:
        cell = self.cells.find(n)
        return cell is not None and any(not w.over for w in cell.watches)

    def do_seen(self, message: Message, fields: dict[str, Any]) -> object:
        """A client has shown how cells ended, or what else was missed."""
        for n in fields.get("cells", ()):
            self.entries.add(n, seen=True)
        if fields.get("others"):
            self._missed_from = None
        return None

    # --- names

    def do_set_name(self, message: Message, fields: dict[str, Any]) -> object:
        """Enter something under a name; `only_if_new` makes the first one win. Returns what is there now."""
        if fields.get("only_if_new") and fields["name"] in self.registry.names:
            return self.registry.names[fields["name"]]
        self.registry.names[fields["name"]] = fields["value"]
        return fields["value"]

    def do_get_name(self, message: Message, fields: dict[str, Any]) -> object:
        """Return what was entered under a name, or None."""
        return self.registry.names.get(fields["name"])

    def do_drop_name(self, message: Message, fields: dict[str, Any]) -> object:
        """Forget a name."""
        return self.registry.names.pop(fields["name"], None)

    def do_snapshot(self, message: Message, fields: dict[str, Any]) -> object:
        """Look at everything, and return a group's state: the fields of `MeshStatus`."""
        self._group(fields["group"])
        src, ref = message.src, message.ref
        if not fields.get("fresh", True):
            self.vitals.glance()
            return self.board.snapshot(fields["group"])
        self.board.look(lambda: self.reply(src, ref, self.board.snapshot(fields["group"])))
        return LATER

    def do_watch_status(self, message: Message, fields: dict[str, Any]) -> object:
        """Send a client a group's state, and then what changes, as fast as it takes it."""
        self._group(fields["group"])
        self.board.watch(message.src, message.ref, fields["group"])
        return LATER

    def _group(self, name: str) -> Group:
        group = self.registry.groups.get(name)
        if group is None:
            raise RequestError(f"this mesh has no ranks {name!r}; it has {', '.join(self.registry.groups)}")
        return group

    def do_status_taken(self, message: Message, fields: dict[str, Any]) -> object:
        """A client has taken the state that it was sent."""
        self.board.taken(message.src, fields["watch"])
        return None

    def do_unwatch_status(self, message: Message, fields: dict[str, Any]) -> object:
        """A client doesn't watch the state any more."""
        self.board.drop(message.src, fields["watch"])
        return None

    def watch_vitals(self, on: bool) -> None:
        """Have all hosts look often at what ranks do, or hardly ever."""
        self.vitals.watch(on)
        for host in self.link.far_hosts():
            self.event(address.host_proc(host.index), "watch_vitals", {"on": on})

    def vitals_changed(self, rows: Rows, host: dict[str, Any] | None) -> None:
        self.board.take(0, rows, host)

    def do_status(self, message: Message, fields: dict[str, Any]) -> object:
        """Return the books."""
        return {
            "name": self.name,
            "pid": os.getpid(),
            "zygote_pid": self.supervisor.zygote_pid,
            "warm": self.supervisor.warm,
            "started": self.registry.started,
            "idle_timeout_s": self.idle_timeout_s,
            "num_cells": self.cells.num_running,
            "healing": [g for g in self.registry.groups if self.healing.is_busy(g)],
            "policies": {g.name: g.policy.on_failure for g in self.registry.groups.values()},
            "journal": self.store.directory,
            "hosts": self._host_rows(),
            "clients": [{"pid": c.pid, "what": c.what} for c in self.registry.clients.values()],
            "procs": [
                {"proc": p.proc, "group": p.group, "rank": p.rank, "state": p.state, "pid": p.pid, "end": p.end,
                 "trouble": p.trouble}
                for p in self.registry.procs.values()
            ],
            "names": self.registry.names,
        }

    def _host_rows(self) -> list[dict[str, Any]]:
        return [
            {k: v for k, v in vars(h).items() if k not in ("backlog", "last_beat", "public_key")}
            for h in self.registry.hosts.values()
        ]

    def do_shut_down(self, message: Message, fields: dict[str, Any]) -> object:
        """Stop everything."""
        self.reply(message.src, message.ref, None)
        self.shut_down()
        return LATER

    # --- other hosts

    def do_tickets(self, message: Message, fields: dict[str, Any]) -> object:
        """Return what `num` new hosts need to dial home."""
        bind = fields.get("bind") or "tcp://127.0.0.1:*"
        labels = fields.get("labels") or [""] * fields["num"]
        hosts = [self.registry.new_host(labels[i], fields.get("kind", "")) for i in range(fields["num"])]
        return [self.link.ticket(host, bind) for host in hosts]

    def send_far(self, host: int, frames: list[Any]) -> None:
        self.link.send(host, frames)

    def _host_lost(self, host: Host) -> None:
        self.board.touch()
        for entry in [p for p in self.registry.alive() if address.host_of(p.proc) == host.index]:
            self._book_end(
                {
                    "proc": entry.proc, "rank": entry.rank, "group": entry.group, "host": host.hostname,
                    "pid": entry.pid, "signal": None, "exit_code": None, "stopped": host.state == "stopped", "last_lines": "",
                    "reason": f"host {host.hostname} has not been heard of for {LOST_AFTER_S:g} s",
                }
            )  # fmt: skip

    def do_stop_hosts(self, message: Message, fields: dict[str, Any]) -> object:
        """Have hosts leave."""
        for index in fields["hosts"]:
            host = self._host(index)
            if index and host.state == "up":
                self.board.touch()
                self.event(address.host_proc(index), "leave", {})
                self.link.leaves(index)
                for entry in [p for p in self.registry.alive() if address.host_of(p.proc) == index]:
                    entry.state = "stopping"
        return None

    def shut_down(self) -> None:
        if self.config.get("connection_file"):
            with suppress(OSError):
                os.unlink(self.config["connection_file"])
        for host in self.link.far_hosts():
            self.event(address.host_proc(host.index), "leave", {})
        super().shut_down()

    def close_link(self) -> None:
        self.store.close()
        self.entries.close()
        self.link.close()


def _own_output(number: int) -> Any:
    """Return what a client sees without asking: output of its own calls, and what belongs to nobody."""
    mine = CLIENT_ORIGIN >> CLIENT_BITS | (number & CLIENT_MASK)

    def wanted(record: Record) -> bool:
        return record.kind != records.RESULT and (not record.origin or record.origin >> CLIENT_BITS == mine)

    return wanted


def _without_lines(end: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in end.items() if k != "last_lines"}
