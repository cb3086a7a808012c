"""Obtains hosts from an engine: reserves places in a mesh, asks the engine, and waits until the hosts have
joined.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from monarch_nb._client import launch
from monarch_nb._client.session import Session
from monarch_nb._protocol.invitations import Invite, Refusals, Withdraw
from monarch_nb._protocol.programs import Adopt, Status
from monarch_nb._protocol.states import HostState
from monarch_nb._units import duration
from monarch_nb._wire.invitation import Invitation
from monarch_nb.exceptions import MeshStartError
from monarch_nb.job.allocation import Allocation
from monarch_nb.job.engines import Engine, Look, State
from monarch_nb.job.spec import HostSpec

JOIN_S = 60.0
"""How long hosts may take to join once the engine has granted them."""
QUEUE_EXPIRY_S = 30 * 86400.0
"""How long an invitation is valid while a request waits in a queue; its number of places limits its use."""
LOOK_S = 1.0
STUCK_S = 30.0
"""How long a request may wait for a reason that won't pass by itself."""


def reserve(session: Session, engine: Engine, asked: Allocation) -> tuple[Allocation, Invitation]:
    """Reserve places for hosts in a mesh; return the allocation with them, and the invitation."""
    spec = asked.spec
    num = spec.wanted.most + asked.plan.num_spares
    ports = [spec.ports.first, spec.ports.last] if spec.ports else []
    expires_s = QUEUE_EXPIRY_S if engine.can.queue else JOIN_S * 10
    labels = [*spec.machines, *[""] * num][:num] if spec.machines else []
    given = session.request(Invite(asked.mesh, num, expires_s, labels, spec.network, ports, spec.scratch))
    plan = replace(asked.plan, guest=given.guest)
    return replace(asked, hosts=tuple(given.hosts), plan=plan), Invitation.from_json(given.invitation)


def adopt(session: Session, asked: Allocation, owner: int | None) -> None:
    """Publish the name of a mesh that has no ranks yet.

    Args:
        owner: pid of the program that it ends with; None: it outlives all.
    """
    request = Adopt(
        name=asked.mesh,
        idle_timeout_s=asked.plan.idle_timeout_s,
        connection_file=launch.connection_path(asked.mesh),
        env=dict(asked.plan.env),
        dims=dict(asked.plan.dims or ()),
        rank_set="",
        journal=launch.new_journal(asked.mesh),
        owner_pid=owner,
    )
    session.request(request)


class Wait:
    """The wait for the hosts of one allocation."""

    def __init__(
        self, session: Session, engine: Engine, asked: Allocation, on_wait: Callable[[str], None]
    ) -> None:
        self._session, self._engine, self._asked, self._say = session, engine, asked, on_wait
        self._granted_at: float | None = None
        self._patience = _Patience(asked)

    def until_joined(self, wait_s: float | None) -> list[int]:
        """Return the hosts that have joined.

        Raises:
            TimeoutError: if they don't within `wait_s`.
            MeshStartError: naming those that haven't come, and why.
        """
        begun, looked, look = time.monotonic(), 0.0, Look(State.GRANTED)
        while True:
            joined = self._joined()
            now = time.monotonic()
            if len(joined) == len(self._asked.hosts):
                return joined
            if now - looked >= LOOK_S:
                look, looked = self._engine.look(self._asked), now
                self._tell(look, len(joined))
            if self._is_enough(look, len(joined), now):
                self._session.request(Withdraw(self._asked.plan.guest))
                return self._joined()
            self._check(look, joined, now)
            if wait_s is not None and now - begun > wait_s:
                raise TimeoutError
            time.sleep(0.1)

    def _joined(self) -> list[int]:
        rows = self._session.request(Status()).hosts
        return [row.index for row in rows if row.index in self._asked.hosts and row.state == HostState.UP]

    def _tell(self, look: Look, num: int) -> None:
        asked = self._asked
        if look.state == State.QUEUED:
            self._say(queued_text(asked, look))
        else:
            self._say(
                f"{asked.described()}: {num} of {len(look.nodes) or asked.spec.wanted} hosts have joined"
            )

    def _is_enough(self, look: Look, num: int, now: float) -> bool:
        """Return whether to begin with fewer hosts than the maximum: all granted hosts have joined, or the
        others won't.
        """
        granted = len(look.nodes)
        if look.state != State.GRANTED or num < self._asked.spec.wanted.least:
            return False
        has_failed = num + len(self._engine.logs(self._asked)) >= (granted or len(self._asked.hosts))
        return (granted > 0 and num >= granted) or has_failed or self._is_late(now)

    def _is_late(self, now: float) -> bool:
        return self._granted_at is not None and now - self._granted_at > JOIN_S

    def _check(self, look: Look, joined: list[int], now: float) -> None:
        """Raise if no more hosts can join.

        Raises:
            MeshStartError: if they won't: why, and which.
        """
        if look.state == State.ENDED:
            raise MeshStartError(f"{self._asked.described()} has ended: {look.reason}.{self._words()}")
        self._patience.check(look)
        if look.state != State.GRANTED:
            return
        self._granted_at = self._granted_at or now
        failed = len(self._engine.logs(self._asked))
        if self._is_late(now) or (
            failed and len(joined) + failed >= (len(look.nodes) or len(self._asked.hosts))
        ):
            raise MeshStartError(
                f"{len(joined)} of {self._asked.spec.wanted} hosts have joined the mesh.{self._words()}"
            )

    def _words(self) -> str:
        """Return the last messages of launchers, and the reasons for refused hosts."""
        refused = self._session.request(Refusals())
        lines = list(dict.fromkeys([*self._engine.logs(self._asked), *(f"refused: {r}" for r in refused)]))
        return "".join(f"\n  {line}" for line in lines) or " The launchers have printed nothing"


