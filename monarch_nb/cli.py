"""`monarch-nb`: meshes from a terminal; what `%mesh` does in a notebook."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from monarch_nb._journal import entries
from monarch_nb._shape import name_ranks
from monarch_nb._version import __version__
from monarch_nb.exceptions import MeshNotFound, MeshUsageError
from monarch_nb.magics.arguments import (
    Parser,
    add_doctor_arguments,
    add_start_arguments,
    add_sync_arguments,
    did_you_mean,
    dims,
    mesh_name,
    mesh_or_pid,
    num_bytes,
    pattern,
    positive,
    seconds,
    shortened,
    sync_choices,
    whole,
)
from monarch_nb.stacks import stacks_text
from monarch_nb.status import duration
from monarch_nb.terminal.run import add_arguments as run_arguments
from monarch_nb.terminal.words import in_terminal

if TYPE_CHECKING:
    from monarch_nb.mesh import Mesh

USAGE_ERROR = 2
RANKS_HELP = "a rank set: all; 0-3,7; ::2; hosts=0"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    from monarch_nb.terminal.colours import colours_as_wanted
    from monarch_nb.terminal.failure import exit_status

    arguments = _parser().parse_args(argv)
    with colours_as_wanted():
        return exit_status(
            lambda: arguments.run(arguments), f"monarch-nb {arguments.command}", partial(_in_words, arguments)
        )


def _say(arguments: argparse.Namespace, text: str) -> None:
    """Print a message of ours, in the terminal's words; what ranks have printed is left as it is."""
    print(_in_words(arguments, text), flush=True)


def _in_words(arguments: argparse.Namespace, text: str) -> str:
    return in_terminal(text, COMMANDS, getattr(arguments, "name", None))


class CommandParser(Parser):
    """The notebook's parser in a terminal: it prints what is wrong, and leaves."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, rest = super().parse_known_args(args, namespace)
        if rest and self.prog != "monarch-nb":  # a command knows its own arguments best
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest

    def error(self, message: str) -> NoReturn:
        if message.startswith("argument COMMAND: invalid choice: "):
            word = (
                message.removeprefix("argument COMMAND: invalid choice: ")
                .partition(" (choose from")[0]
                .strip("'\"")
            )
            meant = did_you_mean(word, COMMANDS, "monarch-nb ")
            self._leave(
                f"monarch-nb has no command {shortened(word)}. {meant}monarch-nb --help lists all commands"
            )
        self._leave(f"{self.prog}: {message}. {self.hint(message)}Usage: {self.one_line_usage()}")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        argparse.ArgumentParser.exit(self, status, message)
        raise AssertionError  # it doesn't come back

    def print_help(self, file: Any = None) -> None:
        argparse.ArgumentParser.print_help(self, file)

    def _leave(self, text: str) -> NoReturn:
        print(text, file=sys.stderr)
        self.exit(USAGE_ERROR)


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="monarch-nb", description="Meshes of this user: those of notebooks, scripts and terminals."
    )
    parser.add_argument("--version", action="version", version=f"monarch-nb {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, command in COMMANDS.items():
        found = commands.add_parser(name, help=command.about, description=command.about)
        if command.named is not None:
            optional = command.named == "optional"
            found.add_argument(
                "name", nargs="?" if optional else None, type=command.name_type,
                help="name of the mesh; may be left out if there's only one",
            )  # fmt: skip
        command.add_arguments(found.add_argument)
        found.set_defaults(run=command.run)
    return parser


def start(arguments: argparse.Namespace) -> None:
    """Start a mesh and leave it running."""
    from monarch_nb.magics.starting import set_up, start_mesh

    mesh = start_mesh(arguments)
    _say(arguments, set_up(mesh, arguments))


def list_meshes(arguments: argparse.Namespace) -> None:
    """Print the running meshes."""
    from monarch_nb.mesh.listing import list_rows, table_text

    rows = list_rows()
    _say(arguments, table_text(rows) if rows else "no mesh runs. Start one: %mesh start")


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
        _say(arguments, mesh.status().text())


def top(arguments: argparse.Namespace) -> None:
    """Print the snapshot of a mesh again and again."""
    show_status(argparse.Namespace(**vars(arguments), json=False, watch=True))


def _print_json(mesh: Mesh, *, watch: bool) -> None:
    from monarch_nb.display.top import follow

    if not watch:
        print(json.dumps(mesh.status().as_dict()))
        return
    with suppress(KeyboardInterrupt):
        follow(mesh, lambda status: print(json.dumps(status.as_dict()), flush=True))


def _watch_in_terminal(mesh: Mesh) -> None:
    from rich.live import Live
    from rich.text import Text

    from monarch_nb.display.top import Watch, table
    from monarch_nb.terminal.keys import key_ends

    watch = Watch(mesh)
    with (
        suppress(KeyboardInterrupt),
        key_ends("q", watch.stop_showing),
        Live(screen=True, auto_refresh=False) as live,
    ):
        watch.run(lambda status: live.update(table(status, Text("q: end", "dim")), refresh=True))


def _attach(name: str | None, *, observes: bool = False) -> Mesh:
    from monarch_nb.mesh import attach

    return attach(name, listens=False, observes=observes)


def stop(arguments: argparse.Namespace) -> None:
    """End a mesh."""
    mesh = _attach(arguments.name)
    mesh.stop().get(30)
    _clusters().on_engine.give_back(mesh.name)
    _say(arguments, f"mesh {mesh.name!r} has ended")


def _clusters() -> ModuleType:
    from monarch_nb.magics import clusters

    return clusters


def host(arguments: argparse.Namespace) -> int:
    """Let this machine be a host of a mesh that has invited it."""
    return int(_clusters().launcher.run(arguments))


def on_clusters(what: str, arguments: argparse.Namespace) -> None:
    """Print profiles and engines, what was asked for, or the hosts of a mesh; or give hosts back."""
    clusters = _clusters()
    if what == "hosts":
        _say(arguments, clusters.hosts_text(_attach(arguments.name, observes=True)))
    elif what == "cancel":
        _say(arguments, clusters.cancelled(arguments.name))
    else:
        _say(arguments, clusters.queue_text() if what == "queue" else clusters.clusters_text())


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
    from monarch_nb.mesh.history import Entries, Entry

    try:
        entries_now = _attach(arguments.name).history(arguments.last)
        entries_now.note = _in_words(arguments, entries_now.note)
        print(entries_now.text())
    except MeshNotFound:
        if arguments.name is None:
            raise
        rows = entries.read(find_journal(arguments.name))
        print(Entries(Entry.of(row) for row in rows[-arguments.last :]).text())


def export(arguments: argparse.Namespace) -> None:
    """Write the journal's cells to a notebook or a script."""
    _say(arguments, str(_attach(arguments.name).journal.export(arguments.file)))


