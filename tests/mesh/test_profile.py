"""Profiles of cells: one trace with events of each rank on one clock, tables, failing and interrupted
cells, ranks without torch.
"""

from __future__ import annotations

import gzip
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from own_meshes import own_mesh

from monarch_nb.exceptions import MeshUsageError
from monarch_nb.mesh import CellError, CellInterrupted, Mesh
from monarch_nb.profile import Profile, ProfileRequest, collect

PATIENCE_S = 90.0


@pytest.fixture(scope="module", params=[0, 2], ids=["one_host", "two_hosts"])
def mesh(request: pytest.FixtureRequest) -> Iterator[Mesh]:
    with own_mesh(
        f"profiled{request.param}", {"gpus": 4 if not request.param else 2}, num_hosts=request.param
    ) as found:
        found.run("import torch, os, time\na = torch.ones(32, 32)")
        yield found


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def events_of(profile: Profile) -> dict[int, list[dict[str, Any]]]:
    """Return the operators' events by rank, found by the name of their process."""
    assert profile.file is not None
    content = Path(profile.file).read_bytes()
    trace = json.loads(gzip.decompress(content) if profile.file.endswith(".gz") else content)
    names = {
        e["pid"]: e["args"]["name"]
        for e in trace["traceEvents"]
        if e["ph"] == "M" and e["name"] == "process_name"
    }
    assert len(set(names.values())) == len(names)
    found: dict[int, list[dict[str, Any]]] = {}
    for event in trace["traceEvents"]:
        if event.get("cat") == "cpu_op":
            words = names[event["pid"]].split()
            assert words[0] == "rank"
            found.setdefault(int(words[1]), []).append(event)
    assert {r["rank"] for r in trace["ranks"]} == set(profile.ranks)
    return found


def test_one_trace_has_the_events_of_each_rank_on_one_clock(mesh: Mesh, tmp_path: Path) -> None:
    """Each rank notes on the wall clock when it multiplies: its event in the file must lie there."""
    requested = time.time_ns()
    source = "began = time.time_ns()\nb = a @ a\nended = time.time_ns()"
    profile = mesh.profile(source)
    found = events_of(profile)
    assert sorted(found) == [0, 1, 2, 3]
    base_ns = json.loads(gzip.decompress(Path(str(profile.file)).read_bytes()))["baseTimeNanoseconds"]
    assert base_ns >= requested
    spans = mesh.pull("began", "ended").values()
    for rank, span in enumerate(spans):
        event = next(e for e in found[rank] if e["name"] == "aten::mm")
        at_ns = base_ns + event["ts"] * 1000
        assert span["began"] - 2e6 <= at_ns <= span["ended"] + 2e6
    assert profile.file is not None
    assert Path(profile.file).parent == tmp_path
    assert Path(profile.file).name.startswith(f"profile-{profile.n}-")
    assert not list(tmp_path.glob(".*"))


def test_the_table_is_folded_over_ranks(mesh: Mesh) -> None:
    profile = mesh.profile("for _ in range(3 * (rank + 1)): b = a @ a", num_top=1)
    mm = next(o for o in profile.operators if o.name == "aten::mm")
    assert (mm.calls.least, mm.calls.mean, mm.calls.most, mm.calls.rank) == (3, 7.5, 12, 3)
    assert 0 < mm.cpu_s.least <= mm.cpu_s.mean <= mm.cpu_s.most < PATIENCE_S
    assert mm.gpu_s.most == 0
    head, first, *_ = profile.text().split("\n", 3)[1:]
    assert head.split() == ["operator", "calls", "self", "CPU", "mean", "min", "max", "rank", "of", "max"]
    assert first.startswith(profile.operators[0].name)
    assert "ui.perfetto.dev" in profile.text()
    assert "<table" in profile._repr_html_()
    assert profile.operators[0].name in profile._repr_html_()


def test_operators_on_threads_of_the_rank_are_there_too(mesh: Mesh) -> None:
    source = (
        "import threading\nt = threading.Thread(target=lambda: torch.ones(3).cumsum(0))\nt.start(); t.join()"
    )
    profile = mesh.profile(source)
    assert any(o.name == "aten::cumsum" for o in profile.operators)


def test_some_ranks_of_a_cell_and_a_file_of_ones_own(mesh: Mesh, tmp_path: Path) -> None:
    profile = mesh.profile("b = a @ a\nc = rank", "1-3", profile_ranks="2-3", file="mine.json", shapes=True)
    assert profile.file == str(tmp_path / "mine.json")
    found = events_of(profile)
    assert sorted(found) == [2, 3]
    assert any(e["args"].get("Input Dims") == [[32, 32], [32, 32]] for e in found[2])
    assert mesh.pull("c", ranks="1").item() == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": "0-1", "profile_ranks": "1-2"}, r"doesn't run on \[2\].*it runs on \[0-1\]"),
        ({"ranks": "0", "profile_ranks": "9"}, "9"),
        ({"ranks": "0", "file": "trace.txt"}, "json"),
        ({"ranks": "0", "file": "nowhere/trace.json"}, "no folder"),
    ],
)
def test_bad_requests_are_refused_before_anything_runs(
    mesh: Mesh, arguments: dict[str, str], message: str
) -> None:
    num = len(mesh.history())
    with pytest.raises((MeshUsageError, ValueError), match=message):
        mesh.profile("ran = True", **arguments)  # type: ignore[arg-type]
    assert len(mesh.history()) == num


