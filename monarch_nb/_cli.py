"""The command `monarch-nb`: meshes from a terminal, with the verbs of `%mesh`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from monarch_nb._commands import actions
from monarch_nb._commands.command import Command, Place
from monarch_nb._commands.parser import Parser, did_you_mean, shortened
from monarch_nb._commands.table import IN_TERMINALS as COMMANDS
from monarch_nb._terminal.words import in_terminal
from monarch_nb._version import __version__
from monarch_nb._wire.process import wait_until_gone
from monarch_nb.exceptions import MeshNotFound, MeshUsageError

if TYPE_CHECKING:
    from monarch_nb.mesh import Mesh

USAGE_ERROR = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    from monarch_nb._terminal.colours import colours_as_wanted
    from monarch_nb._terminal.failure import exit_status

    arguments = _parser().parse_args(argv)
    with colours_as_wanted():
        return exit_status(
            lambda: arguments.run(arguments), f"monarch-nb {arguments.command}", partial(_in_words, arguments)
        )


def _say(arguments: argparse.Namespace, text: str) -> None:
    """Print a message of this package in the terminal's wording; output of ranks is printed unchanged."""
    print(_in_words(arguments, text), flush=True)


def _in_words(arguments: argparse.Namespace, text: str) -> str:
    return in_terminal(text, COMMANDS, getattr(arguments, "name", None))


