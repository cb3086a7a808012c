"""`monarch-nb`: meshes from a terminal. `list`, `status`, `stop`, `logs`, `exec`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from monarch_nb import __version__
from monarch_nb.exceptions import MeshError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments) or 0)
    except (MeshError, ValueError) as error:
        print(f"monarch-nb: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="monarch-nb", description="Meshes that notebooks have started.")
    parser.add_argument("--version", action="version", version=f"monarch-nb {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("list", help="the meshes of this user")
    command.set_defaults(run=list_meshes)
    command = commands.add_parser("status", help="hosts and ranks of a mesh")
    command.add_argument("name", nargs="?")
    command.add_argument("--json", action="store_true", help="for programs")
    command.set_defaults(run=show_status)
    command = commands.add_parser("stop", help="end a mesh")
    command.add_argument("name", nargs="?")
    command.set_defaults(run=stop)
    command = commands.add_parser("logs", help="the end of what ranks have printed")
    command.add_argument("name", nargs="?")
    command.add_argument("--ranks", default="all")
    command.add_argument("--bytes", type=int, default=1 << 16)
    command.set_defaults(run=logs)
    command = commands.add_parser("exec", help="run code on the ranks")
    command.add_argument("name")
    command.add_argument("code", help="Python source; - reads it from standard input")
    command.add_argument("--ranks", default="all")
    command.add_argument("--timeout", type=float)
    command.set_defaults(run=execute)
    return parser


def list_meshes(arguments: argparse.Namespace) -> None:
    """Print the running meshes."""
    from monarch_nb._client.launch import list_connections

    connections = list_connections()
    for connection in connections:
        print(f"{connection.name:<16} home pid {connection.pid}")
    if not connections:
        print("no mesh runs. Start one in a notebook: %mesh start")


def show_status(arguments: argparse.Namespace) -> None:
    """Print the snapshot of a mesh."""
    from monarch_nb.mesh import attach

    status = attach(arguments.name).status()
    print(json.dumps(status.as_dict()) if arguments.json else status.text())


def stop(arguments: argparse.Namespace) -> None:
    """End a mesh."""
    from monarch_nb.mesh import attach

    mesh = attach(arguments.name)
    mesh.stop().get(30)
    print(f"mesh {mesh.name!r} has ended")


def logs(arguments: argparse.Namespace) -> None:
    """Print the end of the ranks' logs."""
    from monarch_nb.mesh import attach

    mesh = attach(arguments.name)
    kept = mesh._session.request("tail", max_bytes=arguments.bytes).get(mesh._group, {})
    for rank in mesh.select(arguments.ranks):
        for line in kept.get(rank, b"").decode(errors="replace").splitlines():
            print(f"[{rank}] {line}")


def execute(arguments: argparse.Namespace) -> int:
    """Run code on the ranks; output as in a notebook."""
    from monarch_nb.display import CellView
    from monarch_nb.magics.cell import ViewWatcher
    from monarch_nb.mesh import attach, cell_error

    mesh = attach(arguments.name)
    source = sys.stdin.read() if arguments.code == "-" else arguments.code
    ranks = mesh.select(arguments.ranks)
    view = CellView(ranks, len(mesh), more_hint="monarch-nb logs")
    view.started()
    result = mesh.run(source, ranks, watcher=ViewWatcher(view), timeout=arguments.timeout)
    view.close()
    text = view.text()
    if text:
        print(text)
    if result.failures:
        print(cell_error(result), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
