"""Edited code on living ranks, environments on hosts: `python tests/benchmarks/bench_sync.py`. All rows in
one run, on one machine; `--help` says how sizes are chosen.

Prints: what looking for changes costs before a cell, for 10 and 500 loaded modules; from a saved file to its
new code on 8 ranks, beside a cell without an edit, and beside what `importlib.reload` takes on one of them
(which leaves living objects with the old code); and the reload itself. Then the same for a host that doesn't
see this machine's files (a mount namespace, for which one must be root), beside `rsync -a` of the same
folder. Last, an environment made for this, of `--files` and `--megabytes` besides what ranks need, to one
host and to `--hosts` (`sync_environment`).
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from monarch_nb import _reload
from monarch_nb import mesh as meshes
from monarch_nb.mesh.sync import before_cell

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "env"))
from apart_hosts import mesh_apart
from environments import bare
from runtime import make_runtime

NUM_RANKS = 8
NUM_EDITS = 40
NUM_FUNCTIONS = 100
NUM_FILES = 400


def source(version: int) -> str:
    """Return a module of some 400 lines, of which each version differs in one function."""
    lines = ["class Net:", "    def forward(self):", f"        return {version}", ""]
    for n in range(NUM_FUNCTIONS):
        lines += [f"def f{n}(x):", f"    y = x + {n}", "    return y", ""]
    return "\n".join(lines)


def row(what: str, seconds: list[float], floor: float | None = None) -> None:
    """Print a figure: the median, the least, and the ratio of medians to the floor."""
    median = statistics.median(seconds)
    ratio = "" if floor is None else f"{median / floor:6.1f} x"
    print(f"{what:<76} {median * 1e3:9.3f} ms, least {min(seconds) * 1e3:9.3f} ms {ratio}")


def timed(do: Callable[[], object]) -> float:
    """Return how many seconds something takes."""
    start = time.perf_counter()
    do()
    return time.perf_counter() - start


def look_for_changes(folder: Path) -> None:
    """Print what looking costs when nothing has changed."""
    for num in (10, 500):
        package = folder / f"p{num}"
        package.mkdir()
        (package / "__init__.py").touch()
        for n in range(num):
            (package / f"m{n}.py").write_text(f"x = {n}\n")
            importlib.import_module(f"p{num}.m{n}")
        _reload.changed_modules()
        row(
            f"look before a cell, nothing changed, {len(_reload.known_modules())} modules",
            [timed(_reload.changed_modules) for _ in range(2000)],
        )


def edit_on_ranks(folder: Path) -> None:
    """Print how long new code takes to be on all ranks."""
    path = folder / "edited.py"
    path.write_text(source(0))
    mesh = meshes.start("bench-sync", {"gpus": NUM_RANKS})
    try:
        mesh.sync_mode = "watch"
        mesh.run("import edited; net = edited.Net()")
        for _ in range(20):
            mesh.run("net.forward();", quiet=True)
        plain = statistics.median(
            [timed(lambda: mesh.run("net.forward();", quiet=True)) for _ in range(NUM_EDITS)]
        )
        row(f"a cell on {NUM_RANKS} ranks, nothing changed", [plain])
        seconds = []
        for version in range(1, NUM_EDITS):
            path.write_text(source(version))
            seconds.append(timed(lambda: mesh.run("net.forward();", quiet=True)))
            mesh.run(f"assert net.forward() == {version}", quiet=True)
        row(f"one file saved: from the cell to new code run on {NUM_RANKS} ranks", seconds, plain)
    finally:
        mesh.stop().get(30)


def reload_here(folder: Path) -> None:
    """Print what a reload takes in one process."""
    path = folder / "alone.py"
    path.write_text(source(0))
    module = importlib.import_module("alone")
    plain, own = [], []
    for version in range(1, NUM_EDITS):
        path.write_text(source(version))
        own.append(timed(lambda: _reload.reload_modules(_reload.changed_modules())))
        plain.append(timed(lambda: importlib.reload(module)))
    row("importlib.reload of a module of 400 lines", plain)
    row("reload that keeps objects, of the same module", own, statistics.median(plain))


def _rsync(source: Path, target: Path) -> Callable[[], float | None]:
    """Return what copies a folder by rsync, and says in how many seconds; None if it isn't here."""
    command = ["rsync", "-a", "--delete", "--exclude", ".git", f"{source}/", str(target)]
    if shutil.which("rsync") is None:
        print("rsync isn't installed here: figures without their floor (apt-get install rsync)")
        return lambda: None
    return lambda: timed(lambda: subprocess.run(command, check=True))


