"""An unchanged torchrun script, again and again on the same warm ranks: each run is as in a fresh process,
and the cells' state is as before.
"""

from __future__ import annotations

import gc
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest
from own_meshes import own_mesh
from processes import wait_for_exit
from waiting import wait_until

from monarch_nb._debug import MeshDebugger, Stop
from monarch_nb.exceptions import ActorError, DeviceMeshError, MeshUsageError
from monarch_nb.mesh import Mesh
from monarch_nb.spmd import setup_torch_elastic_env

TRAIN = """
import argparse, atexit, gc, logging, os, sys, torch
import torch.distributed as dist
import model
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="log %(message)s")
logging.getLogger("train").addHandler(logging.StreamHandler(sys.stdout))

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--exit", type=int, default=0)
    parser.add_argument("--on", type=int, default=-1)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=arguments.lr)
    for _ in range(3):
        loss = net(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f} scale {model.SCALE} of {dist.get_world_size()}")
    print("port", os.environ["MASTER_PORT"])
    logging.getLogger("train").info("trained")
    if dist.get_rank() == arguments.on:
        sys.exit(arguments.exit)

if __name__ == "__main__":
    assert sys.modules["__main__"].main is main and "leftover" not in globals()
    leftover = os.environ["LEFTOVER"] = "here"
    atexit.register(print, "the end")
    torch.set_default_dtype(torch.float32)
    gc.disable()
    main()
"""


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with own_mesh("scripts", {"gpus": 3}) as found:
        yield found


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "model.py").write_text("SCALE = 1\n")
    return tmp_path