def interrupt(arguments: argparse.Namespace) -> None:
    """Interrupt what runs on ranks."""
    _attach(arguments.name).interrupt(arguments.ranks)


def heal(arguments: argparse.Namespace) -> None:
    """Put back what a mesh has lost."""
    _say(arguments, str(_attach(arguments.name).heal(replay=arguments.replay)))


def restart(arguments: argparse.Namespace) -> None:
    """Kill ranks and start them anew."""
    mesh = _attach(arguments.name)
    ranks = mesh.select(arguments.ranks)
    mesh.restart(ranks)
    again = "runs again, with nothing in it" if len(ranks) == 1 else "run again, with nothing in them"
    _say(
        arguments,
        (
            f"{name_ranks(ranks)} of mesh {mesh.name!r} {again}. %mesh heal makes actors and the process "
            "group anew"
        ),
    )


def lease(arguments: argparse.Namespace) -> None:
    """Print after how long without a client a mesh ends, or set it."""
    mesh = _attach(arguments.name, observes=True)
    if arguments.time is not None:
        mesh.set_lease(arguments.time)
    limit = mesh.status(fresh=False).idle_timeout_s
    _say(
        arguments, f"mesh {mesh.name!r} ends after {duration(limit or 0)} without a client and a running cell"
    )


def resize(arguments: argparse.Namespace) -> None:
    """Give a mesh other sizes."""
    mesh = _attach(arguments.name)
    fewer = any(size < mesh.sizes.get(name, 0) for name, size in arguments.sizes.items())
    if fewer and not arguments.force:
        raise MeshUsageError(
            f"ranks of mesh {mesh.name!r} would leave, and what they hold be lost. --force does it"
        )
    _say(arguments, str(mesh.resize(**arguments.sizes)))


def shrink(arguments: argparse.Namespace) -> None:
    """Have a mesh go on without what is lost."""
    _say(arguments, str(_attach(arguments.name).shrink()))


