"""The floor of a call to a rank of a mesh on another machine: the same sockets, one after the other, with
nothing on top.

A program here, a relay, a connection that is encrypted (by ssh's forwarding, if a port of it is given), a
controller, a rank: what forwards messages reads and sends them, and does no more.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile

import zmq

_PARTY = """
import json, sys, zmq
kind, at = sys.argv[1], json.loads(sys.argv[2])
context = zmq.Context()

def bound(address, public=b""):
    found = context.socket(zmq.ROUTER)
    if public:
        found.curve_server, found.curve_publickey, found.curve_secretkey = True, public, at["secret"].encode()
    found.bind(address)
    return found

def dialled(address, name, public=b""):
    found = context.socket(zmq.DEALER)
    found.setsockopt(zmq.IDENTITY, name)
    if public:
        found.curve_serverkey = public
        found.curve_publickey, found.curve_secretkey = zmq.curve_keypair()
    found.connect(address)
    return found

if kind == "rank":
    link = dialled(at["host"] or at["ranks"], b"rank")
    link.send(b"up")
    while True:
        link.send(link.recv())
elif kind == "controller":
    key = at["public"].encode()
    far, near = bound(at["tcp"], key), bound(at["ranks"], key if at["host"] else b"")
    near.recv_multipart()
elif kind == "host":
    far, near = dialled(at["ranks"], b"rank", at["public"].encode()), bound(at["host"])
    far.send(near.recv_multipart()[1])
else:
    far, near = dialled(at["dialled"], b"relay", at["public"].encode()), bound(at["local"])
poller = zmq.Poller()
poller.register(far, zmq.POLLIN)
poller.register(near, zmq.POLLIN)
while True:
    for socket, _ in poller.poll():
        if kind == "controller" and socket is far:
            near.send_multipart([b"rank", far.recv_multipart()[1]])
        elif kind == "controller":
            far.send_multipart([b"relay", near.recv_multipart()[1]])
        elif socket is near:
            far.send(near.recv_multipart()[1])
        else:
            near.send_multipart([b"rank" if kind == "host" else b"program", far.recv()])
"""


class RawHops:
    """The processes of the chain.

    Args:
        port: where the controller listens, on 127.0.0.1.
        dialled: the address that the relay dials: the controller's, or one that leads to it.
        host_port: where the controller listens for the host process of the rank, if that's a host of its own.
    """

    def __init__(self, port: int, dialled: str, host_port: int = 0) -> None:
        folder = tempfile.mkdtemp()
        public, secret = zmq.curve_keypair()
        at = json.dumps(
            {
                "tcp": f"tcp://127.0.0.1:{port}",
                "dialled": dialled,
                "ranks": f"tcp://127.0.0.1:{host_port}" if host_port else f"ipc://{folder}/r",
                "host": f"ipc://{folder}/h" if host_port else "",
                "local": f"ipc://{folder}/l",
                "public": public.decode(),
                "secret": secret.decode(),
            }
        )
        parties = ("controller", "relay", *(["host"] if host_port else []), "rank")
        self._processes = [subprocess.Popen([sys.executable, "-c", _PARTY, kind, at]) for kind in parties]
        self._context = zmq.Context()
        self._link = self._context.socket(zmq.DEALER)
        self._link.setsockopt(zmq.IDENTITY, b"program")
        self._link.connect(f"ipc://{folder}/l")

    def call(self) -> None:
        """Have the rank answer."""
        self._link.send(b"x" * 64)
        self._link.recv()

    def close(self) -> None:
        """End them."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._context.destroy(0)
