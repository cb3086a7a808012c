"""What each verb of `%mesh` does."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from monarch_nb.exceptions import MeshUsageError
from monarch_nb.status import duration, parse_duration

if TYPE_CHECKING:
    from monarch_nb.mesh import Mesh

P = TypeVar("P", bound=argparse.ArgumentParser)
DEFAULT_NAME = "mesh"


class State:
    """Which meshes this kernel is connected to, and which is the current one."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.meshes: dict[str, Mesh] = {}
        self.current: str | None = None

    def mesh(self, name: str | None = None) -> Mesh:
        """Return a mesh by name, or the current one."""
        if name is None:
            name = self.current
        if name is None:
            raise MeshUsageError("no mesh is in use. Start one: %mesh start; or see what runs: %mesh list")
        if name not in self.meshes:
            return self.attach(name)
        return self.meshes[name]

    def attach(self, name: str | None) -> Mesh:
        """Connect to a running mesh and make it current."""
        from monarch_nb import mesh as meshes

        return self.adopt(meshes.attach(name))

    def adopt(self, mesh: Mesh) -> Mesh:
        """Make a mesh current, and known to the notebook by its name."""
        from monarch_nb._client import session

        self.meshes[mesh.name] = mesh
        self.current = mesh.name
        session.use(mesh._session)
        self.shell.user_ns[mesh.name.replace("-", "_")] = mesh
        if mesh.name != DEFAULT_NAME:
            self.shell.user_ns[DEFAULT_NAME] = mesh
        return mesh

    def drop(self, name: str) -> None:
        """Forget a mesh."""
        mesh = self.meshes.pop(name, None)
        for variable in [k for k, v in self.shell.user_ns.items() if v is mesh and mesh is not None]:
            del self.shell.user_ns[variable]
        if self.current == name:
            self.current = None
            if self.meshes:
                self.adopt(next(reversed(self.meshes.values())))


