"""The mesh of a notebook: named processes that outlive the kernel, cells that run on them, variables that go to and fro.

start     a mesh, ready; or the running one of that name
attach    a running mesh
Mesh      a ProcMesh with a name, a namespace for cells, and a life of its own
"""

from __future__ import annotations

import itertools
import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from monarch_nb._client import launch, spare
from monarch_nb._client.output import Listener
from monarch_nb._client.session import RequestFailed, Session
from monarch_nb._post.pending import Arrivals
from monarch_nb._shape import Extent, Shape, format_ranks, parse_ranks
from monarch_nb._wire import codec
from monarch_nb._wire import message as wire
from monarch_nb.actor.future import Future
from monarch_nb.actor.host_mesh import HostMesh
from monarch_nb.actor.outcome import one_value
from monarch_nb.actor.proc_mesh import ProcMesh
from monarch_nb.actor.value_mesh import ValueMesh
from monarch_nb.exceptions import ActorError, MeshUsageError, RankFailure, RankTimeout
from monarch_nb.status import MeshStatus, snapshot

IDLE_TIMEOUT_S = 8 * 3600.0
CELL_GRACE_S = 2.0
"""How long the other ranks may go on with a cell that has raised on one."""
INTERRUPT_S = 3.0
"""How long ranks have to react to an interrupt."""
OUTPUT_S = 2.0
"""How long a finished cell waits for output that is still on its way."""

_RECORD = "mesh"
_origins = itertools.count(secrets.randbits(14) << 17 | 1)


class CellWatcher(Listener, Protocol):
    """Sees a cell run. `result` and `failed` are called by the thread that runs the cell."""

    def result(self, rank: int, ended: Mapping[str, Any]) -> None:
        """The cell has ended on a rank."""
        ...

    def failed(self, rank: int, failure: RankFailure) -> None:
        """The cell has ended on a rank by an error."""
        ...


@dataclass
class CellResult:
    """How a cell ended.

    Attributes:
        values: the last expression's value by rank, where asked for.
        failures: what was raised, by rank, first in time first.
        seconds: run time by rank.
        unfinished: ranks that were still running when the cell was given up.
        stopped: ranks that were interrupted because another had failed, or the time was up.
        interrupted: whether the user interrupted it.
    """

    ranks: tuple[int, ...]
    values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, RankFailure] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    unfinished: tuple[int, ...] = ()
    stopped: set[int] = field(default_factory=set)
    interrupted: bool = False


