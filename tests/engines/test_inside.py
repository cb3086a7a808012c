"""A mesh whose controller runs inside a job of Slurm, used from a machine that has ssh to the login node, and
nothing else: as typed in a terminal.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sshd
from slurmd import Cluster
from terminal import T, Terminal
from waiting import wait_until

pytestmark = pytest.mark.skipif(bool(sshd.why_not()), reason=sshd.why_not())


class Laptop(Terminal):
    """A machine from which only `login` can be reached."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.server = sshd.Sshd(folder / "sshd", ["login"], variable=f"SLURM_CONF={cluster.config}")
        super().__init__(folder, PATH=self.server.put_on_path(folder / "bin"))
        self.write_profile("hosts = 2")

    def write_profile(self, *lines: str) -> None:
        general = ("[lab]", 'engine = "slurm"', 'login = "login"', f'python = "{sys.executable}"')
        self.write_profiles("\n".join((*general, 'controller = "inside"', *lines, "")))

    def nodes(self) -> list[str]:
        said = self.types("exec", "big", "import os; print(os.environ['SLURMD_NODENAME'])")
        return sorted(re.findall(r"\bn\d", said))


@pytest.fixture
def laptop(cluster: Cluster, tmp_path: Path) -> Iterator[Laptop]:
    found = Laptop(tmp_path, cluster)
    yield found
    if (tmp_path / "data" / "monarch_nb" / "allocations" / "big.json").exists():
        found.begin("cancel", "big").wait(T)
    found.server.close()
    wait_until(lambda: cluster.idle_nodes() == 3, f"idle nodes: {cluster.command('squeue')}")


def test_it_is_started_used_left_and_found_again(cluster: Cluster, laptop: Laptop) -> None:
    said = laptop.types("start", "big", "--on", "lab", "--procs", "1")
    assert "(hosts=2, procs=1: ranks 0-1) is ready" in said
    assert laptop.nodes() == ["n1", "n2"]
    assert "granted" in laptop.types("hosts", "big")
    laptop.types("exec", "big", "kept = 41")

    # another machine of the same user, by the same invitation: not while this one is connected
    asked = cluster.command("squeue", "-h", "-o", "%k")
    invitation = Path.home() / ".cache" / "monarch_nb" / f"inside-{asked}.join"
    assert invitation.stat().st_mode & 0o777 == 0o600
    other = laptop.begin("attach", f"login:{invitation}", JUPYTER_RUNTIME_DIR=f"{laptop.folder}/other")
    assert "is connected by this invitation" in other.communicate(timeout=T)[1]

    # the connection ends, as when the machine is switched off: nothing of the mesh runs here
    record = laptop.folder / "run" / "monarch_nb-big.json"
    os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)
    wait_until(lambda: "no mesh runs" in laptop.types("list"), "nothing runs here")
    assert "not connected here: monarch-nb start big" in laptop.types("queue")
    assert cluster.idle_nodes() == 1, "the job goes on"
    assert "runs inside slurm job" in laptop.types("start", "big", "--on", "lab", fails=True)

    # a notebook's %mesh start, and so a notebook that is run again, finds it
    said = laptop.notebook("%load_ext monarch_nb", "%mesh start big", "%%mesh\nprint(kept + 1)", "%mesh stop")
    assert "[0-1] 42" in said, said
    wait_until(lambda: cluster.idle_nodes() == 3, "the job has ended with the mesh")
    assert "no hosts of engines" in laptop.types("queue")
    assert not invitation.exists()


def test_it_grows_shrinks_and_is_given_back(cluster: Cluster, laptop: Laptop) -> None:
    laptop.types("start", "big", "--on", "lab", "--procs", "1", "--time", "1h")
    assert laptop.nodes() == ["n1", "n2"]
    assert re.search(r"(59\.\d min|1 h) left", laptop.types("hosts", "big"))
    laptop.types("grow", "big", "1")
    assert laptop.nodes() == ["n1", "n2", "n3"]
    laptop.types("shrink", "big", "--hosts", "n3", "--force")
    wait_until(lambda: cluster.idle_nodes() == 1, "the node is given back")
    assert laptop.nodes() == ["n1", "n2"]
    laptop.types("stop", "big")
    wait_until(lambda: not cluster.command("squeue", "-h"), "no job is left")


