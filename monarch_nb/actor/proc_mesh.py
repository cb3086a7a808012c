"""A mesh of processes, on which actors are spawned and functions run."""

from __future__ import annotations

import inspect
import secrets
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from monarch_nb._client.heal_report import HealReport
from monarch_nb._client.outcome import refuse_dead
from monarch_nb._client.preferences import preferences
from monarch_nb._client.sessions import known
from monarch_nb._protocol import calls
from monarch_nb._protocol.events import Reshaped
from monarch_nb._protocol.healing import Heal, Report, Resize, SetPolicy
from monarch_nb._protocol.programs import Status
from monarch_nb._protocol.ranks import SetProcEnvironment, Stop, WaitProcs
from monarch_nb._protocol.script import Rendezvous
from monarch_nb._protocol.states import OnFailure, ProcState
from monarch_nb._protocol.work import Work
from monarch_nb._runtime.supervision import MeshFailure
from monarch_nb._shape import Extent, Shape
from monarch_nb._tracebacks import BadValue
from monarch_nb._transport.call import call
from monarch_nb._transport.mesh_tensors import mesh_tensors
from monarch_nb._transport.origin import origin_in
from monarch_nb._transport.pending import GatherReply
from monarch_nb._transport.transport import Transport
from monarch_nb._wire import address, codec
from monarch_nb._wire.mesh_address import MeshAddress
from monarch_nb.actor.active import activate
from monarch_nb.actor.actor_mesh import spawn_actors
from monarch_nb.actor.checked import checked
from monarch_nb.actor.envoy import ask_envoy, is_relayed
from monarch_nb.actor.future import Future, sent
from monarch_nb.actor.handle import MeshHandle, disown, known_transport, mesh_of, own_by_caller, placement_of
from monarch_nb.actor.outcome import value_mesh
from monarch_nb.actor.placement import Placement
from monarch_nb.exceptions import HealError, MeshStartError, SupervisionError, describe_end

if TYPE_CHECKING:
    from monarch_nb.actor.host_mesh import HostMesh
    from monarch_nb.actor.value_mesh import ValueMesh

T = TypeVar("T")
R = TypeVar("R")

STOP_S = 3.0
HEAL_S = 120.0
_NOT_RESIZED = "not resized, or not completely"
RENDEZVOUS_S = 60.0
POLICIES = (OnFailure.STOP, OnFailure.HEAL, OnFailure.SHRINK)


