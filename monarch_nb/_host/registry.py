"""The home's books: which hosts, procs and clients there are, and what goes by which name.

Pure data; `process` reads and writes it in the loop's thread.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from monarch_nb._wire import address


@dataclass
class Host:
    """A machine of the mesh."""

    index: int
    label: str = ""
    state: str = "expected"  # expected, up, lost, stopped
    hostname: str = ""
    pid: int = 0
    num_cores: int = 0
    num_gpus: int = 0
    last_beat: float = 0.0
    backlog: list[list[Any]] = field(default_factory=list)
    """Messages for a host that hasn't joined yet."""


@dataclass
class Proc:
    """A rank, as the home knows it."""

    proc: int
    group: str
    rank: int
    state: str = "starting"
    pid: int = 0
    end: dict[str, Any] | None = None


@dataclass
class Client:
    """A program that uses the mesh."""

    proc: int
    pid: int
    what: str
    number: int
    listens: bool = True
    """Whether it shows what actors print."""
    pidfd: int = -1


@dataclass
class Waiting:
    """A request that is answered once its procs (or hosts) are up; or something of our own, then `done` is called."""

    src: int
    ref: int
    left: set[int]
    done: Callable[[], None] | None = None


class Registry:
    """Books of one mesh; only the home has one."""

    def __init__(self) -> None:
        self.hosts: dict[int, Host] = {}
        self.procs: dict[int, Proc] = {}
        self.clients: dict[int, Client] = {}
        self.names: dict[str, dict[str, Any]] = {}
        self.waiting: list[Waiting] = []
        self._hosts = itertools.count()
        self._locals: dict[int, itertools.count[int]] = {}
        self.started = time.time()

    def new_host(self, label: str) -> Host:
        """Enter a host that's expected to join."""
        host = Host(next(self._hosts), label)
        self.hosts[host.index] = host
        self._locals[host.index] = itertools.count(1)
        return host

    def new_procs(self, host: int, group: str, ranks: list[int]) -> list[Proc]:
        """Enter new ranks on `host` and give them ids."""
        procs = [Proc(address.proc_id(host, next(self._locals[host])), group, r) for r in ranks]
        self.procs.update((p.proc, p) for p in procs)
        return procs

    def proc_is_up(self, proc: int, pid: int) -> list[Waiting]:
        """Note that a rank runs; return the requests that this completes."""
        entry = self.procs.get(proc)
        if entry is not None and entry.state == "starting":
            entry.state, entry.pid = "running", pid
        return self._settle(proc)

    def proc_has_ended(self, end: dict[str, Any], *, settle: bool = True) -> list[Waiting]:
        """Note a rank's end; return the requests that this completes. One that starts again completes none."""
        entry = self.procs.get(end["proc"])
        if entry is not None:
            entry.state = "stopped" if end["stopped"] else "lost"
            entry.pid, entry.end = end["pid"], end
        return self._settle(end["proc"]) if settle else []

    def host_is_up(self, index: int) -> list[Waiting]:
        """Return the requests that a host's joining completes."""
        return self._settle(address.host_proc(index))

    def _settle(self, who: int) -> list[Waiting]:
        done = []
        for waiting in self.waiting:
            waiting.left.discard(who)
            if not waiting.left:
                done.append(waiting)
        self.waiting = [w for w in self.waiting if w.left]
        return done

    def alive(self) -> list[Proc]:
        """Return the ranks that haven't ended."""
        return [p for p in self.procs.values() if p.end is None]
