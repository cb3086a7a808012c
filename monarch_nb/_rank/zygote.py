"""The zygote: a warm interpreter that forks ranks. It has imported torch, hasn't touched CUDA, and has
started no thread.

It stays single-threaded and free of event loops, or its forks would inherit locks that
nobody will ever release. Ranks are forked by a child of it that ends then (see `forking`), so they are
adopted by the host process (a child subreaper), which has their exit statuses at first hand.

What training imports late is loaded while nobody asks for ranks: torch._dynamo, which the first DDP step
pulls in, costs 1.2 s in each rank otherwise. A request that comes earlier is served at once, between two
imports.

Protocol, on a SOCK_SEQPACKET pair with the host process: one request is a JSON object {"ranks": [...]} with
descriptors (spec, then stdout and stderr of each rank), and maybe "imports", to be made before; each rank is
answered by {"proc": ..., "pid": ...}, or "failure" in place of the pid. When it can be asked it says
{"ready": true}. Another is {"move": true}, with what the program has that the controller belongs to from now
on. A third, {"retire": true}, ends it for its successor: it answers with the process groups of its ranks,
which that is told by {"adopt": ...}. When the host process goes, the socket ends, and the zygote kills the
process groups of its ranks, takes the directory of their sockets away, and leaves: ranks die with the host
process by themselves, what they started does not, nor do files go. (So the zygote must not ask the kernel to
be killed with its parent.)
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

from monarch_nb._host.starting import HUGE_PAGES, RANKS_PER_REQUEST, ZygoteAnswer, ZygoteRequest
from monarch_nb._host.warming import ONE_THREAD
from monarch_nb._rank import huge_pages
from monarch_nb._rank.forking import fork_many
from monarch_nb._rank.mending import note_modules
from monarch_nb._wire.granted import granted_cores
from monarch_nb._wire.process import set_process_name

PRELOAD_FIRST = ("cloudpickle", "monarch_nb._rank.main", "monarch_nb._reload:install", "torch")
# imported in parts: a request waits for the part that is being imported, half a second at most
PRELOAD_IDLE = (
    "monarch_nb._rank.interactive:prepare",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
    "sympy",
    "torch.fx.experimental.symbolic_shapes",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "monarch_nb.rdma.action",
    "monarch_nb.rdma.published",
    "monarch_nb.rdma.broadcast.hosts",
    "monarch_nb.rdma.paths.tcp.path",
    "monarch_nb.rdma.paths.verbs.path",
    "monarch_nb.mesh.shipping.agent",
)
SHELL = PRELOAD_IDLE[0]
"""The shell that ranks run cells in."""
_AGENT = PRELOAD_IDLE[-1]
"""What brings an edited environment: its processes start a third sooner."""
_TORCH = "torch"
MANY_RANKS = 16
"""Number of ranks for which the shell is always made before they are forked: made by each of them, it would
delay the start of all.
"""
MAX_REQUEST_BYTES = 1 << 16


def main(link_fd: int, sys_path: list[str], directory: str) -> None:
    """Serve the host process at the other end of `link_fd`, whose sockets lie in `directory`, until it
    goes.
    """
    gc.disable()  # an eighth of the time of torch's import
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_process_name("mnb-zygote")
    sys.path[:] = sys_path
    link = socket.socket(fileno=link_fd)
    os.environ.setdefault(*HUGE_PAGES)
    first, later = what_to_load(os.environ.get("MONARCH_NB_PRELOAD", "all"))
    for name in first:
        _preload(name)
    _Zygote(link, directory, later).serve()


def what_to_load(how_much: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the modules to load before the first fork, and those to load in idle time.

    Args:
        how_much: "all"; "torch": that alone, not what training uses of it; "none": what ranks themselves
            need. What isn't loaded here is imported by each rank that uses it. Names of more modules to load
            before the first fork may follow, after commas.
    """
    how_much, *more = how_much.split(",")
    if how_much == "none":
        return (*(name for name in PRELOAD_FIRST if name != _TORCH), *more), (SHELL,)
    return (*PRELOAD_FIRST, *more), (SHELL, _AGENT) if how_much == _TORCH else PRELOAD_IDLE


def _preload(name: str) -> None:
    """Import a module, and call a function of it if one is named."""
    # A missing or broken torch must not prevent a mesh without it; ranks that import torch raise the error.
    with suppress(Exception):
        name, _, function = name.partition(":")
        module = importlib.import_module(name)
        if function:
            getattr(module, function)()


