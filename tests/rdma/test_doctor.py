"""`Mesh.doctor`: real ranks are looked at and measured; advice is drawn from made-up findings, one for
each that can be given.
"""

from __future__ import annotations

import copy
import doctest
import importlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from own_meshes import own_mesh

from monarch_nb.exceptions import MeshUsageError, RankSetError
from monarch_nb.mesh import Mesh
from monarch_nb.rdma.doctor import report as doctor
from monarch_nb.rdma.doctor.advice import CHANGE, NOTE, OK, Advice
from monarch_nb.rdma.doctor.advice_mesh import advise
from monarch_nb.rdma.doctor.measuring import Measurement, pairs, representatives
from monarch_nb.rdma.doctor.probe import ProbeResult, described, probe_process
from monarch_nb.rdma.doctor.report import Report

SIZE_BYTES = 1 << 20


@pytest.fixture(scope="module", params=["one_host", "two_hosts"])
def mesh(request: pytest.FixtureRequest) -> Iterator[Mesh]:
    is_one = request.param == "one_host"
    with own_mesh("patient", {"gpus": 2 if is_one else 1}, num_hosts=0 if is_one else 2) as started:
        yield started


def _num_regions() -> int:
    from monarch_nb.rdma.data_plane import data_plane

    return len(data_plane().regions)


# --- real ranks


def test_paths_are_measured_and_nothing_stays_registered(mesh: Mesh) -> None:
    report = mesh.doctor(size_bytes=SIZE_BYTES)
    found = {(m.source, m.reader, m.path): m for m in report.measurements}
    for path in ("shm", "tcp"):
        measured = found[0, 1, path]
        assert not measured.why_not
        assert measured.gb_per_s is not None
        assert measured.gb_per_s > 0
        assert measured.latency_s is not None
        assert measured.latency_s > 0
    copied = found[0, 0, "memcpy"]
    assert copied.gb_per_s is not None
    assert not [m for m in report.measurements if m.path in ("local", "message")]
    assert ((1, 0, "shm") in found) == (len(set(report.hosts.values())) == 2)
    rdma = report.probes[0].rdma
    assert rdma is not None
    if not rdma.ports:
        assert found[0, 1, "verbs"].why_not == "there's no RDMA device on this machine"
    assert any(a.severity == OK and "read each other's memory" in a.what for a in report.advice)
    assert list(mesh.execute(_num_regions).get().values()) == [0, 0]
    json.dumps(report.as_dict())


def test_all_paths(mesh: Mesh) -> None:
    report = mesh.doctor("0,1", size_bytes=SIZE_BYTES, all_paths=True)
    through_messages = next(m for m in report.measurements if m.path == "message")
    assert through_messages.gb_per_s is not None


def test_a_quick_look_says_whether_ranks_of_a_host_reach_each_other(mesh: Mesh) -> None:
    report = mesh.doctor(measures=False)
    assert sorted(report.probes) == [0, 1]
    assert {m.path for m in report.measurements} <= {"shm"}
    assert bool(report.measurements) == (len(set(report.hosts.values())) == 1)
    assert all(m.latency_s is not None and m.gb_per_s is None for m in report.measurements)
    assert list(mesh.execute(_num_regions).get().values()) == [0, 0]


def test_one_rank_is_looked_at(mesh: Mesh) -> None:
    report = mesh.doctor([1], size_bytes=SIZE_BYTES)
    assert list(report.probes) == [1]
    assert [(m.source, m.reader, m.path) for m in report.measurements] == [(1, 1, "memcpy")]


def test_ranks_that_the_mesh_does_not_have(mesh: Mesh) -> None:
    with pytest.raises(RankSetError, match="rank 7 is out of range, 0 to 1 would do"):
        mesh.doctor("0,7")
    with pytest.raises(RankSetError, match="rank 7 is out of range"):
        mesh.doctor([0, 7])


def test_a_size_that_tells_nothing(mesh: Mesh) -> None:
    with pytest.raises(MeshUsageError, match="100 bytes are too few to measure with: at least 4096"):
        mesh.doctor(size_bytes=100)