class CommandParser(Parser):
    """The parser of the notebook's commands as a terminal uses it: it prints an error and exits."""

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
        raise AssertionError  # `exit` doesn't return

    def print_help(self, file: Any = None) -> None:
        argparse.ArgumentParser.print_help(self, file)

    def _leave(self, text: str) -> NoReturn:
        print(in_terminal(text, COMMANDS, None), file=sys.stderr)
        self.exit(USAGE_ERROR)


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="monarch-nb", description="Meshes of this user: those of notebooks, scripts and terminals."
    )
    parser.add_argument("--version", action="version", version=f"monarch-nb {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, command in COMMANDS.items():
        found = commands.add_parser(
            name, help=command.about.replace("%", "%%"), description=command.description
        )
        command.add_to(found, Place.TERMINAL)
        found.set_defaults(run=_OWN[name] if name in _OWN else partial(_run_shared, command))
    return parser


def _run_shared(command: Command, arguments: argparse.Namespace) -> int:
    """Run a command of the table on a mesh; print its result, and return the exit status."""
    assert command.run is not None
    mesh = _attach(arguments.name, observes=command.observes)
    loss = "" if getattr(arguments, "force", True) else command.loss(mesh, arguments)
    if loss:
        raise MeshUsageError(f"{loss}. --force does it")
    found = command.run(mesh, arguments)
    text = command.text(found)
    if text:
        _say(arguments, text)
    return command.status(found)


def start(arguments: argparse.Namespace) -> None:
    """Start a mesh and leave it running; wait for one whose hosts were requested before."""
    from monarch_nb._commands.clusters import script_text, wait_on
    from monarch_nb._commands.starting import is_requested, plan_of, set_up, start_mesh

    if arguments.dry_run and arguments.on:
        print(script_text(arguments, plan_of(arguments)))
        return
    is_before = arguments.on is None and is_requested(arguments.name)
    mesh = wait_on(arguments) if is_before else start_mesh(arguments)
    _say(arguments, set_up(mesh, arguments))


WAIT_S = 3600.0


def wait(arguments: argparse.Namespace) -> None:
    """Wait until a mesh ends."""
    from monarch_nb._client.launch import find_connection

    pid = find_connection(arguments.name).pid
    while not wait_until_gone(pid, WAIT_S):
        pass
    _say(arguments, f"mesh {arguments.name!r} has ended")


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
        from monarch_nb._display.top import text
        from monarch_nb._widgets.top import follow

        with suppress(KeyboardInterrupt):
            follow(mesh, lambda status: print(text(status), flush=True))
    else:
        _say(arguments, mesh.status().text())


def top(arguments: argparse.Namespace) -> None:
    """Print the snapshot of a mesh again and again."""
    show_status(argparse.Namespace(**vars(arguments), json=False, watch=True))


def _print_json(mesh: Mesh, *, watch: bool) -> None:
    from monarch_nb._widgets.top import follow

    if not watch:
        print(json.dumps(mesh.status().as_dict()))
        return
    with suppress(KeyboardInterrupt):
        follow(mesh, lambda status: print(json.dumps(status.as_dict()), flush=True))


def _watch_in_terminal(mesh: Mesh) -> None:
    from rich.live import Live
    from rich.text import Text

    from monarch_nb._display.top import table
    from monarch_nb._terminal.keys import key_ends
    from monarch_nb._widgets.top import Watch

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


def host(arguments: argparse.Namespace) -> int:
    """Make this machine a host of a mesh, by an invitation."""
    from monarch_nb._host import launcher, pool

    if (arguments.join is None) == (arguments.wait is None):
        raise MeshUsageError(
            "host: type one of monarch-nb host --join FILE (an invitation) and monarch-nb host --wait DIR "
            "(for meshes)"
        )
    return pool.run(arguments.wait) if arguments.wait is not None else int(launcher.run(arguments))


def attach(arguments: argparse.Namespace) -> None:
    """Enter a mesh of somebody else's by an invitation."""
    from monarch_nb._commands.sharing import attached

    _say(arguments, attached(arguments))


def clusters(arguments: argparse.Namespace) -> None:
    """Print profiles and engines."""
    from monarch_nb._commands.clusters import clusters_text

    _say(arguments, clusters_text())


def queue(arguments: argparse.Namespace) -> None:
    """Print the requests that engines have."""
    from monarch_nb._commands.clusters import queue_text

    _say(arguments, queue_text())


def cancel(arguments: argparse.Namespace) -> None:
    """Give back the hosts of a mesh."""
    from monarch_nb._commands.clusters import cancelled

    _say(arguments, cancelled(arguments.name, forgets=arguments.forget))


def history(arguments: argparse.Namespace) -> None:
    """Print the journal of a mesh, also of one that has ended."""
    from monarch_nb._client.launch import find_journal
    from monarch_nb._journal import entries
    from monarch_nb.mesh.history import Entries, Entry

    if arguments.audit:
        from monarch_nb._commands.sharing import audit_of

        _say(arguments, str(audit_of(arguments)))
        return
    try:
        entries_now = _attach(arguments.name).history(arguments.last)
        entries_now.note = _in_words(arguments, entries_now.note)
        print(entries_now.text())
    except MeshNotFound:
        if arguments.name is None:
            raise
        rows = entries.read(find_journal(arguments.name))
        print(Entries(Entry.of(row) for row in rows[-arguments.last :]).text())


def doctor(arguments: argparse.Namespace) -> None:
    """Print the transports that ranks have, the speed of each path, and advice."""
    found = actions.doctor(_attach(arguments.name), arguments)
    if arguments.json:
        print(json.dumps(found.as_dict()))
    else:
        _say(arguments, found.text())


def sync(arguments: argparse.Namespace) -> int:
    """Send the workspace of the working directory to the hosts of a mesh; the status is 1 if a host or a rank
    lacks a part.
    """
    if arguments.gc or arguments.export:
        return _keep_store(arguments)
    if arguments.to and arguments.env:
        return _send_to(arguments)
    return _run_shared(COMMANDS["sync"], arguments)


def _send_to(arguments: argparse.Namespace) -> int:
    """Copy this environment to other machines; this needs no mesh."""
    from monarch_nb.mesh import shipping

    shipping.check_source(arguments.to, from_index=arguments.source == "index")
    done = shipping.send_to(
        arguments.to, same_path=arguments.same_path, dry_run=arguments.dry_run, verify=arguments.verify
    )
    _say(arguments, str(done))
    return 0 if done.is_done or done.is_dry else 1


def _keep_store(arguments: argparse.Namespace) -> int:
    """Clean this machine's store of environments, or move this environment to another store."""
    from monarch_nb.mesh import shipping

    done = (
        shipping.export_here(arguments.export, verify=arguments.verify)
        if arguments.export
        else shipping.clean_here()
    )
    _say(arguments, done)
    return 0


def debug(arguments: argparse.Namespace) -> None:
    """Show the debugger's prompt in this terminal; Ctrl-D leaves the prompt, and the ranks stay stopped."""
    from monarch_nb._debug import Prompt, Question
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
    """Have Tab complete names that are defined on a stopped rank."""
    with suppress(ImportError):
        import readline

        from monarch_nb._debug.client import completions

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
    from monarch_nb._display import CellView, LiveDisplay, ViewWatcher

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
    """Print the error of a cell; output of ranks is printed unchanged."""
    lines = [line if line.startswith("  | ") else _in_words(arguments, line) for line in text.splitlines()]
    print("\n".join(lines), file=sys.stderr)


def run(arguments: argparse.Namespace) -> int:
    """Run a script as torchrun does, on a mesh that runs or on one of its own."""
    from monarch_nb._terminal import running

    return running.run(arguments, _attach, partial(_say_error, arguments))


def dashboard(arguments: argparse.Namespace) -> None:
    """Serve the panel as a web page, to this machine and this user."""
    from monarch_nb._client.dashboard import find_dashboard
    from monarch_nb._server.dashboard import serve

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
    """Keep an interpreter warm for the next program that starts a mesh; or list the warm ones, or end one."""
    from monarch_nb._terminal import warm as words

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
    from monarch_nb._kernelspec import install

    print(f"kernelspec installed in {install(arguments.prefix)}")


_OWN: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "start": start,
    "wait": wait,
    "list": list_meshes,
    "clusters": clusters,
    "queue": queue,
    "cancel": cancel,
    "host": host,
    "attach": attach,
    "status": show_status,
    "top": top,
    "history": history,
    "exec": execute,
    "run": run,
    "sync": sync,
    "doctor": doctor,
    "debug": debug,
    "dashboard": dashboard,
    "warm": warm,
    "install-kernel": install_kernel,
}
"""Commands that need more than a mesh: this terminal, its standard input, files of this machine."""
