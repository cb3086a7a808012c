"""Supervises the ranks of this machine: starts them through the zygote, learns of their end from the kernel,
stops them.

A rank's end is a pidfd that becomes readable, not a time-out. The rank is a session of its own, so what it
started goes with it.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from monarch_nb._host.agent.burst_reader import Bursts
from monarch_nb._host.agent.output import OutputReader
from monarch_nb._host.agent.rank_command import module_path, rank_command
from monarch_nb._host.agent.zygote_switch import ZygoteSwitch
from monarch_nb._host.loop import Loop
from monarch_nb._host.starting import RANKS_PER_REQUEST, ZygoteAnswer, ZygoteRequest
from monarch_nb._host.warming import Zygote, start_zygote
from monarch_nb._protocol.base import encode
from monarch_nb._protocol.environment import RankEnvironment
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.rank_spec import OwnSpec, RankPlace, RankSpec, SharedSpec
from monarch_nb._protocol.states import ProcState, StartMethod
from monarch_nb._units import size_text
from monarch_nb._wire import address, open_files
from monarch_nb._wire.control_group import find_group, group_name, remove_group, was_out_of_memory
from monarch_nb._wire.limits import VARIABLE, parse_limits
from monarch_nb._wire.process import OomKills, set_process_name

STOP_GRACE_S = 3.0
COMMAND_S = 120.0
"""Limit for a command of the user's to become a rank."""
_PR_SET_CHILD_SUBREAPER = 36
_LAST_LINES = 20
_LAST_BYTES = 4096


@dataclass
class Rank:
    """A rank of this machine, as its host process knows it."""

    proc: int
    rank: int
    group: str
    token: str
    pid: int = 0
    pidfd: int = -1
    state: ProcState = ProcState.STARTING
    outputs: list[OutputReader] = field(default_factory=list)
    tail: list[bytes] = field(default_factory=list)
    gpu: str = ""
    """CUDA_VISIBLE_DEVICES for the rank, if this process sets it."""
    limit: str = ""
    """Its limits, if it has any."""
    asked: socket.socket | None = None
    """Connection to the zygote that was asked to fork it."""
    unsent: list[int] = field(default_factory=list)
    """Signals for it from before its pid was known: a rank may be at work before the zygote's answer is
    read.
    """

    def remember(self, text: bytes) -> None:
        """Keep the last lines, for the report of the rank's end."""
        if text.count(b"\n", -_LAST_BYTES) > _LAST_LINES:  # mostly, where much is printed
            self.tail, text = [], text[-_LAST_BYTES:]
        joined = b"".join([*self.tail, text])
        self.tail = joined.splitlines(True)[-_LAST_LINES:]