def row_of_rsync(what: str, seconds: list[float | None]) -> float | None:
    """Print a figure of rsync's; return it, None if there's none."""
    taken = [each for each in seconds if each is not None]
    if not taken:
        return None
    row(f"rsync -a {what}", taken)
    return statistics.median(taken)


def edit_on_a_second_host(folder: Path) -> None:
    """Print how long an edit takes to be run on a host that doesn't see this machine's files, beside rsync
    of the same folder.
    """
    project, there, store = folder / "project", folder / "there", folder / "store"
    for each in (project, there, store):
        each.mkdir()
    for n in range(NUM_FILES):
        (project / f"part{n // 20}").mkdir(exist_ok=True)
        (project / f"part{n // 20}" / f"m{n}.py").write_text(source(n))
    path = project / "far_edited.py"
    path.write_text(source(0))
    subprocess.run(["git", "-C", project, "init", "-q"], check=True)
    os.environ["MONARCH_NB_STORE"] = str(store)
    os.chdir(project)
    sys.path.insert(0, str(project))
    with mesh_apart("bench-far", {"gpus": NUM_RANKS}, 1, [project, store]) as mesh:
        first = timed(mesh.sync)
        rsync = _rsync(project, there)
        plain_first = row_of_rsync(f"of {NUM_FILES + 1} files, one file system, first time", [rsync()])
        row("%mesh sync of them to another host, first time, compared by content", [first], plain_first)
        again, plain_again = [], []
        for _ in range(10):
            again.append(timed(mesh.sync))
            plain_again.append(rsync())
        floor = row_of_rsync("nothing changed", plain_again)
        row("%mesh sync, nothing changed: all is looked at on both sides", again, floor)
        mesh.sync_mode = "watch"
        mesh.run("import far_edited; net = far_edited.Net()")
        for _ in range(20):
            mesh.run("net.forward();", quiet=True)
        plain = statistics.median(
            [timed(lambda: mesh.run("net.forward();", quiet=True)) for _ in range(NUM_EDITS)]
        )
        row(f"a cell on {NUM_RANKS} ranks of another host, watched, nothing changed", [plain])
        row(
            "of that, looking whether the workspace has changed",
            [timed(lambda: before_cell(mesh)) for _ in range(2000)],
        )
        seconds, copied = [], []
        for version in range(1, NUM_EDITS):
            path.write_text(source(version))
            seconds.append(timed(lambda: mesh.run("net.forward();", quiet=True)))
            mesh.run(f"assert net.forward() == {version}", quiet=True)
            copied.append(rsync())
        floor = row_of_rsync("of one edited file", copied)
        row(
            f"one file saved: from the cell to new code run on {NUM_RANKS} ranks of another host",
            seconds,
            floor,
        )


def environments(folder: Path, sizes: argparse.Namespace) -> None:
    """Print what an environment takes on its way to hosts."""
    made = make_runtime(folder / "venv")
    each = sizes.megabytes * 1_000_000 // sizes.files
    for n in range(sizes.files):
        below = made.site / "payload" / f"d{n // 50}"
        below.mkdir(parents=True, exist_ok=True)
        (below / f"f{n}.bin").write_bytes(os.urandom(each))
    program = Path(__file__).with_name("sync_environment.py")
    work = folder / "environments"
    work.mkdir()
    env = {**bare(), "MONARCH_NB_STORE": str(work / "home" / "store")}
    command = [made.python, program, work, str(sizes.hosts), str(sizes.edits)]
    subprocess.run(command, check=True, env=env, cwd=work)


def chosen() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description="Figures of %(prog)s, beside their floors.")
    parser.add_argument(
        "--files", type=int, default=20_000, help="of the environment, besides what ranks need"
    )
    parser.add_argument("--megabytes", type=int, default=1600, help="that these have")
    parser.add_argument("--hosts", type=int, default=8, help="that get it at once")
    parser.add_argument("--edits", type=int, default=5, help="of a file in the environment")
    parser.add_argument("--only", choices=("code", "environments"), help="one half of the rows")
    return parser.parse_args()


def main() -> None:
    """Print all rows."""
    sizes = chosen()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sys.path.insert(0, name)
        _reload.install()
        if sizes.only != "environments":
            edit_on_ranks(folder)
            reload_here(folder)
            look_for_changes(folder)
            edit_on_a_second_host(folder)
        if sizes.only != "code":
            environments(folder, sizes)


if __name__ == "__main__":
    main()
