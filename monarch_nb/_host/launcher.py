"""The launcher, `monarch-nb host --join FILE`, which all engines run on each of their hosts.

It reads an invitation, makes a key for the host process, knocks at the mesh's addresses one after the other,
and starts the host process with the place that it's given. Then it waits for the host process' end and passes
on signals; if it's killed itself, the host process ends, too. What goes wrong is said on standard error,
which engines keep: `start` shows it when a host doesn't come.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket as sockets
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import NamedTuple

import zmq

from monarch_nb._host.config import HostConfig
from monarch_nb._host.starting import failure_to_start, start_host_process
from monarch_nb._version import __version__
from monarch_nb._wire import message as wire
from monarch_nb._wire.connection_events import read_event
from monarch_nb._wire.directory import new_directory
from monarch_nb._wire.invitation import MAX_BYTES, Admission, Invitation, InvitationError, Knock
from monarch_nb._wire.keys import KeyPair

TRY_S = 3.0
"""Time limit for each address."""
ANSWER_S = 10.0
STARTED = "joined as host"
"""Line that the launcher writes when its host process serves; engines that detach from it wait for that
line.
"""
_NUMBERED = (
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_TASKS_PER_NODE",
    "SLURM_GTIDS",
    "SLURM_TASK_PID",
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "ROLE_NAME",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
_OF_LAUNCHERS = (
    "SLURM_STEP_",
    "SLURM_SRUN_",
    "SLURM_LAUNCH_",
    "PMI_",
    "PMIX_",
    "OMPI_",
    "RAY_",
    "TORCHELASTIC_",
)
"""Variables that mark this process as one of the launcher's tasks: Lightning, Accelerate and MPI rely on
them.
"""


_notified: list[int] = []
"""Host processes that have ended because this process was told to end."""


def was_notified() -> bool:
    """Say whether this launcher was told to end while it was a host."""
    return bool(_notified)


class LauncherError(Exception):
    """The error of a host that can't join; the message says why, in a sentence."""


class Place(NamedTuple):
    """A place in a mesh: the answer to a request for admission, and the address that it came from."""

    admission: Admission
    address: str
    controller_key: str
    keys: KeyPair


def main(argv: Sequence[str] | None = None) -> int:
    """Join a mesh; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="monarch-nb host", description="Let this machine be a host of a mesh."
    )
    add_arguments(parser)
    return run(parser.parse_args(argv))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `monarch-nb host`."""
    parser.add_argument(
        "--join", required=True, metavar="FILE", help="the invitation; - reads it from standard input"
    )
    parser.add_argument(
        "--place",
        type=int,
        metavar="N",
        help="which of the mesh's hosts this one is; by default the next one",
    )
    parser.add_argument(
        "--detach", action="store_true", help="return once the host process serves; it goes on by itself"
    )


