"""Hosts that one logs in to: a real sshd, OpenSSH, and what goes wrong with them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
from sshd import Profiles, Sshd
from waiting import wait_until

from monarch_nb._client import session as sessions
from monarch_nb.exceptions import MeshError, MeshUsageError
from monarch_nb.job.allocation import Plan, list_records, read_record
from monarch_nb.job.engines import ENGINES
from monarch_nb.job.profiles import find_profile
from monarch_nb.job.spec import HostRange
from monarch_nb.mesh import Mesh, on_engine

T = 60
ONE_RANK = Plan((("procs", 1),))


@pytest.fixture
def lab(two_hosts: Sshd, profiles: Profiles) -> None:
    profiles(
        f'[lab]\nengine = "ssh"\nhosts = ["he[1-2]"]\n[lab.ssh]\nconfig = "{two_hosts.config}"\n'
        '[far]\nengine = "ssh"\nhosts = ["he1", "nowhere.invalid"]\n[far.ssh]\nconfig = '
        f'"{two_hosts.config}"\n[old]\nengine = "ssh"\nhosts = ["he1"]\npython = "/usr/bin/false"\n'
        f'[old.ssh]\nconfig = "{two_hosts.config}"\n[bare]\nengine = "ssh"\nhosts = ["he1"]\nsetup = '
        '["cd /", "export PYTHONPATH=/none"]\npython = "/usr/bin/python3"\n[bare.ssh]\nconfig = '
        f'"{two_hosts.config}"\n'
    )


def start(name: str, profile: str, plan: Plan = ONE_RANK, **options: object) -> Mesh:
    return on_engine.start_on(name, find_profile(profile, ENGINES), plan, **options)  # type: ignore[arg-type]


@pytest.fixture
def before() -> Iterator[None]:
    current = sessions._current
    yield
    sessions._current = current


def logged_in_by() -> str:
    return os.environ["SSH_CONNECTION"].split()[3]


@pytest.mark.usefixtures("lab", "before")
def test_a_mesh_runs_on_hosts_that_one_logs_in_to(two_hosts: Sshd) -> None:
    mesh = start("far", "lab")
    try:
        assert mesh.sizes == {"hosts": 2, "procs": 1}
        assert set(mesh.execute(logged_in_by).get(T).values()) == {str(two_hosts.port)}
        asked = read_record("far")
        assert asked is not None and asked.is_up and [p.split()[0] for p in asked.parts] == ["he1", "he2"]
        assert [row.name for row in on_engine.host_rows(mesh)[1:]] == ["he1", "he2"]
        assert [a.mesh for a, _ in on_engine.looks()] == ["far"]
        pids = [int(p.split()[1]) for p in asked.parts]
    finally:
        mesh.stop().get(T)
        on_engine.give_back("far")
    assert list_records() == []
    for pid in pids:
        wait_until(lambda pid=pid: not _is_host(pid), "a host that has ended")


def _is_host(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().startswith("mnb-host")
    except OSError:
        return False


@pytest.mark.usefixtures("lab", "before")
@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("far", r"1 of 2 hosts have come:\nhost nowhere\.invalid: there is no host of that name"),
        ("old", r"0 of 1 hosts have come:\nhost he1: exit code 1"),
        (
            "bare",
            r"host he1: /usr/bin/python3 has no monarch_nb there: install it, or name another interpreter",
        ),
    ],
)
def test_a_host_that_does_not_come_is_named_and_nothing_is_left(profile: str, message: str) -> None:
    with pytest.raises(MeshError, match=message):
        start("gone", profile)
    assert list_records() == []


@pytest.mark.usefixtures("lab")
def test_a_host_key_that_is_not_known_is_said_with_the_command_to_type(
    two_hosts: Sshd, profiles: Profiles
) -> None:
    known = two_hosts.folder / "known_hosts"
    config = two_hosts.folder / "unknown"
    text = two_hosts.config.read_text().replace(str(known), f"{known}.none")
    config.write_text(
        text.replace("HostName 127.0.0.1", "HostName localhost")
    )  # no connection is shared with the tests above
    profiles(f'[lab]\nengine = "ssh"\nhosts = ["he1"]\n[lab.ssh]\nconfig = "{config}"\n')
    with pytest.raises(MeshError, match=f"he1: its host key isn't .* accept it once: ssh -F {config} he1"):
        start("gone", "lab")
    assert list_records() == []


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(
    ("profile", "changes", "message"),
    [
        ("ssh", "", "ssh needs the names of hosts"),
        ("lab", "9", "9 hosts were asked for, and the profile names 2: he1, he2"),
    ],
)
def test_what_cannot_be_had_is_refused_before_anything_is_asked(
    profile: str, changes: str, message: str
) -> None:
    found = find_profile(profile, ENGINES)
    if changes:
        found = replace(found, spec=replace(found.spec, hosts=HostRange.parse(changes)))
    with pytest.raises(MeshUsageError, match=message):
        on_engine.start_on("gone", found, ONE_RANK)
    assert list_records() == []