def stacks(arguments: argparse.Namespace) -> None:
    """Print where ranks stand."""
    _say(arguments, stacks_text(_attach(arguments.name).stacks(arguments.ranks, native=arguments.native)))


def why(arguments: argparse.Namespace) -> None:
    """Print why nothing moves."""
    _say(arguments, _attach(arguments.name, observes=True).why(arguments.ranks).text())


def diff_env(arguments: argparse.Namespace) -> int:
    """Print where ranks run with different things; the status is 1 if they do."""
    found = _attach(arguments.name).diff_env(arguments.ranks, shows_all=arguments.all)
    _say(arguments, found.text())
    return 1 if found else 0


def doctor(arguments: argparse.Namespace) -> None:
    """Print what ranks have for moving bytes, what each path gives, and what to change."""
    found = _attach(arguments.name).doctor(
        arguments.ranks, size_bytes=arguments.size, measures=not arguments.quick, all_paths=arguments.all
    )
    if arguments.json:
        print(json.dumps(found.as_dict()))
    else:
        _say(arguments, found.text())


def sync(arguments: argparse.Namespace) -> int:
    """Send the workspace that this terminal stands in to the hosts of a mesh; the status is 1 if a host or
    a rank lacks something.
    """
    if arguments.gc or arguments.export:
        return _keep_store(arguments)
    receipt = _attach(arguments.name).sync(*arguments.paths, **sync_choices(arguments))
    _say(arguments, str(receipt))
    return 0 if receipt.is_done or receipt.is_dry else 1


def _keep_store(arguments: argparse.Namespace) -> int:
    """Clean this machine's store of environments, or make this environment in another one."""
    from monarch_nb.mesh import shipping

    said = (
        shipping.export_here(arguments.export, verify=arguments.verify)
        if arguments.export
        else shipping.clean_here()
    )
    _say(arguments, said)
    return 0


def debug(arguments: argparse.Namespace) -> None:
    """Show the debugger's prompt in this terminal; Ctrl-D leaves it, and the ranks where they are."""
    from monarch_nb.debug import Prompt, Question
    from monarch_nb.mesh.debugged import debugged

    meshes = debugged(arguments.name, stopped_only=not arguments.post_mortem)
    if arguments.post_mortem:
        for mesh in meshes:
            mesh.debugger().post_mortem(arguments.ranks)
    stopped = [mesh for mesh in meshes if mesh.debugger().stops()]
    if not stopped:
        _say(arguments, f"no rank of {_debugged_name(arguments.name)} stands at a breakpoint")
    for mesh in stopped:
        feed = mesh.debugger().watch(lambda _stops: None)
        _complete_with(mesh)
        with suppress(KeyboardInterrupt), Question(on_taken_back=print) as read:
            Prompt(mesh, read, lambda text: _say(arguments, text)).run()
        feed.close()


def _debugged_name(name: str | None) -> str:
    if name is None:
        return "any mesh"
    return f"program {name}" if name.isdigit() else f"mesh {name!r}"


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
        _say_error(arguments, str(error))
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _say_error(arguments: argparse.Namespace, text: str) -> None:
    """Print how a cell has failed; what ranks have printed last is left as it is."""
    lines = [line if line.startswith("  | ") else _in_words(arguments, line) for line in text.splitlines()]
    print("\n".join(lines), file=sys.stderr)


def run(arguments: argparse.Namespace) -> int:
    """Run a script as torchrun does, on a mesh that runs or on one of its own."""
    from monarch_nb.terminal import running

    return running.run(arguments, _attach, partial(_say_error, arguments))


def dashboard(arguments: argparse.Namespace) -> None:
    """Serve the panel as a page of its own, to this machine and this user."""
    from monarch_nb._client.dashboard import find_dashboard
    from monarch_nb.server.dashboard import serve

    running = find_dashboard()
    if running is not None:
        _say(arguments, f"the dashboard runs already (pid {running.pid}): {running.link()}")
        return
    serve(
        arguments.port,
        lambda place: _say(
            arguments, f"the meshes of this user: {place.link()}\nCtrl-C ends the page; meshes go on"
        ),
    )


def warm(arguments: argparse.Namespace) -> None:
    """Keep an interpreter warm for the next program that starts a mesh; say what is kept, or end it."""
    from monarch_nb.terminal import warm as words

    if bool(arguments.time) + arguments.status + arguments.stop > 1:
        raise MeshUsageError("monarch-nb warm takes one of --for, --status and --stop")
    _say(
        arguments,
        words.stopped()
        if arguments.stop
        else words.status()
        if arguments.status
        else words.kept(arguments.time),
    )


