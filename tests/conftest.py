"""What all tests share: in which order and by how many processes they're run, and that nothing they
started is left.
"""

from __future__ import annotations

import gc
import os
import re
import shlex
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

with suppress(ImportError):
    # Before anything imports distutils: it takes that one's place, and refuses if it comes later.
    import setuptools  # noqa: F401
from hypothesis import HealthCheck, settings
from preloads import PRELOAD_TO_TRAIN
from processes import PATIENCE_S, TAG, mesh_processes, wait_for_exit

# What is imported and collected stays until the end: to look for garbage meanwhile takes a tenth of the time.
if "PYTEST_XDIST_WORKER" in os.environ:
    gc.disable()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Whatever a script starts in the background inherits that, and no test could interrupt anything.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("loaded", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loaded")
"""How long an example takes says how busy the machine is, not whether the code is right."""

_FIRST = ("rxe", "lab", "engines", "notebook", "mesh", "notebooks")
"""Folders that take longest are begun first, so that all processes end at about the same time."""
_ALONE = ("rxe", "lab", "engines")
"""One virtual machine, one browser and one Slurm at a time are what a small machine can carry."""
_HOSTS = ("one_host", "two_hosts")
_SPEAKS_OF_TORCH = re.compile(r'\btorch\b|/ "notebooks"|^\s+(?:with|\w+ =) this_host\(\)', re.MULTILINE)
"""Tutorials do, too; and this program's own mesh goes on from one file to the next."""
_TRAINS = re.compile(r"\boptim\b|distributed\.tensor|monarch_nb\.distributed|device_mesh|fsdp|Trainer\b")
LEFT = pytest.StashKey[list[str]]()
_begun: list[tuple[float, str]] = []
_LEFT_EXIT = 7
"""`make test` runs tests that failed once more, but not after this."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        tests = item.path.is_relative_to(here)
        folder = item.path.relative_to(here).parts[0] if tests else item.path.parent.name
        return _FIRST.index(folder) if folder in _FIRST else len(_FIRST)

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Let torch compute by one thread in this process, as it does on ranks of a small machine: what tests
    compute is small, and threads that wait for each other keep processors from processes beside them.

    What was imported and collected stays until the end: to look for garbage there would take 0.4 s each time.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep together, in one process, what shares meshes, servers or a machine (`pytest -n 3`)."""
    from xdist.scheduler import LoadScopeScheduling

    class ByPlace(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _scope(nodeid)

        def remove_node(self, node: Any) -> str | None:
            """Give others what a process that died had left to do, without the test it died of.

            The scheduler's own runs that test again, until no process is left, and then waits for ever for
            an answer to units that have nothing to do.
            """
            units = self.assigned_work.pop(node)
            left = [(scope, name) for scope, unit in units.items() for name, done in unit.items() if not done]
            if not left:
                return None
            scope, died = left[0]
            units[scope][died] = True
            self.workqueue.update({s: unit for s, unit in units.items() if not all(unit.values())})
            for other in self.registered_collections.keys() & self.assigned_work.keys():
                self._reschedule(other)
            return died

        def _reschedule(self, node: Any) -> None:
            if node in self.registered_collections:  # a process that is new has not said yet what it found
                super()._reschedule(node)

    config.option.loadscopereorder = False
    return ByPlace(config, log)


def _scope(nodeid: str) -> str:
    file, _, name = nodeid.partition("::")
    folder = Path(file).parent.name
    if folder in _ALONE:
        return folder
    kind = next((k for k in _HOSTS if f"[{k}" in name or f"-{k}" in name), None)
    return f"{folder} {kind}" if kind else file


@pytest.fixture(scope="session", autouse=True)
def own_directories(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Let a mesh's name be this process' own, and see at the end what of ours is left."""
    with (
        tempfile.TemporaryDirectory(prefix="mnb-", ignore_cleanup_errors=True) as runtime,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("XDG_RUNTIME_DIR", runtime)  # meshes are found by name there
        patch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        patch.setenv("JUPYTER_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        patch.setenv(
            "MONARCH_NB_WITH_KERNEL", "0"
        )  # nbclient runs the notebooks of these tests, but they stand for a person's
        patch.setenv(
            "MONARCH_NB_PRELOAD", "torch"
        )  # what training uses besides takes as long again, for each mesh
        # Threads of OpenMP that have nothing to do would wait in a loop: other tests lack that time.
        patch.setenv("OMP_WAIT_POLICY", "passive")
        # So would numpy's at the end of its import, which takes twice as long by that.
        patch.setenv("OPENBLAS_NUM_THREADS", "1")
        patch.setenv(*TAG)
        yield
        request.config.stash[LEFT] = _left()


@pytest.fixture(scope="module", autouse=True)
def own_preload(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have zygotes import torch for those files only that speak of it, or whose helpers do: it is more than
    half of what the start of a mesh costs. Where ranks train, zygotes import what that uses, too: elsewhere
    most meshes of a file that mentions it would wait for nothing. Meshes that files share have torch in any
    case.

    A file that speaks of torch, but most of whose meshes don't need it, says `PRELOAD = "none"`: there, ranks
    import it when they meet it.
    """
    file = request.path
    said = getattr(getattr(request.node, "module", None), "PRELOAD", None)
    texts = [file.read_text()] if file.suffix == ".py" else []
    for name in re.findall(r"^from (\w+) import", "".join(texts), re.MULTILINE):
        helpers = (folder / f"{name}.py" for folder in (file.parent, Path(__file__).parent))
        texts += [helper.read_text() for helper in helpers if helper.exists()]
    with pytest.MonkeyPatch.context() as patch:
        if said or not any(_SPEAKS_OF_TORCH.search(text) for text in texts):
            patch.setenv("MONARCH_NB_PRELOAD", said or "none")
        elif file.parent.name == "training" and any(_TRAINS.search(text) for text in texts):
            patch.setenv("MONARCH_NB_PRELOAD", PRELOAD_TO_TRAIN)
        yield


@pytest.fixture(scope="module", autouse=True)
def ctrl_c_is_pythons() -> Iterator[None]:
    """Fail if a file leaves another handler for SIGINT: tests that press Ctrl-C later would wait in vain."""
    yield
    left = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert left is signal.default_int_handler, f"a test has left {left} as the handler of SIGINT"


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail if a process or a thread of ours outlives the tests. Tests that failed may have left some:
    that's told only.
    """
    left = session.config.stash.get(LEFT, [])
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left"] = left  # who collects the results decides
    elif left and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = _LEFT_EXIT


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a process that ran tests tells at its end."""
    found = getattr(node, "workeroutput", {}).get("left", [])
    node.config.stash[LEFT] = node.config.stash.get(LEFT, []) + found


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name what failed at once: a run that is ended from outside never gets to its summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        crash = getattr(report.longrepr, "reprcrash", None)
        why = str(getattr(crash, "message", report.longrepr)).strip().splitlines() or [""]
        print(
            f"\nFAILED {report.nodeid} ({report.when}, {report.duration:.0f} s): {why[0][:200]}", flush=True
        )


def pytest_runtest_logstart(nodeid: str) -> None:
    _begun.append((time.time(), nodeid))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say what was left behind as the last words: whoever reads the end of a long log must find it."""
    for what in [] if hasattr(config, "workerinput") else config.stash.get(LEFT, []):
        print(f"LEFT BEHIND by the tests: {what}", flush=True)


def _left() -> list[str]:
    """Return what of ours lives on, after it had its time to end."""
    from monarch_nb._client import session, sessions

    session.shutdown()
    # Where a test's named mesh took the place of the program's own, that one lives on until its end.
    for forgotten in list(sessions.by_transport.values()):
        forgotten.close()
    deadline = time.monotonic() + PATIENCE_S
    for pid in mesh_processes():
        wait_for_exit(pid, max(0.1, deadline - time.monotonic()))
    ours = [t for t in threading.enumerate() if t.name.startswith(("monarch_nb", "actor-"))]
    for thread in ours:
        thread.join(
            max(0.1, deadline + PATIENCE_S - time.monotonic())
        )  # whoever watches a controller's end has just heard of it
    processes = [_process(pid, name) for pid, name in mesh_processes().items()]
    return processes + [_thread(t) for t in ours if t.is_alive()]


def _process(pid: int, name: str) -> str:
    """Describe a process that lives on, with the test that ran here when it began."""
    try:
        began = psutil.Process(pid).create_time()
        parents = [f"{p.name()} {p.pid}" for p in psutil.Process(pid).parents()]
        words = shlex.join(psutil.Process(pid).cmdline())[:300]
    except psutil.Error as error:
        return f"process {name} (pid {pid}), which has just ended: {error}"
    during = [nodeid for at, nodeid in _begun if at <= began][-1:] or ["no test"]
    return (
        f"process {name} (pid {pid}), begun {time.time() - began:.0f} s ago during {during[0]} or beside it; "
        f"parents {parents}; {words}"
    )


def _thread(thread: threading.Thread) -> str:
    """Describe a thread that lives on, with where it stands."""
    frame = sys._current_frames().get(thread.ident or 0)
    stack = "".join(traceback.format_stack(frame)[-6:]) if frame else ""
    return f"thread {thread.name}, which stands at\n{stack}"