class Mesh(ProcMesh):
    """A named mesh. Everything that a `ProcMesh` can, and cells.

    Example:
        >>> mesh = start("dev", {"gpus": 4})          # doctest: +SKIP
        >>> mesh.push({"lr": 0.1})                     # doctest: +SKIP
        >>> mesh.run("print(rank, lr)")                # doctest: +SKIP
        >>> mesh.stop().get()                          # doctest: +SKIP
    """

    def __init__(self, name: str, session: Session, record: Mapping[str, Any]) -> None:
        extent = Extent(record["labels"], record["sizes"])
        super().__init__(
            record["group"], record["procs"], Shape.full(extent), tuple(record["hosts"]), session.office
        )
        self._name = name
        self.last_error: BaseException | None = None

    @property
    def name(self) -> str:
        """The name that `%mesh start` gave it."""
        return self._name

    def select(self, ranks: str | Sequence[int]) -> tuple[int, ...]:
        """Return ranks from a rank set such as `0-3,7` or `hosts=0,gpus=::2`."""
        if isinstance(ranks, str):
            return parse_ranks(ranks, self.extent)
        return tuple(ranks)

    def part(self, ranks: str | Sequence[int]) -> ProcMesh:
        """Return some ranks as a mesh of one dimension."""
        chosen = self.select(ranks)
        return ProcMesh(
            self._group, self._all_procs, Shape(Extent(["ranks"], [len(chosen)]), chosen), self._hosts, self._office
        )

    # --- cells

    def run(
        self,
        source: str,
        ranks: str | Sequence[int] = "all",
        *,
        watcher: CellWatcher | None = None,
        number: int = 1,
        want_value: bool = False,
        timeout: float | None = None,
    ) -> CellResult:
        """Run a cell on ranks and wait for it.

        Args:
            source: IPython source: `await`, `!command` and magics work.
            ranks: a rank set.
            watcher: sees output and results as they come; without one, output goes to this program's stdout.
            number: the cell's number in tracebacks.
            want_value: bring the last expression's value here.
            timeout: seconds; then the ranks are interrupted and RankTimeout is raised.

        Raises:
            KeyboardInterrupt: after the ranks have been interrupted, too.
        """
        self._check_alive("run")
        return _CellRun(self, self.select(ranks), source, watcher, number, want_value, timeout).run()

    def interrupt(self, ranks: str | Sequence[int] = "all") -> None:
        """Send SIGINT to ranks: a cell that runs there gets a KeyboardInterrupt."""
        procs = [self._procs[r] for r in self.select(ranks)]
        self._session.request("signal", procs=procs, number=int(signal.SIGINT))

    # --- variables

    def push(self, variables: Mapping[str, Any], ranks: str | Sequence[int] = "all") -> None:
        """Set variables in the cells' namespace of ranks."""
        for name in variables:
            _check_name(name)
        self.part(ranks)._work(b"push", dict(variables), f"push of {', '.join(variables)}").get()

    def pull(self, *names: str, ranks: str | Sequence[int] = "all") -> ValueMesh[Any]:
        """Return variables of the cells' namespace: one value per rank, or a dict for several names.

        Raises:
            ActorError: if a rank has no such variable.
        """
        for name in names:
            _check_name(name)
        part = self.part(ranks) if ranks != "all" else self
        found: ValueMesh[Any] = part._work(b"pull", list(names), f"pull of {', '.join(names)}").get()
        return found.map(lambda values: values[names[0]]) if len(names) == 1 else found

    # --- life

    def status(self) -> MeshStatus:
        """Return how the mesh is just now."""
        return snapshot(self._session.request("status"), self._group, self.sizes)

    def stop(self, reason: str = "", *, grace_s: float = 3.0) -> Future[None]:
        """End the mesh: its ranks, its host processes, its connection file."""
        session = self._session
        self._stopped = reason or "it was stopped"
        reply = session.ask("shut_down")
        pid = session.connection.pid if session.connection is not None else 0

        def finish(_pending: Any) -> None:
            session.close()
            if pid:
                _wait_for_end(pid, grace_s + 10.0)

        return Future(reply, finish, f"stop of {self._name}")

    def __repr__(self) -> str:
        return f"<Mesh {self._name!r}: {self.extent}>"


def _check_name(name: str) -> None:
    if not name.isidentifier():
        raise ValueError(f"a variable's name is an identifier, not {name!r}")


def _wait_for_end(pid: int, timeout_s: float) -> None:
    import os
    import select

    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    poller.poll(int(timeout_s * 1000))
    os.close(fd)