def test_where_the_commands_are_the_node_is_reached_directly(cluster: Cluster, laptop: Laptop) -> None:
    laptop.profile.write_text(laptop.profile.read_text().replace('login = "login"\n', ""))
    laptop.environment["SLURM_CONF"] = str(cluster.config)
    cells = "%load_ext monarch_nb", "%mesh start big --on lab", "%%mesh\nprint(6 * 7)", "%mesh stop"
    said = laptop.notebook(*cells)
    assert "[0-3] 42" in said, said


def test_it_waits_in_the_queue_without_anybody(cluster: Cluster, laptop: Laptop) -> None:
    job = cluster.command(
        "sbatch", "--parsable", "--nodes=2", "--exclusive", "--wrap", "sleep 600", "--output=/dev/null"
    )
    wait_until(lambda: cluster.idle_nodes() == 1, "a job that is in the way")
    start = laptop.begin("start", "big", "--on", "lab", "--procs", "1")

    try:
        said = laptop.interrupts_in_queue(start, r"queued \((?!being)")
        assert "stays in the queue. Wait on: monarch-nb start big" in said
    finally:
        start.kill()
        cluster.command("scancel", job)
    assert "(hosts=2, procs=1: ranks 0-1) is ready" in laptop.types("start", "big")
    laptop.types("stop", "big")


def test_a_program_that_is_killed_forgets_no_job(cluster: Cluster, laptop: Laptop) -> None:
    """Between the request and the note of its number."""
    start = laptop.begin("start", "big", "--on", "lab", "--procs", "1")
    wait_until(lambda: cluster.command("squeue", "-h", "-o", "%i"), "a job")
    start.kill()
    start.wait()
    record = laptop.folder / "data" / "monarch_nb" / "allocations" / "big.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "id": "", "directory": ""}))
    assert "(hosts=2, procs=1: ranks 0-1) is ready" in laptop.notebook(
        "%load_ext monarch_nb", "%mesh start big", "%mesh stop"
    )


def test_a_job_that_has_ended_is_not_waited_for(cluster: Cluster, laptop: Laptop) -> None:
    laptop.types("start", "big", "--on", "lab", "--procs", "1")
    cluster.command("scancel", cluster.command("squeue", "-h", "-o", "%i"))
    wait_until(lambda: cluster.idle_nodes() == 3, "a job that has ended")
    wait_until(lambda: "no mesh runs" in laptop.types("list"), "the connection has ended, too")
    laptop.types("start", "big", "--on", "lab", "--procs", "1")
    assert laptop.nodes() == ["n1", "n2"]
    assert "was cancelled" in laptop.types("cancel", "big")


def test_a_mesh_that_cannot_be_started_says_why(laptop: Laptop) -> None:
    laptop.write_profile("hosts = 2", 'setup = ["echo error: no such module >&2; exit 3"]')
    assert "error: no such module" in laptop.types("start", "big", "--on", "lab", fails=True)
    laptop.write_profile("hosts = 2")
    said = laptop.types("start", "big", "--on", "lab", "--spares", "1", "--procs", "100000", fails=True)
    assert re.search(r"node \S+: .*100,?000", said), said
    assert "no hosts of engines" in laptop.types("queue")


def test_bad_input_is_a_sentence(laptop: Laptop) -> None:
    assert "expected here (this machine) or inside" in laptop.types(
        "start", "big", "--on", "lab", "--controller", "outside", fails=True
    )
    assert "engine ssh can't have the controller inside; slurm, ray, kubernetes can" in laptop.types(
        "start", "big", "--on", "ssh", "--hosts", "a,b", "--controller", "inside", fails=True
    )
    assert "9 hosts were asked for" in laptop.types("start", "big", "--on", "lab", "--hosts", "9", fails=True)
