"""Interpreters that are kept warm for the next program: who gets one, what it's then like, and that
nothing is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace
from processes import PATIENCE_S, mesh_processes, wait_for_exit
from waiting import wait_until

from monarch_nb._client import keeper, launch, warm, warm_key
from monarch_nb._client.warm import Kept
from monarch_nb._client.warm_key import why_path_differs
from monarch_nb._host.controller.handover import CLAIM, WARM, YOURS, socket_path
from monarch_nb._wire.claim import Claim
from monarch_nb._wire.directory import socket_root

TIME = r"(?:\d{4}-\d\d-\d\d )?\d\d:\d\d"
"""With the date, if that's another day: half an hour before midnight it is."""
SCRIPT = """
import json, os, sys
from monarch_nb.actor import this_host
from monarch_nb._client import session
from monarch_nb._protocol.programs import Status

def what_it_is():
    import beside
    variables = [os.environ.get("WARM_TEST"), os.environ.get("ONLY_BEFORE")]
    return [*variables, os.getcwd(), beside.value, os.getppid(), sys.path[0], "torch" in sys.modules]

while True:
    procs = this_host().spawn_procs({"gpus": 2})
    ranks = list(procs.execute(what_it_is).get(60).values())
    status = session.current().request(Status())
    print(json.dumps({"controller": status.pid, "zygote": status.zygote_pid, "ranks": ranks}), flush=True)
    if sys.stdin.readline().strip() != "again":
        break
"""

SLOW_CONTROLLER = """
import os, signal, socket, time
from monarch_nb._client import session, warm
from monarch_nb._host.controller.handover import THANKS
from monarch_nb._protocol.programs import Status

kept, = warm.keepers()
controller = kept.controller.pid
is_held = False

def wait_until(condition):
    while not condition():
        time.sleep(0.005)

def is_in(state):
    return open(f"/proc/{controller}/stat").read().rpartition(")")[2].split()[0] == state

class Socket(socket.socket):
    def send(self, data, *flags):
        global is_held
        if data == THANKS:
            wait_until(lambda: is_in("S"))  # it has told the keeper, too
            os.kill(controller, signal.SIGSTOP)
            wait_until(lambda: is_in("T"))
            is_held = True
        sent = super().send(data, *flags)
        if is_held and data != THANKS:  # the greeting
            is_held = False
            os.kill(kept.pid, signal.SIGCONT)
            wait_until(lambda: not any(k.controller for k in warm.keepers()))  # it has hung up
            os.kill(controller, signal.SIGCONT)
        return sent

socket.socket = Socket
os.kill(kept.pid, signal.SIGSTOP)
for _ in range(100):  # the first few may be answered before it comes to the end of that round
    status = session.current().request(Status())
print([status.pid == controller, [client.pid == os.getpid() for client in status.clients]])
"""
"""A program that takes a warm controller and holds that up, until its thanks, its greeting and the end of the
keeper's connection have come, in this order.
"""


class Report(dict[str, Any]):
    """What a program has said; whoever misses something in it is shown all."""

    def __missing__(self, key: str) -> Any:
        raise AssertionError(f"no {key!r} in what the program has said: {dict(self)}")