class _CellRun:
    """One run of a cell on some ranks. Used by one thread, once."""

    def __init__(
        self,
        mesh: Mesh,
        ranks: tuple[int, ...],
        source: str,
        watcher: CellWatcher | None,
        number: int,
        want_value: bool,
        timeout: float | None,
    ) -> None:
        self._mesh = mesh
        self._ranks = ranks
        self._watcher = watcher
        self._fields = {"source": source, "number": number, "want_value": want_value}
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._timeout = timeout
        self._origin = next(_origins) & 0xFFFFFFFF
        self._result = CellResult(ranks)
        self._interrupts = 0
        self._tracker = _OutputTracker(watcher)

    def run(self) -> CellResult:
        session = self._mesh._session
        output = session.output
        if output is not None and self._watcher is not None:
            output.listen(self._origin, self._tracker)
        try:
            self._send_and_wait()
            self._await_output()
        finally:
            if output is not None:
                output.leave(self._origin)
        if self._result.interrupted:
            raise KeyboardInterrupt
        if self._interrupts and not self._result.failures:
            raise RankTimeout(self._late())
        return self._result

    def _late(self) -> str:
        text = f"the cell did not end within {self._timeout:g} s: "
        if self._result.unfinished:
            return text + (
                f"ranks {format_ranks(self._result.unfinished)} did not react to an interrupt either. "
                "See %mesh status; %mesh stop -f ends the mesh"
            )
        return text + f"ranks {format_ranks(self._result.stopped)} were interrupted"

    def _send_and_wait(self) -> None:
        office = self._mesh._office
        procs = [self._mesh._procs[r] for r in self._ranks]
        arrivals = Arrivals(office, procs)
        body = codec.encode(self._fields)
        office.expect(arrivals)
        office.post_all(
            [(p, i) for i, p in enumerate(procs)], wire.CALL, body, ref=arrivals.ref, name=b"run",
            origin=self._origin, context=self._mesh._context,
        )  # fmt: skip
        if office.ends:
            office.check_ends(arrivals)
        for i, reply in enumerate(arrivals.replies):
            if not self._wait(reply):
                left = set(range(len(procs))) - {r.slot for r in arrivals.replies[:i]}
                self._give_up(sorted(left))
                return
            self._take(reply)

    def _wait(self, reply: Any) -> bool:
        """Wait for the next rank to end; False if it's no use any more."""
        reader = self._mesh._office.reader
        while True:
            try:
                if reader.wait(reply, self._deadline):
                    return True
            except KeyboardInterrupt:
                self._result.interrupted = True
            if self._interrupts:
                return False
            self._interrupts += 1
            self._deadline = time.monotonic() + INTERRUPT_S
            self._mesh.interrupt(self._unfinished())

    def _unfinished(self) -> list[int]:
        over = self._result.seconds.keys() | self._result.failures.keys()
        return [r for r in self._ranks if r not in over]

    def _take(self, reply: Any) -> None:
        rank = self._ranks[reply.slot]
        try:
            ended = one_value(reply, f"cell on rank {rank}")
        except Exception as error:
            failures = getattr(error, "failures", ())
            self._failed(rank, failures[0] if failures else RankFailure((rank,), type(error).__name__, str(error)))
            return
        self._result.seconds[rank] = ended["seconds"]
        if ended["status"] == "error":
            if self._interrupts and ended["ename"] == "KeyboardInterrupt":
                self._result.stopped.add(rank)
                return
            self._failed(rank, _failure_of(rank, ended))
            return
        if "object" in ended:
            self._result.values[rank] = ended["object"]
        if self._watcher is not None:
            self._watcher.result(rank, ended)

    def _failed(self, rank: int, failure: RankFailure) -> None:
        self._result.failures[rank] = failure
        if self._watcher is not None:
            self._watcher.failed(rank, failure)
        if len(self._result.failures) == 1 and not self._interrupts:
            grace = time.monotonic() + CELL_GRACE_S
            self._deadline = grace if self._deadline is None else min(grace, self._deadline)

    def _give_up(self, slots: list[int]) -> None:
        self._result.unfinished = tuple(self._ranks[s] for s in slots)

    def _await_output(self) -> None:
        """Wait for the last output of ranks that have ended: it comes another way than their answers."""
        if self._watcher is None:
            return
        expected = set(self._result.seconds) - set(self._result.unfinished)
        self._tracker.wait_for(expected, time.monotonic() + OUTPUT_S)


class _OutputTracker:
    """Passes output on, and knows on which ranks all of it has come."""

    def __init__(self, watcher: CellWatcher | None) -> None:
        import threading

        self._watcher = watcher
        self._ended: set[int] = set()
        self._changed = threading.Condition()

    def text(self, rank: int, stream: str, text: str) -> None:
        if self._watcher is not None:
            self._watcher.text(rank, stream, text)

    def display(self, rank: int, content: dict[str, Any]) -> None:
        if self._watcher is not None:
            self._watcher.display(rank, content)

    def end(self, rank: int) -> None:
        with self._changed:
            self._ended.add(rank)
            self._changed.notify_all()

    def wait_for(self, ranks: set[int], deadline: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: ranks <= self._ended, max(0.0, deadline - time.monotonic()))


def _failure_of(rank: int, ended: Mapping[str, Any]) -> RankFailure:
    from monarch_nb._post.failure import revive

    return RankFailure(
        ranks=(rank,),
        type=ended["ename"],
        message=ended["evalue"],
        traceback=ended["traceback"],
        exception=revive({"exception": ended.get("exception")}),
        when=ended["when"],
    )


