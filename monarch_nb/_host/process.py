"""The host process: its sockets, and what it answers.

The home (host 0) keeps the registry and is what clients talk to. The others dial home over tcp with CURVE, do what it says for the
ranks of their machine, and pass messages on. When the home is gone they end, with their ranks.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import socket as sockets
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import zmq

from monarch_nb._host.loop import Loop
from monarch_nb._host.output import OutputLog
from monarch_nb._host.registry import Client, Host, Registry, Waiting
from monarch_nb._host.router import Router
from monarch_nb._host.supervisor import STARTING, Rank, Supervisor
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb._wire.keys import Gatekeeper, KeyPair
from monarch_nb._wire.marks import Piece
from monarch_nb._wire.message import Message

BEAT_S = 1.0
LOST_AFTER_S = 5.0
CLIENT_QUEUE = 200_000
_HANDSHAKE_MS = 5000


class RequestError(Exception):
    """A request that can't be done; the text goes to whoever asked."""


class HostProcess:
    """State and behaviour that home and far host processes share. Owned by the loop thread."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.index: int = config["host"]
        self.me = address.host_proc(self.index)
        self.directory: str = config["directory"]
        self.hostname = config.get("label") or sockets.gethostname()
        address.private_directory(self.directory)
        self.loop = Loop()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, 65535)
        self._pull = self.context.socket(zmq.PULL)
        self._pull.setsockopt(zmq.RCVHWM, 0)
        self._routes: dict[int, zmq.Socket[bytes]] = {}
        self.router = Router(self.me, self.loop, self.send_local, self.send_far)
        self.supervisor = Supervisor(
            self.loop, self.index, self.hostname, self.rank_ended, self.rank_printed, config["sys_path"]
        )
        if config.get("warm", True):
            self.supervisor.warm_up()
        self._pull.bind(address.endpoint(self.directory, self.me))
        self.loop.watch_socket(self._pull, self._take_local)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda _number, _frame: self.loop.call_soon_threadsafe(self.shut_down))
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    # --- sending

    def send_local(self, dst: int, frame: bytes) -> None:
        """Send to a process of this machine; to one that's gone, drop."""
        socket = self._routes.get(dst)
        if socket is None:
            if not os.path.exists(address.socket_path(self.directory, dst)) and not self._is_coming(dst):
                return
            socket = self._routes[dst] = self.context.socket(zmq.PUSH)
            socket.setsockopt(zmq.SNDHWM, CLIENT_QUEUE if address.is_client(dst) else 0)
            socket.setsockopt(zmq.LINGER, 500)
            socket.setsockopt(zmq.RECONNECT_IVL, 10)
            socket.connect(address.endpoint(self.directory, dst))
        try:
            socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            self.message_dropped(dst)

    def _is_coming(self, dst: int) -> bool:
        rank = self.supervisor.ranks.get(dst)
        return rank is not None and rank.state == STARTING

    def message_dropped(self, dst: int) -> None:
        """A process reads so slowly that its queue is full."""

    def drop_route(self, dst: int) -> None:
        """Close the way to a process that has ended."""
        socket = self._routes.pop(dst, None)
        if socket is not None:
            socket.close(0)

    def send_far(self, host: int, frames: list[Any]) -> None:
        """Send frames towards another host."""
        raise NotImplementedError

    def event(self, dst: int, name: str, fields: dict[str, Any]) -> None:
        """Send news to one process."""
        frame = wire.pack(wire.EVENT, src=self.me, dst=dst, name=name.encode(), payload=pickle.dumps(fields, 5))
        if address.host_of(dst) == self.index:
            self.send_local(dst, frame)
        else:
            self.send_far(address.host_of(dst), [frame])

    def reply(self, dst: int, ref: int, value: object, *, error: bool = False) -> None:
        """Answer a request."""
        if not ref:
            return
        frame = wire.pack(
            wire.REPLY, src=self.me, dst=dst, ref=ref, flags=wire.ERROR if error else 0,
            payload=pickle.dumps(value, 5),
        )  # fmt: skip
        if address.host_of(dst) == self.index:
            self.send_local(dst, frame)
        else:
            self.send_far(address.host_of(dst), [frame])

    # --- receiving

    def _take_local(self) -> None:
        message = wire.unpack(self._pull.recv())
        if message.kind == wire.RELEASE and message.dst == self.me:
            self.router.pool.release(message.ref, message.src)
        elif message.dst == self.me and message.kind != wire.FANOUT:
            self.handle(message)
        elif address.host_of(message.dst) != self.index:
            self.router.export(message)
        elif message.kind == wire.FANOUT:
            self.router.accept(message.frame, ())
        else:
            self.send_local(message.dst, message.frame)

    def take_far(self, frames: Sequence[Any]) -> None:
        """Take a message from the link to other hosts."""
        frame = bytes(frames[0])
        message = wire.unpack(frame)
        if address.host_of(message.dst) != self.index:
            self.send_far(address.host_of(message.dst), [frame, *frames[1:]])
        elif message.dst == self.me and message.kind != wire.FANOUT:
            self.handle(message)
        else:
            self.router.accept(frame, frames[1:])

    def handle(self, message: Message) -> None:
        """Do what a message to this host process says."""
        name = message.name.decode()
        fields = pickle.loads(message.payload) if message.at < len(message.frame) else {}
        if message.kind == wire.EVENT:
            self.on_event(message.src, name, fields)
            return
        if message.kind != wire.CONTROL:
            return
        method: Callable[[Message, dict[str, Any]], object] | None = getattr(self, "do_" + name, None)
        try:
            if method is None:
                raise RequestError(f"this host process knows no request {name!r}; is it of another version?")
            answer = method(message, fields)
        except RequestError as error:
            self.reply(message.src, message.ref, str(error), error=True)
            return
        if answer is not LATER:
            self.reply(message.src, message.ref, answer)

    def on_event(self, src: int, name: str, fields: dict[str, Any]) -> None:
        """Take news."""

    # --- ranks of this machine

    def do_start_ranks(self, message: Message, fields: dict[str, Any]) -> object:
        """Start ranks here. Asked by the home."""
        own = {"directory": self.directory, "hostname": self.hostname, "gpus": visible_gpus()}
        self.supervisor.start(fields["ranks"], fields["spec"] | own, fields["method"])
        return None

    def do_stop_ranks(self, message: Message, fields: dict[str, Any]) -> object:
        """Stop ranks here."""
        self.supervisor.stop(fields["procs"], fields["grace_s"])
        return None

    def do_signal_ranks(self, message: Message, fields: dict[str, Any]) -> object:
        """Send a signal to ranks here."""
        self.supervisor.signal(fields["procs"], fields["number"])
        return None

    def rank_is_up(self, proc: int) -> None:
        """Note that a rank here answers."""
        rank = self.supervisor.ranks.get(proc)
        if rank is not None and rank.state == STARTING:
            rank.state = "running"

    def rank_ended(self, end: dict[str, Any]) -> None:
        """A rank here has ended."""
        self.drop_route(end["proc"])
        self.router.forget(end["proc"])
        with suppress(OSError):
            os.unlink(address.socket_path(self.directory, end["proc"]))

    def rank_printed(self, rank: Rank, piece: Piece) -> None:
        """A rank here has printed something."""
        raise NotImplementedError

    def spread_ends(self, ends: list[dict[str, Any]]) -> None:
        """Tell all processes of this machine who has ended."""
        for proc in [p for p in self._routes if p != self.me]:
            self.event(proc, "exit", {"ends": ends})
        for proc, rank in self.supervisor.ranks.items():
            if rank.state == "running" and proc not in self._routes:
                self.event(proc, "exit", {"ends": ends})

    # --- the end

    def run(self) -> None:
        """Serve until shut down; leave nothing behind."""
        try:
            self.loop.run()
        finally:
            self.supervisor.close()
        for socket in self._routes.values():
            socket.close(200)
        self._pull.close(0)
        self.close_link()
        self.context.term()
        self.router.pool.close()
        shutil.rmtree(self.directory, ignore_errors=True)
        with suppress(OSError):
            os.rmdir(os.path.dirname(self.directory))

    def close_link(self) -> None:
        """Close the sockets to other hosts."""

    def shut_down(self) -> None:
        """Stop all ranks here, then leave."""
        self.supervisor.stop(list(self.supervisor.ranks))
        self._leave_when_empty(time.monotonic() + 4.0)

    def _leave_when_empty(self, limit: float) -> None:
        if self.supervisor.num_alive == 0 or time.monotonic() > limit:
            self.loop.stop()
        else:
            self.loop.call_later(0.01, lambda: self._leave_when_empty(limit))


