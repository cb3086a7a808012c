"""Warm interpreters for the next program of the same environment (`monarch-nb warm`, MONARCH_NB_WARM): how a
program takes one, and the keepers.

Anything that goes wrong in taking one means that there's none: then a program starts its own, and hears
what's wrong from that.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import NamedTuple

from monarch_nb._client import children, launch, warm_key
from monarch_nb._client.connection_file import Connection
from monarch_nb._host.controller.handover import CLAIM, THANKS, YOURS, Belongings, read_facts, socket_path
from monarch_nb._host.starting import PACKAGE_ROOT
from monarch_nb._protocol.claims import KeeperNote
from monarch_nb._units import parse_duration
from monarch_nb._wire import open_files
from monarch_nb._wire.claim import Claim, holder
from monarch_nb._wire.directory import socket_root
from monarch_nb._wire.process import is_running, machine_id
from monarch_nb.exceptions import MeshStartError, MeshUsageError

VARIABLE = "MONARCH_NB_WARM"
"""Set to a time such as 30m: a program that starts a mesh then keeps an interpreter warm for the next program
of its environment.
"""
START_S = 120.0
STOP_S = 15.0
ANSWER_S = 2.0
"""How long a program waits for a warm controller's answer, which should be immediate, before it starts its
own.
"""
_CODE = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; import importlib.util as u;"
    "u.find_spec('monarch_nb') or sys.path.append(sys.argv[2]);"
    "from monarch_nb._client.keeper import main; main()"
)


class Kept(NamedTuple):
    """A keeper: the process that keeps an interpreter warm for the next program.

    Attributes:
        pid, start_time: of the keeper.
        until: when the keeper ends if no program starts a mesh before, in seconds since the epoch.
        controller: the controller with the warm interpreter; None until it is warm.
        path: path of the claim file.
    """

    pid: int
    start_time: int | None
    until: float
    controller: Connection | None
    python: str
    path: str

    @property
    def until_text(self) -> str:
        """The time at which the keeper ends, as HH:MM; with the date, if that's another day."""
        same_day = time.localtime(self.until)[:3] == time.localtime()[:3]
        return time.strftime("%H:%M" if same_day else "%Y-%m-%d %H:%M", time.localtime(self.until))


# --- taking a warm interpreter


def take_warm() -> Connection | None:
    """Return a warm controller, which belongs to this program from now on; None if none meets this program's
    requirements.
    """
    with suppress(OSError, ValueError):
        if not keepers():  # the usual case; comparing the requirements would take some milliseconds
            return None
        kept = keeper_of(_own_key())
        if kept is not None and kept.controller is not None:
            return _take_controller(kept.controller)
    return None


def _take_controller(controller: Connection) -> Connection | None:
    path = launch.importable_path()
    facts = read_facts(controller.directory)
    if warm_key.why_path_differs(path, facts.path, facts.modules):
        return None
    belongings = Belongings(launch.clean_environment(), path, os.getcwd())
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.settimeout(ANSWER_S)
        link.connect(socket_path(controller.directory))
        fd = os.memfd_create("monarch_nb-belongings", os.MFD_CLOEXEC)
        try:
            with open(os.dup(fd), "w") as file:
                json.dump(belongings._asdict(), file)
            socket.send_fds(link, [CLAIM], [fd])
        finally:
            os.close(fd)
        if link.recv(64) != YOURS:
            return None
        link.send(THANKS)
    return controller


# --- keepers


def keeper_of(key: str) -> Kept | None:
    """Return the warm interpreter kept for programs with a key, if there is one."""
    return _kept(warm_key.claim_path(key))


def keepers() -> list[Kept]:
    """Return all warm interpreters of this user on this machine; remove the files of killed ones."""
    found = [(path, _kept(path)) for path in _claim_files()]
    for path, kept in found:
        if kept is None:
            _remove_left(path)
    return sorted((kept for _, kept in found if kept is not None), key=lambda kept: kept.pid)


def _claim_files() -> list[str]:
    root = socket_root()
    return [
        os.path.join(root, n)
        for n in os.listdir(root)
        if n.startswith(warm_key.PREFIX) and n.endswith(warm_key.SUFFIX)
    ]


