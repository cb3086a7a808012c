"""Rendezvous of processes started by torchrun (or srun, or anything else that sets RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT), through which each of their nodes gets the invitation to a mesh.

They meet at torch's store, which is plain and open to all who reach it. So nothing but public keys and
addresses is written there; the invitation is handed out by a socket of rank 0 that lets in those keys only,
encrypted.
"""

from __future__ import annotations

import json
import os
import socket as sockets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import zmq

from monarch_nb._wire.invitation import Invitation
from monarch_nb._wire.keys import Gatekeeper, KeyPair
from monarch_nb.exceptions import MeshStartError, MeshUsageError

if TYPE_CHECKING:
    from torch.distributed import PrefixStore

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
MEET_S = 60.0
"""How long processes wait for each other."""
_TRY_MS = 5_000
BY_HAND = "torchrun --nproc-per-node 4 -m monarch_nb.mesh.torchrun NAME"


def missing(environment: Mapping[str, str]) -> str:
    """Return why this program can't have been started by a launcher; empty if it was."""
    left = [key for key in NEEDED if not environment.get(key)]
    if left:
        return f"this program wasn't started by torchrun: {', '.join(left)} not set. Type: {BY_HAND}"
    wrong = next((k for k in ("RANK", "WORLD_SIZE", "MASTER_PORT") if not environment[k].isdigit()), None)
    return f"{wrong} = {environment[wrong]!r} is no number" if wrong else ""


@dataclass(frozen=True)
class Nodes:
    """The assignment of ranks to nodes.

    Attributes:
        of_ranks: the node of each rank, by a name that its ranks share.
    """

    rank: int
    of_ranks: tuple[str, ...]

    @property
    def firsts(self) -> tuple[int, ...]:
        """The first rank of each node."""
        return tuple(self.of_ranks.index(node) for node in dict.fromkeys(self.of_ranks))

    @property
    def first(self) -> int:
        """The first rank of this one's node."""
        return self.of_ranks.index(self.of_ranks[self.rank])

    def num_each(self) -> int:
        """Return how many ranks each node has.

        Raises:
            MeshUsageError: if they don't all have as many.
        """
        counts = {node: self.of_ranks.count(node) for node in self.of_ranks}
        if len(set(counts.values())) > 1:
            raise MeshUsageError(
                f"a mesh has as many ranks on each host, and these nodes have {list(counts.values())} "
                "processes: give all the same --nproc-per-node"
            )
        return next(iter(counts.values()))


class Meeting:
    """The rendezvous of all processes of one launch, at torch's store.

    Raises:
        MeshUsageError: if this program wasn't started by a launcher.
        MeshStartError: if the others don't come.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        why_not = missing(environment)
        if why_not:
            raise MeshUsageError(why_not)
        self.rank, self.num_ranks = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        where = f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}"
        try:
            self._store = _store(environment, hosts_it=self.rank == 0)
            # A connection does one thing at a time: a waiting thread blocks the others.
            self._listener = _store(environment, hosts_it=False)
            self.nodes = Nodes(self.rank, self._gather("node", _node(environment)))
        except RuntimeError as error:  # torch's own errors are such, and say little
            raise MeshStartError(
                f"rank {self.rank}: not all of {self.num_ranks} processes have come to {where} within "
                f"{MEET_S:g} s ({str(error).splitlines()[0]}). Were all nodes started, with the same address?"
            ) from None
        self.keys = KeyPair.new()
        if self.is_first:
            self._store.set(f"key/{self.rank}", self.keys.public)

    @property
    def is_first(self) -> bool:
        """Whether this is its node's first process: it starts the host."""
        return self.rank == self.nodes.first

    def _gather(self, what: str, mine: str) -> tuple[str, ...]:
        self._store.set(f"{what}/{self.rank}", mine)
        return tuple(
            v.decode() for v in self._store.multi_get([f"{what}/{i}" for i in range(self.num_ranks)])
        )

    # --- the invitation

    def hand_out(self, invitation: Invitation) -> None:
        """Begin to give each node's first process an invitation on request: rank 0 does this."""
        listener = _InvitationListener(self._firsts_keys(), invitation)
        hosts = dict.fromkeys(a.rpartition(":")[0] for a in invitation.addresses)
        self.say(
            "listener",
            json.dumps({"key": listener.public, "addresses": [f"{h}:{listener.port}" for h in hosts]}),
        )

    def _firsts_keys(self) -> set[str]:
        return {v.decode() for v in self._store.multi_get([f"key/{i}" for i in self.nodes.firsts])}

    def fetch(self) -> Invitation:
        """Return the invitation that rank 0 gives out.

        Raises:
            MeshStartError: if rank 0 has failed, with its words, or if it can't be reached.
        """
        listener = json.loads(self.hear("listener"))
        if "error" in listener:
            raise MeshStartError(f"rank 0: {listener['error']}")
        for address in listener["addresses"]:
            text = _knock(address, listener["key"], self.keys)
            if text:
                return Invitation.from_json(text)
        raise MeshStartError(
            f"rank {self.rank}: cannot reach rank 0 at {', '.join(listener['addresses'])}. A firewall?"
        )

    def refuse(self, why: str) -> None:
        """Tell all processes that there will be no mesh."""
        self.say("listener", json.dumps({"error": why}))

    # --- wording

    def say(self, key: str, text: str) -> None:
        """Publish a message under a key. All processes can read it."""
        self._store.set(key, text)

    def hear(self, key: str, timeout_s: float = MEET_S) -> str:
        """Wait for the message of a key.

        Raises:
            MeshStartError: if it doesn't come.
        """
        try:
            self._listener.wait([key], timedelta(seconds=timeout_s))
            return str(self._listener.get(key).decode())
        except RuntimeError as error:
            raise MeshStartError(
                f"rank {self.rank} has waited for rank 0 ({str(error).splitlines()[0]})"
            ) from None

    def messages(self, keys: Sequence[str]) -> list[str]:
        """Return the messages under those keys that exist already."""
        return [self._store.get(key).decode() for key in keys if self._store.check([key])]


