"""Hosts that were started by hand: a worker loop on each machine, and a program that attaches to them.

Both sides hold one key file, so only who can read it gets in, and nothing crosses the network in clear. The
worker starts a host process for whoever attaches, which then dials that program's controller.
"""

from __future__ import annotations

import json
import os
import socket as sockets
import subprocess
import tempfile
from collections.abc import Sequence

import msgspec
import zmq
from msgspec.structs import replace

from monarch_nb._client import launch
from monarch_nb._client import session as sessions
from monarch_nb._client.preferences import preferences
from monarch_nb._host.config import HostConfig
from monarch_nb._protocol.ranks import Ticket, Tickets
from monarch_nb._shape import Extent, Shape
from monarch_nb._wire.directory import new_directory
from monarch_nb._wire.keys import Gatekeeper, KeyPair
from monarch_nb._wire.strangers import Strangers
from monarch_nb.actor import worker_address
from monarch_nb.actor.future import Future
from monarch_nb.actor.host_mesh import HostMesh
from monarch_nb.actor.worker_handover import hand_over
from monarch_nb.exceptions import MeshStartError

ATTACH_S = 20.0
OWN_KEY = "trust_all_connections"
"""Monarch's word for no authentication; here it stands for this user's own key file, which other users can't
read.
"""


def key_file(path: str) -> KeyPair:
    """Return the keys in a file, which is created (mode 0600) if it doesn't exist.

    Raises:
        PermissionError: if others can read the file.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    else:
        with open(fd, "w") as file:
            json.dump(KeyPair.new()._asdict(), file)
    if os.stat(path).st_mode & 0o077:
        raise PermissionError(f"{path} can be read by others; it is a secret: chmod 600 {path}")
    with open(path) as file:
        return KeyPair(**json.load(file))


def _attach_s() -> float:
    return preferences.attach_s or ATTACH_S


def _keys(ca: str | None) -> KeyPair:
    if ca is None or ca == OWN_KEY:
        ca = os.path.join(launch.runtime_directory(), "monarch_nb-workers.key")
    return key_file(ca)


def run_worker_loop_forever(address: str, ca: str | None = None) -> None:
    """Offer this machine as a host to one program after the other, until interrupted.

    Args:
        address: where to listen, as in `tcp://10.0.0.5:7000`; see `worker_address` for all that it may be.
        ca: path of the key file that programs attach with; by default this user's own.

    Raises:
        ValueError: if that's no address.
        MeshStartError: if nobody can listen there.
    """
    where = worker_address.listening(worker_address.parse(address))
    keys = _keys(ca)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    gatekeeper = Gatekeeper(context)
    gatekeeper.allowed.add(keys.public)
    listener = context.socket(zmq.REP)
    listener.curve_server = True
    listener.curve_publickey, listener.curve_secretkey = keys.public.encode(), keys.secret.encode()
    strangers = Strangers(context, listener)
    hosts: list[subprocess.Popen[bytes]] = []
    try:
        _listen(listener, where)
        _serve(listener, gatekeeper, strangers, hosts)
    finally:
        for host in hosts:
            host.terminate()
        strangers.close()
        listener.close(0)
        gatekeeper.close()
        context.term()


def _listen(listener: zmq.Socket[bytes], where: worker_address.Endpoint) -> None:
    if where.is_v6:
        listener.setsockopt(zmq.IPV6, 1)
    if where.fd is not None:
        listener.setsockopt(zmq.USE_FD, os.dup(where.fd))
    try:
        listener.bind(str(where))
    except zmq.ZMQError as error:
        raise MeshStartError(f"a worker can't listen at {where}: {error}") from None


def _serve(
    listener: zmq.Socket[bytes],
    gatekeeper: Gatekeeper,
    strangers: Strangers,
    hosts: list[subprocess.Popen[bytes]],
) -> None:
    watched = [(s, zmq.POLLIN) for s in (listener, gatekeeper.socket, strangers.monitor)]
    while True:
        ready = {s for s, _ in zmq.zmq_poll(watched, -1)}
        if strangers.monitor in ready:
            strangers.read_event()
        if gatekeeper.socket in ready:
            gatekeeper.answer()
        if listener in ready:
            hosts[:] = [h for h in hosts if h.poll() is None]
            request = listener.recv(copy=False)
            strangers.knows(request)
            listener.send_json(_start_host(msgspec.json.decode(request.bytes, type=Ticket), hosts))


def _start_host(ticket: Ticket, hosts: list[subprocess.Popen[bytes]]) -> dict[str, str]:
    directory = os.path.join(new_directory(), f"h{ticket.host}")
    named = replace(ticket, label=ticket.label or sockets.gethostname())
    config = HostConfig(ticket.host, directory, launch.importable_path()).with_ticket(named, directory)
    try:
        hosts.append(launch.start_host_process(config))
    except MeshStartError as error:
        return {"error": str(error)}
    return {"error": ""}


def attach_to_workers(
    ca: str | None = None, workers: Sequence[str | Future[str]] = (), name: str | None = None
) -> HostMesh:
    """Return the machines on which `run_worker_loop_forever` listens, as a host mesh.

    Args:
        ca: path of the key file that they were started with; by default this user's own.
        workers: their addresses, as in `tcp://10.0.0.5:7000`, or futures of them.
        name: what these hosts are called in status and logs, with a number; by default by their host names.

    Raises:
        MeshStartError: naming the workers that don't answer, or one that has another key.
        ValueError: without workers.
    """
    if not workers:
        raise ValueError(
            "attach_to_workers needs the addresses of workers, as in workers=['tcp://10.0.0.5:7000']"
        )
    keys = _keys(ca)
    session = sessions.current()
    addresses = [
        worker_address.parse(worker if isinstance(worker, str) else worker.get(_attach_s()))
        for worker in workers
    ]
    tickets = []
    for i, worker in enumerate(addresses):
        bind = worker_address.tcp(worker_address.own_address_towards(worker), "*")
        tickets += session.request(Tickets(1, [f"{name}{i}" if name else ""], bind))
    hand_over(list(zip(addresses, tickets, strict=True)), keys, _attach_s())
    hosts = [ticket.host for ticket in tickets]
    return HostMesh(hosts, Shape.full(Extent(["hosts"], [len(hosts)])), session)


def new_key_file(directory: str | None = None) -> str:
    """Return the path of a new key file for workers and programs to share."""
    path = os.path.join(directory or tempfile.mkdtemp(prefix="monarch_nb-"), "workers.key")
    key_file(path)
    return path
