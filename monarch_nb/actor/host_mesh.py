"""A mesh of hosts, on which processes are spawned."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, cast

import msgspec
from msgspec.structs import replace

from monarch_nb import _reload
from monarch_nb._client import launch
from monarch_nb._client import session as sessions
from monarch_nb._client.session import Session
from monarch_nb._protocol.rank_spec import GroupSpec
from monarch_nb._protocol.ranks import Spawn, Stop, StopHosts, WaitHosts
from monarch_nb._protocol.states import StartMethod
from monarch_nb._protocol.work import Work
from monarch_nb._shape import Extent, Point, Shape, encode_extent
from monarch_nb._tracebacks import BadType, BadValue
from monarch_nb._transport import process_context
from monarch_nb._transport.pending import OneReply
from monarch_nb._wire import codec
from monarch_nb._wire.limits import VARIABLE, parse_limits
from monarch_nb._wire.mesh_address import MeshAddress
from monarch_nb._wire.process import wait_until_gone
from monarch_nb.actor.bootstrap_command import BootstrapCommand, commands_of
from monarch_nb.actor.envoy import ask_envoy, is_relayed
from monarch_nb.actor.future import Future
from monarch_nb.actor.handle import MeshHandle, mesh_of, own_by_caller, placement_of
from monarch_nb.actor.ownership import acting
from monarch_nb.actor.placement import Placement
from monarch_nb.actor.proc_bind import check_bindings
from monarch_nb.actor.proc_mesh import ProcMesh, grid, mark_stopped, new_group, work_on
from monarch_nb.exceptions import MeshError, MeshUsageError

if TYPE_CHECKING:
    from monarch_nb._reload import ReloadRequest
    from monarch_nb._sync import SyncReceipt
    from monarch_nb.actor.workspace import Workspace

CONTROLLER_ENDS_S = 10.0


class HostMesh(MeshHandle):
    """The machines of a mesh, each with a host process.

    Args:
        hosts: index of each host in its mesh.
        shape: how they are laid out; by default a single host has no dimension, several have `hosts`.
        owned: whether this handle may end the hosts. A handle received in a message may not, nor may a rank's
            handle on its own host.
    """

    def __init__(
        self,
        hosts: Sequence[int],
        shape: Shape | None = None,
        session: Session | None = None,
        *,
        mesh: MeshAddress | None = None,
        owned: bool = True,
    ) -> None:
        if session is None and process_context.is_own_mesh(mesh):
            session = sessions.current()
        if shape is None:
            extent = Extent([], []) if len(hosts) == 1 else Extent(["hosts"], [len(hosts)])
            shape = Shape.full(extent)
        super().__init__(Placement.of_hosts(hosts, shape), session.transport if session else None, mesh)
        self._known_session = session
        self._python: str | None = None
        self._stoppable: list[ProcMesh] = []
        self._life = _Life(owned)

    @property
    def _session(self) -> Session:
        session = self._known_session
        if session is None:
            session = self._known_session = sessions.of_transport(self._transport)
        return session

    @property
    def _hosts(self) -> tuple[int, ...]:
        """Their indices in the mesh."""
        return self._placement.host_indices

    def _with_shape(self, shape: Shape) -> Self:
        part = type(self)(self._placement.hosts, shape, self._known_session, mesh=self._mesh)
        part._python, part._life = self._python, self._life
        return part

    def _check_alive(self) -> None:
        if self._life.is_shut_down:
            raise RuntimeError(
                "HostMesh has already been shut down; another comes from this_host(), or from a "
                "job's apply() and state()"
            )

    def _check_owned(self, what: str) -> None:
        self._check_alive()
        if not self._life.owned:
            raise RuntimeError(
                f"cannot {what} a HostMesh that is a reference and not owned: it came in a message, "
                f"or is a rank's own host. Let the program {what} it that got it from a job or "
                "this_host()"
            )

    def spawn_procs(
        self,
        per_host: Mapping[str, int] | None = None,
        bootstrap: Callable[[], None] | Callable[[], Awaitable[None]] | None = None,
        name: str | None = None,
        proc_bind: Sequence[Mapping[str, str]] | None = None,
        bootstrap_command: BootstrapCommand | Callable[[Point], BootstrapCommand] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        method: str = "fork",
        force: bool = False,
        imports: Sequence[str] = (),
    ) -> ProcMesh:
        """Start processes on each host. Doesn't wait until they are up: calls may follow at once.

        Args:
            per_host: dimensions on each host, as in `{"gpus": 8}`; by default a single process.
            bootstrap: called in each process before anything else.
            name: shown in status and logs.
            proc_bind: CPUs and NUMA nodes of each process of a host: mappings with `cpus` or `physcpubind`
                (`"0-3,8"`), `cpunodebind`, `membind`.
            bootstrap_command: starts each process (see `default_bootstrap_cmd`), instead of a fork from a
                warm interpreter; or a function that returns the command for a point.
            env: environment variables, set before user code runs; what must be there before torch is imported
                wants method="spawn".
            force: start more than the machine seems to have room for.
            method: "fork" from a warm interpreter (10 ms each), or "spawn" a fresh one (a second each with
                torch).
            imports: modules that the warm interpreter imports before it forks them, once for all of a host,
                which also share the memory. They must start no threads. One that can't be imported is left to
                the code that uses it.

        Raises:
            ValueError: for a size below 1, an unknown method, a binding or a command that can't be, or what's
                no module's name.
            RuntimeError: if the hosts have been shut down.
            RequestFailed: if there's no room for so many.

        Example:
            >>> procs = this_host().spawn_procs({"gpus": 4})  # doctest: +SKIP
        """
        if method not in set(StartMethod):
            raise BadValue(f"method is one of {', '.join(StartMethod)}; not {method!r}")
        if is_relayed(self):
            given = (per_host, bootstrap, name, proc_bind, bootstrap_command)
            procs = cast(
                "ProcMesh",
                ask_envoy(
                    self,
                    ("spawn_procs",),
                    given,
                    {"env": env, "method": method, "force": force, "imports": imports},
                ).get(),
            )
            own_by_caller(procs)
            return procs
        self._check_alive()
        inner = Extent.of(per_host or {})
        extent = grid(self.extent, inner)
        group = new_group(name)
        spec = replace(
            self._spec(group, extent, bootstrap, env or {}),
            bind=check_bindings(proc_bind, inner.nelements),
            commands=commands_of(bootstrap_command, extent),
            imports=_check_imports(imports),
        )
        session = self._session
        started = session.request(
            Spawn(list(self._hosts), inner.nelements, group, spec, StartMethod(method), force, acting())
        )
        if session.output is not None:
            session.output.default.sizes[group] = extent.nelements
        placement = Placement(tuple(started), Shape.full(extent), group, self._hosts)
        mesh = ProcMesh(placement, session.transport)
        self._stoppable.append(mesh)
        own_by_caller(mesh)
        if process_context.rank is None:
            _reload.install()  # `sync` has this program, too, load what has changed; ranks start meanwhile
        return mesh

    def _spec(self, group: str, extent: Extent, bootstrap: Any, env: Mapping[str, str]) -> GroupSpec:
        """Return the settings that all ranks of a spawn share."""
        return GroupSpec(
            group=group,
            extent=encode_extent(extent),
            env=check_env(env),
            sys_path=launch.importable_path(),
            cwd=os.getcwd(),
            argv0=sys.argv[0] if sys.argv else "",
            bootstrap=_encode_bootstrap(bootstrap),
            python=self._python,
            gpu_dimension="gpus" in extent.labels,
        )

    def with_python_executable(self, path: str) -> Self:
        """Return these hosts with another interpreter for what is spawned on them, and on `this_host()`
        there.
        """
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise TypeError(
                f"with_python_executable takes the path of an interpreter on those hosts, not {path!r}"
            )
        other = self._with_shape(self._shape)
        other._python = str(os.fspath(path))
        return other

    @property
    def initialized(self) -> Future[bool]:
        """A future that is done once all hosts have joined."""
        self._check_alive()
        session = self._session
        reply = session.ask(WaitHosts(list(self._hosts)))

        def finish(pending: Any) -> bool:
            pending.read()
            return True

        return Future(reply, finish, "start of hosts")

    async def sync_workspace(
        self, workspace: Workspace, conda: bool = False, auto_reload: bool = False
    ) -> SyncReceipt:
        """Copy folders of this machine to these hosts, as far as they lack them; ranks there import from
        them, by the paths of this machine.

        Args:
            workspace: the folders.
            conda: the environment, too: not by this method; `mesh.sync` is for that.
            auto_reload: have what runs there, and this program, reload modules that have changed; their
                objects keep identity and state.

        Returns:
            what was done, host by host and rank by rank.

        Raises:
            MeshUsageError: if a folder isn't there or can't be meant; for `conda`.

        Example:
            >>> workspace = Workspace(dirs=["~/proj"])  # doctest: +SKIP
            >>> receipt = await hosts.sync_workspace(workspace, auto_reload=True)  # doctest: +SKIP
        """
        if conda:
            raise MeshUsageError(
                "sync_workspace(conda=True): an environment is synced by %mesh sync --env; leave "
                "conda out to send folders"
            )
        return await asyncio.to_thread(self.synced, workspace.dirs, auto_reload=auto_reload)

    def synced(self, folders: Any, *, auto_reload: bool) -> SyncReceipt:
        """Do what `sync_workspace` does, and wait for it."""
        self._check_alive()
        from monarch_nb.actor.workspace import Workspace, sync_hosts  # few programs need it

        return sync_hosts(
            self._session, self._hosts, Workspace(folders), self._ask_to_reload, auto_reload=auto_reload
        )

    def _ask_to_reload(self, proc: int, request: ReloadRequest) -> Future[Any]:
        placement = Placement((proc,), Shape.full(Extent(["ranks"], [1])), "sync", self._hosts)
        mesh = ProcMesh(placement, self._session.transport)
        return work_on(mesh, Work.RELOAD, request, "sync_workspace")

    def stop(self) -> Future[None]:
        """End all processes that were spawned through this handle; the hosts stay.

        Raises:
            RuntimeError: if this handle has come in a message, or the hosts have been shut down.
        """
        self._check_owned("stop")
        session = self._session
        procs = [p for mesh in self._stoppable for p in placement_of(mesh).procs]
        for mesh in self._stoppable:
            mark_stopped(mesh, "its hosts were stopped")
        reply = session.ask(Stop(procs, 3.0))

        def finish(pending: Any) -> None:
            pending.read()

        return Future(reply, finish, "stop of hosts")

    def shutdown(self) -> Future[None]:
        """End the hosts, with all that runs on them. The future is done when they have gone.

        Raises:
            RuntimeError: if this handle has come in a message, or the hosts have been shut down already.
            RequestFailed: (a MeshError, from the future) naming the hosts that haven't gone within 10 s.

        Example:
            >>> hosts.shutdown().get()                                  # doctest: +SKIP
        """
        self._check_owned("shut down")
        self._life.is_shut_down = True
        session = self._session
        if self._hosts == (0,):
            return _shut_down_controller(session)
        reply = session.ask(StopHosts([h for h in self._hosts if h]))
        return Future(reply, lambda pending: pending.read(), "shutdown of hosts")

    async def __aenter__(self) -> Self:
        await self.initialized
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._life.is_shut_down:
            await self.shutdown()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reference, (self._placement.hosts, self._shape, self._python, mesh_of(self))

    def __repr__(self) -> str:
        return f"<HostMesh of {len(self._hosts)}: {self.extent}>"


def check_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables, checked.

    Raises:
        TypeError: naming what isn't text.
        ValueError: naming what no process can have in its environment.
    """
    if not isinstance(env, Mapping):
        raise BadType(f'env maps str to str, as in {{"MASTER_PORT": "29500"}}; not {env!r}')
    for key, value in env.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise BadType(f"env maps str to str; got {key!r}: {value!r}")
        if not key or "=" in key or not _can_be_told(key) or not _can_be_told(value):
            raise BadValue(
                f"env: no process can have {key!r}: {value!r} in its environment; a name has no '=', and "
                "neither it nor its value has a NUL or half a character"
            )
    if VARIABLE in env:
        try:
            parse_limits(env[VARIABLE])
        except ValueError as error:
            raise BadValue(f"env: {VARIABLE}={env[VARIABLE]!r}: {error}") from None
    return dict(env)


