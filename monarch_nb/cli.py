"""`monarch-nb`: meshes from a terminal; what `%mesh` does in a notebook."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from monarch_nb import __version__
from monarch_nb.exceptions import MeshError, MeshNotFound
from monarch_nb.magics.arguments import add_doctor_arguments, add_start_arguments

if TYPE_CHECKING:
    from monarch_nb.mesh import Mesh


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments) or 0)
    except (MeshError, ValueError, LookupError) as error:
        print(f"monarch-nb: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="monarch-nb", description="Meshes that notebooks have started.")
    parser.add_argument("--version", action="version", version=f"monarch-nb {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("start", help="start a mesh that goes on by itself")
    add_start_arguments(command.add_argument)
    command.set_defaults(run=start)
    command = commands.add_parser("list", help="the meshes of this user")
    command.set_defaults(run=list_meshes)
    command = commands.add_parser("status", help="hosts and ranks of a mesh")
    command.add_argument("name", nargs="?")
    command.add_argument("--json", action="store_true", help="for programs; with --watch, one object a line")
    command.add_argument("--watch", "-w", action="store_true", help="go on until interrupted")
    command.set_defaults(run=show_status)
    command = commands.add_parser("top", help="the same as status --watch")
    command.add_argument("name", nargs="?")
    command.set_defaults(run=show_status, json=False, watch=True)
    command = commands.add_parser("stop", help="end a mesh")
    command.add_argument("name", nargs="?")
    command.set_defaults(run=stop)
    command = commands.add_parser("logs", help="what ranks have printed")
    command.add_argument("name", nargs="?")
    command.add_argument("--ranks", default="all", help="a rank set: 0-3,7 or hosts=0")
    command.add_argument("--grep", metavar="RE", help="only lines that match")
    command.add_argument("--bytes", type=int, default=1 << 20, help="about how much of the end of the journal")
    command.add_argument("--follow", "-f", action="store_true", help="go on until interrupted")
    command.set_defaults(run=logs)
    command = commands.add_parser("history", help="what ran on a mesh, also on one that has ended")
    command.add_argument("name", nargs="?")
    command.add_argument("--last", type=int, default=50)
    command.set_defaults(run=history)
    command = commands.add_parser("export", help="write the journal's cells to FILE.ipynb or FILE.py")
    command.add_argument("name")
    command.add_argument("file")
    command.set_defaults(run=export)
    command = commands.add_parser("exec", help="run code on the ranks")
    command.add_argument("name")
    command.add_argument("code", help="Python source; - reads it from standard input")
    command.add_argument("--ranks", default="all")
    command.add_argument("--timeout", type=float)
    command.set_defaults(run=execute)
    for name, function, text in (
        ("interrupt", interrupt, "interrupt what runs on ranks"),
        ("stacks", stacks, "where ranks stand: their Python stacks, equal ones once"),
        ("why", why, "why nothing moves: which ranks wait for what, and which one is the odd one"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("name", nargs="?")
        command.add_argument("--ranks", default="all")
        if function is stacks:
            command.add_argument("--native", action="store_true", help="frames of C code, too: needs py-spy, takes seconds")
        command.set_defaults(run=function)
    command = commands.add_parser("diff-env", help="where ranks run with different versions, variables, code, settings")
    command.add_argument("name", nargs="?")
    command.add_argument("--ranks", default="all")
    command.add_argument("--all", action="store_true", help="what is equal, too, and what is each rank's own")
    command.set_defaults(run=diff_env)
    command = commands.add_parser("doctor", help="what ranks have for moving bytes, what each path gives, and what to change")
    command.add_argument("name", nargs="?")
    add_doctor_arguments(command.add_argument)
    command.add_argument("--json", action="store_true", help="for programs")
    command.set_defaults(run=doctor)
    command = commands.add_parser("heal", help="put back what a mesh has lost")
    command.add_argument("name", nargs="?")
    command.add_argument("--replay", action="store_true", help="run the cells again, on the new ranks, that defined their state")
    command.set_defaults(run=heal)
    command = commands.add_parser("debug", help="talk to ranks that stand at a breakpoint")
    command.add_argument("name", nargs="?")
    command.add_argument("--post-mortem", action="store_true", help="where ranks have failed; no breakpoint is needed")
    command.add_argument("--ranks", default="all")
    command.set_defaults(run=debug)
    command = commands.add_parser("install-kernel", help='install the kernelspec "Python 3 (mesh)"')
    command.add_argument("--prefix", default=sys.prefix, help="where to; by default this environment")
    command.set_defaults(run=install_kernel)
    return parser


def start(arguments: argparse.Namespace) -> None:
    """Start a mesh and leave it running."""
    from monarch_nb.magics.starting import set_up, start_mesh

    mesh = start_mesh(arguments)
    print(set_up(mesh, arguments))


def list_meshes(arguments: argparse.Namespace) -> None:
    """Print the running meshes."""
    from monarch_nb._client.launch import list_connections

    connections = list_connections()
    for connection in connections:
        print(f"{connection.name:<16} home pid {connection.pid}")
    if not connections:
        print("no mesh runs. Start one in a notebook: %mesh start")


def show_status(arguments: argparse.Namespace) -> None:
    """Print the snapshot of a mesh; with --watch, again and again."""
    mesh = _attach(arguments.name, observes=arguments.watch)
    if arguments.json:
        _print_json(mesh, watch=arguments.watch)
    elif arguments.watch and sys.stdout.isatty():
        _watch_in_terminal(mesh)
    elif arguments.watch:
        from monarch_nb.display import top

        with suppress(KeyboardInterrupt):
            top.follow(mesh, lambda status: print(top.text(status), flush=True))
    else:
        print(mesh.status().text())


def _print_json(mesh: Mesh, *, watch: bool) -> None:
    from monarch_nb.display.top import follow

    if not watch:
        print(json.dumps(mesh.status().as_dict()))
        return
    with suppress(KeyboardInterrupt):
        follow(mesh, lambda status: print(json.dumps(status.as_dict()), flush=True))


def _watch_in_terminal(mesh: Mesh) -> None:
    from rich.live import Live

    from monarch_nb.display.top import follow, table

    with suppress(KeyboardInterrupt), Live(screen=True, auto_refresh=False) as live:
        follow(mesh, lambda status: live.update(table(status), refresh=True))


def _attach(name: str | None, *, observes: bool = False) -> Mesh:
    from monarch_nb.mesh import attach

    return attach(name, listens=False, observes=observes)


def stop(arguments: argparse.Namespace) -> None:
    """End a mesh."""
    mesh = _attach(arguments.name)
    mesh.stop().get(30)
    print(f"mesh {mesh.name!r} has ended")


def logs(arguments: argparse.Namespace) -> None:
    """Print what ranks have printed; with --follow, go on until interrupted."""
    mesh = _attach(arguments.name)
    texts = mesh.journal.logs(
        mesh.select(arguments.ranks), grep=arguments.grep, tail_bytes=arguments.bytes, follow=arguments.follow
    )
    with suppress(KeyboardInterrupt):
        for text in texts:
            sys.stdout.write(text)
            sys.stdout.flush()


def history(arguments: argparse.Namespace) -> None:
    """Print the journal of a mesh, also of one that has ended."""
    from monarch_nb._client.launch import find_journal
    from monarch_nb._journal import entries
    from monarch_nb.mesh.history import Entries, Entry

    try:
        print(_attach(arguments.name).history(arguments.last).text())
    except MeshNotFound:
        if arguments.name is None:
            raise
        rows = entries.read(find_journal(arguments.name))
        print(Entries(Entry.of(row) for row in rows[-arguments.last :]).text())


def export(arguments: argparse.Namespace) -> None:
    """Write the journal's cells to a notebook or a script."""
    num = _attach(arguments.name).journal.export(arguments.file)
    print(f"{num} cells written to {arguments.file}")