def _remove_left(path: str) -> None:
    with suppress(OSError):
        if holder(path) is None:
            claim = Claim.acquire(path)
            if claim is not None:
                claim.release()


def _kept(path: str) -> Kept | None:
    data = holder(path)
    try:
        note = KeeperNote.of_json(data) if data else None
    except ValueError:
        note = None  # the keeper hasn't written its note yet
    if note is None or note.machine != machine_id():
        return None
    controller = None
    if note.controller is not None:
        pid, started, directory = note.controller
        controller = Connection("", pid, directory, start_time=started)
    return Kept(note.pid, note.start_time, note.until, controller, note.python, path)


def _own_key() -> str:
    return warm_key.key_of(warm_key.requirements())


def keep_warm(for_s: float) -> tuple[Kept, bool]:
    """Keep an interpreter of this environment warm; wait until it is warm. Say whether it was started now.

    Args:
        for_s: seconds until it ends, if no program starts a mesh before.

    Raises:
        MeshStartError: if it can't be started.
    """
    key = _own_key()
    process, deadline = None, time.monotonic() + START_S
    while True:
        kept = keeper_of(key)
        if kept is not None and kept.controller is not None:
            return kept, process is not None
        if kept is None and process is None:
            process = _start_keeper(for_s, wait_s=0.0, stderr=subprocess.PIPE)
        elif process is not None and process.poll() is not None:
            _raise_reason(process)
            process = None
        if time.monotonic() > deadline:
            raise MeshStartError(
                f"no interpreter was warm within {START_S:g} s. Try again, or see what is wrong: "
                "monarch-nb warm --stop, monarch-nb start"
            )
        time.sleep(0.02)


def _raise_reason(process: subprocess.Popen[bytes]) -> None:
    """Raise the error that a keeper has written when it ended; nothing if another keeper was faster."""
    from monarch_nb._client.keeper import KEPT_ALREADY

    assert process.stderr is not None
    written = process.stderr.read().decode(errors="replace").strip()
    if process.returncode != KEPT_ALREADY:
        why = written or f"its keeper has ended (exit code {process.returncode})"
        raise MeshStartError(f"no interpreter could be warmed up: {why}")


def keep_if_wanted() -> None:
    """Keep an interpreter warm in the background, if the environment variable requests it; return at once.

    Raises:
        MeshUsageError: if what MONARCH_NB_WARM says is no time.
    """
    for_s = wanted_s()
    if for_s is None:
        return
    with suppress(OSError, ValueError):
        if keeper_of(_own_key()) is None:
            from monarch_nb._client.keeper import NEXT_S

            children.look_after(_start_keeper(for_s, wait_s=NEXT_S, stderr=subprocess.DEVNULL))


def wanted_s() -> float | None:
    """Return the value of MONARCH_NB_WARM in seconds; None if nothing is to be kept warm."""
    setting = os.environ.get(VARIABLE, "").strip()
    if setting in ("", "0", "off"):
        return None
    try:
        return parse_duration(setting)
    except ValueError as error:
        raise MeshUsageError(f"{VARIABLE}: {error}; off keeps nothing warm") from None


def _start_keeper(for_s: float, *, wait_s: float, stderr: int) -> subprocess.Popen[bytes]:
    keeper = subprocess.Popen(
        [sys.executable, "-c", _CODE, json.dumps({"for_s": for_s, "wait_s": wait_s}), PACKAGE_ROOT],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,
        cwd="/",
        env=warm_key.environment(),
    )
    open_files.restore_for(keeper.pid)
    return keeper


def stop(kept: Kept) -> None:
    """End a keeper and its controller, unless a program has taken that; return when both have ended.

    Raises:
        MeshStartError: if it doesn't end.
    """
    for number in (signal.SIGTERM, signal.SIGCONT):
        with suppress(OSError):
            if is_running(kept.pid, kept.start_time):
                os.kill(kept.pid, number)
    deadline = time.monotonic() + STOP_S
    while is_running(kept.pid, kept.start_time):
        if time.monotonic() > deadline:
            raise MeshStartError(
                f"the process that keeps an interpreter warm doesn't end; kill it: kill -9 {kept.pid}"
            )
        time.sleep(0.01)
