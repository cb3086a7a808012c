"""The arguments shared by several commands, and those of commands that have many."""

from __future__ import annotations

import argparse
from dataclasses import replace

from monarch_nb._commands.command import Place, argument
from monarch_nb._commands.torchrun import meaningless
from monarch_nb._commands.values import (
    DEFAULT_NAME,
    controller_place,
    dims,
    host_count,
    limit,
    mesh_before_paths,
    mesh_name,
    num_bytes,
    num_nodes,
    num_procs,
    num_restarts,
    positive,
    script_name,
    seconds,
    variable,
    word,
)

NOTEBOOK, TERMINAL = Place.NOTEBOOK, Place.TERMINAL

# --- which mesh

NAME_FLAG = argument(
    "--name", "-n", about="which mesh, if not the current one", only=NOTEBOOK, type=mesh_name
)
_NAME = argument(
    "name", about="name of the mesh; may be left out if there's only one", nargs="?", type=mesh_name
)
NAME_NEEDED = argument("name", about="name of the mesh", type=mesh_name)
NAME_FIRST = (
    argument(
        "name", about="name of the mesh, if not the current one", only=NOTEBOOK, nargs="?", type=mesh_name
    ),
    _NAME.at(TERMINAL),
)
OF_MESH = (_NAME.at(TERMINAL), NAME_FLAG)
"""The mesh of a command: in a notebook the current one by default, in a terminal the only one."""
OF_NAMED_MESH = (NAME_NEEDED.at(TERMINAL), NAME_FLAG)

# --- which ranks, how

RANKS = argument("--ranks", "-r", about="a rank set: all; 3; 0-3,7; ::2; hosts=0,gpus=2:8", default="all")
TIMEOUT = argument(
    "--timeout", "-t", about="90 or 90s; then the ranks are interrupted", type=seconds, metavar="T"
)
GROUP = argument(
    "--group", "-g",
    about="equal lines once (fold), rank by rank, in order of arrival, or bare", only=NOTEBOOK,
    choices=("fold", "rank", "order", "none"), default="fold",
)  # fmt: skip
ASYNC = argument(
    "--async", about="return at once; %%mesh result waits for it", only=NOTEBOOK,
    dest="background", action="store_true",
)  # fmt: skip
FOLLOW = argument("--follow", "-f", about="go on until interrupted", action="store_true")
ALL_DIFFERENCES = argument(
    "--all", "-a", about="what is equal, too, and what is each rank's own", action="store_true"
)
BY_HOST = argument(
    "--hosts", about="packages that hosts have otherwise: version, build, edited by hand", action="store_true"
)
CELL_NUMBER_HELP = "number in %%mesh history"
JSON = argument(
    "--json", about="for programs; with --watch, one object a line", only=TERMINAL, action="store_true"
)

# --- starting