def write(name: str, source: str) -> str:
    Path(name).write_text(textwrap.dedent(source))
    return name


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return what ranks have printed, without how long they took, which is told where that differs."""
    return [line for line in capsys.readouterr().out.splitlines() if not line.startswith("time: ")]


def test_it_runs_again_and_again_as_in_a_fresh_process(
    mesh: Mesh, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mesh.run("mine = 5", quiet=True)
    for _ in range(3):
        mesh.run_script("train.py", "--lr", 0.1)
    (folder / "model.py").write_text("SCALE = 2\n")
    mesh.run_script("train.py", "--lr", 0.1)
    shown = capsys.readouterr().out.splitlines()
    ports = {line for line in shown if " port " in line}
    assert len(ports) == 4 and all(port.startswith("[0-2] ") for port in ports)
    losses = [line for line in shown if " loss " in line]
    assert losses[0] == losses[1] == losses[2] and losses[2].endswith("scale 1 of 3")
    assert losses[3] == losses[0].replace("scale 1", "scale 2")
    assert [line for line in shown if "trained" in line] == ["[0-2] trained", "[0-2] log trained"] * 4
    assert shown.count("[0-2] the end") == 4
    pulled = mesh.part("all").execute(_state_of_rank).get(60)
    assert set(pulled.values()) == {(5, False, False, False, True)}


def _state_of_rank() -> tuple[object, bool, bool, bool, bool]:
    main = sys.modules["__main__"]
    dist = sys.modules["torch.distributed"]
    return (
        vars(main).get("mine"),
        "LEFTOVER" in os.environ,
        "model" in sys.modules,
        dist.is_initialized(),
        gc.isenabled(),
    )


def test_losses_are_those_of_torchrun(mesh: Mesh, capsys: pytest.CaptureFixture[str]) -> None:
    mesh.run_script("train.py", "--lr", 0.1, ranks="0-1", env={"OMP_NUM_THREADS": "1"})
    ours = next(line for line in capsys.readouterr().out.splitlines() if " loss " in line)
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            "train.py",
            "--lr",
            "0.1",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    theirs = re.findall(r"loss \S+ scale 1 of 2", ran.stdout)  # their lines may come as one
    assert len(theirs) == 2 and {ours} == {f"[0-1] {each}" for each in theirs}


def test_a_module_runs_with_its_package(mesh: Mesh, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "pkg").mkdir()
    (folder / "pkg" / "__init__.py").write_text("")
    (folder / "pkg" / "data.py").write_text("N = 7\n")
    (folder / "pkg" / "train.py").write_text(
        "import os, sys\nfrom .data import N\nprint(N, sys.argv[1:], __name__, os.environ['WORLD_SIZE'])\n"
    )
    mesh.run_script("pkg.train", "--lr", "1e-3", is_module=True)
    assert printed(capsys) == ["[0-2] 7 ['--lr', '1e-3'] __main__ 3"]


def test_groups_of_cells_are_set_aside(mesh: Mesh, capsys: pytest.CaptureFixture[str]) -> None:
    _set_up_group(mesh)
    mesh.run("odd = dist.new_group([0, 2])", quiet=True)
    mesh.run_script("train.py", "--lr", 0.1)
    mesh.run("t = torch.ones(1)\ndist.all_reduce(t)\nif rank != 1: dist.all_reduce(t, group=odd)\nt.item()")
    assert printed(capsys)[-2:] == ["[0,2] 6.0", "[1] 3.0"]
    mesh.run("dist.destroy_process_group()", quiet=True)


def _set_up_group(mesh: Mesh) -> None:
    setup_torch_elastic_env(mesh)
    mesh.run(
        "import torch, torch.distributed as dist\ndist.init_process_group('gloo')", quiet=True, timeout=60
    )


def test_another_exit_code_is_red_with_its_rank(mesh: Mesh) -> None:
    with pytest.raises(ActorError, match=r"rank 2: ScriptExit: the script has exited with code 3"):
        mesh.run_script("train.py", "--lr", 0.1, "--exit", 3, "--on", 2, quiet=True)
    assert mesh.history()[-1].status == "error"
    mesh.run_script("train.py", "--lr", 0.1, "--exit", 0, "--on", 2, quiet=True)
    with pytest.raises(ActorError, match=r"code 1: no data"):
        mesh.run_script(write("a.py", "import sys\nsys.exit('no data')"), quiet=True)


@pytest.mark.parametrize(
    ("name", "source", "words", "expected"),
    [
        (
            "nowhere.py",
            None,
            (),
            r"FileNotFoundError: there's no script 'nowhere.py' in /.*%mesh run -m NAME",
        ),
        ("s.py", "def f(:\n", (), r"SyntaxError: invalid syntax \(s.py, line 1\)"),
        ("train.py", None, ("--lr", "high"), r"ScriptExit: the script has exited with code 2"),
        (
            "r.py",
            "x = [1]\ndef f():\n    return x[2]\nf()\n",
            (),
            r"(?s)IndexError: list index out of range.*r\.py:3, in f",
        ),
        ("d", "", (), r"there's no script|can't be read|find '__main__'"),
    ],
)
def test_bad_input_is_one_clear_error(
    mesh: Mesh, folder: Path, name: str, source: str | None, words: tuple[str, ...], expected: str
) -> None:
    if name == "d":
        (folder / "d").mkdir()
    elif source is not None:
        write(name, source)
    with pytest.raises(ActorError, match=expected) as raised:
        mesh.run_script(name, *words, quiet=True)
    assert str(raised.value).count("ranks 0-2: ") == 1 and "monarch_nb/_rank" not in str(raised.value)
    mesh.run("rank", quiet=True)


def test_a_module_that_isnt_there_is_said(mesh: Mesh) -> None:
    with pytest.raises(ActorError, match=r"No module named.*no_such.*-m takes a module"):
        mesh.run_script("no_such.train", is_module=True, quiet=True)
    with pytest.raises(MeshUsageError, match="expected a script's file"):
        mesh.run_script("")


def test_an_interrupt_ends_it_and_the_next_one_runs(mesh: Mesh, folder: Path) -> None:
    name = write(
        "slow.py",
        "import os, time\nopen(f'on{os.environ[\"RANK\"]}', 'w').close()\nwhile True: time.sleep(0.01)",
    )
    failed: list[BaseException] = []

    def run() -> None:
        try:
            mesh.run_script(name, quiet=True)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: len(list(folder.glob("on*"))) == 3, "the script on all ranks")
    mesh.interrupt()
    thread.join(60)
    assert [type(error).__name__ for error in failed] == ["CellInterrupted"]
    mesh.run_script("train.py", "--lr", 0.1, quiet=True)


def test_it_waits_for_its_threads_and_puts_back_what_it_took(
    mesh: Mesh, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write("rude.py", """
        import multiprocessing, os, signal, sys, threading
        multiprocessing.set_start_method("spawn")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        go = threading.Event()
        def late():
            go.wait()
            print("late")
        threading.Thread(target=late).start()
        print("early")
        sys.stdout.flush()
        sys.argv.append("x"); sys.path.insert(0, "/nowhere"); os.chdir("/")
        go.set()
        quit(0)
    """)  # fmt: skip
    before = mesh.execute(_interpreter_state).get(60).values()
    for _ in range(2):
        mesh.run_script(name)
    assert printed(capsys) == ["[0-2] early", "[0-2] late"] * 2
    assert [*mesh.execute(_interpreter_state).get(60).values()] == [*before]


def _interpreter_state() -> tuple[object, ...]:
    import multiprocessing

    handler = repr(signal.getsignal(signal.SIGTERM)).split(" at ")[0]
    return (
        os.getcwd(),
        tuple(sys.path),
        tuple(sys.argv),
        handler,
        multiprocessing.get_start_method(allow_none=True),
    )


FAILS_TO_MEET = """
import os
from datetime import timedelta
import torch.distributed as dist
if os.environ["RANK"] == "0":
    dist.init_process_group("gloo", timeout=timedelta(seconds=1))  # nobody else comes