class Supervisor:
    """The supervisor that starts, watches and stops the ranks of this machine. Owned by the loop thread."""

    def __init__(
        self,
        loop: Loop,
        host: int,
        hostname: str,
        on_end: Callable[[RankExit], None],
        on_piece: Callable[[Rank, Any], None],
        sys_path: list[str],
        directory: str,
        zygote: Zygote | None = None,
    ) -> None:
        self.ranks: dict[int, Rank] = {}
        self._loop = loop
        self._host = host
        self._hostname = hostname
        self._on_end = on_end
        self._on_piece = on_piece
        self._sys_path = sys_path
        self._directory = directory
        self.oom_kills = OomKills()
        self._pipes = select.epoll()
        self._readers: dict[int, OutputReader] = {}
        self._bursts = Bursts(loop)
        self._zygote: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self.warm = False
        """Whether the zygote has finished its imports."""
        self.on_warm: Callable[[dict[str, list[str]]], None] = lambda _modules: None
        """Called then with the top-level modules, by the directory that they come from."""
        self._environment: RankEnvironment | None = None
        self._held: list[int] = []
        self._switch: ZygoteSwitch | None = None
        _become_subreaper()
        if zygote is not None:
            self._use(zygote)

    # --- the zygote

    def warm_up(self) -> None:
        """Start the zygote, if it isn't running."""
        if self._zygote is not None and self._zygote.poll() is None:
            return
        self._use(start_zygote(self._sys_path, self._directory, self._environment, self._held))

    @property
    def environment(self) -> tuple[RankEnvironment | None, list[str]]:
        """The environment that ranks are started in, None for this process' own; and their module path."""
        return self._environment, list(self._sys_path)

    def switch(self, environment: RankEnvironment, done: Callable[[str], None]) -> None:
        """Have ranks be forked from a zygote in another environment from now on; ranks requested meanwhile
        wait for it.

        Args:
            done: told why that can't be; an empty text if it's so.
        """
        if self._switch is not None:
            done("another environment is being switched to: again in a moment")
            return
        self._switch = ZygoteSwitch(self._loop, self._directory, environment, self._switched, done)
        self._switch.start_zygote()

    def _switched(self, switch: ZygoteSwitch) -> None:
        """Use the new zygote, if it has started, and start the waiting ranks."""
        self._switch = None
        if switch.zygote is not None:
            old = self._link
            self._environment, self._sys_path = switch.environment, list(switch.environment.path)
            for fd in self._held:
                os.close(fd)
            self._held = switch.held
            self._use(switch.zygote)
            if old is not None:
                with suppress(OSError):  # it has died already
                    old.send(_encoded({"retire": True}))
        for own, spec, method in switch.waiting:
            self._launch(own, spec, method)

    def move(self, belongings: dict[str, object], sys_path: list[str]) -> None:
        """Have this zygote, and later ones, run with another program's environment, module path and
        directory.
        """
        self._sys_path = sys_path
        assert self._link is not None
        fd = _in_memory(json.dumps(belongings).encode())
        with suppress(OSError):  # the zygote has just died; its successor inherits the requests
            socket.send_fds(self._link, [_encoded({"move": True})], [fd])
        os.close(fd)

    def _use(self, zygote: Zygote) -> None:
        process, link = self._zygote, self._link = zygote
        self._loop.watch_file(
            link.fileno(), lambda: self._on_zygote(process, link)
        )  # its end may be reported after its successor's start

    @property
    def zygote_pid(self) -> int | None:
        """Pid of the zygote, if it's running."""
        return self._zygote.pid if self._zygote is not None and self._zygote.poll() is None else None

    def _on_zygote(self, process: subprocess.Popen[bytes], link: socket.socket) -> None:
        try:
            data = link.recv(65536)
        except OSError:
            data = b""
        if data:
            answer: ZygoteAnswer = json.loads(data)
            if "ready" in answer:
                return
            if "groups" in answer:  # from a zygote that has retired
                with suppress(OSError):
                    if self._link is not None:
                        self._link.send(_encoded({"adopt": answer["groups"]}))
                return
            if "warm" in answer:
                self.warm = True
                self.on_warm(answer["modules"])
                return
            rank = self.ranks[answer["proc"]]
            if "failure" in answer:
                self._ended(rank, None, f"was never started: it can't be forked: {answer['failure']}")
            else:
                self._started(rank, answer["pid"])
            return
        self._loop.forget_file(link.fileno())
        link.close()
        process.wait()
        for rank in [r for r in self._forking() if r.asked is link and r.state != ProcState.RUNNING]:
            self._ended(rank, None, "was never started: the zygote, which forks ranks, had died")

    # --- starting

    def start(self, ranks: list[RankPlace], spec: SharedSpec, method: StartMethod) -> None:
        """Start ranks; `ranks` has their own settings, `spec` the shared ones. From now on messages to them
        are kept, and they can be stopped, though they may have to wait for another environment's zygote.
        """
        own = [OwnSpec(place, secrets.token_hex(4)) for place in ranks]
        for one in own:
            place = one.place
            rank = self.ranks[place.proc] = Rank(place.proc, place.rank, spec.group.group, one.token)
            rank.gpu = RankSpec(spec, one).gpu
            rank.limit = spec.group.env.get(VARIABLE, "")
            with suppress(OSError):  # left by the rank that had this place before
                os.unlink(address.stop_path(self._directory, rank.proc))
        if self._switch is not None:
            self._switch.waiting.append((own, spec, method))
        else:
            self._launch(own, spec, method)

    def _launch(self, own: list[OwnSpec], spec: SharedSpec, method: StartMethod) -> None:
        """Have registered ranks' processes begin."""
        python = sys.executable
        if self._environment is not None:
            python = self._environment.python
            workspaces = [there for there, _ in spec.place.elsewhere]
            path = self._environment.translated_path(spec.group.sys_path, workspaces)
            spec = replace(spec, group=replace(spec.group, sys_path=path, python=spec.group.python or python))
        elif not spec.group.python:
            path = module_path(spec.group.sys_path, self._sys_path)
            spec = replace(spec, group=replace(spec.group, sys_path=path))
        if method == StartMethod.SPAWN or spec.group.commands or (spec.group.python or python) != python:
            for one in own:
                self._spawn(RankSpec(spec, one))
            return
        self.warm_up()
        for i in range(0, len(own), RANKS_PER_REQUEST):
            self._ask_zygote(own[i : i + RANKS_PER_REQUEST], spec)

    def _ask_zygote(self, ranks: list[OwnSpec], spec: SharedSpec) -> None:
        assert self._link is not None
        fds = [_in_memory(encode(spec))]
        for own in ranks:
            self.ranks[own.place.proc].asked = self._link
            fds += self._make_pipes(self.ranks[own.place.proc])
        with suppress(OSError):  # the zygote has just died: `_on_zygote` will be called
            request = _encoded({"ranks": to_builtins(ranks), "imports": spec.group.imports})
            socket.send_fds(self._link, [request], fds)
        for fd in fds:
            os.close(fd)

    def _make_pipes(self, rank: Rank) -> list[int]:
        ends = []
        for stream in ("stdout", "stderr"):
            reader = OutputReader(
                self._loop, rank.token, stream, lambda piece: self._take_piece(rank, piece), self._bursts
            )
            rank.outputs.append(reader)
            ends.append(reader.write_end)
            self._readers[reader.fd] = reader
            self._pipes.register(reader.fd, select.EPOLLIN)
            reader.on_close = self._forget_pipe
        return ends

    def _forget_pipe(self, reader: OutputReader) -> None:
        self._readers.pop(reader.fd, None)
        self._pipes.unregister(reader.fd)

    def _take_piece(self, rank: Rank, piece: Any) -> None:
        if piece.kind == "t":
            rank.remember(piece.data)
        self._on_piece(rank, piece)

    def _spawn(self, spec: RankSpec) -> None:
        """Start a rank as a fresh interpreter, or by the user's own command: slow, but independent of the
        zygote.
        """
        rank = self.ranks[spec.place.proc]
        out_fd, err_fd = self._make_pipes(rank)
        spec_fd = _in_memory(encode(spec))
        command = rank_command(spec, spec_fd)
        try:
            process = subprocess.Popen(
                command.argv,
                executable=command.program,
                pass_fds=[spec_fd],
                stdin=subprocess.DEVNULL,
                stdout=out_fd,
                stderr=err_fd,
                env=command.env,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = (
                f"was never started: {command.program!r}: "
                f"{error.strerror if isinstance(error, OSError) else error}"
            )
            self._loop.call_later(
                0.0, lambda: self._ended(rank, None, reason)
            )  # the asker must be told of the start first
            return
        finally:
            for fd in (spec_fd, out_fd, err_fd):
                os.close(fd)
        open_files.restore_for(process.pid)
        process.returncode = 0  # this process waits for it by pidfd; Popen must not
        self._started(rank, process.pid)
        if command.is_users:
            self._loop.call_later(COMMAND_S, lambda: self._give_up(rank))

    def _give_up(self, rank: Rank) -> None:
        """Kill a user's command that hasn't become a rank in time."""
        if rank.state == ProcState.STARTING:
            rank.tail.append(
                (
                    f"bootstrap_command has not become a rank within {COMMAND_S:g} s: it is to run "
                    "`python -m monarch_nb._rank.bootstrap`\n"
                ).encode()
            )
            self._signal(rank, signal.SIGKILL)

    def _started(self, rank: Rank, pid: int) -> None:
        rank.pid = pid
        rank.pidfd = os.pidfd_open(pid)
        self._loop.watch_file(rank.pidfd, lambda: self._reap(rank))
        unsent, rank.unsent = rank.unsent, []
        for number in unsent:
            self._signal(rank, number)

    def drain(self) -> None:
        """Read all output that ranks have written so far. One look at all pipes: it's done twice for each
        cell and rank.
        """
        for fd, _ in self._pipes.poll(0):
            reader = self._readers.get(fd)
            if reader is not None:
                reader.drain()
        self._bursts.read()

    # --- ending

    def handle_ends(self) -> None:
        """Handle the ends of ranks that the loop has not come to yet."""
        by_fd = {rank.pidfd: rank for rank in self.ranks.values() if rank.pidfd >= 0}
        poll = select.poll()
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(0):
            self._reap(by_fd[fd])

    def _reap(self, rank: Rank) -> None:
        self._loop.forget_file(rank.pidfd)
        try:
            status = os.waitid(os.P_PIDFD, rank.pidfd, os.WEXITED)
        except ChildProcessError:
            status = None
        os.close(rank.pidfd)
        rank.pidfd = -1
        with suppress(OSError):
            os.killpg(rank.pid, signal.SIGKILL)  # child processes that it left behind
        self._ended(rank, status)
        if not self._forking():  # of its forks not all are known
            reap_strangers({r.pid for r in self.ranks.values() if r.pidfd >= 0} | {self.zygote_pid or 0})

    def _forking(self) -> list[Rank]:
        """Return the ranks that a zygote was asked for and whose pids it hasn't told; some may be up."""
        states = (ProcState.STARTING, ProcState.RUNNING, ProcState.STOPPING)
        return [r for r in self.ranks.values() if r.state in states and not r.pid and r.asked is not None]

    def _ended(self, rank: Rank, status: Any, reason: str = "") -> None:
        for output in rank.outputs:
            output.drain()
            output.close()
        rank.outputs.clear()
        stopped = rank.state == ProcState.STOPPING
        words = self._take_last_words(rank.proc)
        reason = reason or ("" if stopped else words)
        rank.state = ProcState.STOPPED if stopped else ProcState.LOST
        signaled = status is not None and status.si_code != os.CLD_EXITED
        if signaled and status.si_status == signal.SIGKILL and not stopped and self.oom_kills.take_kill():
            reason = "was killed by the kernel (SIGKILL): out of memory"
        if rank.limit:
            reason = self._leave_group(rank) or reason
        self._on_end(
            RankExit(
                proc=rank.proc,
                rank=rank.rank,
                group=rank.group,
                host=self._hostname,
                pid=rank.pid,
                signal=status.si_status if status is not None and signaled else None,
                exit_code=None if signaled or status is None else status.si_status,
                stopped=stopped,
                reason=reason,
                last_lines=b"".join(rank.tail).decode(errors="replace"),
            )
        )

    def _leave_group(self, rank: Rank) -> str:
        """Remove the control group of a rank that had limits; return the reason of its end if it was that."""
        group = find_group(group_name(os.getpid(), rank.proc))
        if group is None:
            return ""
        killed = was_out_of_memory(group)
        self._remove_group(group)
        if not killed:
            return ""
        memory = size_text(parse_limits(rank.limit).memory_bytes)
        return f"was killed by the kernel (SIGKILL): it used more than its limit of {memory}"

    def _remove_group(self, group: Path, num_tries: int = 50) -> None:
        if not remove_group(group) and num_tries:
            self._loop.call_later(0.1, lambda: self._remove_group(group, num_tries - 1))

    def _take_last_words(self, proc: int) -> str:
        """Return why a rank has ended, if it said so, and forget it: its successor has the same path."""
        path = Path(address.last_words_path(self._directory, proc))
        try:
            found = path.read_text(errors="replace")
            path.unlink()
        except OSError:
            return ""
        return found

    def signal(self, procs: list[int], number: int) -> None:
        """Send a signal to ranks (not to their child processes)."""
        for proc in procs:
            rank = self.ranks.get(proc)
            if rank is not None:
                self._signal(rank, number)

    @staticmethod
    def _signal(rank: Rank, number: int) -> None:
        if rank.pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(rank.pidfd, number)
        elif not rank.pid:
            rank.unsent.append(number)

    def stop(self, procs: list[int], grace_s: float = STOP_GRACE_S) -> None:
        """Ask ranks to exit, and kill the remaining ones after `grace_s`."""
        leaving = [
            r
            for p in procs
            if (r := self.ranks.get(p)) is not None and r.state in (ProcState.STARTING, ProcState.RUNNING)
        ]
        for rank in leaving:
            rank.state = ProcState.STOPPING
            with suppress(OSError):
                os.close(os.open(address.stop_path(self._directory, rank.proc), os.O_CREAT, 0o600))
            self._signal(rank, signal.SIGTERM if grace_s > 0 else signal.SIGKILL)
        if grace_s > 0:
            self._loop.call_later(grace_s, lambda: self._kill(leaving))

    def _kill(self, ranks: list[Rank]) -> None:
        for rank in ranks:
            self._signal(rank, signal.SIGKILL)

    @property
    def num_alive(self) -> int:
        """Number of ranks that haven't ended."""
        return sum(
            r.state in (ProcState.STARTING, ProcState.RUNNING, ProcState.STOPPING)
            for r in self.ranks.values()
        )

    @property
    def is_stopping(self) -> bool:
        """Whether ranks that were asked to exit haven't ended yet."""
        return any(r.state == ProcState.STOPPING for r in self.ranks.values())

    def close(self) -> None:
        """Kill the remaining ranks and the zygote, and wait for them."""
        for rank in self.ranks.values():
            if rank.pidfd >= 0:
                self._signal(rank, signal.SIGKILL)
                with suppress(OSError):
                    os.killpg(rank.pid, signal.SIGKILL)
        if self._zygote is not None:
            self._zygote.kill()
            self._zygote.wait()
        kill_children()
        for rank in self.ranks.values():
            if rank.limit and (group := find_group(group_name(os.getpid(), rank.proc))):
                remove_group(group)


def _become_subreaper() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    set_process_name("mnb-host")


def reap_strangers(known: set[int]) -> None:
    """Reap orphans of ranks, which the kernel has made children of this process."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid in known:
            return
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, found.si_pid, os.WEXITED | os.WNOHANG)


def kill_children(grace_s: float = STOP_GRACE_S) -> None:
    """Kill every child of this process, adopted ones included, until none is left; but don't wait for one
    that can't be killed (because it belongs to another user now): this process is about to end.
    """
    limit = time.monotonic() + grace_s
    while time.monotonic() < limit:
        for pid in _children():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is None:
                time.sleep(0.001)
        except ChildProcessError:
            return


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(p) for p in file.read().split()]


def _encoded(request: ZygoteRequest) -> bytes:
    return json.dumps(request).encode()


def _in_memory(data: bytes) -> int:
    fd = os.memfd_create("monarch_nb-spec", os.MFD_CLOEXEC)
    with open(os.dup(fd), "wb") as file:
        file.write(data)
    return fd
