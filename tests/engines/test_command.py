"""Hosts by commands of a profile: namespaces with addresses of their own, a batch system's commands, hosts
started by hand; and what keeps a host out.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from namespaces import Namespaces, why_not
from processes import TAG
from slurmd import SETUP, Cluster
from sshd import Profiles
from waiting import wait_until

from monarch_nb._client import session as sessions
from monarch_nb._host.launcher import main
from monarch_nb._wire import message as wire
from monarch_nb._wire.invitation import Invitation
from monarch_nb._wire.keys import KeyPair
from monarch_nb.exceptions import MeshError
from monarch_nb.job.allocation import Plan, list_records, read_record, records_directory
from monarch_nb.job.engines import ENGINES, NoAnswer, State
from monarch_nb.job.profiles import find_profile
from monarch_nb.mesh import Mesh, on_engine

T = 60
ONE_RANK = Plan((("procs", 1),))


@pytest.fixture(scope="module")
def hosts() -> Iterator[Namespaces]:
    if why_not():
        pytest.skip(why_not())
    found = Namespaces(3)
    yield found
    found.close()


@pytest.fixture
def lab(hosts: Namespaces, profiles: Profiles) -> Iterator[None]:
    start = "nsenter --net=/run/netns/{host} --"
    one, two, three = hosts.names
    profiles(
        f'[lab]\nengine = "command"\nhosts = ["{one}", "{two}"]\n[lab.command]\nstart = "{start}"\n'
        f'[six]\nengine = "command"\nhosts = ["{three}"]\nnetwork = "fd91:3::/64"\n[six.command]\n'
        f'start = "{start}"\n[wrong]\nengine = "command"\nhosts = ["{one}"]\nnetwork = '
        f'"10.91.77.0/24"\n[wrong.command]\nstart = "{start}"\n[apart]\nengine = "command"\nhosts = '
        f'["{three}"]\nnetwork = "10.91.3.0/24"\n[apart.command]\nstart = "{start}"\n[none]\nengine = '
        '"command"\nhosts = ["a"]\n[none.command]\nstart = "no-such-command {host}"\n[half]\n'
        'engine = "command"\n[half.command]\nsubmit = "true"\nlook = "true"\n[hand]\nengine = '
        '"command"\nhosts = 1\nports = "PORT"\n'.replace("PORT", str(_free_port()))
        + f'[taken]\nengine = "command"\nhosts = 1\nports = "{_taken()}"\n'
    )
    current = sessions._current
    yield
    sessions._current = current
    assert list_records() == []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_KEPT: list[socket.socket] = []


def _taken() -> int:
    if not _KEPT:
        _KEPT.append(socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True))
    return int(_KEPT[0].getsockname()[1])


def start(name: str, profile: str, plan: Plan = ONE_RANK, **options: object) -> Mesh:
    return on_engine.start_on(name, find_profile(profile, ENGINES), plan, **options)  # type: ignore[arg-type]


def addresses() -> list[str]:
    return subprocess.run(
        ["ip", "-br", "addr", "show", "eth0"], capture_output=True, text=True
    ).stdout.split()[2:]


def call_until_lost(mesh: Mesh) -> None:
    """Call a mesh that has just lost a host until that's known."""
    while True:
        mesh.execute(addresses).get(T)


@pytest.mark.usefixtures("lab")
def test_hosts_with_addresses_of_their_own_join_and_one_that_dies_is_known(hosts: Namespaces) -> None:
    mesh = start("apart", "lab")
    try:
        found = list(mesh.execute(addresses).get(T).values())
        assert [a[0] for a in found] == ["10.91.1.2/24", "10.91.2.2/24"]
        (host,) = [
            p
            for p in hosts.pids(hosts.names[1])
            if Path(f"/proc/{p}/comm").read_text().startswith("mnb-host")
        ]
        os.kill(host, signal.SIGKILL)
        with pytest.raises(MeshError, match=hosts.names[1]):
            call_until_lost(mesh)
    finally:
        on_engine.cancel("apart")
    for name in hosts.names:
        wait_until(lambda name=name: not hosts.pids(name), f"an empty host {name}")


