"""The verbs path where there's no NIC: what's missing is said, errors have names, addresses and ports are
chosen.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy
import pytest

from monarch_nb.rdma import segments
from monarch_nb.rdma.availability import get_rdma_backend, is_ibverbs_available
from monarch_nb.rdma.layout import Layout, pieces
from monarch_nb.rdma.memory import memory_of
from monarch_nb.rdma.paths import use_path
from monarch_nb.rdma.paths.verbs import device as verbs_device
from monarch_nb.rdma.paths.verbs import errors as verbs_errors
from monarch_nb.rdma.paths.verbs import library as verbs_library
from monarch_nb.rdma.paths.verbs import memory as verbs_memory
from monarch_nb.rdma.paths.verbs import report as verbs_report
from monarch_nb.rdma.paths.verbs.errors import call_text, memlock_text, status_text
from monarch_nb.rdma.paths.verbs.library import Constants, LibraryMissing, library
from monarch_nb.rdma.paths.verbs.plan import Part, Request, chains, packed, requests
from monarch_nb.rdma.paths.verbs.port import Gid, Port, choose_gid, nearest

IB, V1, V2 = "IB", "RoCE v1", "RoCE v2"


# --- the library


@pytest.fixture
def no_pyverbs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it had never been looked for, and weren't installed."""
    found = importlib.util.find_spec
    for name in [n for n in sys.modules if n.partition(".")[0] == "pyverbs"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "pyverbs" else found(name, *a)
    )
    monkeypatch.setattr(verbs_library, "_found", None)


@pytest.mark.usefixtures("no_pyverbs")
def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(LibraryMissing, match=r"not installed: apt-get install python3-pyverbs"):
        library([str(tmp_path)])


@pytest.mark.usefixtures("no_pyverbs")
def test_a_library_for_another_python_is_told_apart(tmp_path: Path) -> None:
    package = tmp_path / "pyverbs"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "device.cpython-27-pdp11.so").touch()
    with pytest.raises(LibraryMissing, match="built for another Python"):
        library([str(tmp_path)])
    assert "pyverbs" not in sys.modules


@pytest.mark.usefixtures("no_pyverbs")
def test_a_library_that_does_not_load_is_told(tmp_path: Path) -> None:
    package = tmp_path / "pyverbs"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "device.py").write_text("")
    (package / "enums.py").write_text("raise ImportError('libibverbs.so.1: cannot open shared object file')")
    with pytest.raises(LibraryMissing, match=r"can't be loaded \(libibverbs.so.1"):
        library([str(tmp_path)])


def test_the_distribution_folder_stays_off_the_search_path(tmp_path: Path) -> None:
    package = tmp_path / "pyverbs"
    package.mkdir()
    files = {
        "__init__": "",
        "enums": "IBV_QPT_RC = 2",
        "addr": "AHAttr = GID = GlobalRoute = 1",
        "cq": "CQ = CompChannel = 1",
        "device": "Context = 1",
        "mr": "MR = 1",
        "pd": "PD = 1",
        "pyverbs_error": "class PyverbsError(Exception): pass",
        "qp": "QP = QPAttr = QPCap = QPInitAttr = 1",
        "wr": "SGE = SendWR = 1",
    }
    for name, text in files.items():
        (package / f"{name}.py").write_text(text)
    (tmp_path / "stray.py").touch()
    code = (
        "import sys; sys.path = [p for p in sys.path if 'dist-packages' not in p]; before = list(sys.path)\n"
        "from monarch_nb.rdma.paths.verbs.library import library\n"
        f"found = library([{str(tmp_path)!r}])\n"
        "assert found.constants.IBV_QPT_RC == 2 and found.DmaBufMR is None and not found.forgets_to_free\n"
        "assert sys.path == before\n"
        "try: import stray\n"
        "except ImportError: print(found.folder)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(package), done.stderr


def test_constants_of_both_layouts() -> None:
    flat = types.SimpleNamespace(IBV_QPT_RC=2)

    class ibv_qp_type(IntEnum):  # noqa: N801
        IBV_QPT_RC = 2

    for module in (flat, types.SimpleNamespace(ibv_qp_type=ibv_qp_type)):
        constants = Constants(module)
        assert constants.IBV_QPT_RC == 2
        assert type(constants.IBV_QPT_RC) is int
        with pytest.raises(AttributeError):
            _ = constants.IBV_NO_SUCH


def test_looking_imports_nothing_heavy_without_a_device(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from monarch_nb.rdma.paths.verbs import device, path, report\n"
        f"device.CLASS = pathlib.Path({str(tmp_path)!r})\n"
        "print(report.unavailable_reason())\n"
        "print([m for m in ('pyverbs', 'torch', 'numpy') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "there's no RDMA device on this machine\n[]\n"


# --- errors


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (10, ["remote access error", "dropped", "key"]),
        (12, ["retry exceeded", "gone", "4791", "MTU"]),
        (4, ["local protection error", "freed"]),
        (5, ["flushed"]),
        (99, ["status 99"]),
    ],
)
def test_statuses_have_names_and_causes(status: int, words: list[str]) -> None:
    text = status_text(status, 0x32)
    assert all(word in text for word in [*words, "vendor code 0x32"]), text


