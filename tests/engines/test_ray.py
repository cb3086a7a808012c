"""Meshes on a real Ray of two nodes; skipped where no interpreter has ray, which is large."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from processes import TAG, wait_for_exit
from sshd import Profiles
from terminal import Terminal
from waiting import wait_until

from monarch_nb._client import session as sessions
from monarch_nb.exceptions import MeshError, MeshStartError, MeshUsageError
from monarch_nb.job import RayJob, job_loads
from monarch_nb.job.allocation import Allocation, Plan, list_records, read_record, write_record
from monarch_nb.job.engines import ENGINES, EngineError, NoAnswer, State, engine_of, ray_program
from monarch_nb.job.engines.ray import Ray
from monarch_nb.job.profiles import find_profile
from monarch_nb.job.spec import HostSpec
from monarch_nb.mesh import Mesh, on_engine

T = 60
ASKS_ON_S = 8.0
"""Less than what asks Ray waits for another question."""
PYTHON = os.environ.get("MONARCH_NB_TEST_RAY", sys.executable)
HAS_RAY = sys.executable != PYTHON or importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(
    not HAS_RAY, reason="no ray: pip install ray; or MONARCH_NB_TEST_RAY = an interpreter that has it"
)
PRINT_PIDS = "import os; print(f'pid {os.getpid()} pid {os.getppid()} here')"
"""Of ranks and their host processes."""
SETUP = f"export {'='.join(TAG)}"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Two nodes of Ray on this machine."""
    os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
    program = [PYTHON, str(Path(__file__).with_name("ray_cluster.py"))]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        ray_program.close_idle()


@pytest.fixture
def lab(address: str, profiles: Profiles) -> Iterator[None]:
    own = f'address = "{address}"\ndriver = "{PYTHON}"\n'
    general = f'engine = "ray"\nsetup = [{SETUP!r}]\n'
    profiles(
        f"[two]\n{general}hosts = 2\n[two.ray]\n{own}[three]\n{general}hosts = 3\n[three.ray]\n{own}"
        f'[broken]\n{general}python = "/none/python"\n[broken.ray]\n{own}'
        f"[gpus]\n{general}gpus = 8\n[gpus.ray]\n{own}"
        f'[away]\n{general}[away.ray]\naddress = "127.0.0.1:1"\ndriver = "{PYTHON}"\n'
    )
    current = sessions._current
    yield
    sessions._current = current
    assert list_records() == []


def start(name: str, profile: str) -> Mesh:
    return on_engine.start_on(name, find_profile(profile, ENGINES), Plan((("procs", 1),)))


def rays_variables() -> list[str]:
    return sorted(k for k in os.environ if k.startswith("RAY_"))


@needs_ray
@pytest.mark.timeout(240)
def test_a_mesh_runs_on_rays_nodes_and_gives_them_back(lab: None) -> None:
    mesh = start("big", "two")
    asked = read_record("big")
    assert asked is not None
    try:
        assert mesh.sizes == {"hosts": 2, "procs": 1}
        assert set(map(tuple, mesh.execute(rays_variables).get(T).values())) == {()}, "ranks are no workers"
        look = engine_of(asked.spec).look(asked)
        assert look.state == State.GRANTED and len(look.nodes) == 2
        pids = [host.pid for host in mesh.status().hosts if host.index]
        with pytest.raises(MeshUsageError, match="3 hosts were asked for, and 2 of Ray's 2 nodes would do"):
            start("more", "three")
    finally:
        on_engine.cancel("big")
    assert all(wait_for_exit(pid) for pid in pids)
    assert engine_of(asked.spec).look(asked).state == State.ENDED


@needs_ray
@pytest.mark.timeout(240)
def test_a_worker_that_is_killed_takes_its_host_along(lab: None) -> None:
    mesh = start("hurt", "two")
    try:
        victim = next(host.pid for host in mesh.status().hosts if host.index)
        os.kill(_parent(_parent(victim)), signal.SIGKILL)
        assert wait_for_exit(victim), "on a node that Ray takes for free nothing of ours may run"
        with pytest.raises(MeshError):
            mesh.execute(os.getpid).get(T)
    finally:
        on_engine.cancel("hurt")


@needs_ray
@pytest.mark.timeout(240)
def test_a_request_whose_answer_is_lost_is_given_back(lab: None, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, names = Ray._ask, list[str]()

    def lost(self: Ray, spec: HostSpec, **request: object) -> str:
        answer = ask(self, spec, **request)
        if request["do"] != "submit":
            return answer
        names.append(str(request["name"]))
        raise NoAnswer("ray has given no answer")

    monkeypatch.setattr(Ray, "_ask", lost)
    with pytest.raises(NoAnswer, match=r"^ray has given no answer$"):
        start("lost", "two")
    (name,), spec = names, find_profile("two", ENGINES).spec
    assert list_records() == [] and ask(Ray(), spec, do="look", name=name).strip() == "null"


def files_of_programs_inside() -> set[Path]:
    folder = Path(tempfile.gettempdir())
    return {*folder.glob("monarch_nb-ray-*"), *folder.glob("monarch_nb-inside-*")}


@pytest.fixture
def laptop(address: str, tmp_path: Path) -> Iterator[Terminal]:
    """A machine of which nothing is needed once a mesh runs."""
    found = Terminal(tmp_path)
    own = f'address = "{address}"\ndriver = "{PYTHON}"\n'
    general = f'engine = "ray"\ncontroller = "inside"\nsetup = [{SETUP!r}]\nhosts = 2\n'
    found.write_profiles(
        f'[lab]\n{general}[lab.ray]\n{own}[broken]\n{general}python = "/none/python"\n[broken.ray]\n{own}'
    )
    yield found
    if (tmp_path / "data" / "monarch_nb" / "allocations" / "big.json").exists():
        found.begin("cancel", "big").wait(T)


@needs_ray
@pytest.mark.timeout(240)
def test_a_mesh_with_its_controller_inside_goes_on_without_this_machine(laptop: Terminal) -> None:
    assert "(hosts=2, procs=1: ranks 0-1) is ready" in laptop.types(
        "start", "big", "--on", "lab", "--procs", "1"
    )
    laptop.types("exec", "big", "kept = 41")
    pids = [int(pid) for pid in re.findall(r"pid (\d+)", laptop.types("exec", "big", PRINT_PIDS))]
    assert len(set(pids)) == 4
    record = laptop.folder / "run" / "monarch_nb-big.json"
    os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)  # as when the machine is switched off
    wait_until(lambda: "no mesh runs" in laptop.types("list"), "nothing runs here")
    assert "not connected here: monarch-nb start big" in laptop.types("queue")
    assert "(hosts=2, procs=1: ranks 0-1) is ready" in laptop.types("start", "big")
    cells = "%load_ext monarch_nb", "%mesh start big", "%%mesh\nprint(kept + 1)", "%mesh stop"
    said = laptop.notebook(*cells)
    assert "[0-1] 42" in said, said
    assert all(wait_for_exit(pid) for pid in pids)
    assert "no hosts of engines" in laptop.types("queue")


