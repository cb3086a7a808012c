"""Each kind of process killed at each step: whoever waits is told in words and in time, the name can be
started anew, nothing is left.

Five starts of one name at once, and starters that are killed: tests/mesh/test_claim.py.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hostile import FULL, insides_in, mesh_directories, nothing_left, remove_sockets, tried
from kills import KILLS, SHORT, STEPS, VICTIMS, Kill
from processes import mesh_processes, wait_for_exit
from waiting import wait_until

from monarch_nb._wire.directory import new_directory

PATIENCE_S = 150.0
DELAYS_S = (0.0, 0.1) if FULL else (0.02,)
"""So long after a step has begun the kill comes."""
LATE = (
    "its connection has ended",
    "has not been heard of",
    "killed by SIGKILL",
    "the zygote, which forks ranks, had died",
)
"""What may be said of a kill by what comes right after it."""
NUM_HOSTS = 3
"""The controller, and the two of the mesh."""
PROGRAM = """
import contextlib, json, os, signal, sys, time
import monarch_nb
from monarch_nb import mesh as meshes
from monarch_nb.exceptions import MeshError

NAME = "doomed"
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what ranks print is no answer

def start():
    global mesh
    mesh = meshes.start(NAME, {"gpus": 1}, num_hosts=2, attach=True)

def kill(pid):
    with contextlib.suppress(ProcessLookupError):  # the test was first
        os.kill(pid, signal.SIGKILL)

def rank_pid(rank):
    return mesh.status().ranks[rank].pid

for line in sys.stdin:
    try:
        found = ["ok", str(eval(line))[:2000]]
    except (MeshError, KeyboardInterrupt) as error:
        found = ["error", f"{type(error).__name__}: {error}"]
    except BaseException as error:
        import traceback
        found = ["stray", traceback.format_exc()]
    print(json.dumps(found), file=answers, flush=True)
"""
pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


class Program:
    """A client in a process of its own, driven line by line."""

    def __init__(self, folder: Path) -> None:
        path = folder / "program.py"
        path.write_text(PROGRAM)
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors
        )

    def begin(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def has_answered(self, within_s: float) -> bool:
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], within_s)[0])

    def end(self) -> tuple[str, str]:
        """Return how what was begun has ended."""
        assert self.process.stdout is not None
        assert self.has_answered(PATIENCE_S), f"nothing after {PATIENCE_S:g} s"
        how, text = json.loads(self.process.stdout.readline() or '["gone", ""]')
        return how, text

    def attempt(self, line: str) -> tuple[str, str]:
        """Have something done; return how it has ended."""
        self.begin(line)
        return self.end()

    def do(self, line: str) -> str:
        """Have something done that must go well; return its value as a text."""
        how, text = self.attempt(line)
        assert how == "ok", f"{line}: {how}: {text}"
        return text

    def close(self) -> str:
        """End it; return what it has written to stderr."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with suppress(OSError):
            self.process.stdin.close()
        if not wait_for_exit(self.process.pid):
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.errors.seek(0)
        text = self.errors.read().decode(errors="replace")
        self.errors.close()
        return text


