"""Hands tickets to workers, all at once: each starts a host process with its own."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec
import zmq
from msgspec.structs import asdict

from monarch_nb._protocol.ranks import Ticket
from monarch_nb._wire.connection_events import read_event
from monarch_nb._wire.keys import KeyPair
from monarch_nb.actor.worker_address import WorkerAddress
from monarch_nb.exceptions import MeshStartError

_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class _Asked(NamedTuple):
    """A worker that has been dialled."""

    worker: WorkerAddress
    asker: zmq.Socket[bytes]
    monitor: zmq.Socket[bytes]

    def close(self) -> None:
        """Hang up."""
        self.asker.disable_monitor()
        self.asker.close(0)
        self.monitor.close(0)


def hand_over(tickets: Sequence[tuple[WorkerAddress, Ticket]], keys: KeyPair, timeout_s: float) -> None:
    """Give each worker its ticket; return when all have started their host processes.

    Raises:
        MeshStartError: naming a worker that has another key, starts nothing, or doesn't answer in time.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, max(1023, 3 * len(tickets) + 16))
    dialled: list[_Asked] = []
    try:
        dialled.extend(_dial(context, worker, ticket, keys) for worker, ticket in tickets)
        _hear_all(dialled, time.monotonic() + timeout_s)
    finally:
        for each in dialled:
            each.close()
        context.term()


def _dial(
    context: zmq.Context[zmq.Socket[bytes]], worker: WorkerAddress, ticket: Ticket, keys: KeyPair
) -> _Asked:
    asker = context.socket(zmq.REQ)
    asker.setsockopt(zmq.LINGER, 0)
    asker.curve_serverkey = keys.public.encode()
    asker.curve_publickey, asker.curve_secretkey = keys.public.encode(), keys.secret.encode()
    asker.setsockopt(zmq.IPV6, int(worker.dial.is_v6))
    monitor = asker.get_monitor_socket(_FAILED)
    asker.connect(str(worker.dial))
    asker.send_json(asdict(ticket))
    return _Asked(worker, asker, monitor)


def _hear_all(dialled: Sequence[_Asked], deadline: float) -> None:
    waiting = list(dialled)
    while waiting:
        sockets = [(s, zmq.POLLIN) for each in waiting for s in (each.asker, each.monitor)]
        left_ms = max(0, int(1000 * (deadline - time.monotonic())))
        ready = {socket for socket, _ in zmq.zmq_poll(sockets, left_ms)}
        if not ready:
            raise MeshStartError(_silent([asked.worker for asked in waiting]))
        waiting = [asked for asked in waiting if not _has_answered(asked, ready)]


def _has_answered(asked: _Asked, ready: Collection[object]) -> bool:
    """Say whether a worker has started its host process.

    Raises:
        MeshStartError: if it can't, or has another key.
    """
    if asked.asker in ready:
        _check_answer(asked.worker, asked.asker.recv())
        return True
    if asked.monitor in ready and read_event(asked.monitor)[0] & _FAILED:
        raise MeshStartError(
            f"the worker at {asked.worker.dial} has another key file than this program. Give both the same "
            f"one: run_worker_loop_forever({str(asked.worker.bind)!r}, ca=FILE) there, "
            "attach_to_workers(ca=FILE, ...) here"
        )
    return False


def _silent(workers: Sequence[WorkerAddress]) -> str:
    where = ", ".join(str(worker.dial) for worker in workers)
    return (
        f"no worker answers at {where}. On that machine: "
        f"run_worker_loop_forever({str(workers[0].bind)!r}, ca=...), with the same key file"
    )


def _check_answer(worker: WorkerAddress, answer: bytes) -> None:
    error = msgspec.json.decode(answer, type=dict[str, str])["error"]
    if error:
        raise MeshStartError(f"the worker at {worker.dial} could not start a host process: {error}")
