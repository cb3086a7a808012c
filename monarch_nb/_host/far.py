"""A host process that has dialled home: it does what the home says for the ranks of its machine, and passes messages on.

When the home is gone it ends, with its ranks.
"""

from __future__ import annotations

import os
import pickle
import secrets
from typing import Any

import zmq

from monarch_nb._host.process import BEAT_S, LOST_AFTER_S, PREEMPT_S, HostProcess, count_gpus
from monarch_nb._host.resource_monitor import Rows
from monarch_nb._host.stack_desk import Found
from monarch_nb._host.supervisor import Rank
from monarch_nb._host.warming import Zygote
from monarch_nb._protocol.exits import RankExit
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb._wire.marks import Piece
from monarch_nb._wire.message import Message
from monarch_nb._wire.pieces import cut, join
from monarch_nb._wire.process import machine_id

SILENT_S = 60.0
"""How long the home may say nothing though the connection stands: its process was stopped, or its machine is out of reach."""
_HANDSHAKE_MS = 5000


class FarProcess(HostProcess):
    """A host process that has dialled home."""

    def __init__(self, config: dict[str, Any], zygote: Zygote | None = None) -> None:
        super().__init__(config, zygote)
        link = self._link = self.context.socket(zmq.DEALER)
        link.setsockopt(zmq.SNDHWM, 0)
        link.setsockopt(zmq.RCVHWM, 0)
        link.setsockopt(zmq.LINGER, 500)
        link.setsockopt(zmq.IDENTITY, b"h%d.%d.%s" % (self.index, config.get("generation", 0), secrets.token_hex(8).encode()))
        link.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        link.curve_serverkey = config["home_key"].encode()
        link.curve_publickey, link.curve_secretkey = config["public"].encode(), config["secret"].encode()
        self._home_gone = link.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        link.setsockopt(zmq.IPV6, int("[" in config["home"]))
        link.connect(config["home"])
        self.loop.watch_socket(link, self._take_link)
        self.loop.watch_socket(self._home_gone, self._on_disconnect)
        self._last_beat = self.loop.clock() + LOST_AFTER_S
        self._limit_s = LOST_AFTER_S
        fields = {
            "hostname": self.hostname,
            "pid": os.getpid(),
            "machine": machine_id(),
            "num_cores": os.cpu_count() or 1,
            "num_gpus": count_gpus(),
        }
        self.event(address.HOME, "join", fields)
        self.loop.call_later(BEAT_S, self._beats)

    def _take_link(self) -> None:
        self.take_far(join([f.buffer for f in self._link.recv_multipart(copy=False)]))

    def before_accept(self, message: Message) -> None:
        """What ranks write before a cell begins belongs to the one before: read it first."""
        if message.kind == wire.FANOUT and message.src == address.HOME:
            receivers, inner_frame = wire.unpack_fanout(message)
            inner = wire.unpack(inner_frame)
            if inner.name == b"run":
                self.begin_cell([proc for proc, _ in receivers], inner.origin)

    def before_export(self, message: Message) -> None:
        if message.kind == wire.REPLY and message.dst == address.HOME:
            self.supervisor.drain()  # what a cell has printed goes before the news of its end

    def _on_disconnect(self) -> None:
        self._home_gone.recv_multipart()
        # A home that only lost the connection is back within its beat; one that ended isn't.
        self._limit_s = LOST_AFTER_S
        self._last_beat = min(self._last_beat, self.loop.clock() - LOST_AFTER_S + 2 * BEAT_S)

    def send_far(self, host: int, frames: list[Any]) -> None:
        self._link.send_multipart(cut(frames), copy=sum(map(len, frames)) < 1 << 16)

    # --- what the home and ranks tell

    def on_up(self, src: int, fields: dict[str, Any]) -> None:
        """A rank here answers: the home wants to know."""
        self.rank_is_up(src)
        frame = wire.pack(wire.EVENT, src=src, dst=address.HOME, name=b"up", payload=pickle.dumps(fields, 5))
        self.send_far(0, [frame])

    def on_exit(self, src: int, fields: dict[str, Any]) -> None:
        """Ranks have ended somewhere."""
        ends = [RankExit.of(end) for end in fields["ends"]]
        for end in ends:
            self.router.forget(end.proc)
        self.spread_ends(ends)

    def on_revived(self, src: int, fields: dict[str, Any]) -> None:
        """Ranks have been started again somewhere."""
        for proc in [p for p in self._routes if not address.is_client(p) and p not in fields["procs"]]:
            self.event(proc, "revived", fields)

    def on_beat(self, src: int, fields: dict[str, Any]) -> None:
        """The home lives. From now on its end is seen by the connection's; if that stands, it's only being slow."""
        self._last_beat, self._limit_s = self.loop.clock(), SILENT_S

    def on_watch_vitals(self, src: int, fields: dict[str, Any]) -> None:
        """Somebody watches the state of the mesh, or nobody does any more."""
        self.resource_monitor.watch(fields["on"])

    def on_look(self, src: int, fields: dict[str, Any]) -> None:
        """The home wants to know how everything is now."""
        self.resource_monitor.look(lambda: self.event(address.HOME, "looked", {"ref": fields["ref"]}))

    def on_take_stacks(self, src: int, fields: dict[str, Any]) -> None:
        """The home wants the stacks of ranks that don't answer."""

        def taken(found: Found) -> None:
            self.event(address.HOME, "stacks", {"ref": fields["ref"], "found": found})

        self.stack_desk.take(fields["procs"], fields["native"], taken)

    def on_leave(self, src: int, fields: dict[str, Any]) -> None:
        """This host isn't needed any more."""
        self.shut_down()

    def on_take_place(self, src: int, fields: dict[str, Any]) -> None:
        """Another host is lost: begin anew in its place."""
        self.successor = {**self.config, **fields, "directory": f"{self.directory}.{fields['host']}"}
        self.shut_down()

    # --- the end

    def preempted(self) -> None:
        self.event(address.HOME, "preempted", {})
        self.loop.call_later(self.config.get("preempt_s", PREEMPT_S), self.shut_down)

    def shut_down(self) -> None:
        self.event(address.HOME, "leaving", {})
        super().shut_down()

    def _beats(self) -> None:
        if self.loop.clock() - self._last_beat > self._limit_s:
            self.shut_down()
            return
        self.event(address.HOME, "beat", {})
        self.loop.call_later(BEAT_S, self._beats)

    def rank_ended(self, end: RankExit) -> None:
        super().rank_ended(end)
        self.event(address.HOME, "rank_ended", {"end": end.plain()})

    def rank_pulse(self, proc: int, trouble: str) -> None:
        self.event(address.HOME, "pulse", {"proc": proc, "trouble": trouble})

    def vitals_changed(self, rows: Rows, host: dict[str, Any] | None) -> None:
        self.event(address.HOME, "vitals", {"rows": rows, "host": host})

    def rank_printed(self, rank: Rank, piece: Piece) -> None:
        fields = {"rank": rank.rank, "piece": tuple(piece)}
        frame = wire.pack(
            wire.EVENT, src=rank.proc, dst=address.HOME, name=b"output", payload=pickle.dumps(fields, 5)
        )
        self.send_far(0, [frame])

    def close_link(self) -> None:
        self.event(address.HOME, "left", {})  # the last word: the ends of all ranks here have been told
        self._link.disable_monitor()
        self._link.close(500)
        self._home_gone.close(0)
