"""Launchers that an engine starts anew: a pod that restarts, a job that was put back into the queue. They get
the places of hosts that are lost, and no others.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from own_meshes import own_mesh
from processes import wait_for_exit
from waiting import wait_until

from monarch_nb._client import membership
from monarch_nb._protocol.invitations import Invite, Invited, Withdraw
from monarch_nb._protocol.programs import HostRow, Status
from monarch_nb._protocol.states import HostState
from monarch_nb._shape import Extent, Shape
from monarch_nb.actor.host_mesh import HostMesh
from monarch_nb.mesh import Mesh

T = 60
OVER = "this invitation isn't good any more"


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    with own_mesh("rejoined", {"gpus": 1}) as started:
        yield started


class Launchers:
    """Launchers that have the same invitation, as an engine starts them."""

    def __init__(self, mesh: Mesh, file: Path, places: int, expires_s: float = 10 * T) -> None:
        self._mesh, self._file, self._stack = mesh, file, ExitStack()
        self.given: Invited = mesh._session.request(
            Invite("rejoined", places, expires_s, network="127.0.0.0/8")
        )
        membership.write(str(file), self.given.invitation)

    def __enter__(self) -> Launchers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, place: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "monarch_nb", "host", "--join", str(self._file)]
        launcher = self._stack.enter_context(
            subprocess.Popen(
                [*command, "--place", str(place)],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
        self._stack.callback(launcher.terminate)
        return launcher

    def join(self, place: int) -> HostRow:
        """Have a launcher join; return its host once it's up."""
        launcher = self._start(place)
        assert launcher.stdout is not None and launcher.stderr is not None
        line = launcher.stdout.readline()
        assert line.startswith(f"joined as host {self.given.hosts[place]} "), line + launcher.stderr.read()
        pid = int(line.rpartition("pid ")[2].rstrip(")\n"))
        return wait_until(lambda: self.host(place, HostState.UP, pid), "it's up", T)

    def refusal(self, place: int) -> str:
        """Have a launcher knock that isn't let in; return what it says."""
        launcher = self._start(place)
        said = launcher.communicate(timeout=T)[1]
        assert launcher.returncode, "it has joined"
        return said

    def host(self, place: int, state: HostState, pid: int) -> HostRow | None:
        """Return the host at a place, if it's in a state."""
        row = self._mesh._session.request(Status()).hosts[self.given.hosts[place]]
        return row if (row.state, row.pid) == (state, pid) else None

    def lose(self, place: int, row: HostRow) -> None:
        """Kill a host process; return when the controller knows."""
        os.kill(row.pid, signal.SIGKILL)
        wait_until(lambda: self.host(place, HostState.LOST, row.pid), "it's lost", T)


def pids_on(mesh: Mesh, hosts: list[int]) -> list[int]:
    """Start ranks on hosts; return their parents' pids, which are those of the host processes."""
    on = HostMesh(hosts, Shape.full(Extent(["hosts"], [len(hosts)])), mesh._session)
    return list(on.spawn_procs({"gpus": 1}, method="spawn").execute(os.getppid).get(T).values())


def test_a_launcher_that_is_started_anew_gets_the_place_of_a_lost_host_and_no_other(
    mesh: Mesh, tmp_path: Path
) -> None:
    with Launchers(mesh, tmp_path / "big.join", 2) as launchers:
        first, second = launchers.join(0), launchers.join(1)
        refused = launchers.refusal(1)
        assert OVER in refused or "no place is left" in refused, "both hosts live"
        launchers.lose(1, second)
        assert "no place is left" in launchers.refusal(0), "that host lives"
        again = launchers.join(1)
        assert again.pid != second.pid and again.index == second.index
        assert pids_on(mesh, launchers.given.hosts) == [first.pid, again.pid]
        assert launchers.host(0, HostState.UP, first.pid), "nothing has happened to the other one"

        launchers.lose(0, first)
        mesh._session.request(Withdraw(launchers.given.guest))
        assert OVER in launchers.refusal(0), "an invitation that was withdrawn is void for good"


@pytest.mark.soak
@pytest.mark.skipif("MONARCH_NB_SOAK_FAULTS" not in os.environ, reason="some seconds of silence: make soak")
def test_a_holder_that_wakes_up_is_sent_away_and_harms_nothing(mesh: Mesh, tmp_path: Path) -> None:
    with Launchers(mesh, tmp_path / "slow.join", 1) as launchers:
        slow = launchers.join(0)
        os.kill(slow.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: launchers.host(0, HostState.LOST, slow.pid), "it has been silent too long", T)
            successor = launchers.join(0)
        finally:
            os.kill(slow.pid, signal.SIGCONT)
        assert wait_for_exit(slow.pid, T), "it's told that it has lost its place"
        assert pids_on(mesh, launchers.given.hosts) == [successor.pid]
        assert launchers.host(0, HostState.UP, successor.pid)


def test_an_invitation_whose_time_is_up_lets_nobody_in(mesh: Mesh, tmp_path: Path) -> None:
    with Launchers(mesh, tmp_path / "late.join", 1, expires_s=0.0) as launchers:
        assert OVER in launchers.refusal(0)
        assert launchers.host(0, HostState.EXPECTED, 0)