class ProcMesh(MeshHandle):
    """Processes with named dimensions. A handle: it may travel in messages.

    Example:
        >>> procs = this_host().spawn_procs({"gpus": 4})      # doctest: +SKIP
        >>> trainer = procs.spawn("trainer", Trainer, lr=0.1)  # doctest: +SKIP
        >>> procs.slice(gpus=0).execute(os.getpid).get().item()  # doctest: +SKIP
    """

    def __init__(
        self, placement: Placement, transport: Transport | None = None, mesh: MeshAddress | None = None
    ) -> None:
        super().__init__(placement, transport, mesh)
        self._stopped = ""
        if self._known_transport is not None:
            self._connected()

    def _connected(self) -> None:
        """Subscribe to new sizes of the mesh, once this process has connected to it."""
        session = known(self._transport)
        if self._placement.is_whole and session is not None:
            session.reshaped.subscribe(self._on_reshaped)

    # --- algebra

    def _with_shape(self, shape: Shape) -> Any:
        part = ProcMesh(self._placement.with_shape(shape), self._known_transport, self._mesh)
        part._stopped = self._stopped
        return part

    @property
    def name(self) -> str:
        """The name that these processes were spawned with."""
        return self._placement.group

    @property
    def host_indices(self) -> tuple[int, ...]:
        """Indices in their mesh of the hosts that these processes are on, each once; 0 is the
        controller's."""
        return self._placement.host_indices

    @property
    def host_mesh(self) -> HostMesh:
        """The hosts that these processes are on."""
        from monarch_nb.actor.host_mesh import HostMesh

        return HostMesh(self._placement.hosts, mesh=mesh_of(self))

    # --- actors and functions

    @checked
    def spawn(self, name: str, cls: type[T], *args: Any, **kwargs: Any) -> T:
        """Spawn an actor of class `cls` on each process. Doesn't wait: calls may follow at once.

        Returns:
            The actor mesh, typed as `cls`. `await` it, or `.initialized.get()`, to know that all are
            constructed.

        Raises:
            TypeError: if `cls` is no Actor or the arguments don't fit its constructor.
            CannotPickle: naming the argument that can't be sent.
        """
        if is_relayed(self):
            actors: MeshHandle = ask_envoy(self, ("spawn",), (name, cls, *args), kwargs).get()
            own_by_caller(actors)
            return cast("T", actors)
        self._check_alive("spawn")
        return cast("T", spawn_actors(self, name, cls, args, kwargs))

    @checked
    def execute(self, function: Callable[..., R], *args: Any, **kwargs: Any) -> Future[ValueMesh[R]]:
        """Call `function` on the main thread of each process.

        Raises:
            SupervisionError: (a DeviceMeshError) at once, if one of them is dead: nothing is called then, for
                the others might wait for it. Heal the mesh, or call a slice without them.

        Example:
            >>> procs.execute(lambda: torch.cuda.get_device_name()).get()  # doctest: +SKIP
        """
        if is_relayed(self):
            return ask_envoy(self, ("execute",), (function, *args), kwargs)
        what = f"execute({getattr(function, '__name__', 'function')})"
        self._check_alive(what)
        if self._transport.ends:
            refuse_dead(self._transport, self._placement.procs, what)
        try:
            return self._work(Work.EXECUTE, (function, args, kwargs), what)
        except codec.CannotPickle as error:
            raise codec.name_culprit(error, _parts_of_call(what, function, args, kwargs)) from error.__cause__

    def _work(self, name: str, fields: object, what: str, *, origin: int | None = None) -> Future[Any]:
        """Send a piece of work to all main threads; return a future of the values."""
        self._check_alive(what)
        transport, where = self._transport, self._placement
        body = codec.encode(fields, what)
        gather, shape = GatherReply(transport, where.procs), where.shape
        return sent(
            Future(gather, lambda pending: value_mesh(pending, shape, what), what),
            lambda: call(
                gather, where.receivers, name.encode(), body, context=where.context,
                origin=origin_in(transport) if origin is None else origin,
            ),
        )  # fmt: skip

    def set_environment(self, variables: Mapping[str, str] | Sequence[Mapping[str, str]]) -> Future[Any]:
        """Set environment variables on all processes: the same, or one mapping for each in rank order."""
        fields = dict(variables) if isinstance(variables, Mapping) else [dict(v) for v in variables]
        each = [fields] * len(self._placement.procs) if isinstance(fields, dict) else fields
        self._session.tell(SetProcEnvironment(dict(zip(self._placement.procs, each, strict=True))))
        return self._work(Work.SET_ENVIRONMENT, fields, "set_environment")

    def open_rendezvous(self) -> Rendezvous:
        """Have the first of these processes start a store for the run of a script; works while the process is
        busy.

        Raises:
            RankTimeout: if it doesn't within a minute, which is enough to import torch.
        """
        first = part_at(self, [0])._work(calls.OPEN_RENDEZVOUS.decode(), None, "open_rendezvous")
        found: Rendezvous = first.get(RENDEZVOUS_S).item()
        return found

    # --- life

    @property
    def initialized(self) -> Future[bool]:
        """A future that is done once all processes are up; it fails if one isn't."""
        if is_relayed(self):
            return ask_envoy(self, ("initialized", "then"), (bool,))
        session = self._session
        reply = session.ask(WaitProcs(list(self._placement.procs)))

        def finish(pending: Any) -> bool:
            pending.read()
            dead = [
                (i, end)
                for i, p in enumerate(self._placement.procs)
                if (end := session.transport.ends.get(p)) is not None
            ]
            if dead:
                lines = "\n".join(f"rank {i}: {describe_end(end)}" for i, end in dead[:4])
                raise MeshStartError(
                    f"{len(dead)} of {len(self._placement.procs)} ranks did not start:\n{lines}"
                )
            return True

        return Future(reply, finish, f"start of {self._placement.group}")

    def __await__(self) -> Generator[Any, None, Self]:
        yield from self.initialized.__await__()
        return self

    def stop(self, reason: str = "", *, grace_s: float | None = None) -> Future[None]:
        """End these processes: actors clean up, with what they have spawned, then they leave; after
        `grace_s` seconds they are killed.
        """
        if grace_s is None:
            grace_s = preferences.stop_s if preferences.stop_s is not None else STOP_S
        disown(self)
        if is_relayed(self):
            return ask_envoy(self, ("stop",), (reason,), {"grace_s": grace_s})
        session = self._session
        self._stopped = reason or "it was stopped"
        reply = session.ask(Stop(list(self._placement.procs), grace_s))

        def finish(pending: Any) -> None:
            pending.read()

        return Future(reply, finish, f"stop of {self._placement.group}")

    # --- faults

    def healthy(self) -> bool:
        """Say whether all these processes run, and nothing is being healed.

        Example:
            >>> if not procs.healthy():                  # doctest: +SKIP
            ...     procs.heal()
        """
        registry = self._session.request(Status())
        rows = {row.proc: row for row in registry.procs}
        if self._stopped or self._placement.group in registry.healing:
            return False
        return all(rows[p].state in (ProcState.STARTING, ProcState.RUNNING) for p in self._placement.procs)

    @checked
    def heal(self, *, timeout_s: float = HEAL_S) -> HealReport:
        """Repair the losses of these processes; returns once everything is restored.

        Dead processes start anew at their points (on a new host, if theirs is lost), their actors are made
        again with the arguments they were spawned with, as are actors that have failed; the default process
        group is formed anew. Old handles work again. Processes that hang in a cell that was given up are
        ended first: no mesh works with them.

        Raises:
            HealError: if something couldn't be put back. What could, is.
            RankTimeout: if it takes longer than `timeout_s` seconds; it goes on.

        Example:
            >>> try:                                     # doctest: +SKIP
            ...     trainer.step.call(batch).get()
            ... except MeshError:
            ...     procs.heal()
        """
        return self._settle(
            self._session.request(Heal(self._placement.group, list(self._placement.procs)), timeout_s)
        )

    @checked
    def resize(self, *, timeout_s: float = HEAL_S, force: bool = False, **sizes: int) -> HealReport:
        """Change the sizes of this mesh: ranks are added or stopped. Remaining ones keep their memory; their
        numbers may change.

        Actors on all of the mesh are spawned on new ranks, too, and the default process group is formed anew.
        This handle, and those on such actors, have the new sizes afterwards; slices that were made before
        keep theirs.

        Args:
            force: start as many as the system allows, though this machine seems too small for them.

        Raises:
            HealError: if it can't be done: an unknown dimension, a size below 1, a cell that runs.

        Example:
            >>> procs.resize(gpus=4).messages            # doctest: +SKIP
        """
        asked = Resize(self._placement.group, sizes, force=force)
        return self._settle(self._session.request(asked, timeout_s), _NOT_RESIZED)

    @checked
    def shrink(self, *, timeout_s: float = HEAL_S) -> HealReport:
        """Leave out lost ranks: the dimension whose reduction costs the fewest living ranks becomes
        smaller.
        """
        return self._settle(self._session.request(Resize(self._placement.group), timeout_s), _NOT_RESIZED)

    @checked
    def take_hosts(self, hosts: Sequence[int], *, timeout_s: float = HEAL_S) -> HealReport:
        """Start ranks on further hosts, which have joined and have no ranks: the dimension `hosts` grows.

        Args:
            hosts: their indices.

        Raises:
            HealError: if there's no such dimension, or a host that isn't free; while a cell runs.
        """
        sizes = {"hosts": self.sizes.get("hosts", 0) + len(hosts)}
        asked = Resize(self._placement.group, sizes, list(hosts))
        return self._settle(self._session.request(asked, timeout_s), _NOT_RESIZED)

    @checked
    def leave_hosts(self, hosts: Sequence[int], *, timeout_s: float = HEAL_S) -> HealReport:
        """Give up some hosts: their ranks are stopped, with their state.

        Args:
            hosts: their indices.

        Raises:
            HealError: if the mesh has no ranks there, or none elsewhere; while a cell runs.
        """
        asked = Resize(self._placement.group, leave=list(hosts))
        return self._settle(self._session.request(asked, timeout_s), _NOT_RESIZED)

    def _settle(self, found: Report, what: str = "healing was not complete") -> HealReport:
        self._session.healed(found.actor_ids)
        report = HealReport.of(found)
        if report.problems:
            raise HealError(report, what)
        return report

    def on_failure(
        self, do: str | Callable[[MeshFailure], Any], *, max_restarts: int = 5, window_s: float = 600.0
    ) -> None:
        """Set the policy for the death of a rank.

        Args:
            do: "stop": nothing, uses of the rank raise until somebody heals it (the default); "heal": it's
                put back by itself, also when no program is connected; "shrink": the mesh goes on without it;
                or a function of this program that is called with the failure, in a thread of its own, and may
                return one of these words.
            max_restarts: after so many heals within `window_s` seconds it's "stop". The second one waits half
                a second, each further one twice as long as the one before.

        Raises:
            ValueError: for another word.

        Example:
            >>> procs.on_failure("heal", max_restarts=3)  # doctest: +SKIP
        """
        if not callable(do) and do not in POLICIES:
            raise BadValue(f"on_failure takes {', '.join(map(repr, POLICIES))} or a function, not {do!r}")
        session = self._session
        session.fault_handlers.pop(self._placement.group, None)
        if callable(do):
            session.fault_handlers[self._placement.group] = lambda failure: self._handle(do, failure)
        session.request(
            SetPolicy(
                self._placement.group,
                OnFailure.CALL if callable(do) else OnFailure(do),
                max_restarts,
                window_s,
            )
        )

    def _handle(self, function: Callable[[MeshFailure], Any], failure: MeshFailure) -> None:
        try:
            answer = function(failure)
            if answer == OnFailure.HEAL:
                self.heal()
            elif answer == OnFailure.SHRINK:
                self.shrink()
        except Exception as error:  # nobody else would be told
            print(
                f"on_failure of {self._placement.group}: {type(error).__name__}: {error}",
                file=sys.stderr,
                flush=True,
            )

    def _on_reshaped(self, record: Reshaped) -> None:
        """Handle new sizes of a group of ranks: take them on, if this handle stands for all of the group."""
        if record.group == self._placement.group and self._placement.is_whole:
            shape = Shape.full(Extent(record.labels, record.sizes))
            self._placement = Placement(tuple(record.procs), shape, record.group, tuple(record.hosts))

    def to_table(self) -> str:
        """Return the host of each process as a table: `1.gpu[0]` is the first on host 1. The last dimension
        runs across.

        Example:
            >>> print(procs.to_table())              # doctest: +SKIP
                     gpus=0    gpus=1
            hosts=0  0.gpu[0]  0.gpu[1]
            hosts=1  1.gpu[0]  1.gpu[1]
        """
        on_hosts = [address.host_of(proc) for proc in self._placement.procs]
        hosts = sorted(set(on_hosts))
        cells = [f"{hosts.index(host)}.gpu[{on_hosts[:i].count(host)}]" for i, host in enumerate(on_hosts)]
        *outer, last = list(self.sizes) or [""]
        rows: dict[str, list[str]] = {}
        head: dict[str, None] = {}
        for point, cell in zip(self.extent.points(), cells, strict=True):
            head[f"{last}={point[last]}" if last else ""] = None
            rows.setdefault(", ".join(f"{dim}={point[dim]}" for dim in outer), []).append(cell)
        table = [["", *head], *([label, *row] for label, row in rows.items())]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        if not widths[0]:  # one dimension
            table, widths = [row[1:] for row in table], widths[1:]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)

    def activate(self) -> Any:
        """Use this mesh as the current one within a `with` block: tensors that torch's functions make there
        are on its ranks, each has its own.

        Example:
            >>> with procs.activate():                   # doctest: +SKIP
            ...     x = torch.rand(3, 4).reduce("gpus", "sum")
        """
        return activate(self)

    def rank_tensor(self, dim: str) -> Any:
        """Return a tensor of the mesh: each rank's place along a dimension, a whole number."""
        return mesh_tensors().rank_tensor(self, dim)

    def rank_tensors(self) -> Any:
        """Return each rank's places along all dimensions, as tensors of the mesh by name."""
        return mesh_tensors().rank_tensors(self)

    def process_group(self, dims: Sequence[str] | str) -> Any:
        """Return the process groups along dimensions, for `monarch_nb.remote` functions: each rank gets its
        own `torch.distributed.ProcessGroup`.
        """
        return mesh_tensors().process_group(self, dims)

    def _check_alive(self, what: str) -> None:
        if self._stopped:
            transport = self._known_transport
            if transport is not None and transport.closed:  # all of the mesh was stopped
                raise transport.closing_error()
            raise SupervisionError(
                f"{what}: the proc mesh {self._placement.group!r} is dead: {self._stopped}"
            )

    # --- output

    async def logging_option(
        self, stream_to_client: bool = True, aggregate_window_sec: float | None = 0.1, level: int = 20
    ) -> None:
        """Set how the ranks' output is shown in this program.

        Args:
            stream_to_client: whether to show it at all.
            aggregate_window_sec: seconds over which equal lines of different ranks are folded; None writes
                everything as it comes, with no prefix.
            level: threshold of the ranks' `logging`.
        """
        session = self._session
        if session.output is not None:
            session.output.default.enabled = stream_to_client
            session.output.default.window_s = aggregate_window_sec
        await self.execute(_set_log_level, level)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop().get(30)

    def __reduce__(self) -> tuple[Any, ...]:
        where = self._placement
        return _unpickle, (where.group, where.all_procs, where.shape, where.hosts, mesh_of(self))

    def __repr__(self) -> str:
        return f"<ProcMesh {self._placement.group}: {self.extent}>"