def _check_imports(names: Sequence[str]) -> list[str]:
    """Return names of modules.

    Raises:
        ValueError: for anything else.
    """
    found = [] if isinstance(names, str) else list(names)
    if isinstance(names, str) or not all(
        isinstance(name, str) and all(part.isidentifier() for part in name.split(".")) for name in found
    ):
        raise BadValue(
            f"imports is a list of names of modules, as in ['torch.distributed.tensor'], not {names!r}"
        )
    return found


def _can_be_told(text: str) -> bool:
    """Say whether a text can be part of a process' environment."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


class _Life(msgspec.Struct):
    """The state that a handle on hosts shares with its slices."""

    owned: bool
    is_shut_down: bool = False


def is_shut_down(hosts: HostMesh) -> bool:
    """Say whether hosts were ended by this handle, or by one that it's a slice of."""
    return hosts._life.is_shut_down


def _shut_down_controller(session: Session) -> Future[None]:
    """End the first host, and the mesh with it."""
    reply, pid = session.ask_to_end()

    def finish(_pending: OneReply) -> None:
        if pid and not wait_until_gone(pid, CONTROLLER_ENDS_S):
            raise MeshError(
                f"the controller (pid {pid}) was told to end, and has not within {CONTROLLER_ENDS_S:g} s"
            )
        session.close()  # the next this_host() starts a new mesh

    return Future(reply, finish, "shutdown of hosts")


