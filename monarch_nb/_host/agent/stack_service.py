"""Takes stacks of ranks of this machine that don't answer requests: by a signal, then by py-spy.

A thread of its own does it, one request at a time, for it waits for files and subprocesses; the loop goes on.
A rank that has no handler for the signal (it's just starting, or the user has taken it) isn't sent any: that
would kill it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from monarch_nb._host.agent.dump_request import request_dump
from monarch_nb._host.agent.dumped import from_faulthandler, from_py_spy
from monarch_nb._host.agent.supervisor import Supervisor
from monarch_nb._host.loop import Loop
from monarch_nb._protocol.hang import RankStacks
from monarch_nb._protocol.states import StacksBy
from monarch_nb._wire import address
from monarch_nb._wire.process import process_trouble

WRITE_S = 0.3
"""Limit for a rank to write its stacks. C code in a signal handler does it: some milliseconds, unless the
machine is overloaded.
"""
PY_SPY_S = 5.0
NATIVE_S = 20.0
"""Limit for native frames, for which py-spy reads the symbols of all libraries."""
NUM_AT_ONCE = 4

Found = dict[int, RankStacks]
"""Stacks by proc."""


class _Target(NamedTuple):
    proc: int
    pid: int


class StackService:
    """The service that takes stacks of ranks that can't answer a request. Owned by the loop thread;
    `take_stacks` may be called meanwhile.

    Args:
        directory: of the host process.
    """

    def __init__(self, directory: str, loop: Loop, supervisor: Supervisor) -> None:
        self._directory = directory
        self._loop = loop
        self._supervisor = supervisor
        self._turn = threading.Lock()

    def take_stacks(self, procs: Sequence[int], native: bool, done: Callable[[Found], None]) -> None:
        """Take the stacks of ranks; `done` is called with them in the loop's thread.

        Args:
            native: C frames, too: only py-spy has them.
        """
        ranks = [r for p in procs if (r := self._supervisor.ranks.get(p)) is not None and r.pidfd >= 0]
        targets = [_Target(rank.proc, rank.pid) for rank in ranks]

        def work() -> None:
            found: Found = {}
            try:
                with self._turn:
                    found = self._take_stacks(targets, native)
            finally:
                self._loop.call_soon_threadsafe(lambda: done(found))

        threading.Thread(target=work, name="stacks", daemon=True).start()

    def forget(self, proc: int) -> None:
        """Remove the stack dump of a rank that has ended."""
        with suppress(OSError):
            os.unlink(address.dump_path(self._directory, proc))

    # --- in the service's thread

    def _take_stacks(self, targets: Sequence[_Target], native: bool) -> Found:
        found: Found = {
            t.proc: {"stacks": None, "how": "", "missing": "", "process": process_trouble(t.pid)}
            for t in targets
        }
        left = list(targets)
        if not native:
            left = self._by_signal(targets, found)
        if left:
            with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
                list(pool.map(lambda t: _by_py_spy(t, found[t.proc], native), left))
        return found

    def _by_signal(self, targets: Sequence[_Target], found: Found) -> list[_Target]:
        """Have ranks write their stacks; return those that didn't."""
        left, waiting = [], []
        for target in targets:
            writing = request_dump(target.pid, address.dump_path(self._directory, target.proc))
            if isinstance(writing, str):
                found[target.proc]["missing"] = writing
                left.append(target)
            else:
                waiting.append((target, writing))
        deadline = time.monotonic() + WRITE_S
        for target, writing in waiting:
            text = writing.finish(deadline)
            if text:
                found[target.proc].update(
                    {"stacks": from_faulthandler(text, writing.main_ident), "how": StacksBy.FAULTHANDLER}
                )
            else:
                found[target.proc]["missing"] = f"faulthandler wrote nothing within {WRITE_S:g} s"
                left.append(target)
        return left


def find_py_spy() -> str:
    """Return the path of py-spy: in PATH, or beside our interpreter; empty if there's none."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return shutil.which("py-spy") or (beside if os.access(beside, os.X_OK) else "")


def _by_py_spy(target: _Target, found: RankStacks, native: bool) -> None:
    """Take stacks with py-spy; record which couldn't be taken."""
    path = find_py_spy()
    before = f"{found['missing']}; " if found["missing"] else ""
    if not path:
        found["missing"] = before + "py-spy is not installed on its host: pip install py-spy"
        return
    command = [path, "dump", "--json", "--pid", str(target.pid), *(["--native"] if native else [])]
    if process_trouble(target.pid, stopped_only=True):
        command.append("--nonblocking")  # py-spy would wait for a stopped process to stop
    limit_s = NATIVE_S if native else PY_SPY_S
    try:
        ran = subprocess.run(
            command, capture_output=True, timeout=limit_s, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        found["missing"] = f"{before}py-spy did not end within {limit_s:g} s"
        return
    except OSError as error:
        found["missing"] = f"{before}py-spy can't be run: {error}"
        return
    try:
        found.update(
            {
                "stacks": from_py_spy(ran.stdout),
                "how": StacksBy.PY_SPY_NATIVE if native else StacksBy.PY_SPY,
                "missing": "",
            }
        )
    except (ValueError, LookupError):  # the process has printed no stacks
        found["missing"] = f"{before}py-spy: {_reason(ran.stderr)}"


def _reason(text: bytes) -> str:
    lines = [line.strip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
    if any("ermission" in line for line in lines):
        return (
            "the kernel doesn't allow it (ptrace): see /proc/sys/kernel/yama/ptrace_scope, or give the "
            "container SYS_PTRACE"
        )
    return lines[0] if lines else "it said nothing"