def run(arguments: argparse.Namespace) -> int:
    """Join a mesh; return the exit status."""
    node = os.environ.get("SLURMD_NODENAME") or sockets.gethostname()
    try:
        invitation = read_invitation(arguments.join)
        process = _join(invitation, node, arguments.place, detach=arguments.detach)
    except (LauncherError, InvitationError, OSError) as error:
        print(f"node {node}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0 if arguments.detach else process.wait()


def be_host(invitation: Invitation, node: str) -> int:
    """Be a host of a mesh until it ends, or until this process is told to end; return the host process' exit
    status.

    Raises:
        LauncherError: if there's no place, or the mesh can't be reached.
        InvitationError: if what is answered is none.
    """
    return _join(invitation, node, None, detach=False).wait()


def _join(invitation: Invitation, node: str, place: int | None, *, detach: bool) -> subprocess.Popen[bytes]:
    if invitation.role:
        raise LauncherError(
            f"this invitation is for {invitation.role}s, not for hosts: monarch-nb attach FILE"
        )
    _use_scratch(invitation.scratch)
    given = knock(invitation, node, place)
    process = _start(given, detach=detach)
    print(f"{STARTED} {given.admission.host} by {given.address} (pid {process.pid})", flush=True)
    return process


def read_invitation(path: str) -> Invitation:
    """Return the invitation in a file that only this user can read, or on standard input.

    Raises:
        LauncherError: if the file can't be read, or others can read it.
        InvitationError: if it's none.
    """
    if path == "-":
        return Invitation.from_json(sys.stdin.buffer.read(MAX_BYTES + 1))
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        raise LauncherError(f"the invitation {path} can't be read: {error.strerror}") from None
    with open(fd, "rb") as file:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
            raise LauncherError(
                f"the invitation {path} is a secret, and can be read by others or isn't yours: chmod "
                f"600 {path}"
            )
        return Invitation.from_json(file.read(MAX_BYTES + 1))


def _use_scratch(scratch: str) -> None:
    """Have sockets and segments lie on a disk of this machine."""
    if not scratch:
        return
    path = os.path.expanduser(os.path.expandvars(scratch))
    if "$" in path or not os.path.isabs(path):
        raise LauncherError(
            f"scratch = {scratch!r} is {path!r} here: it must be an absolute path, and its variables "
            "must be set"
        )
    os.makedirs(path, mode=0o700, exist_ok=True)
    os.environ["XDG_RUNTIME_DIR"] = path


# --- asking for admission


def knock(
    invitation: Invitation, node: str, place: int | None, keys: KeyPair | None = None, endpoint: str = ""
) -> Place:
    """Ask for a place at one address after the other.

    Args:
        keys: of whoever knocks; without it, new ones.
        endpoint: what leads to the invitation's only address: a socket that ssh forwards.

    Raises:
        LauncherError: naming each address and what came of it, or why there's no place.
    """
    if invitation.wire_version != wire.VERSION:
        raise LauncherError(
            f"{sys.executable} has monarch_nb {__version__} (protocol {wire.VERSION}), and the mesh "
            f"speaks protocol {invitation.wire_version}: install the same version here, or name "
            "another interpreter: python = in the profile"
        )
    keys = keys or KeyPair.new()
    tried = []
    for address in invitation.addresses:
        trouble = "" if endpoint else _unreachable(address)
        knock = Knock(keys.public, node, wire.VERSION, address, place)
        answer = None if trouble else _ask(invitation, endpoint or address, knock.to_json())
        if isinstance(answer, Admission):
            if answer.error:
                raise LauncherError(answer.error)
            return Place(answer, endpoint or address, invitation.controller_key, keys)
        tried.append(f"{address} ({trouble or answer})")
    raise LauncherError(
        f'cannot reach the mesh at {", ".join(tried)}. A firewall? ports = "29400-29500" in the profile '
        "names ports that are open, network = the addresses that hosts can reach"
    )


def _unreachable(address: str) -> str:
    """Return why an address can't be connected to; empty if it can."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    try:
        sockets.create_connection((host.strip("[]"), int(port)), timeout=TRY_S).close()
    except TimeoutError:
        return "timed out"
    except (OSError, ValueError, OverflowError) as error:
        return str(getattr(error, "strerror", None) or error).lower()
    return ""


def _ask(invitation: Invitation, address: str, knock: bytes) -> Admission | str:
    """Send a knock to an address; return the answer, or what came instead."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    connection = context.socket(zmq.DEALER)
    connection.setsockopt(zmq.LINGER, 0)
    connection.setsockopt(zmq.IPV6, int("[" in address))
    connection.curve_serverkey = invitation.controller_key.encode()
    connection.curve_publickey, connection.curve_secretkey = (
        invitation.guest_public.encode(),
        invitation.guest_secret.encode(),
    )
    failed = (
        zmq.EVENT_HANDSHAKE_FAILED_AUTH
        | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    )
    monitor = connection.get_monitor_socket(failed)
    try:
        connection.connect(address)
        connection.send(knock)
        ready = {
            s
            for s, _ in zmq.zmq_poll([(connection, zmq.POLLIN), (monitor, zmq.POLLIN)], int(ANSWER_S * 1000))
        }
        if connection in ready:
            return Admission.from_json(connection.recv())
        return _handshake_text(monitor) if monitor in ready else f"no answer within {ANSWER_S:g} s"
    finally:
        connection.disable_monitor()
        connection.close()
        monitor.close(0)
        context.term()


def _handshake_text(monitor: zmq.Socket[bytes]) -> str:
    if read_event(monitor)[0] == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return (
            "this invitation isn't good any more: all its places are taken, its time is up, or it was "
            "withdrawn"
        )
    return "who listens there isn't this mesh: its key is another one"


# --- the host process


def _start(place: Place, *, detach: bool) -> subprocess.Popen[bytes]:
    """Start the host process; return once it serves.

    Raises:
        LauncherError: with what it wrote, if it ended instead.
    """
    found = place.admission
    config = HostConfig(
        host=found.host,
        generation=found.generation,
        label=found.label,
        controller=place.address,
        controller_key=place.controller_key,
        public=place.keys.public,
        secret=place.keys.secret,
        directory=os.path.join(new_directory(), f"h{found.host}"),
        sys_path=[os.path.abspath(p) for p in sys.path if p],
        log=os.environ.get("MONARCH_NB_HOST_LOG"),
        launcher_pid=None if detach else os.getpid(),
        job=_job(os.environ),
    )
    end = _End()
    process = start_host_process(config, host_environment(os.environ), subprocess.PIPE)
    end.pass_on(process)
    if failure := failure_to_start(process):
        raise LauncherError("it was told to end while it started" if _notified else failure)
    return process


def _job(environment: Mapping[str, str]) -> str:
    """Return the name of the job that has provided this host.

    >>> _job({"SLURM_JOB_ID": "7"})
    'slurm job 7'
    """
    number = environment.get("SLURM_JOB_ID", "")
    return f"slurm job {number}" if number else ""


def host_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables without those that say which of a launcher's tasks this is: ranks have numbers of
    their own.

    >>> host_environment({"SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "PMI_RANK": "1"})
    {'SLURM_JOB_ID': '7'}
    """
    return {k: v for k, v in environment.items() if k not in _NUMBERED and not k.startswith(_OF_LAUNCHERS)}


class _End:
    """Ends the host process if this process is told to end, from before there is one: a signal that came
    while it's being started would leave it behind.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_told = False
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, self._tell)

    def pass_on(self, process: subprocess.Popen[bytes]) -> None:
        """Say which process is to be ended."""
        self._process = process
        if self._is_told:
            self._tell()

    def _tell(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        self._is_told = True
        if self._process is not None:
            _notified.append(self._process.pid)
            self._process.terminate()


if __name__ == "__main__":
    sys.exit(main())