def _reference(hosts: Sequence[int], shape: Shape, python: str | None, mesh: MeshAddress | None) -> HostMesh:
    """Return the handle of a message."""
    found = HostMesh(hosts, shape, mesh=mesh, owned=False)
    found._python = python
    return found


def _encode_bootstrap(bootstrap: Any) -> bytes | None:
    if bootstrap is None:
        return None
    if not callable(bootstrap):
        raise TypeError(f"bootstrap is a function of no arguments, not {type(bootstrap).__name__}")
    if inspect.iscoroutinefunction(bootstrap):
        bootstrap = _Async(bootstrap)
    body = codec.encode(bootstrap, "bootstrap")
    if body.buffers:
        raise ValueError("bootstrap carries arrays of a MiB and more; load them in the function instead")
    return body.payload


class _Async:
    """An async bootstrap function as a plain one."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function

    def __call__(self) -> None:
        import asyncio

        asyncio.run(self.function())


def this_host() -> HostMesh:
    """Return this machine. In a program, its processes end with the program; in a rank, they are siblings.

    Example:
        >>> procs = this_host().spawn_procs({"gpus": 4})  # doctest: +SKIP
    """
    session = sessions.current()
    host = HostMesh((session.transport.host,), owned=process_context.rank is None)
    if process_context.rank is not None:
        host._python = process_context.rank.python
    return host


def this_proc() -> ProcMesh:
    """Return this process as a mesh of one: actors spawned on it share its memory."""
    transport = sessions.current().transport
    if process_context.rank is None:
        sessions.current().host_actors()
    where = process_context.rank.group if process_context.rank is not None else "client"
    return ProcMesh(Placement((transport.me,), Shape.full(Extent([], [])), where, (transport.host,)))


def proc_mesh(
    *, gpus: int | None = None, hosts: int = 1, env: Mapping[str, str] | None = None, setup: Any = None
) -> ProcMesh:
    """Start processes on this machine: the older name. The result may be used at once or awaited.

    Args:
        gpus: number of processes; by default one per GPU, or one.
        hosts: only 1; several hosts come from a job (`monarch_nb.job`).
        env: environment variables for them.
        setup: called in each before anything else.

    Example:
        >>> mesh = await proc_mesh(gpus=2, env={"MASTER_PORT": "29500"})  # doctest: +SKIP
    """
    if hosts != 1:
        raise ValueError(
            f"proc_mesh(hosts={hosts}): this machine is one host; take hosts from monarch_nb.job"
        )
    host = this_host()
    return host.spawn_procs({"gpus": gpus or 1}, bootstrap=setup, env=env)


def local_proc_mesh(*, gpus: int | None = None, hosts: int = 1) -> ProcMesh:
    """Start processes on this machine, as `proc_mesh` does."""
    return proc_mesh(gpus=gpus, hosts=hosts)