"""


def test_a_run_that_could_not_meet_on_some_ranks_keeps_no_later_one_from_it(
    mesh: Mesh, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ActorError, match=r"rank 0: (Dist\w+|RuntimeError)"):
        mesh.run_script(write("alone.py", FAILS_TO_MEET), quiet=True)
    mesh.run_script("train.py", "--lr", 0.1, timeout=60)
    with pytest.raises(ActorError, match=r"rank 0: (Dist\w+|RuntimeError)"):
        mesh.run_script("alone.py", quiet=True)
    _set_up_group(mesh)
    mesh.run("t = torch.ones(1)\ndist.all_reduce(t)\nt.item()", timeout=60)
    assert printed(capsys)[-1] == "[0-2] 3.0"
    mesh.run("dist.destroy_process_group()", quiet=True)


def test_a_rank_that_ends_while_others_wait_for_it_is_the_first_failure(mesh: Mesh) -> None:
    name = write("leaves.py", """
        import sys, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        if dist.get_rank() == 2:
            sys.exit(3)
        dist.all_reduce(torch.ones(1))
    """)  # fmt: skip
    with pytest.raises(ActorError) as raised:
        mesh.run_script(name, quiet=True, timeout=60)
    first, *others = raised.value.failures
    assert (first.ranks, first.type) == ((2,), "ScriptExit")
    assert all(first.when < other.when for other in others), "its groups ended before it was told"
    mesh.run_script("train.py", "--lr", 0.1, quiet=True, timeout=60)


def test_a_rank_that_dies_in_it_is_told(folder: Path) -> None:
    name = write(
        "dies.py", "import os, time\nif os.environ['RANK'] == '1': os._exit(7)\nwhile True: time.sleep(0.01)"
    )
    with own_mesh("dying", {"gpus": 2}) as doomed:
        with pytest.raises(DeviceMeshError, match=r"rank 1.*exit(ed)?.* 7"):
            doomed.run_script(name, quiet=True)
        doomed.heal()
        doomed.run_script("train.py", "--lr", 0.1, quiet=True)
        assert doomed.history()[-1].status == "ok"


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "monarch_nb", "run", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_command_takes_the_flags_of_torchrun(mesh: Mesh, folder: Path) -> None:
    ran = command("--standalone", "--nproc_per_node", "2", "train.py", "--lr", "0.1")
    assert ran.returncode == 0 and "[0-1] loss" in ran.stdout, ran.stderr
    ran = command(
        "--name", "scripts", "--ranks", "0-1", "train.py", "--lr", "0.1", "--exit", "4", "--on", "0"
    )
    assert ran.returncode == 1 and "rank 0: ScriptExit: the script has exited with code 4" in ran.stderr
    for words, expected in [
        (("--rdzv-endpoint", "a:1", "train.py"), "--rdzv-endpoint means nothing here"),
        (("--nnodes", "2", "train.py"), "start a mesh on them"),
        (
            ("--nproc-per-node", "many", "train.py"),
            "expected a number of processes, auto, gpu or cpu; not 'many'",
        ),
        (("--name", "scripts", "--nproc-per-node", "2", "train.py"), "not both"),
        ((), "SCRIPT"),
    ]:
        ran = command(*words)
        assert ran.returncode in (1, 2) and expected in ran.stderr and "Traceback" not in ran.stderr, (
            ran.stderr
        )


def test_the_command_runs_a_module_on_as_many_ranks_as_there_are_cores(folder: Path) -> None:
    (folder / "pkg").mkdir()
    (folder / "pkg" / "__init__.py").write_text("")
    (folder / "pkg" / "train.py").write_text(
        "import os, sys\nprint(__name__, sys.argv[1:], os.environ['WORLD_SIZE'])\n"
    )
    ran = command("--nproc-per-node", "cpu", "-m", "pkg.train", "--lr", "1e-3")
    num = len(os.sched_getaffinity(0))
    ranks = f"0-{num - 1}" if num > 1 else "0"
    assert ran.returncode == 0 and f"[{ranks}] __main__ ['--lr', '1e-3'] {num}" in ran.stdout, ran.stderr
    ran = command("--nproc-per-node", "auto", "train.py", "--lr", "0.1")
    assert ran.returncode == 0 and "loss" in ran.stdout, ran.stderr


def test_ctrl_c_of_the_command_ends_the_script_and_its_ranks(folder: Path) -> None:
    name = write("long.py", """
        import os, time
        open(f"pid{os.environ['RANK']}", "w").write(str(os.getpid()))
        os.rename(f"pid{os.environ['RANK']}", f"up{os.environ['RANK']}")
        while True:
            time.sleep(0.01)
    """)  # fmt: skip
    ran = subprocess.Popen(
        [sys.executable, "-m", "monarch_nb", "run", "--nproc-per-node", "2", name],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    wait_until(lambda: Path("up0").exists() and Path("up1").exists(), "a script on both ranks")
    pids = [int(Path(f"up{rank}").read_text()) for rank in range(2)]
    os.killpg(ran.pid, signal.SIGINT)  # as a terminal does
    _, errors = ran.communicate(timeout=60)
    assert ran.returncode not in (0, None) and "Traceback" not in errors, errors
    assert all(wait_for_exit(pid) for pid in pids)


def test_it_is_run_again_where_it_may_be(folder: Path) -> None:
    name = write("flaky.py", """
        import os, sys
        mark = f"tried{os.environ['RANK']}"
        if not os.path.exists(mark):
            open(mark, "w").close()
            sys.exit(5)
        print("at last", os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["TORCHELASTIC_MAX_RESTARTS"])
    """)  # fmt: skip
    ran = command("--nproc-per-node", "2", "--max-restarts", "1", name)
    assert ran.returncode == 0 and "[0-1] at last 1 1" in ran.stdout and "code 5" in ran.stderr


def test_breakpoints_stop_in_it(mesh: Mesh, folder: Path) -> None:
    name = write(
        "stops.py", "import os\nx = int(os.environ['RANK'])\nbreakpoint()\ny = x + 10\nprint('y', y)\n"
    )
    debugger = mesh.debugger()
    for lines in ((4,), (4, 5)):
        if 5 in lines:
            assert len(debugger.break_at(str(folder / name), 5)) == 3
        with ThreadPoolExecutor() as pool:
            run = pool.submit(mesh.run_script, name, quiet=True)
            for line in lines:
                stops = wait_until(lambda line=line: _all_at(line, debugger), f"all ranks at line {line}")
                assert {(Path(stop.file).name, stop.function) for stop in stops} == {(name, "<module>")}
                answers = debugger.send(stops, "p x + 100")
                assert sorted(answers.texts.values()) == ["100", "101", "102"]
                debugger.send(stops, "c")
            assert run.result(60).error() is None
    debugger.clear_breaks()


def _all_at(line: int, debugger: MeshDebugger) -> list[Stop]:
    found = debugger.stops()
    assert {stop.line for stop in found} <= {4, 5}, found
    return found if len(found) == 3 and {stop.line for stop in found} == {line} else []


def test_each_run_draws_other_random_numbers_and_the_cells_go_on(mesh: Mesh, tmp_path: Path) -> None:
    script = tmp_path / "draw.py"
    script.write_text(
        "import random, numpy, os\nopen(os.environ['DRAWN'] + os.environ['RANK'], 'a').write("
        "f'{random.random()} {numpy.random.rand()}\\n')\n"
        "random.seed(1); numpy.random.seed(1)\n"
    )
    mesh.run("import random, numpy\nrandom.seed(7); numpy.random.seed(7)", quiet=True)
    for _ in range(3):
        mesh.run_script(script, env={"DRAWN": str(tmp_path / "drawn")}, quiet=True)
    drawn = [line.split() for file in tmp_path.glob("drawn*") for line in file.read_text().splitlines()]
    assert len(drawn) == 3 * len(mesh)
    assert all(len(set(column)) == len(drawn) for column in zip(*drawn, strict=True))
    mesh.run("going_on = random.random(), float(numpy.random.rand())", quiet=True)
    random.seed(7)
    wanted = random.random(), float(numpy.random.RandomState(7).rand())
    assert set(mesh.pull("going_on").values()) == {wanted}
