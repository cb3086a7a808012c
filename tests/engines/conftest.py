"""Real engines for tests: an sshd, hosts that are network namespaces, Slurm. Where one can't be had, its
tests are skipped with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import kube
import pytest
import slurmd
import sshd
from kube import Kube
from sshd import Profiles
from waiting import wait_until

from monarch_nb.exceptions import MeshError
from monarch_nb.job.allocation import list_records
from monarch_nb.mesh import on_engine


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profiles:
    """Write this user's profiles."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def write(text: str) -> None:
        path = tmp_path / "monarch_nb" / "clusters.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)

    return write


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """A test that has failed leaves no hosts, and no controller that waits for them."""
    yield
    for asked in list_records():
        with suppress(MeshError):
            on_engine.cancel(asked.mesh, forgets=True)


@pytest.fixture(scope="session")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sshd.Sshd]:
    """An sshd that is known by two names: two hosts to log in to."""
    if sshd.why_not():
        pytest.skip(sshd.why_not())
    server = sshd.Sshd(tmp_path_factory.mktemp("sshd"), ["he1", "he2"])
    yield server
    server.close()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurmd.Cluster]:
    """Slurm with three nodes."""
    if slurmd.why_not():
        pytest.skip(slurmd.why_not())
    found = slurmd.Cluster(tmp_path_factory.mktemp("slurm"))
    yield found
    found.close()


@pytest.fixture
def full(cluster: slurmd.Cluster) -> Iterator[Callable[[], None]]:
    """A cluster that another job has taken; what it gives frees it."""
    number = cluster.command(
        "sbatch", "--parsable", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 600"
    )
    wait_until(lambda: cluster.idle_nodes() == 0, "a full cluster")

    def free() -> None:
        cluster.command("scancel", number)

    yield free
    free()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    """A Kubernetes of three nodes with two GPUs each."""
    if why_not := kube.why_not():
        pytest.skip(why_not)
    found = Kube(tmp_path_factory.mktemp("kube"))
    yield found
    found.close()