def cell_error(result: CellResult) -> ActorError:
    """Return the error for a cell that has failed: equal failures once, with their ranks, first in time first."""
    found: dict[tuple[str, str, str], list[RankFailure]] = {}
    for failure in sorted(result.failures.values(), key=lambda f: f.when):
        found.setdefault((failure.type, failure.message, failure.traceback), []).append(failure)
    folded = [
        RankFailure(
            ranks=tuple(sorted(r for f in group for r in f.ranks)),
            type=group[0].type, message=group[0].message, traceback=group[0].traceback,
            exception=group[0].exception, when=group[0].when, first=i == 0 and len(found) > 1, end=group[0].end,
        )
        for i, group in enumerate(found.values())
    ]  # fmt: skip
    text = f"the cell failed on {len(result.failures)} of {len(result.ranks)} ranks"
    if result.stopped:
        text += f"; ranks {format_ranks(result.stopped)} were interrupted"
    if result.unfinished:
        text += f"; ranks {format_ranks(result.unfinished)} are still running it (%mesh stop -f ends the mesh)"
    return ActorError(text, folded, result.values, len(result.unfinished))


# --- starting and attaching


def start(
    name: str = "mesh",
    dims: Mapping[str, int] | None = None,
    *,
    num_hosts: int = 0,
    env: Mapping[str, str] | None = None,
    idle_timeout_s: float = IDLE_TIMEOUT_S,
    method: str = "fork",
) -> Mesh:
    """Start a mesh that outlives this program, and wait until its ranks are up.

    Args:
        name: its name, unique among this user's meshes.
        dims: dimensions on each host; by default one rank per GPU, or per core where there is none.
        num_hosts: number of host processes on this machine that stand for hosts; 0: the machine itself.
        env: environment variables for the ranks.
        idle_timeout_s: seconds without a client after which it ends.

    Raises:
        MeshUsageError: if a mesh of that name runs already.
    """
    path = launch.connection_path(name)
    if any(c.name == name for c in launch.list_connections()):
        raise MeshUsageError(f"mesh {name!r} runs already. Attach to it: %mesh start {name}, or choose another name")
    session = Session.connect(spare.take())
    try:
        return _start_on(session, name, path, dims, num_hosts, env or {}, idle_timeout_s, method)
    except BaseException:
        _abandon(session)
        raise


def _start_on(
    session: Session,
    name: str,
    path: str,
    dims: Mapping[str, int] | None,
    num_hosts: int,
    env: Mapping[str, str],
    idle_timeout_s: float,
    method: str,
) -> Mesh:
    hosts = _hosts(session, num_hosts)
    if dims is None:
        dims = default_dims(session)
    procs = hosts.spawn_procs(dims, name=name, env=env, method=method)
    procs.initialized.get(120)
    record = {
        "group": procs._group,
        "procs": procs._procs,
        "labels": procs.extent.labels,
        "sizes": procs.extent.sizes,
        "hosts": procs._hosts,
    }
    session.request("set_name", name=_RECORD, value=record)
    session.request("adopt", name=name, idle_timeout_s=idle_timeout_s, connection_file=path)
    return _made(name, session, record)


def _hosts(session: Session, num_hosts: int) -> HostMesh:
    if not num_hosts:
        return HostMesh((0,), session=session)
    from monarch_nb.job.process import start_hosts

    tickets = start_hosts(session, [f"host{i}" for i in range(num_hosts)])[0]
    shape = Shape.full(Extent(["hosts"], [num_hosts]))
    hosts = HostMesh([t["host"] for t in tickets], shape, session)
    hosts.initialized.get(60)
    return hosts


def default_dims(session: Session) -> dict[str, int]:
    """Return one rank per GPU, or per core where there is none."""
    home = session.request("status")["hosts"][0]
    return {"gpus": home["num_gpus"]} if home["num_gpus"] else {"procs": home["num_cores"]}


def _abandon(session: Session) -> None:
    from contextlib import suppress

    with suppress(RequestFailed, TimeoutError):
        session.request("shut_down")
    session.close()


def attach(name: str | None = None) -> Mesh:
    """Return a running mesh of this user.

    Args:
        name: its name; may be left out if there's only one.

    Raises:
        MeshNotFound: naming those that run.
    """
    connection = launch.find_connection(name)
    session = Session.connect(connection)
    record = session.request("get_name", name=_RECORD)
    if record is None:
        session.close()
        raise ValueError(f"{connection.name!r} has not finished starting")
    return _made(connection.name, session, record)


def _made(name: str, session: Session, record: Mapping[str, Any]) -> Mesh:
    from monarch_nb._client import session as sessions

    mesh = Mesh(name, session, record)
    assert session.output is not None
    session.output.default.sizes[record["group"]] = len(mesh)
    sessions.use(session)
    return mesh
