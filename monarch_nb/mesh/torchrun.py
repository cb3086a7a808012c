"""`torchrun --nproc-per-node 4 -m monarch_nb.mesh.torchrun NAME`: the nodes of a launch become the hosts of a
mesh, with as many ranks on each as the launch has processes there. srun and other launchers that set RANK,
WORLD_SIZE, MASTER_ADDR and MASTER_PORT work as well.

The launch's own processes wait until the mesh ends. A notebook on the first node attaches to it by name.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import FrameType

from monarch_nb._client.mesh_name import check_mesh_name
from monarch_nb._host.launcher import STARTED
from monarch_nb._units import parse_duration
from monarch_nb.exceptions import MeshError, MeshStartError
from monarch_nb.job.allocation import Plan
from monarch_nb.job.engines.torchrun import use
from monarch_nb.job.profiles import Profile
from monarch_nb.job.spec import HostRange, HostSpec
from monarch_nb.job.torchrun import Meeting
from monarch_nb.mesh import on_engine
from monarch_nb.mesh.core import Mesh

_WEEK_S = 7 * 86400.0


def main(argv: Sequence[str] | None = None) -> int:
    """Be a host of a mesh until it ends; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="torchrun --nproc-per-node 4 -m monarch_nb.mesh.torchrun",
        description="Make the nodes of a launch the hosts of a mesh, until the mesh ends.",
    )
    parser.add_argument("name", nargs="?", default="torchrun", help="name of the mesh (default: %(default)s)")
    parser.add_argument(
        "--idle-timeout", default="8h", metavar="TIME", help="the mesh ends after so long without a notebook"
    )
    arguments = parser.parse_args(argv)
    try:
        plan = Plan(idle_timeout_s=parse_duration(arguments.idle_timeout))
        return _attend(Meeting(), check_mesh_name(arguments.name), plan)
    except (MeshError, ValueError) as error:
        print(f"monarch_nb: {error}", file=sys.stderr, flush=True)
        return 1


def _attend(meeting: Meeting, name: str, plan: Plan) -> int:
    if not meeting.is_first:
        return int(_until(meeting, f"over/{meeting.nodes.first}"))
    host = _Host(meeting)
    try:
        if meeting.rank == 0:
            _start(meeting, name, plan)
        return host.wait()
    except BaseException:
        host.end_host()
        raise
    finally:
        meeting.say(f"over/{meeting.rank}", str(host.code or 0))


def _until(meeting: Meeting, key: str) -> str:
    """Wait for a word for as long as the store is there."""
    while True:
        try:
            return meeting.hear(key, _WEEK_S)
        except MeshStartError as error:
            if "imeout" not in str(error):
                return "0"


def _start(meeting: Meeting, name: str, plan: Plan) -> Mesh:
    """Start the mesh on the nodes of the launch; rank 0 does."""
    use(meeting)
    try:
        num, dims = len(meeting.nodes.firsts), ((_kind(), meeting.nodes.num_each()),)
        spec = HostSpec("torchrun", HostRange(num, num))
        plan = Plan(dims, idle_timeout_s=plan.idle_timeout_s)
        mesh = on_engine.start_on(name, Profile("torchrun", spec), plan, with_program=True)
    except BaseException as error:
        meeting.refuse(str(error) or type(error).__name__)
        raise
    sizes = " x ".join(f"{size} {dim}" for dim, size in mesh.sizes.items())
    print(f"mesh {name}: {sizes}. In a notebook of this user on this node: %mesh start {name}", flush=True)
    return mesh


def _kind() -> str:
    import torch

    return "gpus" if torch.cuda.is_available() else "procs"


class _Host:
    """The launcher of this node; it's started once there's an invitation, and ends with us.

    Attributes:
        code: its exit status, once it has ended.
    """

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self.code: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._error: MeshError | None = None
        self._is_over = False
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        self._thread = threading.Thread(target=self._run, name="mnb-attach", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            text = self._meeting.fetch().to_json().encode()
        except MeshError as error:
            self._error = error
            return
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "monarch_nb._host.launcher", "--join", "-"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        if self._is_over:
            self._process.terminate()
        out, err = self._process.communicate(text)
        self.code = self._process.returncode
        if STARTED.encode() not in out:
            words = err.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {self.code}"]
            self._meeting.say(f"failed/{self._meeting.rank}", words[0])
            self._error = MeshStartError(words[0])

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.end_host()

    def end_host(self) -> None:
        """Take the host away."""
        self._is_over = True
        if self._process is not None:
            self._process.terminate()

    def wait(self) -> int:
        """Wait for the host's end; return the exit status.

        Raises:
            MeshError: if there was no host, saying why.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        return 0 if self._is_over or not self.code else 1


if __name__ == "__main__":
    sys.exit(main())