def test_failed_calls_have_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = verbs_errors.resource.RLIM_INFINITY
    monkeypatch.setattr(verbs_errors.resource, "getrlimit", lambda _: (65536, unlimited))
    assert "64 KiB" in memlock_text()
    assert "ulimit -l" in call_text("registering 5 bytes", errno.ENOMEM)
    monkeypatch.setattr(verbs_errors.resource, "getrlimit", lambda _: (unlimited, unlimited))
    assert memlock_text() == ""
    assert "out of memory" in call_text("registering 5 bytes", errno.ENOMEM)
    assert "isn't mapped" in call_text("registering 5 bytes", errno.EFAULT)
    assert call_text("making", None).endswith("no reason was given")


# --- devices


@pytest.mark.parametrize(
    ("gids", "wanted"),
    [
        ([], None),
        (
            [
                Gid(0, "fe80::1", V1),
                Gid(1, "fe80::1", V2),
                Gid(2, "::ffff:10.0.0.1", V1),
                Gid(3, "::ffff:10.0.0.1", V2),
            ],
            3,
        ),
        ([Gid(0, "fe80::1", V2), Gid(1, "2001:db8::1", V2)], 1),
        ([Gid(0, "fe80::1", V1), Gid(1, "fe80::1", V2)], 1),
        ([Gid(0, "::ffff:10.0.0.1", V1)], 0),
        ([Gid(0, "fe80::1", IB), Gid(1, "fec0::1", IB)], 0),
        ([Gid(0, "fe80::1", "something new")], None),
    ],
)
def test_choice_of_the_address(gids: list[Gid], wanted: int | None) -> None:
    found = choose_gid(gids)
    assert (found and found.index) == wanted


def port(device: str, **more: Any) -> Port:
    return Port(device, 1, more.pop("state", "ACTIVE"), "Ethernet", (Gid(3, "::ffff:10.0.0.1", V2),), **more)


def test_choice_of_the_nic() -> None:
    root = "/sys/devices/pci0000"
    near = port("mlx5_0", pci=f"{root}:00/0000:00:01.0/0000:02:00.0", numa=0, gbit_per_s=100)
    far = port("mlx5_1", pci=f"{root}:80/0000:80:01.0/0000:82:00.0", numa=1, gbit_per_s=200)
    gpu = f"{root}:00/0000:00:01.0/0000:03:00.0"
    assert nearest([far, near], pci=gpu) is near
    assert nearest([far, near], numa=0) is near
    assert nearest([near, far]) is far, "the faster one"
    twins = [port("mlx5_0"), port("mlx5_1")]
    assert nearest(twins) is twins[0]
    assert nearest(twins, like="mlx5_1:1") is twins[1], "as the other side's"