DIM = argument(
    "--dim", about="of which dimension; without it: hosts, or the first one", type=word, metavar="D"
)
ON_ENGINE = (
    argument(
        "--on", about="hosts of a profile of clusters.toml, or of an engine; %%mesh clusters lists them",
        type=word, metavar="PROFILE",
    ),
    argument("--time", about="with --on: for how long, as in 2h", type=seconds, metavar="T"),
    argument("--partition", about="with --on: which part of the cluster", type=word),
    argument("--account", about="with --on: who pays", type=word),
    argument(
        "--login", about="with --on: where the engine's commands are, by ssh",
        type=word, metavar="[USER@]HOST",
    ),
    argument("--python", about="with --on: the interpreter on the hosts", type=word, metavar="PATH"),
    argument(
        "--controller", about="with --on: where the controller runs; inside: on the first host",
        type=controller_place, metavar="here|inside",
    ),
    argument(
        "--wait", about="with --on: how long to wait for hosts; then the request is cancelled",
        type=seconds, metavar="T",
    ),
    argument(
        "--keep-queued", about="with --wait: leave the request in the queue instead", action="store_true"
    ),
    argument(
        "--dry-run", about="with --on: show what would be submitted, and submit nothing", action="store_true"
    ),
)  # fmt: skip
WITH_KERNEL = (
    argument(
        "--with-kernel",
        about="it ends with this kernel: the default where nbclient, papermill, nbconvert run the notebook",
        only=NOTEBOOK, absent=False, action="store_true", default=None,
    ),
    argument(
        "--keep", about="it goes on after the kernel, also there",
        only=NOTEBOOK, absent=False, dest="with_kernel", action="store_false", default=None,
    ),
)  # fmt: skip
START = (
    argument(
        "name", about="name of the mesh, and of the notebook's variable for it",
        nargs="?", type=mesh_name, default=DEFAULT_NAME,
    ),
    argument("--gpus", about="ranks per host, one GPU each where there are any", type=positive),
    argument("--procs", about="ranks per host", type=positive),
    argument("--hosts", about="number of hosts; with --on also LEAST..MOST, or names", type=host_count),
    argument("--dims", about="dimensions, as in hosts=2,gpus=4 or dp=2,tp=4", type=dims, metavar="D=N,..."),
    argument("--job", about="where hosts come from", choices=("local", "process")),
    argument("--idle-timeout", about="lease, as in 30m or 8h (without it: 8h)", type=seconds, metavar="T"),
    argument("--env", "-e", about="environment of the ranks", type=variable, action="append", metavar="K=V"),
    argument(
        "--limit", about="what each rank may use at most, as in memory=8G,cpus=2",
        type=limit, action="append", dest="env", metavar="LIMITS",
    ),
    argument(
        "--init-process-group", about="set up torch.distributed",
        nargs="?", const="", choices=("", "nccl", "gloo"),
    ),
    argument(
        "--group-timeout",
        about="with --init-process-group: how long a collective may take (without it: 10m)",
        type=seconds, metavar="T",
    ),
    argument(
        "--on-failure", about="what is done when a rank dies (without it: stop)",
        choices=("stop", "heal", "shrink"),
    ),
    argument("--spares", about="hosts that wait to take a lost one's place", type=positive),
    argument("--spawn", about="fresh interpreters instead of forks of a warm one", action="store_true"),
    argument(
        "--force", "-f", about="more ranks than the machine seems to have room for", action="store_true"
    ),
    *ON_ENGINE,
    *WITH_KERNEL,
)  # fmt: skip

# --- sync, doctor

