"""The agents of one task: a process on each host, which ends with the task."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from monarch_nb._client.session import Session
from monarch_nb.actor.future import Future
from monarch_nb.actor.host_mesh import HostMesh
from monarch_nb.exceptions import ActorError, MeshError
from monarch_nb.mesh.shipping.agent import SyncAgent
from monarch_nb.mesh.shipping.host_broadcast import Trust

AGENT_S = 60.0
GROUP = "environment-agents"

_Answer = TypeVar("_Answer")


@dataclass
class Agents:
    """The agents by host, with the hosts whose agent is lost."""

    by_host: dict[int, SyncAgent]
    trust: Trust[int] = field(default_factory=Trust)

    def ask(
        self,
        ask: Callable[[SyncAgent], Future[_Answer]],
        timeout_s: float,
        hosts: Iterable[int] | None = None,
    ) -> dict[int, _Answer]:
        """Send all agents the same request at once; those that fail are left out from then on."""
        futures = {}
        for host in list(self.by_host if hosts is None else hosts):
            if host not in self.trust.lost:
                futures[host] = ask(self.by_host[host])
        answers: dict[int, _Answer] = {}
        deadline = time.monotonic() + timeout_s
        for host, future in futures.items():
            try:
                answers[host] = future.get(max(0.1, deadline - time.monotonic()))
            except Exception as error:
                self.trust.lose(host, reason_of(error))
        return answers


@contextmanager
def agents_on(session: Session, hosts: Sequence[int]) -> Iterator[Agents]:
    """Start an agent on each host: a process in a group of its own, so that one's end affects no other."""
    with ExitStack() as stack:
        agents = Agents({})
        for host in hosts:
            try:
                procs = HostMesh((host,), session=session).spawn_procs(name=f"{GROUP}-{host}")
            except MeshError as error:  # the host is lost, or has no room
                agents.trust.lose(host, reason_of(error))
                continue
            stack.callback(_stop, procs)
            agents.by_host[host] = procs.spawn("agent", SyncAgent)
        stack.callback(lambda: agents.ask(lambda agent: agent.close.call_one(), AGENT_S))
        yield agents


def _stop(procs: Any) -> None:
    with suppress(Exception):  # the agent is gone already
        procs.stop().get(AGENT_S)


def reason_of(error: BaseException) -> str:
    """Return the error of a host in one line: the agent's exception, without the remote call's context."""
    if isinstance(error, ActorError) and error.failures:
        return error.failures[0].message.partition("\n")[0]
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return str(cause).splitlines()[0] if str(cause) else type(cause).__name__