@pytest.mark.usefixtures("lab")
def test_a_host_that_has_only_ipv6_joins(hosts: Namespaces) -> None:
    hosts.without_v4(hosts.names[2])
    mesh = start("six", "six")
    try:
        assert all(
            "fd91" in " ".join(a) and "10.91" not in " ".join(a)
            for a in mesh.execute(addresses).get(T).values()
        )
    finally:
        on_engine.cancel("six")
    with pytest.raises(
        MeshError,
        match=r"cannot reach the mesh at tcp://10\.91\.3\.1:\d+ \(network is unreachable\)\. A firewall\?",
    ):
        start("apart", "apart")


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("wrong", r"this machine has no address in 10\.91\.77\.0/24; it has .*: network = in the profile"),
        ("none", r"no-such-command isn't installed here"),
        ("half", r"has submit and look, and no end"),
        ("taken", r"ports \d+-\d+ of this machine are all taken; name others: ports = in the profile"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(profile: str, message: str) -> None:
    with pytest.raises(MeshError, match=message):
        start("gone", profile)


# --- by hand, and those who shouldn't


class ByHand(threading.Thread):
    """A start that waits for a host that people start; `invitation` once it's written."""

    def __init__(self, name: str, profile: str = "hand") -> None:
        super().__init__()
        self.mesh_name, self.profile, self.outcome = name, profile, list[object]()
        self.start()
        self.path = wait_until(lambda: (r := read_record(name)) and r.directory, "an invitation")
        self.invitation = Invitation.from_json(Path(self.path).read_bytes())

    def run(self) -> None:
        try:
            self.outcome.append(start(self.mesh_name, self.profile))
        except BaseException as error:
            self.outcome.append(error)


def knock(invitation: Invitation, capfd: pytest.CaptureFixture[str], folder: Path) -> str:
    """Run the launcher; return what it says."""
    path = folder / "copy"
    path.write_text(invitation.to_json())
    path.chmod(0o600)
    status = main(["--join", str(path), "--detach"])
    message = capfd.readouterr()
    assert (status == 0) == ("joined" in message.out)
    return message.err + message.out


@pytest.mark.usefixtures("lab")
def test_a_host_joins_by_hand_and_nobody_else_does(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    waiting = ByHand("hand")
    good = waiting.invitation
    assert os.stat(waiting.path).st_mode & 0o777 == 0o600
    fields = json.loads(good.to_json())
    del fields["version"]
    made = lambda **changes: Invitation(**{**fields, "addresses": good.addresses, **changes})  # noqa: E731
    stranger = KeyPair.new()
    assert "isn't good any more" in knock(
        made(guest_public=stranger.public, guest_secret=stranger.secret), capfd, tmp_path
    )
    assert "cannot reach the mesh" in knock(made(controller_key=stranger.public), capfd, tmp_path)
    assert f"speaks protocol {wire.VERSION + 1}" in knock(
        made(wire_version=wire.VERSION + 1), capfd, tmp_path
    )
    assert "(connection refused)" in knock(
        made(addresses=(f"tcp://127.0.0.1:{_free_port()}",)), capfd, tmp_path
    )
    os.chmod(waiting.path, 0o644)
    assert main(["--join", waiting.path]) == 1 and f"chmod 600 {waiting.path}" in capfd.readouterr().err
    os.chmod(waiting.path, 0o600)
    command = [sys.executable, "-m", "monarch_nb._host.launcher", "--join", waiting.path]
    host = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, TAG[0]: TAG[1]})
    try:
        waiting.join(T)
        (mesh,) = waiting.outcome
        assert isinstance(mesh, Mesh) and mesh.sizes == {"hosts": 1, "procs": 1}, mesh
        assert "isn't good any more" in knock(good, capfd, tmp_path) or "no place is left" in knock(
            good, capfd, tmp_path
        )
        host.kill()  # as an engine does that takes the host away
        with pytest.raises(MeshError):
            call_until_lost(mesh)
    finally:
        on_engine.cancel("hand")
        host.kill()
        host.communicate()


BATCH = (
    f'engine = "command"\nsetup = [{SETUP!r}]\nPYTHON[NAME.command]\nheader = "#SBATCH '
    '--job-name={request}\\\\n#SBATCH --output=/dev/null\\\\n#SBATCH --time={minutes}"\nsubmit = '
    '"sbatch --parsable --export=NONE{queue| --partition=}"\nlook = "squeue -h -o %T --jobs={id}"\n'
    'end = "scancel {id}"\n'
)
FIND = 'find = "squeue -h -o %i --name={request}"\n'


@pytest.fixture
def batch(cluster: Cluster, profiles: Profiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm by the commands of profiles: as it should be, and in parts not."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.config))
    kinds = {
        "batch": BATCH,
        "broken": BATCH.replace("PYTHON", 'python = "/none/python"\n'),
        "odd": f"{BATCH}{FIND}id = 'number (\\d+)'\n",
        "blind": f"{BATCH}id = 'number (\\d+)'\n",
    }
    profiles("".join(f"[{k}]\n{v.replace('PYTHON', '').replace('NAME', k)}" for k, v in kinds.items()))


@pytest.mark.usefixtures("lab", "batch")
def test_a_batch_system_without_an_engine_of_its_own(cluster: Cluster) -> None:
    message: list[str] = []
    mesh = start("batch", "batch", on_wait=message.append)
    asked = read_record("batch")
    on_engine.cancel("batch")
    assert mesh.sizes == {"hosts": 1, "procs": 1} and asked is not None and asked.id.isdigit()
    wait_until(lambda: cluster.idle_nodes() == 3, "idle nodes")
    with pytest.raises(MeshError, match=r"line .*: /none/python: No such file"):
        start("broken", "broken")
    assert not list(Path(records_directory()).glob("*.out")), "what launchers have printed doesn't stay"


@pytest.mark.usefixtures("lab", "batch")
def test_a_batch_job_whose_number_is_not_understood_is_not_forgotten(cluster: Cluster) -> None:
    with pytest.raises(NoAnswer, match=r"sbatch has answered with no job's number: '\d+'; id = its pattern"):
        start("odd", "odd")
    assert list_records() == []
    with pytest.raises(NoAnswer, match=r"the profile has no find = .* give it up: %mesh cancel blind"):
        start("blind", "blind")
    for _ in range(2):
        ((_, look),) = on_engine.looks()
        assert look.state == State.QUEUED and "command doesn't know it so far" in look.reason
    with pytest.raises(MeshError, match=r"(?s)isn't known: its number .* %mesh cancel blind --forget"):
        on_engine.cancel("blind")
    on_engine.cancel("blind", forgets=True)
    cluster.command("scancel", "--user=root")
    wait_until(lambda: cluster.idle_nodes() == 3, "idle nodes")