class Program:
    """A script that starts two ranks, says what they are, and goes on until told to end."""

    started: ClassVar[list[subprocess.Popen[str]]] = []
    before: ClassVar[set[int]] = set()

    def __init__(self, folder: Path, **env: str) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "script.py").write_text(SCRIPT)
        (folder / "beside.py").write_text("value = 7")
        self.process = subprocess.Popen(
            [sys.executable, str(folder / "script.py")], cwd=folder, env={**os.environ, **env},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.started.append(self.process)

    def report(self) -> Report:
        assert self.process.stdout is not None and self.process.stderr is not None
        line = self.process.stdout.readline()
        return Report(json.loads(line) if line else {"error": self.process.stderr.read()})

    def end(self) -> None:
        self.process.communicate("\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("MONARCH_NB_PRELOAD", "none")
    Program.before = set(mesh_processes())
    yield tmp_path / "program"
    while Program.started:
        process = Program.started.pop()
        process.kill()
        process.wait()
    for each in warm.keepers():
        with contextlib.suppress(OSError):
            os.kill(each.pid, signal.SIGCONT)
        warm.stop(each)


def command(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "monarch_nb", "warm", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
    )


def kept_warm() -> Kept:
    """Return what keeps a controller warm, once it is."""
    return wait_until(lambda: [k for k in warm.keepers() if k.controller is not None], "a warm controller")[0]


def controller_of(kept: Kept) -> int:
    assert kept.controller is not None
    return kept.controller.pid


def made_warm() -> Kept:
    done = command("--for", "10m")
    assert done.returncode == 0, done.stderr
    return kept_warm()


def new_processes(name: str = "") -> list[int]:
    """Return the processes that have begun since the test has: other tests' meshes may run beside it."""
    return [
        pid for pid, found in mesh_processes().items() if pid not in Program.before and found.startswith(name)
    ]


def nothing_is_left() -> bool:
    return (
        not [name for name in os.listdir(socket_root()) if name.startswith("warm-")]
        and "mnb-warm" not in mesh_processes().values()
    )


def test_program_takes_the_warm_controller_as_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_NB_PRELOAD", "torch")
    kept = made_warm()
    program = Program(folder, WARM_TEST="mine", ONLY_BEFORE="")
    report = program.report()
    assert report["controller"] == controller_of(kept)
    for rank in report["ranks"]:
        assert rank == ["mine", "", str(folder), 7, report["controller"], str(folder), True]
    again = kept_warm()  # another one is warmed up
    assert again.pid == kept.pid and controller_of(again) != report["controller"]
    program.end()
    assert wait_for_exit(report["controller"]) and wait_for_exit(report["zygote"])
    assert command("--stop").stdout == "nothing is kept warm any more\n"
    assert nothing_is_left() and not os.path.exists(f"/proc/{controller_of(again)}")


def test_environment_of_the_taker_replaces_the_keepers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONLY_BEFORE", "keeper's")
    kept = made_warm()
    monkeypatch.delenv("ONLY_BEFORE")
    program = Program(folder)
    report = program.report()
    assert report["controller"] == controller_of(kept)
    assert [rank[:2] for rank in report["ranks"]] == [[None, None]] * 2
    os.kill(report["zygote"], signal.SIGKILL)
    assert wait_for_exit(report["zygote"])
    assert program.process.stdin is not None
    program.process.stdin.write("again\n")
    program.process.stdin.flush()
    again = program.report()
    assert (
        again["zygote"] != report["zygote"] and again["ranks"] == report["ranks"]
    )  # its successor has what the program has, too
    program.end()


def test_typed_again_it_says_until_when(folder: Path) -> None:
    first = command()
    assert re.fullmatch(rf"this environment is warm until {TIME}, .*\n", first.stdout), first
    again = command("--for", "8h")
    assert re.fullmatch(
        rf"this environment is warm already, until {TIME} \(pid \d+\)\. .*\n", again.stdout
    ), again
    assert re.search(TIME, again.stdout)[0] == re.search(TIME, first.stdout)[0]  # type: ignore[index]
    assert re.fullmatch(rf"{sys.executable}: warm until {TIME} \(pid \d+\)\n", command("--status").stdout)
    other = command("--status", OMP_NUM_THREADS="3").stdout
    assert other.endswith("; not for programs of this terminal: differs in variable OMP_NUM_THREADS\n")


def test_module_path_that_is_relative(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib" / "of_mine").mkdir(parents=True)
    (tmp_path / "lib" / "of_mine" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "lib")
    kept = made_warm()
    program = Program(tmp_path)
    assert program.report()["controller"] == controller_of(kept)
    program.end()


def test_five_programs_at_once(folder: Path, tmp_path: Path) -> None:
    kept = made_warm()
    programs = [Program(tmp_path / f"program{i}") for i in range(5)]
    report = [program.report() for program in programs]
    assert [s["controller"] for s in report].count(controller_of(kept)) == 1
    assert len({s["controller"] for s in report}) == 5
    for program in programs:
        program.end()


def test_nonsense(folder: Path) -> None:
    for words, text in (
        (["--for", "soon"], "a duration is a number with s, m, h or d"),
        (["--for", "-1"], "--for: a duration is more than 0"),
        (["--for", "1m", "--stop"], "monarch-nb warm takes one of --for, --status and --stop"),
        (["now"], "unrecognized arguments: now"),
    ):
        done = command(*words)
        assert done.returncode and text in done.stderr and len(done.stderr.splitlines()) == 1, done
    assert command("--stop").stdout == "nothing was kept warm\n"
    assert command("--status").stdout.startswith("nothing is kept warm. ")


# --- who doesn't get it


def test_other_variables_that_count_when_torch_is_loaded(folder: Path) -> None:
    kept = made_warm()
    program = Program(folder, OMP_NUM_THREADS="3")
    assert program.report()["controller"] != controller_of(kept)
    program.end()


def test_a_module_beside_the_script_that_hides_an_installed_one(folder: Path) -> None:
    kept = made_warm()
    folder.mkdir()
    (folder / "cloudpickle.py").write_text("raise ImportError('mine')")
    program = Program(folder)
    assert "ImportError: mine" in program.report()["error"]  # as without a warm one
    assert kept_warm() == kept
    program.end()


def test_paths_that_would_find_other_modules(tmp_path: Path) -> None:
    ours, project, library = (str(tmp_path / name) for name in ("scripts", "project", "library"))
    for folder in (ours, project, library):
        Path(folder).mkdir()
    (tmp_path / "project" / "mine").mkdir()
    warm_path, modules = (
        ["/lib/python", library, project],
        {library: ["numpy", "torch"], project: ["mine"], "": ["sys"]},
    )

    def why(*path: str) -> str:
        return why_path_differs(path, warm_path, modules)

    assert why(ours, *warm_path) == why(ours, "/nowhere", *warm_path, ours) == ""
    assert (
        why(project, *warm_path) == ""
    )  # a program that is started in a project which is installed to be edited
    assert why(library, "/lib/python") == f"{project} isn't in its module path"
    assert "can't be looked into" in why(__file__, *warm_path)
    (tmp_path / "scripts" / "torch").mkdir()
    (tmp_path / "scripts" / "torch.txt").touch()
    assert why(ours, *warm_path) == ""  # data: imports don't find it while there's a package of that name
    (tmp_path / "scripts" / "torch" / "__init__.py").touch()
    assert why(ours, *warm_path) == f"{ours}/torch would be imported in place of the installed torch"
    (tmp_path / "scripts" / "torch" / "__init__.py").unlink()
    (tmp_path / "scripts" / "torch.so").touch()
    assert why(ours, *warm_path) == f"{ours}/torch.so would be imported in place of the installed torch"
    (tmp_path / "project" / "numpy.py").touch()
    assert why(*warm_path) == ""  # it comes later, as it did when the interpreter imported numpy
    assert why(project, *warm_path) == f"{project}/numpy.py would be imported in place of the installed numpy"
    assert (
        why("/lib/python", project, library)
        == f"{project}/numpy.py would be imported in place of the installed numpy"
    )


def test_packages_that_were_installed_since(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(packages))
    kept = made_warm()
    (packages / "new_package").mkdir()
    program = Program(folder)
    assert program.report()["controller"] != controller_of(kept)
    program.end()
    assert wait_for_exit(kept.pid) and wait_for_exit(controller_of(kept))  # nobody could take it any more


def test_keeper_that_connects_late_hears_that_it_is_warm(folder: Path) -> None:
    requirements = warm_key.requirements()
    controller = launch.start_controller(
        owner_pid=os.getpid(), warm_claim=str(folder.parent / "claim"), requirements=requirements
    )
    wait_until(
        lambda: os.path.exists(os.path.join(controller.directory, "warm.json")), "what it has imported"
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as keeps:
        keeps.settimeout(PATIENCE_S)
        keeps.connect(socket_path(controller.directory))
        assert keeps.recv(64) == WARM
    assert wait_for_exit(controller.pid)


# --- ends


def test_keeper_looks_at_packages_only(tmp_path: Path) -> None:
    """What a program needs besides can't change for others; of the keeper itself it does: it handles a signal
    that nohup has ignored.
    """
    path = str(tmp_path / "claim")
    claim, now = Claim.acquire(path), warm_key.requirements()
    assert claim is not None
    goes_on = []
    for known in (replace(now, signals=()), replace(now, packages=())):
        keeps = keeper.Keeper(claim, path, known, for_s=600.0, wait_s=600.0)
        for _ in range(2):  # one look may fall into an installation
            keeps._look_at_packages()
        goes_on.append(keeps._goes_on())
    claim.release()
    assert goes_on == [True, False]


def test_time_is_up(folder: Path) -> None:
    assert command("--for", "0.5s").returncode == 0
    wait_until(nothing_is_left, "the end of the keeper")
    wait_until(lambda: not new_processes(), "the end of what it has kept warm")


@pytest.mark.parametrize("when", ["free", "taken"])
def test_keeper_is_killed(folder: Path, when: str) -> None:
    kept = made_warm()
    assert kept.controller is not None
    if when == "free":
        os.kill(kept.pid, signal.SIGKILL)
        assert wait_for_exit(kept.controller.pid)
        wait_until(lambda: nothing_is_left() and not os.path.exists(kept.controller.directory), "nothing")  # type: ignore[union-attr]
        assert command("--status").stdout.startswith("nothing is kept warm")
        return
    program = Program(folder)
    report = program.report()
    os.kill(kept.pid, signal.SIGKILL)
    assert wait_for_exit(kept.pid)
    assert not warm.keepers() and nothing_is_left()  # who looks takes away what it has left
    assert report["controller"] == kept.controller.pid and os.path.exists(f"/proc/{report['controller']}")
    program.end()
    assert program.process.returncode == 0
    assert wait_for_exit(report["controller"])


def test_keeper_is_killed_while_it_warms_up(folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "monarch_nb", "warm"], stderr=subprocess.PIPE, text=True
    )
    host = wait_until(lambda: new_processes("mnb-host"), "a controller")
    kept = wait_until(warm.keepers, "a keeper")[0]
    os.kill(kept.pid, signal.SIGKILL)
    report = process.communicate()[1]
    assert report.startswith("monarch-nb: no interpreter could be warmed up: its keeper has ended"), report
    assert wait_for_exit(host[0])
    wait_until(nothing_is_left, "nothing of the keeper")


@pytest.mark.parametrize("who", ["controller", "zygote"])
def test_what_is_kept_warm_is_killed(folder: Path, who: str) -> None:
    kept = made_warm()
    controller = controller_of(kept)
    victim = controller if who == "controller" else new_processes("mnb-zygote")[0]
    os.kill(victim, signal.SIGKILL)
    assert wait_for_exit(victim)
    program = Program(folder)
    report = program.report()
    assert report["controller"] != controller  # it has started its own, without a word
    program.end()
    assert (
        controller_of(
            wait_until(
                lambda: (k := kept_warm()) and (k if controller_of(k) != controller else None),
                "another controller",
            )
            or kept
        )
        != controller
    )


def test_taker_dies(folder: Path) -> None:
    kept = made_warm()
    program = Program(folder)
    report = program.report()
    program.process.kill()
    program.process.communicate()
    assert report["controller"] == controller_of(kept)
    assert wait_for_exit(report["controller"]) and wait_for_exit(report["zygote"])


def test_taker_dies_before_it_has_heard(folder: Path) -> None:
    kept = made_warm()
    assert kept.controller is not None
    code = (
        "import os, socket, sys; link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET);"
        "link.connect(sys.argv[1]);"
        'fd = os.memfd_create(\'x\'); os.write(fd, b\'{"environ": {}, "path": [], "cwd": "/"}\');'
        "socket.send_fds(link, [b'claim'], [fd]); print(link.recv(64), flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, socket_path(kept.controller.directory)], capture_output=True, text=True
    )
    assert done.stdout == f"{YOURS}\n"
    assert wait_for_exit(kept.controller.pid)
    wait_until(lambda: controller_of(kept_warm()) != kept.controller.pid, "another controller")  # type: ignore[union-attr]


def test_controller_that_stands_still(folder: Path) -> None:
    kept = made_warm()
    controller = controller_of(kept)
    os.kill(controller, signal.SIGSTOP)
    program = Program(folder)
    assert program.report()["controller"] != controller
    os.kill(controller, signal.SIGCONT)
    assert wait_for_exit(controller)  # whom it would belong to has given up waiting
    program.end()


def test_controller_that_is_slow_hears_of_all_at_once(folder: Path) -> None:
    """The keeper's connection, which it closes when the thanks come, was ready, too. The kernel gives its
    number to the file by which the program is watched: the program doesn't count as ended.
    """
    controller = controller_of(made_warm())
    try:
        done = subprocess.run(
            [sys.executable, "-c", SLOW_CONTROLLER], capture_output=True, text=True, timeout=PATIENCE_S
        )
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(controller, signal.SIGCONT)
    assert done.stdout == "[True, [True]]\n", done.stderr
    assert wait_for_exit(controller)


def test_strange_messages_to_a_warm_controller(folder: Path) -> None:
    kept = made_warm()
    assert kept.controller is not None
    path = socket_path(kept.controller.directory)
    read_end, write_end = os.pipe()
    lies = [
        b"",
        b"[]",
        b'{"environ": 1}',
        b'{"environ": {"A": "\\u0000"}, "path": [], "cwd": "/"}',
        b'{"environ": {}, "path": [1], "cwd": "/"}',
    ]
    fds = [read_end, os.open("/dev/zero", os.O_RDONLY)]
    for text in lies:
        fds.append(os.memfd_create("lie"))
        os.write(fds[-1], text)
    for fd in fds:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.settimeout(20)
            link.connect(path)
            socket.send_fds(link, [CLAIM], [fd])
            assert link.recv(64) == b""
    for words in (b"", b"x" * 1000, CLAIM, b"thanks", b"taken"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.connect(path)
            link.send(words)
    silent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    silent.connect(path)
    program = Program(folder)
    report = program.report()
    assert report.get("controller") == kept.controller.pid, report
    program.end()
    for fd in [*fds, write_end]:
        os.close(fd)
    silent.close()


# --- without typing the command


def test_setting_keeps_it_warm_for_the_next_program(folder: Path) -> None:
    first = Program(folder, MONARCH_NB_WARM="10m")
    own = first.report()
    kept = kept_warm()
    first.end()
    second = Program(folder, MONARCH_NB_WARM="10m")
    assert second.report()["controller"] == controller_of(kept) != own["controller"]
    assert [k.pid for k in warm.keepers()] == [kept.pid]
    second.end()


def test_setting_that_is_no_time(folder: Path) -> None:
    program = Program(folder, MONARCH_NB_WARM="soon")
    report = program.report()["error"].splitlines()
    assert report[-1].endswith(
        "MONARCH_NB_WARM: a duration is a number with s, m, h or d, as in 90s or 8h; not 'soon'; off "
        "keeps nothing warm"
    ), report
    program.end()
    off = Program(folder, MONARCH_NB_WARM="off")
    off.report()
    off.end()
    assert not warm.keepers()
    wait_until(nothing_is_left, "the end of what an earlier test has kept warm")


def test_keepers_that_were_told_nothing_to_do(folder: Path) -> None:
    """Two that start at once: one keeps, the other leaves."""
    codes = [warm._start_keeper(600.0, wait_s=0.0, stderr=subprocess.DEVNULL) for _ in range(2)]
    kept = kept_warm()
    other = next(process for process in codes if process.pid != kept.pid)
    assert other.wait(60) == keeper.KEPT_ALREADY