@needs_ray
@pytest.mark.timeout(240)
def test_a_mesh_inside_ends_with_its_request(laptop: Terminal) -> None:
    before = files_of_programs_inside()
    laptop.types("start", "big", "--on", "lab", "--procs", "1")
    pids = [int(pid) for pid in re.findall(r"pid (\d+)", laptop.types("exec", "big", PRINT_PIDS))]
    assert files_of_programs_inside() > before
    assert "was cancelled" in laptop.types("cancel", "big")
    assert all(wait_for_exit(pid) for pid in pids)
    assert files_of_programs_inside() == before


@needs_ray
@pytest.mark.timeout(240)
def test_a_program_that_is_killed_forgets_no_mesh_inside(laptop: Terminal) -> None:
    """Between the request and the note of its number."""
    laptop.types("start", "big", "--on", "lab", "--procs", "1")
    record = laptop.folder / "data" / "monarch_nb" / "allocations" / "big.json"
    known = json.loads(record.read_text())
    record.write_text(json.dumps({**known, "id": "", "is_up": False}))
    os.kill(json.loads((laptop.folder / "run" / "monarch_nb-big.json").read_text())["pid"], signal.SIGKILL)
    wait_until(lambda: "no mesh runs" in laptop.types("list"), "nothing runs here")
    assert "is ready" in laptop.notebook("%load_ext monarch_nb", "%mesh start big", "%mesh stop")


@needs_ray
@pytest.mark.timeout(240)
def test_what_asks_ray_ends_with_the_program_for_which_it_asks(address: str) -> None:
    question = {"address": address, "do": "nodes"}
    asks = (
        "from monarch_nb.job.engines import ray_program; "
        f"ray_program.ask({PYTHON!r}, {question}, is_repeatable=True); print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", asks], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (asking,) = psutil.Process(process.pid).children()
        process.kill()
    assert wait_for_exit(asking.pid, ASKS_ON_S), "at once, not as when nobody asks for a while"


def test_a_cluster_that_is_gone_is_said_at_once_and_can_be_forgotten(profiles: Profiles) -> None:
    profiles('[lab]\nengine = "ray"\n[lab.ray]\naddress = "127.0.0.1:1"\n')
    spec = find_profile("lab", ENGINES).spec
    asked = replace(Allocation.new("gone", "lab", spec, Plan((("procs", 1),))), id="monarch-nb-gone")
    write_record(asked)
    assert "no Ray answers at 127.0.0.1:1" in on_engine.look_at(asked).reason
    with pytest.raises(EngineError, match=r"no Ray answers at .*\n.*%mesh cancel gone --forget"):
        on_engine.cancel("gone")
    assert read_record("gone") == asked
    on_engine.cancel("gone", forgets=True)
    assert list_records() == []


@needs_ray
@pytest.mark.timeout(240)
def test_a_mesh_inside_that_does_not_come_says_why(laptop: Terminal) -> None:
    assert "/none/python" in laptop.types("start", "big", "--on", "broken", fails=True)
    said = laptop.types("start", "big", "--on", "lab", "--procs", "100000", fails=True)
    assert re.search(r"100,?000", said), said
    assert "no hosts of engines" in laptop.types("queue")


@needs_ray
@pytest.mark.timeout(240)
def test_a_ray_job_gives_nodes_by_name(address: str) -> None:
    job = job_loads(RayJob({"trainers": 1}, address, driver=PYTHON, setup=[SETUP]).dumps())
    try:
        procs = job.state().trainers.spawn_procs({"procs": 1})
        assert len(procs.execute(os.getpid).get(T)) == 1 and len(list_records()) == 1
    finally:
        job.kill()
    assert list_records() == []


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


@needs_ray
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("profile", "error", "message"),
    [
        ("gpus", MeshUsageError, "1 hosts were asked for, and 0 of Ray's 2 nodes with 8 GPUs would do"),
        ("broken", MeshStartError, "/none/python"),
        ("away", MeshUsageError, r"no Ray answers at 127.0.0.1:1 \(.*refused"),
    ],
)
def test_what_does_not_come_is_said(lab: None, profile: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        start("gone", profile)


def test_without_ray_it_says_what_to_type(profiles: Profiles) -> None:
    profiles('[far]\nengine = "ray"\n[far.ray]\ndriver = "/none/python"\n')
    with pytest.raises(
        MeshUsageError, match="there is no /none/python: driver = an interpreter that has ray"
    ):
        start("gone", "far")