def install_kernel(arguments: argparse.Namespace) -> None:
    """Install the kernelspec "Python 3 (mesh)": this Python, with the extension loaded."""
    from monarch_nb.kernelspec import install

    print(f"kernelspec installed in {install(arguments.prefix)}")


class Command(NamedTuple):
    """One command.

    Attributes:
        named: whether the first thing after it is a mesh's name: optional, needed, or None.
        name_type: reads that name.
    """

    run: Callable[[argparse.Namespace], int | None]
    about: str
    named: str | None = "optional"
    add_arguments: Callable[[Callable[..., Any]], object] = lambda add: None
    name_type: Callable[[str], str] = mesh_name


def _sync_arguments(add: Callable[..., Any]) -> None:
    add(
        "paths",
        nargs="*",
        metavar="PATH",
        help="files or folders to reload; a folder outside of the workspace is sent, too",
    )
    add_sync_arguments(add)
    add(
        "--gc",
        action="store_true",
        help="remove from this machine's store what no rank runs in and nobody has used for long",
    )
    add(
        "--export",
        metavar="DIR",
        help="make this environment in a store at DIR: it runs there, on any host that it fits",
    )


def _status_arguments(add: Callable[..., Any]) -> None:
    add("--json", action="store_true", help="for programs; with --watch, one object a line")
    add("--watch", "-w", action="store_true", help="go on until interrupted, or until q is pressed")


def _logs_arguments(add: Callable[..., Any]) -> None:
    add("--ranks", default="all", help=RANKS_HELP)
    add("--grep", type=pattern, metavar="RE", help="only lines that match")
    add(
        "--bytes",
        type=num_bytes,
        default=1 << 20,
        metavar="SIZE",
        help="about how much of the end of the journal: 64M",
    )
    add("--follow", "-f", action="store_true", help="go on until interrupted")


def _exec_arguments(add: Callable[..., Any]) -> None:
    add("code", help="Python source; - reads it from standard input")
    add("--ranks", default="all", help=RANKS_HELP)
    add("--timeout", type=seconds, metavar="T", help="90 or 90s; then the ranks are interrupted")


def _ranks_argument(add: Callable[..., Any]) -> None:
    add("--ranks", default="all", help=RANKS_HELP)


def _stacks_arguments(add: Callable[..., Any]) -> None:
    _ranks_argument(add)
    add("--native", action="store_true", help="frames of C code, too: needs py-spy, takes seconds")


def _diff_env_arguments(add: Callable[..., Any]) -> None:
    _ranks_argument(add)
    add("--all", action="store_true", help="what is equal, too, and what is each rank's own")


def _doctor_arguments(add: Callable[..., Any]) -> None:
    add_doctor_arguments(add)
    add("--json", action="store_true", help="for programs")


def _resize_arguments(add: Callable[..., Any]) -> None:
    add("sizes", type=dims, metavar="D=N,...", help="new sizes, as in gpus=4 or hosts=2,gpus=4")
    add("--force", "-f", action="store_true", help="also if ranks leave, with what they hold")


def _debug_arguments(add: Callable[..., Any]) -> None:
    _ranks_argument(add)
    add("--post-mortem", action="store_true", help="where ranks have failed; no breakpoint is needed")


def _host_arguments(add: Callable[..., Any]) -> None:
    add(
        "--join",
        required=True,
        metavar="FILE",
        help="the invitation that the mesh has written; - reads it from standard input",
    )
    add(
        "--place",
        type=whole,
        metavar="N",
        help="which of the mesh's hosts this one is; without it: the next one",
    )
    add("--detach", action="store_true", help="return once the host process serves; it goes on by itself")


def _warm_arguments(add: Callable[..., Any]) -> None:
    add(
        "--for",
        dest="time",
        type=seconds,
        metavar="T",
        help="how long, from the last start of a mesh on: 30m (without it) or 8h",
    )
    add(
        "--status",
        action="store_true",
        help="what is kept warm, and whether programs of this terminal would take it",
    )
    add("--stop", action="store_true", help="keep nothing warm any more")