class InsideWait:
    """The wait for a mesh whose controller runs on the first host of an allocation."""

    def __init__(self, engine: Engine, asked: Allocation, on_wait: Callable[[str], None]) -> None:
        self._engine, self._asked, self._say = engine, asked, on_wait
        self._patience = _Patience(asked)

    def until_open(self, wait_s: float | None) -> Invitation:
        """Return the invitation to the mesh.

        Raises:
            TimeoutError: if there is none within `wait_s`.
            MeshStartError: if there won't be one, with what was written by the program that starts the mesh.
        """
        begun, asked = time.monotonic(), self._asked
        while True:
            look = self._engine.look(asked)
            if look.state == State.QUEUED:
                self._say(queued_text(asked, look))
            elif look.state == State.GRANTED:
                self._say(f"{asked.described()}: the mesh is being started on {_num_hosts(len(look.nodes))}")
                if found := self._engine.invitation(asked):
                    return Invitation.from_json(found)
            else:
                words = "".join(f"\n  {line}" for line in self._engine.logs(asked))
                raise MeshStartError(f"{asked.described()} has ended: {look.reason}.{words}")
            self._patience.check(look)
            if wait_s is not None and time.monotonic() - begun > wait_s:
                raise TimeoutError
            time.sleep(LOOK_S)


class _Patience:
    """A limit for requests that wait for a reason that won't pass by itself."""

    def __init__(self, asked: Allocation) -> None:
        self._asked = asked
        self._stuck_since: float | None = None

    def check(self, look: Look) -> None:
        """Raise if that has been so for too long.

        Raises:
            MeshStartError: saying why, and what to do.
        """
        now = time.monotonic()
        self._stuck_since = (self._stuck_since or now) if look.trouble else None
        if self._stuck_since is not None and now - self._stuck_since > STUCK_S:
            raise MeshStartError(
                f"{self._asked.described()} would wait for ever ({look.reason}): {look.trouble}. The "
                "request was cancelled"
            )


def queued_text(asked: Allocation, look: Look) -> str:
    """Return what is said of a request in a queue: how long, why, until when."""
    when = (
        f", starts about {time.strftime('%H:%M', time.localtime(look.starts_at))}" if look.starts_at else ""
    )
    age = duration(round(time.time() - asked.submitted_at))
    return (
        f"{asked.described()}: queued {age} ({look.reason}), {_hosts_text(asked.spec)}{when}; Ctrl-C leaves "
        "it queued"
    )


def _hosts_text(spec: HostSpec) -> str:
    return f"{spec.wanted} host{'s' * (spec.wanted.most != 1)}"


def _num_hosts(num: int) -> str:
    return f"{num} host{'s' * (num != 1)}"