SYNC = (
    argument(
        "name", about="name of the mesh; may be left out if there's only one, and no path is given",
        only=TERMINAL, nargs="?", type=mesh_before_paths,
    ),
    NAME_FLAG,
    argument(
        "paths",
        about="files or folders to reload, all that has changed if there are none; a folder outside of the "
        "workspace is sent, too",
        nargs="*", metavar="PATH",
    ),
    argument("--dry-run", about="only say what would be sent and reloaded, and why", action="store_true"),
    argument(
        "--include", about="send it though it's ignored, secret or big, from now on",
        action="append", default=[], metavar="GLOB",
    ),
    argument("--exclude", about="don't send it, from now on", action="append", default=[], metavar="GLOB"),
    argument("--same-path", about="make a link at the notebook's path on each host", action="store_true"),
    argument("--no-reload", about="only put files in place", action="store_true"),
    argument("--force", "-f", about="send more than a GiB", action="store_true"),
    argument(
        "--env", "-e", about="the environment, too: ranks that are started from then on run in it",
        action="store_true",
    ),
    argument(
        "--verify", about="with --env: read every file here, whatever its package's record says",
        action="store_true",
    ),
    argument(
        "--copy", about="with --env: a copy also for hosts that see the notebook's files", action="store_true"
    ),
    argument(
        "--to",
        about="with --env: this machine gets it, too, whether it has a Python or not: a name for ssh, or a "
        "command that runs a shell there",
        action="append", default=[], metavar="MACHINE",
    ),
    argument(
        "--from",
        about="with --env: where hosts get what they lack of packages: from here, or from the package index "
        "that they are configured to use, as far as content there is the same (default: by the link's speed)",
        dest="source", choices=("here", "index"),
    ),
    argument(
        "--watch", "-w",
        about="from now on before each cell and each call of an actor; with --env, also what is installed",
        only=NOTEBOOK, action="store_true",
    ),
    argument("--stop", about="no longer", only=NOTEBOOK, action="store_true"),
    argument(
        "--gc",
        about="remove environments that no rank runs in, and that were not used for long, from the store",
        only=TERMINAL, action="store_true",
    ),
    argument(
        "--export", about="make this environment in a store at DIR: it runs there, on any host that it fits",
        only=TERMINAL, metavar="DIR",
    ),
)  # fmt: skip
DOCTOR = (
    argument(
        "--ranks", "-r",
        about="which ranks; by default all are probed, and representatives of their hosts are measured",
        default="",
    ),
    argument(
        "--size", "-s", about="how much is read at a time: 64M",
        type=num_bytes, default=64 << 20, metavar="SIZE",
    ),
    argument("--quick", "-q", about="only probe, measure nothing", action="store_true"),
    argument(
        "--all", "-a", about="measure also the path through the mesh's own messages", action="store_true"
    ),
    argument("--json", about="for programs", only=TERMINAL, action="store_true"),
)  # fmt: skip

# --- cells and scripts

PROFILE = (
    argument(
        "--profile", "-p", about="torch.profiler on the ranks: one trace for Perfetto, a table of operators",
        nargs="?", const="", metavar="FILE",
    ),
    argument("--profile-ranks", about="only on these ranks of the cell", metavar="R"),
    argument("--profile-shapes", about="with the shapes of operators' inputs", action="store_true"),
    argument("--profile-stacks", about="with Python stacks", action="store_true"),
    argument(
        "--memory", "-m", about="what the cell does to each rank's memory, and which lines hold it",
        action="store_true",
    ),
    argument(
        "--top", about="how many rows of a profile are shown", type=positive, default=20, metavar="N"
    ),
)  # fmt: skip
SCRIPT = (
    argument(
        "--module", "-m", about="SCRIPT is a module, as for python -m", dest="is_module", action="store_true"
    ),
    argument(
        "--env", "-e", about="an environment variable, for this run only",
        type=variable, action="append", metavar="K=V",
    ),
    argument("script", about="a file, or with -m a module", type=script_name, metavar="SCRIPT"),
    argument(
        "args", about="everything after it goes to the script", nargs=argparse.REMAINDER, metavar="ARGS"
    ),
)  # fmt: skip
TORCHRUN = (
    # Without their letters: torchrun's -r and -t are other flags.
    replace(RANKS, flags=("--ranks",), only=TERMINAL),
    replace(TIMEOUT, flags=("--timeout",), only=TERMINAL),
    argument(
        "--name", "-n", about="a mesh that runs; without it, one for this run", only=TERMINAL, type=mesh_name
    ),
    argument(
        "--nproc-per-node", "--nproc_per_node", about="how many ranks: 4, auto, gpu or cpu (without it: 1)",
        only=TERMINAL, type=num_procs, metavar="N",
    ),
    argument("--nnodes", about="1: this machine", only=TERMINAL, type=num_nodes, default=1, metavar="N"),
    argument(
        "--standalone", about="torchrun's flag; always in effect", only=TERMINAL, action="store_true"
    ),
    argument(
        "--run-path", "--run_path", about="torchrun's flag; always in effect",
        only=TERMINAL, action="store_true",
    ),
    argument(
        "--max-restarts", "--max_restarts", about="how often it's run again if it fails",
        only=TERMINAL, type=num_restarts, default=0, metavar="N",
    ),
    *meaningless(),
)  # fmt: skip
