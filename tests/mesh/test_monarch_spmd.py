"""What a Monarch program does that torchrun would start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_nb.actor import ProcMesh, this_host
from monarch_nb.spmd import AddrType, SPMDActor, setup_torch_elastic_env

T = 60

SCRIPT = """
import os, sys
assert __name__ == "__main__" and sys.argv[1:] == ["--lr", "0.1"], sys.argv
with open(f"{sys.argv[0]}.{os.environ['RANK']}", "w") as file:
    names = ("LOCAL_RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    file.write(" ".join(os.environ[n] for n in names))
"""


@pytest.fixture(scope="module")
def pair() -> Iterator[ProcMesh]:
    procs = this_host().spawn_procs({"gpus": 2})
    yield procs
    procs.stop().get(T)


def test_a_script_is_run_as_torchrun_would(pair: ProcMesh, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    spmd = pair.spawn("spmd", SPMDActor)
    address, port = spmd.slice(gpus=0).get_host_port.call_one(None).get(T)
    done = spmd.main.call(address, port, [str(script), "--lr", "0.1"]).get(T)
    assert list(done.values()) == [True, True]
    written = [(tmp_path / f"train.py.{rank}").read_text() for rank in range(2)]
    assert written == [f"{rank} 2 1 {address} {port}" for rank in range(2)]


def test_a_rank_that_sees_one_gpu_takes_that(tmp_path: Path) -> None:
    """As `spawn_procs({"gpus": 2})` gives them on a machine with GPUs: `cuda:0` is each rank's own."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def own_gpu() -> None:
        os.environ["CUDA_VISIBLE_DEVICES"] = "3"

    procs = this_host().spawn_procs({"gpus": 2}, bootstrap=own_gpu)
    try:
        spmd = procs.spawn("spmd", SPMDActor)
        address, port = spmd.slice(gpus=0).get_host_port.call_one(None).get(T)
        spmd.main.call(address, port, [str(script), "--lr", "0.1"]).get(T)
        written = [(tmp_path / f"train.py.{rank}").read_text() for rank in range(2)]
        assert written == [f"0 2 1 {address} {port}"] * 2
    finally:
        procs.stop().get(T)


def test_the_environment_is_set_up_by_hand(pair: ProcMesh) -> None:
    spmd = pair.spawn("spmd", SPMDActor)
    address, port = spmd.slice(gpus=1).get_host_port.call_one(AddrType.IPv4).get(T)
    assert address.count(".") == 3
    spmd.setup_env.call(address, port).get(T)
    assert [*pair.execute(_rank_and_master).get(T).values()] == [
        f"{rank} {address}:{port}" for rank in range(2)
    ]
    setup_torch_elastic_env(pair, master_addr="127.0.0.1")  # the port is chosen
    first, second = pair.execute(_rank_and_master).get(T).values()
    assert first.startswith("0 127.0.0.1:") and second == first.replace("0", "1", 1)


PROGRAM = """
import os, sys
with open(f"{sys.argv[1]}.{os.getpid()}", "w") as file:
    file.write(" ".join([os.environ["EXTRA"], str(os.getppid()), *sys.argv[2:]]))
sys.exit(int(sys.argv[2]))
"""


def test_a_program_such_as_torchrun_is_run_on_each_rank(pair: ProcMesh, tmp_path: Path) -> None:
    program = tmp_path / "launcher.py"
    program.write_text(PROGRAM)
    spmd = pair.spawn("spmd", SPMDActor)
    words = [str(program), str(tmp_path / "ran"), "0", "a b"]
    done = spmd.run_command.call(sys.executable, words, {"EXTRA": "yes"}).get(T)
    assert list(done.values()) == [True, True]
    ranks = pair.execute(os.getpid).get(T).values()
    assert sorted(f.read_text() for f in tmp_path.glob("ran.*")) == sorted(
        f"yes {pid} 0 a b" for pid in ranks
    )
    assert not any(pair.execute(_has_extra).get(T).values())  # it's the program's only


def test_a_program_that_fails_is_said(pair: ProcMesh, tmp_path: Path) -> None:
    program = tmp_path / "launcher.py"
    program.write_text(PROGRAM)
    spmd = pair.spawn("spmd", SPMDActor)
    error = spmd.run_command.call(
        sys.executable, [str(program), str(tmp_path / "ran"), "3"], {"EXTRA": "yes"}
    ).exception(T)
    assert "CalledProcessError" in str(error) and "returned non-zero exit status 3" in str(error)
    missing = spmd.run_command.call(str(tmp_path / "nowhere"), [], {}).exception(T)
    assert "FileNotFoundError" in str(missing) and "nowhere" in str(missing)
    assert list(spmd.run_command.call("true", [], {}).get(T).values()) == [True, True]  # the actors live on


def test_nothing_to_run_is_said(pair: ProcMesh) -> None:
    error = pair.spawn("spmd", SPMDActor).main.call("127.0.0.1", 1, []).exception(T)
    assert "main needs a script" in str(error)


def _has_extra() -> bool:
    return "EXTRA" in os.environ


def _rank_and_master() -> str:
    return f"{os.environ['RANK']} {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
