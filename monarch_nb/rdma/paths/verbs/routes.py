"""Connections to other processes: each serves one transfer at a time, and is kept for the next.

Those that failed are closed. The owner learns it with the next connection that it's asked for, and closes its
queue pair.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from monarch_nb.rdma.handle import Owner
from monarch_nb.rdma.path import Job
from monarch_nb.rdma.paths.verbs.connection import Connection
from monarch_nb.rdma.paths.verbs.nic import Nic
from monarch_nb.rdma.paths.verbs.questions import Connect, Refused
from monarch_nb.rdma.question import Question

ASK_S = 60.0
"""Time limit for an owner's answer, unless the transfer's own ends before. An owner that compiles or imports
may not answer for a while; that it has died is known without waiting.
"""
MAX_IDLE = 64
T = TypeVar("T")


class Ask(Protocol):
    """The interface that asks the owner of a job's buffer."""

    def __call__(self, job: Job, timeout_s: float, question: Question[T | Refused], /) -> T:
        """Return the owner's answer.

        Raises:
            PathUnavailable: if the owner refuses.
        """


class Route:
    """A connection with its destination: the owner's table, its address and key."""

    def __init__(
        self, connection: Connection, process: int, port: str, number: int, table: tuple[int, int]
    ) -> None:
        self.connection = connection
        self.process = process
        self.port = port
        self.number = number
        """The number of the owner's queue pair."""
        self.table = table
        self.was_used = False


class Routes:
    """This process' connections. Thread-safe."""

    def __init__(self, ask: Ask, own: Callable[[], Owner]) -> None:
        self._ask = ask
        self._own = own
        """Returns this process' own identity, as handles contain it at present."""
        self.idle: dict[tuple[int, str, str], list[Route]] = {}
        """Idle routes by the owner's process, the local port and the owner's port."""
        self._given_up: dict[int, list[int]] = {}
        self._lock = threading.Lock()

    def take_route(self, job: Job, nic: Nic, port: str) -> Route:
        """Return a connection between a NIC and the owner's port that no other transfer uses."""
        with self._lock:
            idle = self.idle.get((job.handle.owner.process, nic.port.name, port))
            if idle:
                return idle.pop()
        return self.connect(job, nic, port)

    def connect(self, job: Job, nic: Nic, port: str) -> Route:
        """Create a connection.

        Raises:
            VerbsError: if the other NIC's address can't be reached.
        """
        process, own = job.handle.owner.process, self._own()
        with self._lock:
            given_up = self._given_up.pop(process, [])
        connection = Connection(nic)
        try:
            question = Connect(job.handle, port, connection.info, given_up, own.addresses, own.process)
            found = self._ask(job, job.remaining_s(ASK_S), question)
            connection.connect(found.qp)
        except BaseException:
            connection.close()
            with self._lock:
                self._given_up.setdefault(process, []).extend(given_up)
            raise
        return Route(connection, process, port, found.qp.number, found.table)

    def give_back(self, route: Route) -> None:
        """Keep a connection for the next transfer."""
        too_many: list[Route] = []
        with self._lock:
            self.idle.setdefault((route.process, route.connection.nic.port.name, route.port), []).append(
                route
            )
            if sum(map(len, self.idle.values())) > MAX_IDLE:
                too_many = self.idle.pop(next(iter(self.idle)))
        for old in too_many:
            self.drop(old)

    def close_idle(self, process: int | None = None) -> None:
        """Close the idle connections to a process, or to all."""
        with self._lock:
            keys = [k for k in self.idle if process in (None, k[0])]
            routes = [route for key in keys for route in self.idle.pop(key)]
        for route in routes:
            self.drop(route)

    def drop(self, route: Route) -> None:
        """Close a connection, and tell its owner with the next question."""
        route.connection.close()
        with self._lock:
            self._given_up.setdefault(route.process, []).append(route.number)
