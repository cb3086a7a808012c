"""What hosts are wanted: how it's typed, and how it stands in a profile and in a record."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb._commands.clusters import clusters_text, queue_text
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.job.allocation import (
    Allocation,
    Plan,
    damaged_records,
    list_records,
    read_record,
    record_path,
    remove_record,
    write_record,
)
from monarch_nb.job.profiles import find_profile, list_profiles, read_profiles
from monarch_nb.job.spec import MAX_HOSTS, HostRange, HostSpec, PortRange, hosts_typed, machines

ENGINES = ("ssh", "slurm", "command")


@given(st.integers(1, MAX_HOSTS), st.integers(1, MAX_HOSTS))
def test_a_range_is_read_as_it_is_written(one: int, other: int) -> None:
    found = HostRange(min(one, other), max(one, other))
    assert HostRange.parse(str(found)) == found


@pytest.mark.parametrize(
    "text", ["0", "8..2", "-1", "2..", "..8", "two", "", "1e3", "99999999", "2...8", "٣"]
)
def test_what_is_no_number_of_hosts_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(MeshUsageError, match=r"N or LEAST\.\.MOST"):
        HostRange.parse(text)


@pytest.mark.parametrize("text", ["0", "65536", "2-1", "a-b", "29400-", True])
def test_what_are_no_ports_is_refused(text: str | int) -> None:
    with pytest.raises(MeshUsageError, match="29400-29500"):
        PortRange.parse(text)


def test_hosts_are_counted() -> None:
    assert machines("n[08-10,12],me@x.lab") == ("n08", "n09", "n10", "n12", "me@x.lab")
    assert machines(["a", "b[1-2]-ib"]) == ("a", "b1-ib", "b2-ib")


@pytest.mark.parametrize(
    "text", ["-oProxyCommand=x", "a;b", "a b", "n[1-", "n[3-99999999]", "a,a", "", "$(x)", "n[-3]", "n[3-1]"]
)
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(MeshUsageError, match="host"):
        machines(text)


# --- profiles

GOOD = """
[lab]
engine = "slurm"
login = "me@login.lab"
partition = "a100"
hosts = "2..8"
time = "2h"
setup = ["module load cuda/12.4"]
network = "10.10.0.0/16"
ports = "29400-29500"
[lab.slurm]
qos = "interactive"
exclusive = true
[two]
engine = "ssh"
hosts = ["a", "b[1-2]"]
"""


def profile_file(folder: Path, text: str) -> str:
    path = folder / "clusters.toml"
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def test_a_profile_is_a_spec(tmp_path: Path) -> None:
    found = read_profiles(ENGINES, [profile_file(tmp_path, GOOD)])
    lab = found["lab"].spec
    assert (lab.engine, lab.hosts, lab.time_s, lab.ports) == (
        "slurm",
        HostRange(2, 8),
        7200.0,
        PortRange(29400, 29500),
    )
    assert dict(lab.own) == {"qos": "interactive", "exclusive": "true"}
    assert found["two"].spec.machines == ("a", "b1", "b2") and found["two"].spec.wanted == HostRange(3, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[lab]\nengine = "slrum"', r"\[lab\] unknown engine 'slrum'. Did you mean slurm\?"),
        ('[lab]\npartition = "x"', r"\[lab\] has no engine"),
        ('[lab]\nengine = "slurm"\npartitoin = "x"', r"unknown key 'partitoin'. Did you mean partition\?"),
        ('[lab]\nengine = "slurm"\ngpus = 0', r"gpus: expected a number of at least 1"),
        ('[lab]\nengine = "slurm"\ngpus = true', r"gpus: expected a number"),
        ('[lab]\nengine = "slurm"\ntime = "soon"', r"time: a duration is"),
        ('[lab]\nengine = "slurm"\nnetwork = "10.0.0.0/99"', r"network: a network is written"),
        ('[lab]\nengine = "slurm"\n[lab.slurm]\nqos = ["a"]', r"slurm: expected KEY = text"),
        ('[lab]\nengine = "slurm"\n[lab.ssh]\nconfig = "x"', r"unknown key 'ssh'"),
        ('[slurm]\nengine = "slurm"', r"\[slurm\] is the name of an engine"),
        ('engine = "slurm"', r"engine stands outside of a profile"),
        ("[lab\n", r"is no TOML"),
    ],
)
def test_what_a_profile_cannot_have_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(MeshUsageError, match=message) as raised:
        read_profiles(ENGINES, [profile_file(tmp_path, text)])
    assert str(tmp_path / "clusters.toml") in str(raised.value)


def test_the_nearest_profile_is_named(tmp_path: Path) -> None:
    file = profile_file(tmp_path, GOOD)
    with pytest.raises(MeshUsageError, match=r"no profile or engine 'lap'\. Did you mean lab\?"):
        find_profile("lap", ENGINES, [file])
    assert find_profile("ssh", ENGINES, [file]).spec == HostSpec("ssh")


@pytest.mark.parametrize("name", ["10.0.0.5", "9node", "node1", "me@10.0.0.5", "two", "1a[1-2]"])
def test_a_name_or_an_address_may_begin_with_a_digit(name: str) -> None:
    assert hosts_typed(name) == {"machines": machines(name), "hosts": None}


@pytest.mark.parametrize("text", ["0", "8..2", "-1", "2..", "..8", "", "99999999", "2...8"])
def test_a_wrong_number_of_hosts_is_no_name(text: str) -> None:
    assert hosts_typed("2..8") == {"hosts": HostRange(2, 8)}
    with pytest.raises(MeshUsageError, match=r"N or LEAST\.\.MOST"):
        hosts_typed(text)


def test_a_profile_that_cannot_be_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "monarch_nb").mkdir()
    quote = "[odd]\nengine = 'command'\n[odd.command]\nstart = 'ssh \"{host}'\n"
    file = profile_file(tmp_path / "monarch_nb", f"{GOOD}\n[bad]\nengine = 'slrum'\n{quote}")
    assert find_profile("lab", ENGINES).spec.partition and set(list_profiles(ENGINES)[1]) == {"bad"}
    with pytest.raises(MeshUsageError, match=r"clusters\.toml: \[bad\] unknown engine 'slrum'"):
        find_profile("bad", ENGINES)
    told = clusters_text()
    assert "lab " in told and "two " in told and f"{file}: [bad] unknown engine 'slrum'" in told
    (odd,) = [line for line in told.splitlines() if line.startswith("odd")]
    assert "[command] start = 'ssh \"{host}' is no command: No closing quotation" in odd


def test_a_file_that_others_can_write_is_not_read(tmp_path: Path) -> None:
    path = profile_file(tmp_path, GOOD)
    os.chmod(path, 0o666)
    with pytest.raises(MeshUsageError, match="chmod go-w"):
        read_profiles(ENGINES, [path])


def test_the_working_directory_has_no_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile_file(tmp_path, GOOD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    assert "lab" not in read_profiles(ENGINES)


# --- records

SPEC = HostSpec(
    "slurm", HostRange(2, 8), ("a",), 8, 7200.0, setup=("x",), ports=PortRange(1, 2), own=(("qos", "low"),)
)


@pytest.fixture
def own_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    return tmp_path


def test_a_record_is_read_as_it_was_written(own_records: Path) -> None:
    asked = replace(
        Allocation.new("big", "lab", SPEC, Plan((("gpus", 2),), (("A", "b"),))),
        id="4711",
        hosts=(1, 2),
        parts=("a 7",),
    )
    write_record(asked)
    assert read_record("big") == asked and list_records() == [asked]
    assert os.stat(record_path("big")).st_mode & 0o777 == 0o600
    assert os.stat(os.path.dirname(record_path("big"))).st_mode & 0o777 == 0o700
    remove_record("big")
    remove_record("big")
    assert read_record("big") is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}', '{"version": 99}', "[" * 100_000, "\x80"])
def test_what_is_no_record_is_refused_and_passed_over_in_lists(own_records: Path, text: str) -> None:
    path = Path(record_path("big"))
    path.write_text(text)
    with pytest.raises(MeshUsageError, match=rf"^{path} is no record .*; then rm {path}"):
        read_record("big")
    assert list_records() == []
    (told,) = damaged_records()
    assert queue_text() == told and told.startswith(f"{path} is no record of requested hosts (")


def test_a_record_is_no_link_to_elsewhere(own_records: Path) -> None:
    os.symlink("/etc/passwd", record_path("big"))
    with pytest.raises(MeshUsageError, match=r"big\.json is no record of requested hosts \(Too many levels"):
        read_record("big")
    assert list_records() == []


def test_a_changed_spec_says_what_is_otherwise() -> None:
    other = replace(SPEC, time_s=14400.0, partition="h100", hosts=HostRange(4, 4))
    assert SPEC.difference(other) == "hosts 2..8 -> 4, time 2h -> 4h, partition none -> h100"
    assert SPEC.difference(SPEC) == "" and SPEC.digest() == replace(SPEC).digest() != other.digest()
    json.loads(Allocation.new("big", "lab", SPEC, Plan()).to_json())