def test_a_busy_rank_is_left_out(mesh: Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 reads from a pipe until the doctor has been there."""
    monkeypatch.setattr(doctor, "PROBE_S", 0.5)
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    run = mesh.submit(f"open({pipe!r}).read()", "1")
    try:
        with open(pipe, "w"):  # now it reads
            report = mesh.doctor(size_bytes=SIZE_BYTES)
    finally:
        run.wait()
    assert list(report.probes) == [0]
    assert report.silent[1].startswith("it's busy")
    assert "rank 1 was not probed: it's busy" in report.text()
    assert {(m.source, m.reader) for m in report.measurements} == {(0, 0)}


def test_too_many_ranks_to_measure(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MAX_CHOSEN", 1)
    with pytest.raises(
        MeshUsageError,
        match="2 ranks have too many pairs to measure: choose at most 1, or only look: --quick",
    ):
        mesh.doctor("all")


# --- who is measured


def test_each_host_is_represented() -> None:
    hosts = {rank: rank // 4 for rank in range(64)}
    assert representatives(hosts) == (0, 1, 4, 8)
    assert representatives({3: 1}) == (3,)


def test_hosts_are_read_in_both_directions() -> None:
    assert pairs([0, 1], {0: 0, 1: 0}) == {0: [1]}
    assert pairs([0, 4], {0: 0, 4: 1}) == {0: [4], 4: [0]}


# --- this process


def test_what_can_not_be_looked_at_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from monarch_nb.rdma.doctor import probe

    def fail() -> None:
        raise OSError("no such thing")

    monkeypatch.setitem(probe._PROBES, "huge_pages", fail)
    found = probe_process()
    assert found.failed == {"huge pages": "OSError: no such thing"}
    assert found.huge_pages is None
    assert found.place is not None
    assert found.place.pid == os.getpid()
    assert "huge pages" not in msgspec.to_builtins(found)
    assert described(found)["huge pages"] == "not known (OSError: no such thing)"
    assert {"host", "RDMA", "locked memory", "GPUs", "ptrace", "/dev/shm"} <= set(described(found))


def test_looking_at_gpus_starts_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def fail() -> None:
        raise AssertionError("it was asked whether CUDA is available: that starts it")

    monkeypatch.setattr(torch.cuda, "is_available", fail)
    found = probe_process()
    assert found.failed == {}
    assert found.gpus is not None
    assert found.gpus.is_in_use is False


# --- advice

PORT = {
    "name": "mlx5_0",
    "port": 1,
    "state": "ACTIVE",
    "link_layer": "Ethernet",
    "gid": "10.0.0.1 (RoCE v2, index 3)",
    "gids": ["a", "b"],
    "mtu": 4096,
    "gbit_per_s": 100.0,
    "numa": 0,
    "usable": True,
}
DOWN = {**PORT, "state": "DOWN", "usable": False}
BUSY_GPUS = {"num": 8, "is_in_use": True, "visible": None, "no_nic": ""}


def healthy(**changes: Any) -> ProbeResult:
    """Return what a rank has where nothing is wrong, with changes: topic=value, or topic={some fields}."""
    found: dict[str, Any] = {
        "place": {"host": "one", "pid": 1, "boot": "b1", "machine": "b1/p/0/", "ipc": "ipc:[1]"},
        "processors": 8,
        "memory": {"total_bytes": 1 << 36, "limit_bytes": None},
        "rdma": {"why_not": "", "ports": [PORT]},
        "memlock": {"bytes": None, "is_exempt": False},
        "gpus": {"num": 0, "is_in_use": False, "visible": None, "no_nic": ""},
        "tracing": {"scope": 1, "is_filtered": False, "is_exempt": False},
        "shared memory": {"total_bytes": 1 << 34, "free_bytes": 1 << 34},
        "huge pages": "madvise",
        "network": [{"name": "eth0", "addresses": ["10.0.0.1"], "megabits_per_s": 25_000, "mtu": 1500}],
        "settings": {},
        "failed": {},
    }
    found = copy.deepcopy(found)
    for name, value in changes.items():
        topic = name.replace("_", " ")
        found[topic] = (
            {**found[topic], **value} if isinstance(value, dict) and isinstance(found[topic], dict) else value
        )
    return msgspec.convert(found, ProbeResult)


ELSEWHERE = {"host": "two", "boot": "b2", "machine": "b2/p/0/", "ipc": "ipc:[2]"}


def test_nothing_is_wrong() -> None:
    found = advise({0: healthy(), 1: healthy()}, [Measurement(0, 1, "shm", 9.0, 1e-5)])
    assert [str(a) for a in found] == [
        "ranks 0-1: RDMA by mlx5_0:1",
        "processes of one machine read each other's memory",
    ]


@pytest.mark.parametrize(
    ("changes", "severity", "what", "command"),
    [
        (
            {"rdma": {"why_not": "no RDMA port is active: mlx5_0:1 is DOWN", "ports": [DOWN]}},
            CHANGE,
            "mlx5_0:1 is DOWN",
            "ip link set DEVICE up",
        ),
        (
            {"rdma": {"why_not": "no active RDMA port has an address (GID): ..."}},
            CHANGE,
            "it can't be used",
            "ip addr add",
        ),
        (
            {"rdma": {"why_not": "pyverbs is not installed: apt-get ..."}},
            CHANGE,
            "it can't be used",
            "pip install 'monarch_nb[rdma]'",
        ),
        (
            {"rdma": {"why_not": "... there's no /dev/infiniband/uverbs*"}},
            CHANGE,
            "it can't be used",
            "--device=/dev/infiniband",
        ),
        (
            {"rdma": {"why_not": "MONARCH_NB_RDMA_DEVICES=x permits none"}},
            CHANGE,
            "permits none",
            "unset MONARCH_NB_RDMA_DEVICES",
        ),
        ({"rdma": {"ports": [PORT, {**DOWN, "name": "mlx5_1"}]}}, NOTE, "mlx5_1:1 is DOWN", ""),
        ({"memlock": {"bytes": 8 << 20}}, CHANGE, "only 8 MiB may be locked", "ulimit -l unlimited"),
        (
            {"gpus": {**BUSY_GPUS, "no_nic": "nvidia-peermem is not loaded"}},
            CHANGE,
            "NICs can't reach GPU memory",
            "modprobe nvidia-peermem",
        ),
        ({"gpus": {**BUSY_GPUS, "is_in_use": False}}, NOTE, "GPU memory was not measured", "torch.zeros"),
        ({"shared_memory": {"total_bytes": 64 << 20}}, CHANGE, "64 MiB, the default of docker", "--shm-size"),
        ({"shared_memory": {"free_bytes": 0}}, CHANGE, "/dev/shm is nearly full", "rm what is left over"),
        ({"shared_memory": None}, CHANGE, "there's no /dev/shm", "mount -t tmpfs"),
        ({"huge_pages": "never"}, CHANGE, "transparent huge pages are off", "echo madvise >"),
        (
            {"settings": {"MONARCH_NB_RDMA_PATH": "tcp"}},
            NOTE,
            "MONARCH_NB_RDMA_PATH=tcp",
            "unset MONARCH_NB_RDMA_PATH",
        ),
        (
            {"settings": {"MONARCH_NB_RDMA_MACHINE": "a"}},
            NOTE,
            "MONARCH_NB_RDMA_MACHINE=a",
            "unset MONARCH_NB_RDMA_MACHINE",
        ),
        (
            {"tracing": {"scope": 2}},
            CHANGE,
            "kernel.yama.ptrace_scope is 2",
            "sysctl kernel.yama.ptrace_scope=1",
        ),
        ({"tracing": {"scope": 3, "is_exempt": True}}, CHANGE, "kernel.yama.ptrace_scope is 3", "reboot"),
        ({"failed": {"gpus": "OSError: x"}}, NOTE, "gpus: couldn't be looked at: OSError: x", ""),
    ],
)
def test_advice_about_a_rank(changes: dict[str, Any], severity: str, what: str, command: str) -> None:
    found = [a for a in advise({0: healthy(**changes), 2: healthy(**changes)}, []) if a.severity != OK]
    assert [a.severity for a in found] == [severity]
    assert str(found[0]).startswith("ranks 0,2: ")
    assert what in str(found[0])
    assert command in found[0].next
    assert bool(found[0].next) == bool(command)


@pytest.mark.parametrize(
    "changes",
    [
        {"memlock": {"bytes": 8 << 20, "is_exempt": True}},
        {"memlock": {"bytes": 1 << 37}},
        {
            "memlock": {"bytes": 8 << 20},
            "rdma": {"why_not": "there's no RDMA device on this machine", "ports": []},
        },
        {"gpus": BUSY_GPUS},
        {"tracing": {"scope": 2, "is_exempt": True}},
        {"tracing": {"scope": None}},
        {"huge_pages": ""},
    ],
)
def test_no_advice_without_need(changes: dict[str, Any]) -> None:
    assert [a for a in advise({0: healthy(**changes)}, []) if a.severity != OK] == []


def only(found: list[Advice]) -> Advice:
    changes = [a for a in found if a.severity != OK]
    assert len(changes) == 1, changes
    return changes[0]


FORBIDDEN = "the system forbids process_vm_readv (Operation not permitted)"


@pytest.mark.parametrize(
    ("tracing", "command"),
    [
        ({"scope": 2}, "sysctl kernel.yama.ptrace_scope=1"),
        ({"scope": 3}, "reboot"),
        ({"scope": None, "is_filtered": True}, "docker run --cap-add SYS_PTRACE"),
    ],
)
def test_ranks_of_a_machine_that_can_not_read_each_other(tracing: dict[str, Any], command: str) -> None:
    ranks = {0: healthy(tracing=tracing), 1: healthy(tracing=tracing)}
    advice = only(advise(ranks, [Measurement(0, 1, "shm", why_not=FORBIDDEN)]))
    assert str(advice) == f"ranks 0-1: ranks of one machine can't read each other's memory: {FORBIDDEN}"
    assert command in advice.next


def test_strict_yama_that_does_no_harm() -> None:
    ranks = {0: healthy(tracing={"scope": 2}), 1: healthy(tracing={"scope": 2})}
    assert not [a for a in advise(ranks, [Measurement(0, 1, "shm", 9.0, 1e-5)]) if a.severity == CHANGE]


def test_memory_of_another_machine_is_not_expected_to_be_shared() -> None:
    ranks = {0: healthy(), 1: healthy(place=ELSEWHERE)}
    assert not [
        a
        for a in advise(ranks, [Measurement(0, 1, "shm", why_not="two is another machine")])
        if a.severity != OK
    ]


def test_containers_of_one_machine() -> None:
    advice = only(advise({0: healthy(), 1: healthy(place={"machine": "b1/other/0/"})}, []))
    assert "ranks of one machine can't see each other" in str(advice)
    assert "--pid=host --ipc=host" in advice.next
    on_purpose = healthy(place={"machine": "b1/p/0/x"}, settings={"MONARCH_NB_RDMA_MACHINE": "x"})
    assert only(advise({0: healthy(), 1: on_purpose}, [])).severity == NOTE


def test_gpus_in_several_ipc_namespaces() -> None:
    advice = only(
        advise({0: healthy(gpus=BUSY_GPUS), 1: healthy(gpus=BUSY_GPUS, place={"ipc": "ipc:[9]"})}, [])
    )
    assert "several IPC namespaces" in advice.what
    assert "--ipc=host" in advice.next


def test_machines_without_rdma() -> None:
    bare = {"why_not": "there's no RDMA device on this machine", "ports": []}
    advice = only(advise({0: healthy(rdma=bare), 1: healthy(place=ELSEWHERE)}, []))
    assert str(advice) == "rank 0: there's no RDMA device: bytes to and from other machines go by tcp"


def test_machines_without_a_network() -> None:
    advice = only(advise({0: healthy(), 1: healthy(place=ELSEWHERE, network=[])}, []))
    assert str(advice).startswith("rank 1: there's no network interface")


def test_tcp_that_uses_too_little_of_the_network() -> None:
    ranks = {0: healthy(), 1: healthy(place=ELSEWHERE)}
    slow = [Measurement(0, 1, "tcp", 1.0, 1e-4), Measurement(1, 0, "tcp", 0.5, 1e-4)]
    advice = only(advise(ranks, slow))
    assert advice.what == "tcp from rank 1 to rank 0 has 4 of 25 Gbit/s"
    assert "MONARCH_NB_RDMA_STREAMS=8" in advice.next
    assert "mtu 9000" in advice.next
    fast = [Measurement(0, 1, "tcp", 3.0, 1e-4)]
    assert not [a for a in advise(ranks, fast) if a.severity != OK]
    assert not [
        a for a in advise({0: healthy(), 1: healthy()}, slow) if a.severity != OK
    ]  # the loopback has no speed
    unknown = healthy(
        place=ELSEWHERE,
        network=[{"name": "eth0", "addresses": ["10.0.0.2"], "megabits_per_s": 0, "mtu": 1500}],
    )
    assert not [a for a in advise({0: healthy(), 1: unknown}, slow) if a.severity != OK]


def test_paths_that_ought_to_work() -> None:
    ranks = {0: healthy(), 1: healthy(place=ELSEWHERE)}
    blocked = [
        Measurement(0, 1, "verbs", why_not="retry exceeded"),
        Measurement(1, 0, "verbs", why_not="retry exceeded"),
    ]
    advice = only(advise(ranks, blocked))
    assert str(advice) == "ranks 0-1: verbs doesn't work between all of them: retry exceeded"
    assert "ib_read_bw" in advice.next
    assert "INTERFACE" in only(advise(ranks, [Measurement(0, 1, "tcp", why_not="timed out")])).next
    assert "could be measured: it's busy" in str(
        only(advise(ranks, [Measurement(0, 1, "any", why_not="it's busy")]))
    )
    bare = {"why_not": "there's no RDMA device on this machine", "ports": []}
    without = {0: healthy(rdma=bare), 1: healthy(rdma=bare)}
    assert not advise(without, [Measurement(0, 1, "verbs", why_not="there's no RDMA device on this machine")])


def test_findings_that_are_missing_are_no_reason_to_fail() -> None:
    assert (
        advise(
            {0: ProbeResult(failed={}), 1: ProbeResult(failed={})},
            [Measurement(0, 1, "tcp", 1.0, 1e-4), Measurement(0, 1, "shm", why_not="x")],
        )
        == []
    )


# --- the report


def report(**changes: Any) -> Report:
    probes = {0: healthy(), 1: healthy(**changes)}
    measured = [
        Measurement(0, 0, "memcpy", 12.3),
        Measurement(0, 1, "shm", 9.87, 1.23e-5),
        Measurement(0, 1, "verbs", why_not="<b>no</b>"),
    ]
    return Report(
        "dev",
        {0: 0, 1: 0},
        probes,
        tuple(measured),
        tuple(advise(probes, measured)),
        {2: "it's <i>busy</i>"},
        64 << 20,
    )


def test_text_folds_what_ranks_have_alike() -> None:
    text = report(huge_pages="never").text()
    assert text.startswith("mesh 'dev': ranks 0-1 on 1 host\n\nwhat")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "huge pages [0] madvise" in lines
    assert "[1] never" in lines
    assert "processors [0-1] 8" in lines
    assert "from to path GB/s 4 KiB why not" in lines
    assert "0 0 memcpy 12.3" in lines
    assert "0 1 shm 9.87 12.3 us" in lines
    assert "0 1 verbs <b>no</b>" in lines
    at = lines.index("what to change:")
    assert lines[at + 1].startswith("1. rank 1: transparent huge pages are off")
    assert lines[at + 2].startswith("next: echo madvise")
    assert "2. ranks 0-1: verbs doesn't work between all of them: <b>no</b>" in lines


def test_text_when_nothing_is_to_be_changed() -> None:
    probes = {0: healthy()}
    text = Report("dev", {0: 0}, probes, (), tuple(advise(probes, [])), {}, 0).text()
    assert "\n\nnothing to change\nfine: rank 0: RDMA by mlx5_0:1" in text
    assert str(Report("dev", {0: 0}, {}, (), (), {0: "it has died"}, 0)) == (
        "mesh 'dev': no rank has answered\n\nnothing to change\nrank 0 was not probed: it has died"
    )


def test_html_is_escaped() -> None:
    found = report(settings={"MONARCH_NB_RDMA_PATH": "<script>"})
    html = found._repr_html_()
    assert "&lt;script&gt;" in html
    assert "&lt;i&gt;busy" in html
    assert "&lt;b&gt;no" in html
    assert not any(tag in html for tag in ("<script>", "<i>", "<b>"))


def test_many_different_answers_are_cut_short() -> None:
    rows = doctor.folded({rank: {"eth0": f"10.0.0.{rank}"} for rank in range(20)})
    assert len(rows) == doctor.MAX_GROUPS + 1
    assert rows[-1] == ("", "[8-19]", "12 more")


@pytest.mark.parametrize("name", ["report", "measuring"])
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"monarch_nb.rdma.doctor.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