class _Zygote:
    def __init__(self, link: socket.socket, directory: str, later: Sequence[str]) -> None:
        self._link = link
        self._directory = directory
        self._later = list(later)
        self._warming = self._warm_up()
        self._groups: set[int] = set()
        self._has_forked = False
        self._parent = os.getppid()

    def serve(self) -> None:
        self._tell({"ready": True})
        while True:
            while not select.select([self._link], [], [], 0)[0] and next(self._warming, None):
                pass
            if not self._serve_one():
                break
        for group in self._groups:
            with suppress(OSError):
                os.killpg(group, signal.SIGKILL)
        self._tidy_up()
        os._exit(0)

    def _tell(self, answer: ZygoteAnswer) -> None:
        with suppress(OSError):  # the host process has died: noticed when the connection is read
            self._link.send(json.dumps(answer).encode())

    def _warm_up(self) -> Iterator[bool]:
        """Do what was left for later, a part at each step; say so when all is done."""
        while self._later:
            self._load(self._later[0])
            yield True
        yield from self._join_memory()
        self._tell({"warm": True, "modules": _imported()})

    def _join_memory(self) -> Iterator[bool]:
        """Join memory in huge pages, a part at each step, some 0.7 s in all for 300 MB; but only until ranks
        are forked: what they share by then would be copied, and most meshes are forked once.
        """
        if not self._has_forked:
            gc.collect()
            yield True
        for region in list(huge_pages.regions(Path("/proc/self/maps").read_text())):
            if self._has_forked:
                return
            huge_pages.join(region)
            yield True

    def _load(self, name: str) -> None:
        self._later.remove(name)
        _preload(name)

    def _tidy_up(self) -> None:
        """Remove what a host process that was killed has left. One that ends by itself does so, and kills
        us first.
        """
        shutil.rmtree(self._directory, ignore_errors=True)
        with suppress(OSError):
            os.rmdir(os.path.dirname(self._directory))

    def _serve_one(self) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(self._link, MAX_REQUEST_BYTES, 1 + 2 * RANKS_PER_REQUEST)
        except OSError:
            return False
        if not data:
            return False
        request: ZygoteRequest = json.loads(data)
        if "retire" in request:
            self._retire()
        if "adopt" in request:
            self._groups.update(request["adopt"])
            return True
        if "move" in request:
            self._move(json.loads(_read_all(fds[0])))
            os.close(fds[0])
            return True
        ranks = request["ranks"]
        for name in request.get("imports", ()):
            _preload(name)
        if len(ranks) >= MANY_RANKS and SHELL in self._later:
            self._load(SHELL)
        note_modules()
        importlib.invalidate_caches()  # files may be new; in each rank it would copy some 600 pages
        gc.freeze()  # otherwise the first collection in a fork would write to, and so copy, every page
        self._fork_ranks(_read_all(fds[0]), ranks, fds)
        for fd in fds:
            os.close(fd)
        return True

    def _retire(self) -> None:
        """End, for another zygote has taken our place; the ranks live on, and are looked after by that."""
        self._tell({"groups": sorted(self._groups)})
        os._exit(0)

    @staticmethod
    def _move(belongings: Any) -> None:
        """Take over the environment, module path and directory of the program that has taken the
        controller.
        """
        os.environ.clear()
        os.environ.update(belongings["environ"])
        os.environ.setdefault(*HUGE_PAGES)
        os.environ.setdefault(*ONE_THREAD)
        sys.path[:] = belongings["path"]
        with suppress(OSError):
            os.chdir(belongings["cwd"])

    def _fork_ranks(self, spec: bytes, ranks: Sequence[Any], fds: Sequence[int]) -> None:
        """Fork ranks, and tell the host process, which has adopted them, their pids.

        Args:
            spec: a `SharedSpec`, encoded.
            ranks: their `OwnSpec`s, as JSON gives them.
            fds: of the request: the specification, then two outputs for each rank.
        """
        cores = granted_cores()

        def run(number: int) -> None:
            self._prepare_fork(fds[1 + 2 * number : 3 + 2 * number], fds)
            from monarch_nb._rank.main import read_spec, run_rank  # not before the fork: see PRELOAD_FIRST

            run_rank(read_spec(spec, ranks[number]), self._parent, cores)

        self._has_forked = True
        forks = fork_many(len(ranks), run)
        self._groups.update(forks.pids)
        for own, pid in zip_longest(ranks, forks.pids):
            proc = own["place"]["proc"]
            self._tell(
                {"proc": proc, "failure": forks.failure} if pid is None else {"proc": proc, "pid": pid}
            )

    def _prepare_fork(self, outputs: Sequence[int], fds: Sequence[int]) -> None:
        """Make a fork a process of its own, with its outputs and nothing of the zygote's."""
        os.setsid()
        self._link.close()
        os.dup2(outputs[0], 1)
        os.dup2(outputs[1], 2)
        for fd in fds:
            os.close(fd)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        gc.enable()


def _imported() -> dict[str, list[str]]:
    """Return the top-level modules that have been imported, by the directory that they were found in ("":
    none).
    """
    found: dict[str, list[str]] = {}
    for name, module in list(sys.modules.items()):
        if "." not in name and name != "__main__":
            spec = getattr(module, "__spec__", None)
            origin = (spec.origin or "") if spec is not None and spec.has_location else ""
            is_package = spec is not None and spec.submodule_search_locations is not None
            found.setdefault(os.path.dirname(os.path.dirname(origin) if is_package else origin), []).append(
                name
            )
    return found


def _read_all(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)