LATER: Any = object()
"""Returned by a request that is answered later."""


class HomeProcess(HostProcess):
    """The first host process of a mesh: registry, connection file, lease."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.registry = Registry()
        own = self.registry.new_host(self.hostname)
        own.state, own.hostname, own.pid = "up", self.hostname, os.getpid()
        own.num_cores, own.num_gpus = os.cpu_count() or 1, count_gpus()
        self.name: str = config.get("name") or ""
        self.log_directory = os.path.join(self.directory, "log")
        os.makedirs(self.log_directory, mode=0o700, exist_ok=True)
        self.log = OutputLog(self.log_directory)
        self._link: zmq.Socket[bytes] | None = None
        self._gatekeeper: Gatekeeper | None = None
        self._keys: KeyPair | None = None
        self._endpoints: dict[str, str] = {}
        self._identities: dict[int, bytes] = {}
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
        client = Client(message.src, fields["pid"], fields["what"], listens=fields.get("listens", True))
        with suppress(OSError):
            client.pidfd = os.pidfd_open(client.pid)
            self.loop.watch_file(client.pidfd, lambda: self._client_gone(client))
        self.registry.clients[message.src] = client
        return {"pid": os.getpid(), "hosts": self._host_rows(), "name": self.name, "python": sys.version_info[:3]}

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
        self.drop_route(client.proc)
        self.router.forget(client.proc)
        self._idle_since = time.monotonic()
        with suppress(OSError):
            os.unlink(address.socket_path(self.directory, client.proc))

    def message_dropped(self, dst: int) -> None:
        client = self.registry.clients.get(dst)
        if client is not None:
            client.num_dropped += 1

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
        self._write_connection_file()
        if self.idle_timeout_s:
            self.loop.call_later(min(self.idle_timeout_s, 5.0), self._check_lease)
        return None

    def _check_lease(self) -> None:
        assert self.idle_timeout_s is not None
        if self.registry.clients:
            self._idle_since = time.monotonic()
        if time.monotonic() - self._idle_since >= self.idle_timeout_s:
            self.shut_down()
        else:
            self.loop.call_later(min(self.idle_timeout_s, 5.0), self._check_lease)

    def _write_connection_file(self) -> None:
        path = self.config["connection_file"]
        content = {
            "name": self.name,
            "pid": os.getpid(),
            "directory": self.directory,
            "hostname": self.hostname,
            "wire_version": wire.VERSION,
            "started": self.registry.started,
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
        spec = {**fields["spec"], "procs": procs, "hosts": fields["hosts"]}
        for host, row in zip(hosts, entries, strict=True):
            own = [self._own_spec(entry, i, len(procs), fields) for i, entry in enumerate(row)]
            self._to_host(host, "start_ranks", {"ranks": own, "spec": spec, "method": fields["method"]})
        return {"procs": procs}

    @staticmethod
    def _own_spec(entry: Any, local_rank: int, world_size: int, fields: dict[str, Any]) -> dict[str, Any]:
        return {
            "proc": entry.proc,
            "rank": entry.rank,
            "local_rank": local_rank,
            "local_world_size": fields["per_host"],
            "world_size": world_size,
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
        if host is None or host.state in ("lost", "stopped"):
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
        for index, procs in self._by_host(fields["procs"]).items():
            request = {"procs": procs, "number": fields["number"]}
            self._to_host(self.registry.hosts[index], "signal_ranks", request)
        return None

    def do_wait_procs(self, message: Message, fields: dict[str, Any]) -> object:
        """Answer once ranks are up or have ended: with the ends."""
        left = {p for p in fields["procs"] if self.registry.procs[p].state == "starting"}
        return self._answer_when(message, left)

    def do_wait_hosts(self, message: Message, fields: dict[str, Any]) -> object:
        """Answer once hosts have joined."""
        left = {address.host_proc(h) for h in fields["hosts"] if self._host(h).state == "expected"}
        return self._answer_when(message, left)

    def _answer_when(self, message: Message, left: set[int]) -> object:
        if not left:
            return self._settled_answer()
        self.registry.waiting.append(Waiting(message.src, message.ref, left))
        return LATER

    def _settled_answer(self) -> dict[str, Any]:
        return {"hosts": self._host_rows()}

    def _answer(self, done: list[Waiting]) -> None:
        for waiting in done:
            self.reply(waiting.src, waiting.ref, self._settled_answer())

    def on_event(self, src: int, name: str, fields: dict[str, Any]) -> None:
        if name == "up":
            self.rank_is_up(src)
            self._answer(self.registry.proc_is_up(src, fields["pid"]))
        elif name == "rank_ended":
            self._book_end(fields["end"])
        elif name == "output":
            self._pass_output(fields["rank"], src, fields["origin"], fields["seq"], Piece(*fields["piece"]))
        elif name == "join":
            self._join(address.host_of(src), fields)
        elif name == "beat":
            self._beat(address.host_of(src))

    def rank_ended(self, end: dict[str, Any]) -> None:
        super().rank_ended(end)
        self._book_end(end)

    def _book_end(self, end: dict[str, Any]) -> None:
        self.router.forget(end["proc"])
        done = self.registry.proc_has_ended(end)
        self.spread_ends([end])
        for client in self.registry.clients:
            if client not in self._routes:
                self.event(client, "exit", {"ends": [end]})
        for host in self._far_hosts():
            self.event(address.host_proc(host.index), "exit", {"ends": [end]})
        self._answer(done)

    # --- output

    def rank_printed(self, rank: Rank, piece: Piece) -> None:
        self._pass_output(rank.rank, rank.proc, piece.origin, 0, piece)

    def _pass_output(self, rank: int, proc: int, origin: int, seq: int, piece: Piece) -> None:
        entry = self.registry.procs.get(proc)
        group = entry.group if entry is not None else "unknown"
        self.log.write(f"{group}-{rank}", piece)
        name = f"{piece.kind};{piece.stream}".encode()
        for client in self.registry.clients.values():
            if client.listens:
                frame = wire.pack(
                    wire.OUTPUT, src=proc, dst=client.proc, origin=origin, slot=rank, name=name,
                    context=group.encode(), payload=piece.data,
                )  # fmt: skip
                self.send_local(client.proc, frame)

    def do_settle_output(self, message: Message, fields: dict[str, Any]) -> object:
        """Answer once what ranks of this machine have written before now has been passed on."""
        for rank in self.supervisor.ranks.values():
            for output in rank.outputs:
                output.drain()
        return None

    def do_tail(self, message: Message, fields: dict[str, Any]) -> object:
        """Return the end of the logs: {rank: bytes} for each group."""
        answer: dict[str, dict[int, bytes]] = {}
        for name in self.log.names():
            group, _, rank = name.rpartition("-")
            answer.setdefault(group, {})[int(rank)] = self.log.tail(name, fields["max_bytes"])
        return answer

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

    def do_status(self, message: Message, fields: dict[str, Any]) -> object:
        """Return the books."""
        return {
            "name": self.name,
            "pid": os.getpid(),
            "zygote_pid": self.supervisor.zygote_pid,
            "warm": self.supervisor.warm,
            "started": self.registry.started,
            "idle_timeout_s": self.idle_timeout_s,
            "hosts": self._host_rows(),
            "clients": [{"pid": c.pid, "what": c.what} for c in self.registry.clients.values()],
            "procs": [
                {"proc": p.proc, "group": p.group, "rank": p.rank, "state": p.state, "pid": p.pid, "end": p.end}
                for p in self.registry.procs.values()
            ],
            "names": self.registry.names,
        }

    def _host_rows(self) -> list[dict[str, Any]]:
        return [
            {k: v for k, v in vars(h).items() if k not in ("backlog", "last_beat")}
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
        endpoint = self._listen_on(fields.get("bind") or "tcp://127.0.0.1:*")
        assert self._keys is not None and self._gatekeeper is not None
        tickets = []
        for i in range(fields["num"]):
            label = fields["labels"][i] if fields.get("labels") else ""
            host, keys = self.registry.new_host(label), KeyPair.new()
            self._gatekeeper.allowed.add(keys.public)
            tickets.append(
                {
                    "host": host.index,
                    "label": label,
                    "home": endpoint,
                    "home_key": self._keys.public,
                    "public": keys.public,
                    "secret": keys.secret,
                }
            )
        return tickets

    def _listen_on(self, bind: str) -> str:
        """Listen for other hosts at `bind`, if we don't yet; return the address to dial."""
        if self._link is None:
            self._open_link()
        assert self._link is not None
        if bind not in self._endpoints:
            self._link.bind(bind)
            self._endpoints[bind] = self._link.getsockopt_string(zmq.LAST_ENDPOINT)
        return self._endpoints[bind]

    def _open_link(self) -> None:
        self._keys = KeyPair.new()
        self._gatekeeper = Gatekeeper(self.context)
        self.loop.watch_socket(self._gatekeeper.socket, self._gatekeeper.answer)
        link = self._link = self.context.socket(zmq.ROUTER)
        link.setsockopt(zmq.SNDHWM, 0)
        link.setsockopt(zmq.RCVHWM, 0)
        link.setsockopt(zmq.LINGER, 500)
        link.setsockopt(zmq.ROUTER_HANDOVER, 1)
        link.curve_server = True
        link.curve_secretkey, link.curve_publickey = self._keys.secret.encode(), self._keys.public.encode()
        self.loop.watch_socket(link, self._take_link)
        self.loop.call_later(BEAT_S, self._beats)

    def _take_link(self) -> None:
        assert self._link is not None
        frames = self._link.recv_multipart(copy=False)
        identity = bytes(frames[0].buffer)
        sender = int(identity[1:])
        if wire.unpack(bytes(frames[1].buffer)).src >> 32 != sender and sender not in self.registry.hosts:
            return
        self._identities[sender] = identity
        self.take_far([f.buffer for f in frames[1:]])

    def send_far(self, host: int, frames: list[Any]) -> None:
        entry = self.registry.hosts.get(host)
        if entry is None or entry.state in ("lost", "stopped") or self._link is None:
            return
        if entry.state == "expected":
            entry.backlog.append([bytes(f) for f in frames])
            return
        self._link.send_multipart([self._identities[host], *frames], copy=sum(map(len, frames)) < 1 << 16)

    def _join(self, index: int, fields: dict[str, Any]) -> None:
        host = self.registry.hosts[index]
        for key in ("hostname", "pid", "num_cores", "num_gpus"):
            setattr(host, key, fields[key])
        host.state, host.last_beat = "up", time.monotonic()
        backlog, host.backlog = host.backlog, []
        for frames in backlog:
            self.send_far(index, frames)
        self._answer(self.registry.host_is_up(index))

    def _far_hosts(self) -> list[Host]:
        return [h for h in self.registry.hosts.values() if h.index and h.state == "up"]

    def _beat(self, index: int) -> None:
        self.registry.hosts[index].last_beat = time.monotonic()

    def _beats(self) -> None:
        now = time.monotonic()
        for host in self._far_hosts():
            if now - host.last_beat > LOST_AFTER_S:
                self._host_lost(host)
            else:
                self.event(address.host_proc(host.index), "beat", {})
        self.loop.call_later(BEAT_S, self._beats)

    def _host_lost(self, host: Host) -> None:
        host.state = "lost"
        for entry in [p for p in self.registry.alive() if address.host_of(p.proc) == host.index]:
            self._book_end(
                {
                    "proc": entry.proc, "rank": entry.rank, "group": entry.group, "host": host.hostname,
                    "pid": entry.pid, "signal": None, "exit_code": None, "stopped": False, "last_lines": "",
                    "reason": f"host {host.hostname} has not been heard of for {LOST_AFTER_S:g} s",
                }
            )  # fmt: skip

    def do_stop_hosts(self, message: Message, fields: dict[str, Any]) -> object:
        """Have hosts leave."""
        for index in fields["hosts"]:
            host = self._host(index)
            if index and host.state == "up":
                self.event(address.host_proc(index), "leave", {})
                for entry in [p for p in self.registry.alive() if address.host_of(p.proc) == index]:
                    entry.state = "stopping"
        return None

    def shut_down(self) -> None:
        if self.config.get("connection_file"):
            with suppress(OSError):
                os.unlink(self.config["connection_file"])
        for host in self._far_hosts():
            self.event(address.host_proc(host.index), "leave", {})
        super().shut_down()

    def close_link(self) -> None:
        self.log.close()
        if self._link is not None and self._gatekeeper is not None:
            self._link.close(500)
            self._gatekeeper.close()