def _parts_of_call(
    what: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, object]:
    """Return the function and the arguments of a call, by the names that an error has for them."""
    try:
        named = inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # the signature doesn't fit, or there's none
        named = {**{str(number): value for number, value in enumerate(args, 1)}, **kwargs}
    return {what: function, **{f"{what}, argument `{name}`": value for name, value in named.items()}}


def _unpickle(
    group: str, procs: tuple[int, ...], shape: Shape, hosts: tuple[int, ...], mesh: MeshAddress | None
) -> ProcMesh:
    return ProcMesh(Placement(procs, shape, group, hosts), None, mesh)


# --- for the rest of the package


def part_at(mesh: ProcMesh, positions: Sequence[int]) -> ProcMesh:
    """Return the processes at some positions as a mesh of one dimension."""
    return ProcMesh(placement_of(mesh).at(positions), known_transport(mesh), mesh_of(mesh))


def work_on(
    mesh: ProcMesh, name: str, fields: object, what: str, *, origin: int | None = None
) -> Future[Any]:
    """Send work to the main threads of a mesh; return a future of the values.

    Args:
        name: of the work (`Work`).
        fields: what it is given.
        what: what people call it.
        origin: in whose name; by default the running code's.

    Raises:
        SupervisionError: if the mesh has been stopped.
        CannotPickle: naming what can't be sent.

    Example:
        >>> work_on(mesh, Work.PULL, ["loss"], "pull of loss").get()   # doctest: +SKIP
    """
    return mesh._work(name, fields, what, origin=origin)