class Bench:
    """Two programs, of which one may be killed, and one mesh. All is made anew after a kill that went
    wrong: it takes no other with it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._programs: list[Program] = []
        self.before = set(mesh_processes())

    @property
    def programs(self) -> list[Program]:
        living = [p for p in self._programs if p.process.poll() is None]
        for program in [p for p in self._programs if p not in living]:
            program.close()
        self._programs = [*living, *(Program(self._folder) for _ in range(2 - len(living)))]
        return self._programs

    def victims(self, kind: str, client: Program) -> list[int]:
        """Return the pids of the processes of a kind; empty if there's none yet."""
        if kind == "client":
            return [client.process.pid]
        found = self._processes()
        if kind in ("controller", "host agent"):
            place = 0 if kind == "controller" else 1
            return self._hosts()[place : place + 1]
        return [pid for pid, name in sorted(found.items()) if name.startswith(f"mnb-{kind}")][:1]

    def _processes(self) -> dict[int, str]:
        return {pid: name for pid, name in mesh_processes().items() if pid not in self.before}

    def _hosts(self) -> list[int]:
        return sorted(pid for pid, name in self._processes().items() if name == "mnb-host")

    def wait_for_the_last_one(self) -> None:
        """Wait until the host agent of a mesh whose controller was killed has ended: it would be taken for
        the controller of this one."""
        wait_until(lambda: len(self._hosts()) <= NUM_HOSTS, "the hosts of the mesh before have ended")

    def kill(self, kill: Kill, client: Program, delay_s: float) -> None:
        """Kill as soon as there's somebody to kill, and a moment has passed."""
        while not (pids := self.victims(kill.victim, client)):
            assert client.process.poll() is None
            if client.has_answered(0.01):
                return  # over already
        client.has_answered(delay_s)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def work_again(self, program: Program) -> str:
        """See that the name is there for whoever starts it, or that what runs under it works; return what was
        healed.

        The death of a host agent is known once nothing has been heard of it for some seconds, and what was
        killed a moment ago is missed a moment later: then it's the heal or the cell after it that fails, and
        says so.
        """
        program.do("start()")
        output = []
        for _ in range(3):
            how, text = program.attempt("mesh.heal()")
            output.append(text)
            if how == "ok":
                program.do("mesh.interrupt()")  # what the survivors of a failed call still do
                how, text = program.attempt("mesh.run('6 * 7')")
            if how == "ok":
                return "\n".join(output)
            assert how == "error" and any(words in text for words in LATE), f"{how}: {text}"
        raise AssertionError("\n".join(output))

    def stop(self, program: Program) -> None:
        """End the mesh; nothing of it is left."""
        program.do("mesh.stop().get(60)")
        for pid in set(mesh_processes()) - self.before:
            assert wait_for_exit(pid), f"{mesh_processes().get(pid)} (pid {pid}) is left"

    def close(self) -> None:
        """End all."""
        program = self.programs[0]
        program.do("start()")
        self.stop(program)
        for text in [program.close() for program in self._programs]:
            assert "Traceback" not in text, text
        self._programs = []

    def throw_away(self) -> None:
        for program in self._programs:
            program.process.kill()
            program.close()
        self._programs = []
        for pid in set(mesh_processes()) - self.before:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_for_exit(pid)
        remove_sockets()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with nothing_left():
        made = Bench(tmp_path_factory.mktemp("kills"))
        try:
            yield made
            made.close()
            wait_until(
                _swept,
                "a start removes what those have left that were killed when nobody was there to tidy up",
            )
        except BaseException:
            made.throw_away()
            raise


def _swept() -> bool:
    """Do what each start does first; say whether nothing is left. Sockets that are some seconds young are
    spared.
    """
    os.rmdir(new_directory())
    return not mesh_directories(Path(os.environ["XDG_RUNTIME_DIR"]))


@pytest.mark.parametrize("delay_s", DELAYS_S)
@pytest.mark.parametrize(
    "kill", KILLS.values() if FULL else [KILLS[each] for each in SHORT], ids=lambda k: k.name
)
def test_a_kill(kill: Kill, delay_s: float, bench: Bench) -> None:
    try:
        _try(kill, delay_s, bench)
    except BaseException:
        bench.throw_away()
        raise


def _try(kill: Kill, delay_s: float, bench: Bench) -> None:
    client, other = bench.programs
    client.do("start()")
    bench.wait_for_the_last_one()
    if kill.step == "start":
        bench.stop(client)
    elif not bench.victims(kill.victim, client):  # each host starts its next zygote when it needs one
        bench.stop(client)
        client.do("start()")
    asker = other if kill.step == "attach" else client
    asker.begin(STEPS[kill.step])
    bench.kill(kill, asker, delay_s)
    if kill.goes_on:
        other.do("start()")
        other.do("mesh.interrupt()")
        while not asker.has_answered(3.0):  # it came too early: there was nothing to interrupt yet
            other.do("mesh.interrupt()")
    how, text = asker.end()
    if kill.victim == "client":
        assert how in ("gone", "ok"), text
    else:
        assert how in ("ok", "error"), text
        assert not insides_in(text), text
        assert how == "error" or not kill.fails, f"{how}: {text}"
        assert how == "ok" or all(word in text for word in kill.words), text
    healed = bench.work_again(client if kill.victim != "client" or kill.step == "attach" else other)
    if (kill.victim, kill.step) == ("rank", "call"):
        assert "still runs a function" in healed and "%mesh interrupt" in healed, healed
    if kill.step == "stop":
        bench.stop(bench.programs[0])
    tried("kills")


def test_the_table_is_whole(bench: Bench) -> None:
    """A kill that finds nobody would prove nothing."""
    assert len(KILLS) == len(VICTIMS) * len(STEPS) == 30
    program = bench.programs[0]
    program.do("start()")
    for kind in VICTIMS:
        assert bench.victims(kind, program), kind