class FarProcess(HostProcess):
    """A host process that has dialled home."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        link = self._link = self.context.socket(zmq.DEALER)
        link.setsockopt(zmq.SNDHWM, 0)
        link.setsockopt(zmq.RCVHWM, 0)
        link.setsockopt(zmq.LINGER, 500)
        link.setsockopt(zmq.IDENTITY, b"h%d" % self.index)
        link.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        link.curve_serverkey = config["home_key"].encode()
        link.curve_publickey, link.curve_secretkey = config["public"].encode(), config["secret"].encode()
        self._home_gone = link.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        link.connect(config["home"])
        self.loop.watch_socket(link, self._take_link)
        self.loop.watch_socket(self._home_gone, self._on_disconnect)
        self._last_beat = time.monotonic() + LOST_AFTER_S
        fields = {
            "hostname": self.hostname,
            "pid": os.getpid(),
            "num_cores": os.cpu_count() or 1,
            "num_gpus": count_gpus(),
        }
        self.event(address.HOME, "join", fields)
        self.loop.call_later(BEAT_S, self._beats)

    def _take_link(self) -> None:
        self.take_far([f.buffer for f in self._link.recv_multipart(copy=False)])

    def _on_disconnect(self) -> None:
        self._home_gone.recv_multipart()
        # A home that only lost the connection is back within its beat; one that ended isn't.
        self._last_beat = min(self._last_beat, time.monotonic() - LOST_AFTER_S + 2 * BEAT_S)

    def send_far(self, host: int, frames: list[Any]) -> None:
        self._link.send_multipart(frames, copy=sum(map(len, frames)) < 1 << 16)

    def on_event(self, src: int, name: str, fields: dict[str, Any]) -> None:
        if name == "up":
            self.rank_is_up(src)
            frame = wire.pack(
                wire.EVENT, src=src, dst=address.HOME, name=b"up", payload=pickle.dumps(fields, 5)
            )
            self._link.send(frame)
        elif name == "exit":
            for end in fields["ends"]:
                self.router.forget(end["proc"])
            self.spread_ends(fields["ends"])
        elif name == "beat":
            self._last_beat = time.monotonic()
        elif name == "leave":
            self.shut_down()

    def _beats(self) -> None:
        if time.monotonic() - self._last_beat > LOST_AFTER_S:
            self.shut_down()
            return
        self.event(address.HOME, "beat", {})
        self.loop.call_later(BEAT_S, self._beats)

    def rank_ended(self, end: dict[str, Any]) -> None:
        super().rank_ended(end)
        self.event(address.HOME, "rank_ended", {"end": end})

    def rank_printed(self, rank: Rank, piece: Piece) -> None:
        fields = {"rank": rank.rank, "origin": piece.origin, "seq": 0, "piece": tuple(piece)}
        frame = wire.pack(
            wire.EVENT, src=rank.proc, dst=address.HOME, name=b"output", payload=pickle.dumps(fields, 5)
        )
        self._link.send(frame)

    def close_link(self) -> None:
        self._link.disable_monitor()
        self._link.close(500)
        self._home_gone.close(0)


def count_gpus() -> int:
    """Return the number of NVIDIA GPUs of this machine, as the driver lists them; torch isn't asked."""
    try:
        return len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        return 0


def visible_gpus() -> list[str]:
    """Return what CUDA_VISIBLE_DEVICES would name each GPU here, within what we were given ourselves."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [d.strip() for d in given.split(",") if d.strip()]
    return [str(i) for i in range(count_gpus())]


def main() -> None:
    """Run a host process; its configuration comes as JSON on standard input, readiness is told on fd 1."""
    config = json.loads(sys.stdin.buffer.read())
    process: HostProcess = HomeProcess(config) if config["host"] == 0 else FarProcess(config)
    try:
        os.write(1, b"ready\n")
    except OSError:  # who started us is gone already
        process.loop.call_later(0, process.shut_down)
    log = os.open(config.get("log") or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    status = 1
    try:
        process.run()
        status = 0
    finally:
        # Interpreter shutdown would wait for whatever socket an error has left open.
        os._exit(status)