def _parse_dims(text: str) -> dict[str, int]:
    dims = {}
    for part in text.split(","):
        name, equals, size = part.partition("=")
        if not equals or not name.isidentifier() or not size.isdigit() or int(size) < 1:
            raise argparse.ArgumentTypeError(f"expected DIM=SIZE,... as in hosts=2,gpus=4; not {text!r}")
        dims[name] = int(size)
    return dims


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _variable(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, not {text!r}")
    return key, value


def start(state: State, arguments: argparse.Namespace) -> None:
    """Start a mesh, or attach to the running one of that name. With no size: one rank per GPU, or per core."""
    from monarch_nb import mesh as meshes
    from monarch_nb._client.launch import list_connections

    if any(c.name == arguments.name for c in list_connections()):
        mesh = state.attach(arguments.name)
        print(f"attached to {_describe(mesh)}, which was running")
        return
    dims, num_hosts = _sizes(arguments)
    mesh = meshes.start(
        arguments.name,
        dims,
        num_hosts=num_hosts,
        env=dict(arguments.env or ()),
        idle_timeout_s=arguments.idle_timeout,
        method="spawn" if arguments.spawn else "fork",
    )
    state.adopt(mesh)
    backend = _prepare_distributed(mesh, arguments.init_process_group)
    ready = f"; torch.distributed is ready ({backend})" if backend else ""
    print(f"{_describe(mesh)} is ready{ready}; it ends after {duration(arguments.idle_timeout)} without a client")


def _sizes(arguments: argparse.Namespace) -> tuple[dict[str, int] | None, int]:
    given = [k for k in ("gpus", "procs", "dims") if getattr(arguments, k) is not None]
    if len(given) > 1:
        raise MeshUsageError(f"%mesh start: give one of --gpus, --procs, --dims; not {' and '.join('--' + g for g in given)}")
    dims: dict[str, int] | None = None
    if arguments.dims is not None:
        dims = dict(arguments.dims)
    elif given:
        dims = {given[0]: getattr(arguments, given[0])}
    hosts = arguments.hosts or 0
    if dims and "hosts" in dims:
        hosts = dims.pop("hosts")
    job = arguments.job or ("process" if hosts else "local")
    if job == "local" and hosts > 1:
        raise MeshUsageError("%mesh start: --job local is a single host; use --job process for several on this machine")
    return dims, hosts if job == "process" else 0


def _describe(mesh: Mesh) -> str:
    return f"mesh {mesh.name!r} ({mesh.extent}: ranks 0-{len(mesh) - 1})"


def _prepare_distributed(mesh: Mesh, backend: str | None) -> str:
    """Set RANK, MASTER_ADDR and the like; make a process group if asked for."""
    from monarch_nb.spmd import setup_torch_elastic_env

    setup_torch_elastic_env(mesh, master_addr="127.0.0.1")
    if backend is None:
        return ""
    chosen = backend or ("nccl" if "gpus" in mesh.sizes and _has_gpus(mesh) else "gloo")
    mesh.execute(_init_process_group, chosen).get(120)
    return chosen


def _has_gpus(mesh: Mesh) -> bool:
    return all(h.num_gpus for h in mesh.status().hosts)


def _init_process_group(backend: str) -> None:
    import torch
    import torch.distributed as dist

    if backend == "nccl":
        torch.cuda.set_device(0)
    dist.init_process_group(backend)


def list_(state: State, arguments: argparse.Namespace) -> None:
    """List the meshes of this user."""
    from monarch_nb._client.launch import list_connections

    connections = list_connections()
    for connection in connections:
        mark = "*" if connection.name == state.current else " "
        print(f"{mark} {connection.name:<16} home pid {connection.pid}")
    if not connections:
        print("no mesh runs. Start one: %mesh start")


def attach(state: State, arguments: argparse.Namespace) -> None:
    """Connect to a running mesh."""
    print(f"attached to {_describe(state.attach(arguments.name))}")


def detach(state: State, arguments: argparse.Namespace) -> None:
    """Disconnect from a mesh; it goes on."""
    mesh = state.mesh(arguments.name)
    state.drop(mesh.name)
    mesh._session.close()
    print(f"detached from mesh {mesh.name!r}; it goes on. Come back: %mesh attach {mesh.name}")


def use(state: State, arguments: argparse.Namespace) -> None:
    """Make a mesh the one that %%mesh runs on."""
    state.adopt(state.mesh(arguments.name))
    print(f"using {_describe(state.mesh())}")


def status(state: State, arguments: argparse.Namespace) -> None:
    """Show the state of a mesh, or that there's none."""
    if arguments.name is None and state.current is None:
        list_(state, arguments)
        return
    print(state.mesh(arguments.name).status().text())


def logs(state: State, arguments: argparse.Namespace) -> None:
    """Show the end of what ranks have printed; all of it is kept by the host process."""
    import re

    mesh = state.mesh(arguments.name)
    kept = mesh._session.request("tail", max_bytes=arguments.bytes)[mesh._group]
    pattern = re.compile(arguments.grep) if arguments.grep else None
    for rank in mesh.select(arguments.ranks):
        for line in kept.get(rank, b"").decode(errors="replace").splitlines():
            if pattern is None or pattern.search(line):
                print(f"[{rank}] {line}")


def interrupt(state: State, arguments: argparse.Namespace) -> None:
    """Interrupt what runs on ranks."""
    state.mesh(arguments.name).interrupt(arguments.ranks)


def stop(state: State, arguments: argparse.Namespace) -> None:
    """End a mesh and what its ranks hold. With -f, ranks get no time to clean up."""
    mesh = state.mesh(arguments.mesh)
    if arguments.force:
        mesh._session.request("stop", procs=list(mesh._procs), grace_s=0.0)
    mesh.stop().get(30)
    state.drop(mesh.name)
    print(f"mesh {mesh.name!r} has ended")


def push(state: State, arguments: argparse.Namespace) -> None:
    """Copy variables of this notebook to the ranks."""
    names = state.shell.user_ns
    missing = [n for n in arguments.names if n not in names]
    if missing:
        raise MeshUsageError(f"%mesh push: no variable {', '.join(missing)} in this notebook")
    state.mesh(arguments.name).push({n: names[n] for n in arguments.names}, arguments.ranks)


def pull(state: State, arguments: argparse.Namespace) -> Any:
    """Bring variables of the ranks here, each as a ValueMesh under its name; a single one is also shown."""
    mesh = state.mesh(arguments.name)
    for name in arguments.names:
        state.shell.user_ns[name] = mesh.pull(name, ranks=arguments.ranks)
    return state.shell.user_ns[arguments.names[0]] if len(arguments.names) == 1 else None


def scatter(state: State, arguments: argparse.Namespace) -> None:
    """Split a variable of this notebook along a dimension: each rank gets its part under the same name."""
    value = state.shell.user_ns.get(arguments.variable)
    if value is None:
        raise MeshUsageError(f"%mesh scatter: no variable {arguments.variable} in this notebook")
    mesh = state.mesh(arguments.name)
    for rank, part in enumerate(split_evenly(value, len(mesh), arguments.dim)):
        mesh.push({arguments.variable: part}, [rank])


def split_evenly(value: Any, num: int, dim: int = 0) -> list[Any]:
    """Return `num` parts of a tensor, array or list, whose sizes differ by one at most.

    >>> split_evenly([1, 2, 3, 4, 5], 2)
    [[1, 2, 3], [4, 5]]
    """
    if hasattr(value, "tensor_split"):
        return [part.contiguous() for part in value.tensor_split(num, dim)]
    if hasattr(value, "__array__"):
        import numpy

        return list(numpy.array_split(value, num, axis=dim))
    size, rest = divmod(len(value), num)
    bounds = [i * size + min(i, rest) for i in range(num + 1)]
    return [value[bounds[i] : bounds[i + 1]] for i in range(num)]


VERBS: dict[str, Callable[[State, argparse.Namespace], Any]] = {
    "start": start,
    "list": list_,
    "attach": attach,
    "detach": detach,
    "use": use,
    "status": status,
    "logs": logs,
    "interrupt": interrupt,
    "stop": stop,
    "push": push,
    "pull": pull,
    "scatter": scatter,
}


def add_arguments(verb: str, parser: P) -> P:
    """Give a verb's parser its arguments."""
    add = parser.add_argument
    if verb == "start":
        add("name", nargs="?", default=DEFAULT_NAME, help="name of the mesh, and of the notebook's variable for it")
        add("--gpus", type=_positive, help="ranks per host, one GPU each where there are any")
        add("--procs", type=_positive, help="ranks per host")
        add("--hosts", type=_positive, help="number of hosts")
        add("--dims", type=_parse_dims, metavar="D=N,...", help="dimensions, as in hosts=2,gpus=4 or dp=2,tp=4")
        add("--job", choices=("local", "process"), help="where hosts come from")
        add("--idle-timeout", type=_seconds, default=8 * 3600.0, metavar="T", help="lease, as in 30m or 8h")
        add("--env", "-e", type=_variable, action="append", metavar="K=V", help="environment of the ranks")
        add("--init-process-group", nargs="?", const="", choices=("", "nccl", "gloo"), help="set up torch.distributed")
        add("--spawn", action="store_true", help="fresh interpreters instead of forks of a warm one")
    elif verb in ("attach", "detach", "use", "status"):
        add("name", nargs=None if verb == "use" else "?", help="name of the mesh")
    elif verb == "stop":
        add("mesh", nargs="?", help="name of the mesh, if not the current one")
        add("--force", "-f", action="store_true", help="give the ranks no time to clean up")
    elif verb != "list":
        _add_common(verb, add)
    return parser


def _add_common(verb: str, add: Callable[..., Any]) -> None:
    if verb in ("push", "pull"):
        add("names", nargs="+", metavar="VARIABLE")
    if verb == "scatter":
        add("variable")
        add("--dim", type=int, default=0)
    if verb == "logs":
        add("--grep", metavar="RE", help="only lines that match")
        add("--bytes", type=_positive, default=1 << 16, help="how much of each rank's log")
    add("--ranks", "-r", default="all", help="a rank set: all; 3; 0-3,7; ::2; hosts=0,gpus=2:8")
    add("--name", "-n", help="which mesh, if not the current one")


def environment_note() -> str:
    """Return where this program's meshes keep their sockets, for bug reports."""
    from monarch_nb._wire.address import socket_root

    return f"sockets: {socket_root()} (uid {os.getuid()})"
