"""The table of commands of `%mesh`, `monarch-nb`, REST and the card, in the order in which help lists
them.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from monarch_nb._commands import actions, torchrun
from monarch_nb._commands.arguments import (
    ALL_DIFFERENCES,
    ASYNC,
    BY_HOST,
    CELL_NUMBER_HELP,
    DIM,
    DOCTOR,
    FOLLOW,
    GROUP,
    JSON,
    NAME_FIRST,
    NAME_FLAG,
    NAME_NEEDED,
    NOTEBOOK,
    OF_MESH,
    OF_NAMED_MESH,
    PROFILE,
    RANKS,
    SCRIPT,
    START,
    SYNC,
    TERMINAL,
    TIMEOUT,
    TORCHRUN,
)
from monarch_nb._commands.command import TYPED, Command, Place, argument, at_place
from monarch_nb._commands.settings import SETTINGS
from monarch_nb._commands.values import (
    cell_number,
    dims,
    host_names,
    mesh_name,
    mesh_names,
    mesh_or_invitation,
    mesh_or_pid,
    num_bytes,
    pattern,
    positive,
    seconds,
    variable_name,
    variable_part,
    whole,
    word,
)
from monarch_nb._stacks import stacks_text

IN_NOTEBOOK = frozenset({NOTEBOOK})
IN_TERMINAL = frozenset({TERMINAL})
ON_PANEL = TYPED | {Place.SERVER}
EVERYWHERE = ON_PANEL | {Place.CARD}
_VARIABLES = argument(
    "names", about="variables of the ranks", nargs="+", type=variable_name, metavar="VARIABLE"
)

_LIFE = (
    Command(
        "start",
        "Start a mesh, which goes on by itself. With no size: one rank per GPU, or per core.",
        START,
        "In a notebook: or attach to the running one of that name.",
        places=ON_PANEL,
    ),
    Command("list", "List the meshes of this user: how big, how they are, how old, whose."),
    Command(
        "clusters", "List profiles and engines: usable here? If not, why, and what to type.", places=ON_PANEL
    ),
    Command(
        "queue",
        "List what this user has asked engines for: how each request is, since when, until when.",
        places=ON_PANEL,
    ),
    Command(
        "cancel",
        "Give back the hosts of a mesh, whether it waits for them or runs.",
        (
            NAME_NEEDED,
            argument(
                "--forget",
                about="forget them even if the engine can't be reached: it's gone for good",
                action="store_true",
            ),
        ),
        places=ON_PANEL,
    ),
    Command(
        "hosts",
        "Show the hosts of a mesh: who is where, what each has, what the engine says.",
        OF_MESH,
        run=actions.hosts,
        observes=True,
    ),
    Command(
        "extend",
        "Ask the engine to leave a mesh its hosts for longer: extend 1h.",
        (
            NAME_NEEDED.at(TERMINAL),
            argument("time", about="how much longer", type=seconds, metavar="TIME"),
            NAME_FLAG,
        ),
        run=actions.extend,
    ),
    Command(
        "host",
        "Let this machine be a host of a mesh that has invited it.",
        (
            argument(
                "--join",
                about="the invitation that the mesh has written; - reads it from standard input",
                metavar="FILE",
            ),
            argument(
                "--wait",
                about="wait in a directory that hosts and notebooks share, for one mesh after the other",
                metavar="DIR",
            ),
            argument(
                "--place",
                about="which of the mesh's hosts this one is; without it: the next one",
                type=whole,
                metavar="N",
            ),
            argument(
                "--detach",
                about="return once the host process serves; it goes on by itself",
                action="store_true",
            ),
        ),
        places=IN_TERMINAL,
    ),
    Command(
        "wait",
        "Wait until a mesh ends: the last line of a batch job in which it runs.",
        (NAME_NEEDED.at(TERMINAL),),
        places=IN_TERMINAL,
    ),
    Command(
        "attach",
        "Connect to a running mesh; show what was missed.",
        (
            argument(
                "name",
                about="a mesh, if not the only one; one of yours on a machine that ssh reaches; or the "
                "invitation to another user's: a file, or a line",
                only=NOTEBOOK,
                nargs="?",
                type=mesh_or_invitation,
                metavar="NAME|MACHINE:NAME|MACHINE:FILE|FILE",
            ),
            argument(
                "name",
                about="a mesh of yours on a machine that ssh reaches; or the invitation to another user's: a "
                "file, or a line",
                only=TERMINAL,
                type=mesh_or_invitation,
                metavar="MACHINE:NAME|MACHINE:FILE|FILE",
            ),
            argument(
                "--as",
                about="with a machine or an invitation: what the mesh is called here",
                dest="as_name",
                type=mesh_name,
                metavar="NAME",
            ),
            argument(
                "--python",
                about="with a machine: an interpreter there that has monarch_nb; by default `monarch-nb` "
                "of a login shell is asked",
                metavar="PATH",
            ),
        ),
        "A cell that still runs goes on streaming here.",
        places=ON_PANEL,
    ),
    Command(
        "share",
        "Let somebody else into a mesh; without arguments as an observer, who changes nothing.",
        (
            *OF_MESH,
            argument(
                "--role",
                about="observer: reads; operator: runs cells, interrupts, debugs, too",
                choices=("observer", "operator"),
                default="observer",
            ),
            argument("--for", about="for how long, as in 2h", dest="duration", type=seconds, metavar="T"),
            argument("--to", about="what their key is called", type=word, metavar="KEY"),
            argument("--file", about="where the invitation is written; a secret", metavar="FILE"),
            argument("--token", about="show the invitation as one line instead", action="store_true"),
            argument(
                "--own",
                about="for yourself on another machine, with all rights: attach MACHINE:NAME does it by ssh",
                action="store_true",
            ),
            argument(
                "--network",
                about="which of this machine's addresses they reach, as in 10.0.0.0/8",
                type=word,
                metavar="NET",
            ),
            argument("--list", about="show who may be in it", action="store_true"),
        ),
        run=actions.share,
    ),
    Command(
        "unshare",
        "Make keys of a mesh invalid, and disconnect their users at once.",
        (
            NAME_NEEDED.at(TERMINAL),
            argument("key", about="whose: see share --list", nargs="?", type=word, metavar="KEY"),
            argument("--all", about="everybody but its owner", action="store_true"),
            NAME_FLAG,
        ),
        run=actions.unshare,
    ),
    Command(
        "rekey",
        "Give a mesh new keys: earlier invitations are invalid, everybody but its owner is disconnected.",
        OF_NAMED_MESH,
        run=actions.rekey,
    ),
    Command("detach", "Disconnect from a mesh; it goes on.", NAME_FIRST, places=IN_NOTEBOOK),
    Command(
        "use",
        "Make a mesh the one that %mesh and %%mesh are about; without a name: say which one is.",
        NAME_FIRST,
        places=IN_NOTEBOOK,
    ),
    Command(
        "status",
        "Show the state of a mesh: its hosts and ranks.",
        (
            *NAME_FIRST,
            JSON,
            argument(
                "--watch",
                "-w",
                about="go on until interrupted, or until q is pressed",
                only=TERMINAL,
                action="store_true",
            ),
        ),
        places=ON_PANEL,
        run=actions.status,
        text=lambda found: str(found.text()),
    ),
    Command(
        "top",
        "Show what each rank does and takes, live, until you interrupt it.",
        (
            *NAME_FIRST,
            argument(
                "--count",
                "-c",
                about="how many times; without it, until interrupted",
                only=NOTEBOOK,
                type=positive,
            ),
            argument(
                "--every", about="how often at most", only=NOTEBOOK, type=seconds, default=1.0, metavar="T"
            ),
        ),
        "In a terminal: the same as status --watch; q ends it, too.",
    ),
    Command(
        "lease",
        "Show after how long without client and running cell a mesh ends, or set it.",
        (
            *OF_MESH,
            argument("time", about="such as 30m or 24h", only=NOTEBOOK, nargs="?", type=seconds),
            argument(
                "--set", about="such as 30m or 24h", only=TERMINAL, dest="time", type=seconds, metavar="T"
            ),
        ),
        run=actions.lease,
        observes=True,
    ),
    Command(
        "interrupt",
        "Interrupt what runs on ranks.",
        (*OF_MESH, RANKS),
        "First by SIGINT; after 3 s collectives are aborted, after 10 s more it's given up.",
        places=EVERYWHERE,
        run=actions.interrupt,
    ),
    Command(
        "restart",
        "Kill ranks and start them again in their places. Their variables are lost.",
        (
            *OF_MESH,
            RANKS.at(NOTEBOOK),
            RANKS.at(TERMINAL, required=True),
            argument("--force", "-f", about="don't ask", only=NOTEBOOK, absent=True, action="store_true"),
        ),
        run=actions.restart,
        loss=actions.lost_by_restart,
    ),
    Command(
        "heal",
        "Restore what was lost: processes in their places, actors, process groups.",
        (
            *OF_MESH,
            argument(
                "--replay",
                about="run the cells again, on the new ranks, that defined their state",
                action="store_true",
            ),
        ),
        places=EVERYWHERE,
        run=actions.heal,
    ),
    Command(
        "resize",
        "Give a mesh other sizes: ranks are added, or leave with what they hold.",
        (
            *OF_MESH,
            argument(
                "sizes", about="new sizes, as in gpus=4 or hosts=2,gpus=4", type=dims, metavar="D=N,..."
            ),
            argument(
                "--force",
                "-f",
                about="don't ask if ranks leave, with what they hold; start more than the machine seems "
                "to have room for",
                action="store_true",
            ),
        ),
        places=ON_PANEL,
        run=actions.resize,
        loss=actions.lost_by_resize,
    ),
    Command(
        "grow",
        "Give a mesh that is up more hosts (its engine is asked for them), or more ranks: grow 2.",
        (
            NAME_NEEDED.at(TERMINAL),
            argument("num", about="how many more; without it: 1", nargs="?", type=positive, metavar="N"),
            NAME_FLAG,
            DIM,
            argument("--hosts", about="which hosts, where they have names: a,b[1-4]", type=word),
            argument(
                "--spares", about="without ranks: they wait to take a lost one's place", action="store_true"
            ),
            argument(
                "--wait",
                about="how long to wait for hosts; then the request is cancelled",
                type=seconds,
                metavar="T",
            ),
        ),
        run=actions.grow,
    ),
    Command(
        "shrink",
        "Remove hosts or ranks from a mesh: shrink 2. Without a number: go on without the lost ones.",
        (
            NAME_NEEDED.at(TERMINAL),
            argument("num", about="how many fewer", nargs="?", type=positive, metavar="N"),
            NAME_FLAG,
            DIM,
            argument(
                "--hosts", about="which hosts leave, by number or name: 3,5", type=host_names, metavar="H,..."
            ),
            argument(
                "--force", "-f", about="don't ask if ranks leave, with what they hold", action="store_true"
            ),
        ),
        "Hosts without ranks go back to their engine.",
        run=actions.shrink,
        loss=actions.lost_by_shrink,
    ),
    Command(
        "on-failure",
        "Say what is done when a rank dies: stop (calls raise until you heal it), heal, or shrink.",
        (
            argument("do", about="stop: nothing by itself", choices=("stop", "heal", "shrink")),
            argument("--max-restarts", about="how often within ten minutes", type=positive, default=5),
            NAME_FLAG,
        ),
        places=IN_NOTEBOOK,
        run=actions.on_failure,
    ),
    Command(
        "stop",
        "End a mesh and what its ranks hold.",
        (
            *NAME_FIRST,
            argument(
                "--force",
                "-f",
                about="give the ranks no time to clean up",
                only=NOTEBOOK,
                action="store_true",
            ),
        ),
        places=EVERYWHERE,
        run=actions.stop,
    ),
)

_LOOKS = (
    Command(
        "stacks",
        "Show where ranks stand: the Python stacks of their threads, equal ones once.",
        (
            *OF_MESH,
            RANKS,
            argument(
                "--native", about="frames of C code, too: needs py-spy, takes seconds", action="store_true"
            ),
        ),
        "Also of ranks that can't answer.",
        places=EVERYWHERE,
        run=actions.stacks,
        text=stacks_text,
    ),
    Command(
        "why",
        "Say why nothing moves: which ranks wait for what, since when, and which one deviates.",
        (*OF_MESH, RANKS),
        run=actions.why,
        text=lambda found: str(found.text()),
        is_rich=True,
        observes=True,
    ),
    Command(
        "doctor",
        "Show the transport hardware of ranks, how fast each path between them is, and what to change.",
        (*OF_MESH, *DOCTOR),
        "That's RDMA, GPUs, shared memory, network.",
        run=actions.doctor,
        text=lambda found: str(found.text()),
        is_rich=True,
    ),
    Command(
        "debug",
        "Talk to ranks that stand at a breakpoint.",
        (
            NAME_FLAG,
            argument(
                "name",
                about="a mesh, or a script that has one of its own (its pid); may be left out",
                only=TERMINAL,
                nargs="?",
                type=mesh_or_pid,
            ),
            RANKS,
            argument(
                "--post-mortem",
                "-p",
                about="where ranks have failed; no breakpoint is needed",
                action="store_true",
            ),
        ),
        places=ON_PANEL,
    ),
    Command(
        "break",
        "Set a breakpoint from outside, while code runs: %mesh break train.py:40 [if loss > 3].",
        (
            argument("--clear", about="forget those that were set so", action="store_true"),
            argument(
                "place", about="train.py:40, or In[3]:2 for a cell's line", nargs="?", metavar="FILE:LINE"
            ),
            argument("condition", about="stop only if that's true there", nargs="*", metavar="if EXPR"),
            RANKS,
            NAME_FLAG,
        ),
        places=IN_NOTEBOOK,
    ),
    Command(
        "set",
        "Show the settings that hold, or change one.",
        (
            argument("setting", about="without it: what holds", nargs="?", choices=tuple(SETTINGS)),
            argument(
                "value", about="; ".join(f"{name} {each.takes}" for name, each in SETTINGS.items()), nargs="*"
            ),
            NAME_FLAG,
        ),
        places=IN_NOTEBOOK,
    ),
)

_CODE = (
    Command(
        "exec",
        "Run code on the ranks; output as in a notebook.",
        (
            NAME_NEEDED,
            argument("code", about="Python source; - reads it from standard input"),
            RANKS,
            TIMEOUT,
        ),
        places=IN_TERMINAL,
    ),
    Command(
        "run",
        "Run a script on the ranks as torchrun would: run train.py --lr 0.1.",
        (RANKS.at(NOTEBOOK), TIMEOUT.at(NOTEBOOK), NAME_FLAG, ASYNC, GROUP, *TORCHRUN, *SCRIPT),
        "Ranks of a mesh stay warm for the next. In a terminal: on a mesh of its own, or with --name on one "
        "that runs.",
        instead=torchrun.IN_NOTEBOOKS,
    ),
    Command(
        "push",
        "Copy variables of this notebook to the ranks.",
        (_VARIABLES, RANKS, NAME_FLAG),
        places=IN_NOTEBOOK,
    ),
    Command(
        "pull",
        "Bring variables of the ranks here, each as a ValueMesh under its name; a single one is also shown.",
        (_VARIABLES, RANKS, NAME_FLAG),
        places=IN_NOTEBOOK,
    ),
    Command(
        "scatter",
        "Split a variable of this notebook along a dimension: each rank gets its part under the same name.",
        (
            argument("variable", about="a tensor, an array, a list, or a table", type=variable_name),
            argument("--dim", about="which dimension of a tensor or an array", type=whole, default=0),
            RANKS,
            NAME_FLAG,
        ),
        places=IN_NOTEBOOK,
    ),
    Command(
        "vars",
        "Show what each rank holds: type, shape, dtype, device, norm.",
        (
            argument("names", about="only these", nargs="*", type=variable_name, metavar="VARIABLE"),
            RANKS,
            NAME_FLAG,
        ),
        "What differs between ranks is marked.",
        places=IN_NOTEBOOK,
    ),
    Command(
        "diff",
        "Show where ranks disagree on a variable: the first differing element, the largest difference.",
        (
            argument(
                "variable", about="a variable, or an attribute: model.fc", nargs="?", type=variable_part
            ),
            argument(
                "--env",
                "-e",
                about="versions, environment variables, code, drivers, settings, limits",
                action="store_true",
            ),
            replace(ALL_DIFFERENCES, about=f"with --env: {ALL_DIFFERENCES.about}"),
            replace(BY_HOST, about=f"with --env: {BY_HOST.about}"),
            RANKS,
            NAME_FLAG,
        ),
        "--env: on what they run with.",
        places=IN_NOTEBOOK,
    ),
    Command(
        "diff-env",
        "Show where ranks run with different versions, variables, code, settings; status 1 if they do.",
        (*OF_MESH, RANKS, ALL_DIFFERENCES, BY_HOST),
        places=IN_TERMINAL,
        run=actions.diff_env,
        text=lambda found: str(found.text()),
        status=lambda found: 1 if found else 0,
        is_rich=True,
    ),
    Command(
        "sync",
        "Send the workspace to the other hosts; have ranks run what the files of your modules hold now.",
        SYNC,
        "In a terminal, the status is 1 if a host or a rank lacks something.",
        run=actions.sync,
        status=lambda found: 0 if found.is_done or found.is_dry else 1,
        is_rich=True,
    ),
    Command(
        "reload",
        "Put the methods of CLASS, as this notebook defines it now, on the living actors of an older one.",
        (
            argument(
                "cls",
                about="the actor class, as this notebook defines it now",
                type=variable_name,
                metavar="CLASS",
            ),
            NAME_FLAG,
        ),
        "They keep their state.",
        places=IN_NOTEBOOK,
    ),
)

_JOURNAL = (
    Command(
        "history",
        "Show the journal: what ran, by whom, on which ranks, how it ended.",
        (
            *OF_MESH,
            argument("number", about="all about one entry", only=NOTEBOOK, nargs="?", type=cell_number),
            argument("--last", about="how many entries", type=positive, default=50, metavar="N"),
            argument("--audit", about="who did what, or was refused, instead", action="store_true"),
        ),
        "In a terminal, also that of a mesh that has ended.",
        places=ON_PANEL,
        run=actions.history,
        text=lambda found: str(found.text()),
        is_rich=True,
    ),
    Command(
        "rerun",
        "Run a cell of the journal again, on the same ranks or others.",
        (
            argument("number", about=CELL_NUMBER_HELP, type=cell_number),
            RANKS.at(NOTEBOOK, default=None),
            NAME_FLAG,
        ),
        places=IN_NOTEBOOK,
    ),
    Command(
        "result",
        "Wait for a cell, show it, and fail if it has failed.",
        (argument("number", about=CELL_NUMBER_HELP, type=cell_number, nargs="?"), NAME_FLAG),
        "By default: the last one that --async has started, or that runs.",
        places=IN_NOTEBOOK,
    ),
    Command(
        "export",
        "Write the journal's cells to FILE.ipynb (with their output) or FILE.py (a script for torchrun).",
        (*OF_NAMED_MESH, argument("file", about="FILE.ipynb or FILE.py", metavar="FILE")),
        run=actions.export,
    ),
    Command(
        "logs",
        "Show what ranks have printed, folded; all of it is kept by the host process.",
        (
            *OF_MESH,
            argument("--grep", about="only lines that match", type=pattern, metavar="RE"),
            argument(
                "--bytes",
                about="about how much of the end of the journal: 64M",
                type=num_bytes,
                default=1 << 20,
                metavar="SIZE",
            ),
            FOLLOW,
            RANKS,
        ),
        places=ON_PANEL,
        run=actions.logs,
    ),
    Command(
        "lines", "Show what ranks have printed last.", (RANKS,),
        places=frozenset({Place.CARD}), run=actions.last_lines,
    ),
)  # fmt: skip

_HERE = (
    Command(
        "auto",
        "Run every plain cell on the mesh, or no longer. %%local makes an exception for a cell.",
        (argument("mode", about="whether they do", choices=("on", "off")), NAME_FLAG),
        places=IN_NOTEBOOK,
    ),
    Command(
        "dashboard",
        "Serve the panel as a page of its own, to this machine and this user, until Ctrl-C.",
        (argument("--port", about="on 127.0.0.1; without it, one that is free", type=positive, default=0),),
        places=IN_TERMINAL,
    ),
    Command(
        "warm",
        "Keep an interpreter with torch imported for the next script or notebook that starts a mesh.",
        (
            argument(
                "--for",
                about="how long, from the last start of a mesh on: 30m (without it) or 8h",
                dest="time",
                type=seconds,
                metavar="T",
            ),
            argument(
                "--status",
                about="what is kept warm, and whether programs of this terminal would take it",
                action="store_true",
            ),
            argument("--stop", about="keep nothing warm any more", action="store_true"),
        ),
        places=IN_TERMINAL,
    ),
    Command(
        "install-kernel",
        'Install the kernelspec "Python 3 (mesh)": this Python, with the extension loaded.',
        (argument("--prefix", about="where to; by default this environment", default=sys.prefix),),
        places=IN_TERMINAL,
    ),
    Command(
        "help",
        "Say what can be typed: all verbs, a line each; with a verb, all about it.",
        (argument("verb", about="all about one verb", nargs="?"),),
        places=IN_NOTEBOOK,
    ),
)

COMMANDS: dict[str, Command] = {each.name: each for each in (*_LIFE, *_LOOKS, *_CODE, *_JOURNAL, *_HERE)}
IN_NOTEBOOKS = at_place(COMMANDS, Place.NOTEBOOK)
IN_TERMINALS = at_place(COMMANDS, Place.TERMINAL)

CELL = Command(
    "%%mesh",
    "Run this cell on the ranks of a mesh.",
    (
        RANKS,
        argument(
            "--name", "-n", about="which meshes, if not the current one", type=mesh_names, metavar="MESH,..."
        ),
        ASYNC,
        argument(
            "--output", "-o", about="put the last value of each rank here, as a ValueMesh", metavar="VAR"
        ),
        TIMEOUT,
        GROUP,
        argument("--local", about="run the cell in the kernel, too, after the ranks", action="store_true"),
        argument(
            "--always",
            about="for definitions: run it on later meshes, too, and on ranks that heal or are added",
            action="store_true",
        ),
        *PROFILE,
    ),
    places=IN_NOTEBOOK,
)
"""The arguments of `%%mesh` at the head of a cell."""