def why_stopped(mesh: ProcMesh) -> str:
    """Return why this program has stopped these processes; empty if it hasn't."""
    return mesh._stopped


def check_alive(mesh: ProcMesh, what: str) -> None:
    """Raise if this program has stopped the processes.

    Raises:
        SupervisionError: if it has stopped them, saying why.
    """
    mesh._check_alive(what)


def mark_stopped(mesh: ProcMesh, reason: str) -> None:
    """Mark processes as stopped: the next use of the handle raises."""
    mesh._stopped = reason


def _set_log_level(level: int) -> None:
    import logging

    logging.getLogger().setLevel(level)


def new_group(name: str | None) -> str:
    """Return a name for new processes; a given one is made unique by a suffix only where it's needed."""
    return f"{name or 'procs'}-{secrets.token_hex(3)}"


def grid(host_labels: Extent, per_host: Extent) -> Extent:
    """Return the extent of `per_host` processes on each of some hosts.

    Raises:
        ValueError: if both have a dimension of the same name.
    """
    both = set(host_labels.labels) & set(per_host.labels)
    if both:
        raise BadValue(f"per_host names {sorted(both)}, which the hosts have already ({host_labels})")
    return Extent([*host_labels.labels, *per_host.labels], [*host_labels.sizes, *per_host.sizes])