def make_device(
    root: Path,
    name: str,
    state: str = "4: ACTIVE",
    gids: tuple[str, ...] = ("::ffff:10.0.0.1",),
    node: str = "1: CA",
) -> None:
    place = root / name / "ports" / "1"
    for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (place / folder).mkdir(parents=True)
    (root / name / "node_type").write_text(node)
    (place / "state").write_text(f"{state}\n")
    (place / "link_layer").write_text("Ethernet\n")
    (place / "rate").write_text("100 Gb/sec (4X EDR)\n")
    for i, gid in enumerate((*gids, "::")):
        from ipaddress import IPv6Address

        (place / "gids" / str(i)).write_text(f"{IPv6Address(gid).exploded}\n")
        (place / "gid_attrs" / "types" / str(i)).write_text("RoCE v2\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up machine's devices."""
    nodes = tmp_path / "nodes"
    root = tmp_path / "class"
    for folder in (nodes, root):
        folder.mkdir()
    (nodes / "uverbs0").touch()
    monkeypatch.setattr(verbs_device, "CLASS", root)
    monkeypatch.setattr(verbs_device, "NODES", nodes)
    monkeypatch.setattr(verbs_device, "LOOK_AGAIN_S", 0.0)
    monkeypatch.setattr(verbs_device, "MIN_REST", 0.0)
    monkeypatch.delenv(verbs_device.VARIABLE, raising=False)
    return root


def test_ports_as_the_kernel_describes_them(machine: Path) -> None:
    make_device(machine, "mlx5_10", "1: DOWN")
    make_device(machine, "mlx5_2", gids=("fe80::1", "::ffff:10.0.0.7"))
    first, second = verbs_report.describe_devices()
    assert (first.name, second.name) == ("mlx5_2", "mlx5_10"), "in the order of numbers"
    assert (first.gid, first.gbit_per_s, first.usable) == ("10.0.0.7 (RoCE v2, index 1)", 100.0, True)
    assert first.gids == ("fe80::1 (RoCE v2, index 0)", "10.0.0.7 (RoCE v2, index 1)")
    assert (second.state, second.usable) == ("DOWN", False)
    assert [p.name for p in verbs_device.usable_ports()] == ["mlx5_2:1"]


def _stall(machine: Path) -> Path:
    """Let a look stand still in the table of addresses, until somebody writes into that file."""
    gid = machine / "mlx5_0" / "ports" / "1" / "gids" / "0"
    gid.unlink()
    os.mkfifo(gid)
    return gid


def test_one_thread_looks_and_the_others_believe_the_old_look(machine: Path) -> None:
    make_device(machine, "mlx5_0")
    assert [p.name for p in verbs_device.usable_ports()] == ["mlx5_0:1"]
    gid = _stall(machine)
    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(verbs_device.usable_ports)
        with open(gid, "w") as file:  # opens once that thread has come to it
            assert [p.name for p in verbs_device.usable_ports()] == ["mlx5_0:1"]
            assert verbs_device.no_device_reason() == ""
            assert not looking.done()
            file.write("::\n")
        assert looking.result(60) == []


def test_of_many_threads_that_know_nothing_one_looks(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs_device, "LOOK_AGAIN_S", 60.0)
    make_device(machine, "mlx5_0")
    gid = _stall(machine)
    with ThreadPoolExecutor(8) as pool:
        looking = [pool.submit(verbs_device.usable_ports) for _ in range(8)]
        gid.write_text(
            "0000:0000:0000:0000:0000:ffff:0a00:0007\n"
        )  # for one reader: a second one would wait for good
        assert [p.name for ports in looking for p in ports.result(60)] == ["mlx5_0:1"] * 8


def test_looks_take_a_small_part_of_the_time(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        verbs_device, "MIN_REST", 1e9
    )  # however quick this one look is, the next one is far away
    make_device(machine, "mlx5_0")
    assert verbs_device.no_device_reason() == ""
    (verbs_device.NODES / "uverbs0").unlink()
    assert verbs_device.no_device_reason() == ""
    verbs_device.look_again()
    assert "--device=/dev/infiniband" in verbs_device.no_device_reason()


def test_why_no_device_can_be_used(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    why = verbs_device.no_device_reason
    assert why() == "there's no RDMA device on this machine"
    make_device(machine, "efa_0", node="7: unspecified")
    assert why() == "none of efa_0:1 speaks InfiniBand or RoCE"
    make_device(machine, "mlx5_0", "1: DOWN")
    assert why() == "no RDMA port is active: mlx5_0:1 is DOWN"
    make_device(machine, "mlx5_1", gids=())
    monkeypatch.setenv(verbs_device.VARIABLE, "mlx5_1, mlx5_7")
    assert why() == "no active RDMA port has an address (GID): give its network device one"
    make_device(machine, "mlx5_2")
    monkeypatch.setenv(verbs_device.VARIABLE, "mlx5_2:1")
    assert why() == ""
    monkeypatch.setenv(verbs_device.VARIABLE, "mlx4_0")
    assert why().startswith("MONARCH_NB_RDMA_DEVICES=mlx4_0 permits none of")
    monkeypatch.delenv(verbs_device.VARIABLE)
    (verbs_device.NODES / "uverbs0").unlink()
    assert "--device=/dev/infiniband" in why()


def test_the_backend_between_machines(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_ibverbs_available()
    assert get_rdma_backend() == "tcp"
    with use_path("verbs"):
        assert get_rdma_backend() == "none"
    make_device(machine, "mlx5_0")
    monkeypatch.setattr(verbs_report, "library", lambda: None)
    monkeypatch.setattr(verbs_report, "_missing", ("", 0.0))
    assert is_ibverbs_available()
    assert get_rdma_backend() == "ibverbs"
    with use_path("tcp"):
        assert get_rdma_backend() == "tcp"
    with use_path("shm"):
        assert get_rdma_backend() == "none"


# --- how a transfer is cut


def test_requests_cover_every_piece_once() -> None:
    rng = numpy.random.default_rng(5)
    for _ in range(50):
        rows, columns = (int(n) for n in rng.integers(1, 40, 2))
        there = Layout.contiguous((rows, columns), 4)[:, :: int(rng.integers(1, 3))]
        here = (
            Layout.contiguous(there.shape, 4) if rng.random() < 0.5 else Layout(there.shape, (1000, 4), 4, 8)
        )
        wanted = [(p.there + i, p.here + i) for p in pieces(there, here) for i in range(p.nbytes)]
        found = []
        max_bytes, max_parts = int(rng.integers(1, 200)), int(rng.integers(1, 6))
        made = list(requests(pieces(there, here), max_bytes, max_parts))
        for request in made:
            assert request.nbytes <= max_bytes
            assert len(request.parts) <= max_parts
            at = request.there
            for part in request.parts:
                found += [(at + i, part.here + i) for i in range(part.nbytes)]
                at += part.nbytes
        assert found == wanted
        groups = list(chains(made, 4, 300))
        assert [r for g in groups for r in g] == made
        assert all(len(g) <= 4 and (len(g) == 1 or sum(r.nbytes for r in g) <= 300) for g in groups)


def test_what_is_contiguous_at_the_owner_goes_together() -> None:
    found = list(requests(pieces(Layout.contiguous((4, 8), 1), Layout((4, 8), (100, 1), 1)), 1 << 20, 3))
    assert found == [Request(0, (Part(0, 8), Part(100, 8), Part(200, 8))), Request(24, (Part(300, 8),))]
    assert [p.here for p in packed(pieces(Layout.contiguous((4, 8), 1), Layout((4, 8), (100, 1), 1)))] == [
        0,
        8,
        16,
        24,
    ]


# --- which memory stays registered


def test_anchors_tell_allocations_apart() -> None:
    array = numpy.zeros(100)
    anchor, part = verbs_memory.anchor_of(memory_of(array)), verbs_memory.anchor_of(memory_of(array[10:20]))
    assert anchor is not None
    assert anchor == part
    assert anchor != verbs_memory.anchor_of(memory_of(numpy.zeros(100)))
    with pytest.raises(ValueError, match="resize"):
        array.resize(1000)  # what makes it safe: numpy moves no array that is weakly referenced
    assert anchor.holds()
    del array, part
    assert not anchor.holds()


def test_memory_that_could_move_has_no_anchor() -> None:
    plain = bytearray(100)
    assert verbs_memory.anchor_of(memory_of(plain)) is None
    assert verbs_memory.anchor_of(memory_of(numpy.frombuffer(plain, "uint8"))) is None


def test_segments_are_anchors() -> None:
    array = segments.empty(1000, dtype="uint8", kind="array")
    anchor = verbs_memory.anchor_of(memory_of(array))
    assert anchor is not None
    assert anchor == verbs_memory.anchor_of(memory_of(array[5:]))
    assert anchor.holds()
    del array
    assert not anchor.holds()


def test_tensors_are_anchors_if_they_cannot_be_resized() -> None:
    torch = pytest.importorskip("torch")
    assert verbs_memory.anchor_of(memory_of(torch.zeros(1000))) is None
    fixed = torch.from_numpy(numpy.zeros(1000))
    anchor = verbs_memory.anchor_of(memory_of(fixed))
    assert anchor is not None
    assert anchor == verbs_memory.anchor_of(memory_of(fixed[3:]))
    assert anchor.holds()
    del fixed
    assert not anchor.holds()


class _Nic:
    """Registers on paper."""

    def __init__(self) -> None:
        self.open: list[Any] = []

    def register(self, memory: Any, *, remote: bool) -> Any:
        registration = types.SimpleNamespace(lkey=1, shift=0, close=lambda: self.open.remove(registration))
        self.open.append(registration)
        return registration


def test_registrations_are_found_again_and_let_go() -> None:
    nic = _Nic()
    memories = verbs_memory.LocalMemories(nic, max_kept=2)  # type: ignore[arg-type]
    arrays = [numpy.zeros(10) for _ in range(3)]
    for array in arrays:
        with (
            memories.registered(memory_of(array)) as first,
            memories.registered(memory_of(array[2:5])) as second,
        ):
            assert first is second
    assert memories.num_registered == 3
    assert len(nic.open) == len(memories) == 2
    arrays.clear()
    del array
    with memories.registered(memory_of(bytearray(10))):
        assert len(nic.open) >= 1
    with memories.registered(memory_of(numpy.zeros(1))):
        pass
    assert len(nic.open) == 1
    read_only = numpy.zeros(10)
    read_only.flags.writeable = False
    with memories.registered(memory_of(read_only)) as reading:
        read_only.flags.writeable = True
        with memories.registered(memory_of(read_only)) as writing:
            assert writing is not reading, "registered for reading only"