def _store(environment: Mapping[str, str], *, hosts_it: bool) -> PrefixStore:
    """Return the store at which all processes meet: torchrun's own, or one of rank 0."""
    from torch.distributed import PrefixStore, TCPStore

    store = TCPStore(
        environment["MASTER_ADDR"],
        int(environment["MASTER_PORT"]),
        is_master=hosts_it and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        wait_for_workers=False,
        timeout=timedelta(seconds=MEET_S),
    )
    run = environment.get("TORCHELASTIC_RUN_ID", "") + environment.get("TORCHELASTIC_RESTART_COUNT", "")
    return PrefixStore(f"monarch_nb/{run}", store)


def _node(environment: Mapping[str, str]) -> str:
    """Return an identifier that exactly the processes of a node share."""
    return f"{sockets.gethostname()} {environment.get('GROUP_RANK', '')}".strip()


class _InvitationListener:
    """The socket that gives the invitation to processes whose keys it knows."""

    def __init__(self, keys: set[str], invitation: Invitation) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._gatekeeper = Gatekeeper(self._context)
        self._gatekeeper.allowed |= keys
        self._text = invitation.to_json().encode()
        pair = KeyPair.new()
        self.public = pair.public
        self._socket = self._context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.curve_server = True
        self._socket.curve_secretkey = pair.secret.encode()
        has_v6 = sockets.has_dualstack_ipv6()
        self._socket.setsockopt(zmq.IPV6, int(has_v6))
        self.port = self._socket.bind_to_random_port("tcp://[::]" if has_v6 else "tcp://0.0.0.0")
        threading.Thread(target=self._answer, name="mnb-listener", daemon=True).start()

    def _answer(self) -> None:
        poller = zmq.Poller()
        for each in (self._gatekeeper.socket, self._socket):
            poller.register(each, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._gatekeeper.socket in ready:
                self._gatekeeper.answer()
            if self._socket in ready:
                self._socket.recv()
                self._socket.send(self._text)


def _knock(address: str, key: str, keys: KeyPair) -> bytes:
    """Request the invitation at an address; return nothing if there's no answer."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    connection = context.socket(zmq.REQ)
    connection.setsockopt(zmq.LINGER, 0)
    connection.setsockopt(zmq.IPV6, int("[" in address))
    connection.curve_serverkey = key.encode()
    connection.curve_publickey, connection.curve_secretkey = keys.public.encode(), keys.secret.encode()
    try:
        connection.connect(address)
        connection.send(b"")
        return connection.recv() if connection.poll(_TRY_MS) else b""
    finally:
        connection.close()
        context.term()