COMMANDS: dict[str, Command] = {
    "start": Command(start, "start a mesh that goes on by itself", None, add_start_arguments),
    "list": Command(list_meshes, "the meshes of this user: how big, how they are, how old, whose", None),
    "clusters": Command(
        partial(on_clusters, "clusters"),
        "profiles and engines: where hosts can be had; if not, why, and what to type",
        None,
    ),
    "queue": Command(
        partial(on_clusters, "queue"),
        "what engines were asked for: how each request is, since when, until when",
        None,
    ),
    "cancel": Command(
        partial(on_clusters, "cancel"),
        "give back the hosts of a mesh, whether it waits for them or runs",
        "needed",
    ),
    "hosts": Command(
        partial(on_clusters, "hosts"),
        "the hosts of a mesh: who is where, what each has, what the engine says",
    ),
    "host": Command(host, "let this machine be a host of a mesh that has invited it", None, _host_arguments),
    "status": Command(show_status, "hosts and ranks of a mesh", add_arguments=_status_arguments),
    "top": Command(top, "the same as status --watch: live, until q is pressed"),
    "stop": Command(stop, "end a mesh"),
    "logs": Command(logs, "what ranks have printed", add_arguments=_logs_arguments),
    "history": Command(
        history,
        "what ran on a mesh, also on one that has ended",
        add_arguments=lambda add: add(
            "--last", type=positive, default=50, metavar="N", help="how many entries"
        ),
    ),
    "export": Command(
        export,
        "write the journal's cells to FILE.ipynb or FILE.py",
        "needed",
        lambda add: add(
            "file", metavar="FILE", help="FILE.ipynb (with output) or FILE.py (a script for torchrun)"
        ),
    ),
    "exec": Command(execute, "run code on the ranks", "needed", _exec_arguments),
    "run": Command(
        run,
        ("run a script as torchrun does: --nproc-per-node 4 train.py --lr 0.1; or with --name on a mesh"),
        None,
        run_arguments,
    ),
    "interrupt": Command(interrupt, "interrupt what runs on ranks", add_arguments=_ranks_argument),
    "stacks": Command(
        stacks, "where ranks stand: their Python stacks, equal ones once", add_arguments=_stacks_arguments
    ),
    "why": Command(
        why,
        "why nothing moves: which ranks wait for what, and which one is the odd one",
        add_arguments=_ranks_argument,
    ),
    "diff-env": Command(
        diff_env,
        "where ranks run with different versions, variables, code, settings",
        add_arguments=_diff_env_arguments,
    ),
    "sync": Command(
        sync,
        "send the workspace to the hosts of a mesh; ranks reload what has changed",
        add_arguments=_sync_arguments,
    ),
    "doctor": Command(
        doctor,
        "what ranks have for moving bytes, what each path gives, and what to change",
        add_arguments=_doctor_arguments,
    ),
    "heal": Command(
        heal,
        "put back what a mesh has lost",
        add_arguments=lambda add: add(
            "--replay",
            action="store_true",
            help="run the cells again, on the new ranks, that defined their state",
        ),
    ),
    "restart": Command(
        restart,
        "kill ranks and start them anew; what they held is lost",
        add_arguments=lambda add: add("--ranks", required=True, help=RANKS_HELP),
    ),
    "lease": Command(
        lease,
        "after how long without a client a mesh ends; with --set: change it",
        add_arguments=lambda add: add(
            "--set", dest="time", type=seconds, metavar="T", help="such as 30m or 24h"
        ),
    ),
    "resize": Command(resize, "give a mesh other sizes", add_arguments=_resize_arguments),
    "shrink": Command(shrink, "go on without what is lost"),
    "debug": Command(
        debug,
        "talk to ranks that stand at a breakpoint: of a mesh, or of a script (its pid)",
        "optional",
        _debug_arguments,
        mesh_or_pid,
    ),
    "dashboard": Command(
        dashboard,
        "the panel as a page of its own, until Ctrl-C",
        None,
        lambda add: add(
            "--port", type=positive, default=0, help="on 127.0.0.1; without it, one that is free"
        ),
    ),
    "warm": Command(
        warm,
        "keep an interpreter with torch imported for the next script or notebook that starts a mesh",
        None,
        _warm_arguments,
    ),
    "install-kernel": Command(
        install_kernel,
        'install the kernelspec "Python 3 (mesh)"',
        None,
        lambda add: add("--prefix", default=sys.prefix, help="where to; by default this environment"),
    ),
}


if __name__ == "__main__":
    sys.exit(main())
