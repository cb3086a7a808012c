"""The verbs of `%mesh`: which function each one calls, and what may be typed after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monarch_nb.magics import (
    auto,
    clusters,
    data,
    debug,
    doctor,
    journal,
    lifecycle,
    reload,
    script,
    settings,
    sync,
    verb_help,
)
from monarch_nb.magics.arguments import (
    Namespace,
    Parser,
    add_doctor_arguments,
    add_start_arguments,
    add_sync_arguments,
    cell_number,
    dims,
    mesh_name,
    mesh_names,
    num_bytes,
    pattern,
    positive,
    seconds,
    variable_name,
    variable_part,
    whole,
)
from monarch_nb.magics.profile import add_profile_arguments
from monarch_nb.magics.state import State
from monarch_nb.mesh.history import TAIL_BYTES

Verb = Callable[[State, Namespace], Any]

VERBS: dict[str, Verb] = {
    "start": lifecycle.start,
    "list": lifecycle.list_,
    "clusters": clusters.clusters,
    "queue": clusters.queue,
    "cancel": clusters.cancel,
    "hosts": clusters.hosts,
    "attach": lifecycle.attach,
    "detach": lifecycle.detach,
    "use": lifecycle.use,
    "status": lifecycle.status,
    "top": lifecycle.top,
    "lease": lifecycle.lease,
    "interrupt": lifecycle.interrupt,
    "restart": lifecycle.restart,
    "heal": lifecycle.heal,
    "resize": lifecycle.resize,
    "shrink": lifecycle.shrink,
    "on-failure": lifecycle.on_failure,
    "stacks": lifecycle.stacks,
    "why": lifecycle.why,
    "doctor": doctor.doctor,
    "debug": debug.debug,
    "break": debug.break_,
    "set": settings.set_,
    "stop": lifecycle.stop,
    "run": script.run,
    "push": data.push,
    "pull": data.pull,
    "scatter": data.scatter,
    "vars": data.vars_,
    "diff": data.diff,
    "history": journal.history,
    "rerun": journal.rerun,
    "result": journal.result,
    "export": journal.export,
    "logs": journal.logs,
    "auto": auto.auto,
    "reload": reload.reload,
    "sync": sync.sync,
    "help": verb_help.help_,
}

NAMES_A_MESH = ("attach", "detach", "use", "status", "top")


def verb_parsers() -> dict[str, Parser]:
    """Return a parser for each verb."""
    parsers = {}
    for verb, function in VERBS.items():
        parser = parsers[verb] = Parser(prog=f"%mesh {verb}", description=function.__doc__)
        _add_arguments(verb, parser)
    return parsers


def cell_parser() -> Parser:
    """Return the parser of `%%mesh`."""
    parser = Parser(prog="%%mesh", description="Run this cell on the ranks of a mesh.")
    add = parser.add_argument
    add("--ranks", "-r", default="all", help="a rank set: all; 3; 0-3,7; ::2; hosts=0,gpus=2:8")
    add("--name", "-n", type=mesh_names, metavar="MESH,...", help="which meshes, if not the current one")
    add("--async", dest="background", action="store_true", help="return at once; %%mesh result waits for it")
    add("--output", "-o", metavar="VAR", help="put the last value of each rank here, as a ValueMesh")
    add("--timeout", "-t", type=seconds, metavar="T", help="90 or 90s; then the ranks are interrupted")
    add(
        "--group", "-g", choices=("fold", "rank", "order", "none"), default="fold",
        help="equal lines once (fold), rank by rank, in order of arrival, or bare",
    )  # fmt: skip
    add("--local", action="store_true", help="run the cell in the kernel, too, after the ranks")
    add(
        "--always",
        action="store_true",
        help="a cell that defines things: run it on later meshes, too, and on ranks that heal or are added",
    )
    add_profile_arguments(add)
    return parser


def _add_arguments(verb: str, parser: Parser) -> None:
    add = parser.add_argument
    if verb in NAMES_A_MESH:
        add("name", nargs="?", type=mesh_name, help="name of the mesh")
    if verb in _OWN:
        _OWN[verb](add)
    if verb in _PER_RANK:
        add(
            "--ranks",
            "-r",
            default=None if verb == "rerun" else "all",
            help="a rank set: all; 3; 0-3,7; ::2; hosts=0,gpus=2:8",
        )
    if verb not in ("start", "list", "stop", "help", "clusters", "queue", "cancel", *NAMES_A_MESH):
        add("--name", "-n", type=mesh_name, help="which mesh, if not the current one")
    if verb == "run":  # what stands behind the script is the script's
        script.add_run_arguments(add)


_PER_RANK = (
    "debug",
    "break",
    "push",
    "pull",
    "scatter",
    "vars",
    "diff",
    "logs",
    "interrupt",
    "restart",
    "stacks",
    "why",
    "rerun",
    "run",
)


def _start(add: Any) -> None:
    add_start_arguments(add)
    add(
        "--with-kernel",
        action="store_true",
        default=None,
        help="it ends with this kernel: the default where nbclient, papermill or nbconvert runs the notebook",
    )
    add(
        "--keep",
        dest="with_kernel",
        action="store_false",
        default=None,
        help="it goes on after the kernel, also there",
    )


def _debug(add: Any) -> None:
    add("--post-mortem", "-p", action="store_true", help="where ranks have failed; no breakpoint is needed")


def _break(add: Any) -> None:
    add("--clear", action="store_true", help="forget those that were set so")
    add("place", nargs="?", metavar="FILE:LINE", help="train.py:40, or In[3]:2 for a cell's line")
    add("condition", nargs="*", metavar="if EXPR", help="stop only if that's true there")


def _set(add: Any) -> None:
    add("setting", nargs="?", choices=tuple(settings.SETTINGS), help="without it: what holds")
    add(
        "value", nargs="*", help="; ".join(f"{name} {each.takes}" for name, each in settings.SETTINGS.items())
    )


def _top(add: Any) -> None:
    add("--count", "-c", type=positive, help="how many times; without it, until interrupted")
    add("--every", type=seconds, default=1.0, metavar="T", help="how often at most")


def _stop(add: Any) -> None:
    add("mesh", nargs="?", type=mesh_name, help="name of the mesh, if not the current one")
    add("--force", "-f", action="store_true", help="give the ranks no time to clean up")


def _scatter(add: Any) -> None:
    add("variable", type=variable_name)
    add("--dim", type=whole, default=0)


def _logs(add: Any) -> None:
    add("--grep", type=pattern, metavar="RE", help="only lines that match")
    add(
        "--bytes",
        type=num_bytes,
        default=TAIL_BYTES,
        metavar="SIZE",
        help="about how much of the end of the journal",
    )
    add("--follow", "-f", action="store_true", help="go on until interrupted")


def _diff(add: Any) -> None:
    add("variable", nargs="?", type=variable_part, help="a variable, or an attribute: model.fc")
    add(
        "--env",
        "-e",
        action="store_true",
        help="versions, environment variables, code, drivers, settings, limits",
    )
    add(
        "--all", "-a", action="store_true", help="with --env: what is equal, too, and what is each rank's own"
    )


def _resize(add: Any) -> None:
    add("sizes", type=dims, metavar="D=N,...", help="new sizes, as in gpus=4 or hosts=2,gpus=4")
    add("--force", "-f", action="store_true", help="don't ask")


def _on_failure(add: Any) -> None:
    add("do", choices=("stop", "heal", "shrink"))
    add("--max-restarts", type=positive, default=5, help="how often within ten minutes")


def _sync(add: Any) -> None:
    add("paths", nargs="*", metavar="PATH", help="files or folders; without any, whatever has changed")
    add("--watch", "-w", action="store_true", help="from now on before each cell and each call of an actor")
    add("--stop", action="store_true", help="no longer")
    add_sync_arguments(add)


def _history(add: Any) -> None:
    add("number", type=cell_number, nargs="?", help="all about one entry")
    add("--last", type=positive, default=50, help="how many entries")


_OWN: dict[str, Callable[[Any], None]] = {
    "start": _start,
    "stop": _stop,
    "cancel": clusters.add_cancel_arguments,
    "top": _top,
    "debug": _debug,
    "break": _break,
    "set": _set,
    "scatter": _scatter,
    "logs": _logs,
    "push": lambda add: add("names", nargs="+", type=variable_name, metavar="VARIABLE"),
    "pull": lambda add: add("names", nargs="+", type=variable_name, metavar="VARIABLE"),
    "vars": lambda add: add("names", nargs="*", type=variable_name, metavar="VARIABLE", help="only these"),
    "diff": _diff,
    "doctor": add_doctor_arguments,
    "lease": lambda add: add("time", nargs="?", type=seconds, help="such as 30m or 24h"),
    "heal": lambda add: add(
        "--replay",
        action="store_true",
        help="run the cells again, on the new ranks, that defined their state",
    ),
    "resize": _resize,
    "on-failure": _on_failure,
    "restart": lambda add: add("--force", "-f", action="store_true", help="don't ask"),
    "stacks": lambda add: add(
        "--native", action="store_true", help="frames of C code, too: needs py-spy, takes seconds"
    ),
    "history": _history,
    "rerun": lambda add: add("number", type=cell_number, help="number in %%mesh history"),
    "result": lambda add: add("number", type=cell_number, nargs="?", help="number in %%mesh history"),
    "export": lambda add: add("file", metavar="FILE", help="FILE.ipynb or FILE.py"),
    "help": lambda add: add("verb", nargs="?", help="all about one verb"),
    "sync": _sync,
    "auto": lambda add: add("mode", choices=("on", "off")),
    "reload": lambda add: add(
        "cls", type=variable_name, metavar="CLASS", help="the actor class, as this notebook defines it now"
    ),
}