def test_a_failing_cell_gives_its_trace(mesh: Mesh) -> None:
    with pytest.raises(CellError, match="broken"):
        mesh.profile("b = a @ a\nif rank == 2: raise ValueError('broken')")
    profile = mesh.last_profile
    assert profile is not None
    assert profile.result.failures.keys() == {2}
    assert sorted(events_of(profile)) == [0, 1, 2, 3]


def test_an_interrupted_cell_gives_its_trace(mesh: Mesh, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    request = ProfileRequest((0, 1), memory=True)
    run = mesh.submit(
        f"b = a @ a\nif rank == 0: open({str(ready)!r}, 'w').write('x')\ntime.sleep(600)",
        "0-1",
        profile=request,
    )
    opener = threading.Thread(target=lambda: ready.read_text(), daemon=True)
    opener.start()
    opener.join(PATIENCE_S)
    assert not opener.is_alive()
    mesh.interrupt("0-1")
    result = run.wait()
    assert isinstance(result.error(), CellInterrupted)
    profile = collect(mesh, result, request)
    assert 0 in events_of(profile)
    assert 0 in profile.memory
    assert mesh.run("import tracemalloc\nassert not tracemalloc.is_tracing()").ranks == (0, 1, 2, 3)


def test_a_rank_that_dies_is_named_and_the_others_have_theirs(mesh: Mesh) -> None:
    with pytest.raises(CellError):
        mesh.profile("b = a @ a\nif rank == 3: os._exit(3)")
    profile = mesh.last_profile
    assert profile is not None
    assert sorted(events_of(profile)) == [0, 1, 2]
    assert "no profile of rank 3: the process has died" in profile.text()
    mesh.heal()
    mesh.run("import torch, os, time\na = torch.ones(32, 32)", "3")


def test_ranks_without_torch_say_so_and_run_nothing(mesh: Mesh) -> None:
    mesh.run("import sys\nran = False\nif rank == 1: kept, sys.modules['torch'] = sys.modules['torch'], None")
    try:
        with pytest.raises(
            CellError, match=r"rank 1: MeshUsageError: a profile needs torch, and this rank has none"
        ):
            mesh.profile("ran = True")
        assert mesh.pull("ran", ranks="1").item() is False
        assert mesh.profile("ran = True", profile_ranks="0,2-3").ranks == (0, 2, 3)
        assert mesh.profile("pass", "1", trace=False, memory=True).memory.keys() == {1}
    finally:
        mesh.run("if rank == 1: sys.modules['torch'] = kept")


def test_a_profile_writes_nothing_into_the_cells_output_and_leaves_no_variable(mesh: Mesh) -> None:
    marker = f"printed by {os.getpid()}"
    mesh.profile(f"print({marker!r})\nassert 'KINETO_LOG_LEVEL' not in os.environ", "0")
    lines = "".join(mesh.journal.logs((0,))).splitlines()
    after = lines[max(i for i, line in enumerate(lines) if marker in line) :]
    assert not any("profiler" in line for line in after)


def test_memory_says_who_holds_what(mesh: Mesh) -> None:
    source = (
        "held = None\nheld = [bytes(1000) for _ in range(5000)]\nif rank == 0: big = "
        "bytearray(os.urandom(40_000_000))\n_ = torch.ones(1)"
    )
    profile = mesh.profile(source, trace=False, memory=True)
    assert profile.file is None
    assert sorted(profile.memory) == [0, 1, 2, 3]
    for rank, report in profile.memory.items():
        assert report["python_bytes"] > 5_000_000
        assert any(place.endswith("line 2") and size > 5_000_000 for place, size, _ in report["lines"])
        assert (report["resident_bytes"] > 35_000_000) == (rank == 0)
        assert report["peak_bytes"] is None or report["peak_bytes"] >= report["resident_bytes"] - 1_000_000
        assert report["cuda_bytes"] is None or isinstance(report["cuda_bytes"], int)
    text = profile.text()
    folded = next(line for line in text.splitlines() if "line 2" in line)
    assert "[0-3]" in folded
    resident = next(line for line in text.splitlines() if line.startswith("resident "))
    assert resident.split()[-1] == "0"
    mesh.run("del held\nif rank == 0: del big")