def interrupt(arguments: argparse.Namespace) -> None:
    """Interrupt what runs on ranks."""
    _attach(arguments.name).interrupt(arguments.ranks)


def heal(arguments: argparse.Namespace) -> None:
    """Put back what a mesh has lost."""
    print(_attach(arguments.name).heal(replay=arguments.replay))


def stacks(arguments: argparse.Namespace) -> None:
    """Print where ranks stand."""
    from monarch_nb.stacks import stacks_text

    print(stacks_text(_attach(arguments.name).stacks(arguments.ranks, native=arguments.native)))


def why(arguments: argparse.Namespace) -> None:
    """Print why nothing moves."""
    print(_attach(arguments.name, observes=True).why(arguments.ranks).text())


def diff_env(arguments: argparse.Namespace) -> int:
    """Print where ranks run with different things; the status is 1 if they do."""
    found = _attach(arguments.name).diff_env(arguments.ranks, shows_all=arguments.all)
    print(found.text())
    return 1 if found else 0


def doctor(arguments: argparse.Namespace) -> None:
    """Print what ranks have for moving bytes, what each path gives, and what to change."""
    found = _attach(arguments.name).doctor(
        arguments.ranks, size_bytes=arguments.size, measures=not arguments.quick, all_paths=arguments.all
    )
    print(json.dumps(found.as_dict()) if arguments.json else found.text())


def debug(arguments: argparse.Namespace) -> None:
    """Show the debugger's prompt in this terminal; Ctrl-D leaves it, and the ranks where they are."""
    from monarch_nb.debug import Prompt

    mesh = _attach(arguments.name)
    debugger = mesh.debugger()
    feed = debugger.watch(lambda _stops: None)
    if arguments.post_mortem:
        debugger.post_mortem(arguments.ranks)
    if not debugger.stops():
        print(f"no rank of mesh {mesh.name!r} stands at a breakpoint")
        return
    _complete_with(mesh)
    with suppress(KeyboardInterrupt):
        Prompt(mesh, input, lambda text: print(text, flush=True)).run()
    feed.close()


def _complete_with(mesh: Mesh) -> None:
    """Have Tab complete names that a stopped rank knows."""
    with suppress(ImportError):
        import readline

        from monarch_nb.debug.client import completions

        found: list[str] = []

        def complete(text: str, number: int) -> str | None:
            if number == 0:
                found[:] = completions(mesh, text)
            return found[number] if number < len(found) else None

        readline.set_completer_delims(" \t\n()[]{},=+-*/<>!&|:;")
        readline.set_completer(complete)
        readline.parse_and_bind("tab: complete")


def execute(arguments: argparse.Namespace) -> int:
    """Run code on the ranks; output as in a notebook."""
    from monarch_nb.display import CellView, LiveDisplay, ViewWatcher

    mesh = _attach(arguments.name)
    source = sys.stdin.read() if arguments.code == "-" else arguments.code
    ranks = mesh.select(arguments.ranks)
    view = CellView(ranks, len(mesh), more_hint="monarch-nb logs")
    with LiveDisplay(view):
        view.started()
        run = mesh.submit(source, ranks, watcher=ViewWatcher(view), timeout=arguments.timeout)
        result = run.wait()
    error = result.error()
    if error is not None:
        print(error, file=sys.stderr)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def install_kernel(arguments: argparse.Namespace) -> None:
    """Install the kernelspec "Python 3 (mesh)": this Python, with the extension loaded."""
    from monarch_nb.kernelspec import install

    print(f"kernelspec installed in {install(arguments.prefix)}")


if __name__ == "__main__":
    sys.exit(main())
