"""The one snapshot: rows with versions, changes put together, text; what a GPU library says; a rank's
page.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import convert

from monarch_nb._display import card_html, top
from monarch_nb._host.agent.gpus import GpuReader
from monarch_nb._protocol.base import decode, encode
from monarch_nb._wire.activity_page import (
    BUSY,
    DEBUGGING,
    IDLE,
    NUM_SLOTS,
    PAGE_BYTES,
    ActivityPage,
    read_page,
)
from monarch_nb.status import (
    FullStatus,
    GpuProcess,
    HeadChange,
    HostStatus,
    MeshHead,
    MeshStatus,
    RankStatus,
    StatusChange,
    StatusDelta,
    Versioned,
    apply,
)

HISTORY = {"interval_s": 5.0, "cpu_percent": [10.0, None, 90.0], "memory_percent": [], "gpu_percent": []}


def rank(number: int, state: str = "idle", **fields: Any) -> dict[str, Any]:
    row = {
        "rank": number,
        "host": 0,
        "pid": 100 + number,
        "state": state,
        "reason": "",
        "doing": "",
        "since": time.time() - 5,
        "cell": None,
        "line": "",
        "collective": None,
        "cpu_percent": 1.0,
        "memory_bytes": 50_000_000,
        "gpus": [],
        "gpu_memory_bytes": None,
        "last_line": "",
        "num_queued": 0,
    }
    return {**row, **fields}


def host(**fields: Any) -> dict[str, Any]:
    row = {
        "index": 0,
        "hostname": "box",
        "state": "up",
        "pid": 7,
        "num_cores": 8,
        "num_gpus": 0,
        "cpu_percent": 12.5,
        "memory_used_bytes": 4 * 10**9,
        "memory_total_bytes": 16 * 10**9,
        "gpus": [],
        "history": HISTORY,
    }
    return {**row, **fields}


def full(ranks: list[dict[str, Any]], sizes: list[list[Any]] | None = None, **fields: Any) -> dict[str, Any]:
    head = {
        "name": "demo",
        "pid": 1,
        "started": time.time() - 60,
        "sizes": sizes or [["gpus", len(ranks)]],
        "idle_timeout_s": 3600.0,
        "lease_left_s": None,
        "num_cells": 0,
        "is_healing": False,
        "on_failure": "stop",
        "journal": "/j",
        "clients": [],
        "versions": {},
        "environment": "abc",
    }
    return {**head, "hosts": [host()], "ranks": ranks, **fields}


def versioned_of(status: MeshStatus) -> Versioned:
    found = Versioned(tuple(r.rank for r in status.ranks))
    found.put_head(head_of(status))
    found.put_rows(status.hosts, status.ranks)
    return found


def head_of(status: MeshStatus, **fields: Any) -> MeshHead:
    return MeshHead(**{**{name: getattr(status, name) for name in MeshHead.__struct_fields__}, **fields})


def state_of(number: int, state: str) -> RankStatus:
    return convert(rank(number, state), RankStatus)


def test_changes_put_together_are_the_newest_state() -> None:
    mine = MeshStatus.of(full([rank(0), rank(1), rank(2)]))
    versioned = versioned_of(mine)
    seen = versioned.version
    for state in ("busy", "idle", "lost"):
        versioned.put_rank(1, state_of(1, state))
        versioned.put_head(head_of(mine, num_cells=len(state)))
    change = versioned.changed_since(seen)
    assert [(r.rank, r.state) for r in change.ranks] == [(1, "lost")]
    assert change.mesh == HeadChange(num_cells=4) and change.hosts == ()
    assert apply(mine, change) == versioned.full()
    assert mine.ranks[1].state == "idle", "the old state is left as it was"


def test_a_change_says_no_more_than_what_is_new() -> None:
    """It goes to everybody who watches, twenty times a second."""
    mine = MeshStatus.of(full([rank(0), rank(1)]))
    versioned = versioned_of(mine)
    versioned.put_head(head_of(mine, lease_left_s=7.0))
    seen, now = versioned.version - 1, versioned.unseen_changes(versioned.version - 1)
    assert isinstance(now, StatusDelta) and len(encode(now)) < 60
    assert decode(dict[str, Any], encode(now)) == {
        "type": "delta", "mesh": {"lease_left_s": 7.0}, "hosts": [], "ranks": [],
    }  # fmt: skip
    assert decode(StatusChange, encode(now)) == now
    assert apply(mine, now).lease_left_s == 7.0
    assert versioned.unseen_changes(seen + 1) is None


def test_the_first_change_has_all_of_it() -> None:
    versioned = versioned_of(MeshStatus.of(full([rank(0)])))
    first = versioned.unseen_changes(-1)
    assert isinstance(first, FullStatus) and apply(None, first) == versioned.full()
    with pytest.raises(ValueError, match=r"the first change .* has all of it"):
        apply(None, versioned.changed_since(-1))


def test_a_host_that_is_gone_stands_nowhere() -> None:
    mine = MeshStatus.of(full([rank(0)]))
    versioned = versioned_of(mine)
    versioned.put_host(0, None)
    assert versioned.full().hosts == ()
    versioned.put_host(1, convert(host(index=1), HostStatus))
    assert [h.index for h in versioned.full().hosts] == [1]


def test_what_stays_the_same_is_no_change() -> None:
    mine = MeshStatus.of(full([rank(0)]))
    versioned = versioned_of(mine)
    seen = versioned.version
    versioned.put_rank(0, MeshStatus.of(mine.as_dict()).ranks[0])
    versioned.put_head(head_of(mine))
    assert versioned.version == seen and versioned.changed_since(seen).ranks == ()


def test_a_snapshot_travels_as_plain_data() -> None:
    collective = {"name": "all_reduce", "sequence": 41, "since": 1.0, "shape": [2, 3], "dtype": "float32"}
    gpu = {
        "index": 0,
        "name": "H200",
        "uuid": "u",
        "utilization_percent": 80.0,
        "memory_used_bytes": 10**9,
        "memory_total_bytes": 10**11,
        "temperature_c": 60,
        "processes": [{"pid": 100, "memory_bytes": 5, "rank": 0}],
    }
    data = full(
        [rank(0, "busy", doing="cell #3", collective=collective, gpus=[0])],
        hosts=[host(num_gpus=1, gpus=[gpu])],
    )
    status = MeshStatus.of(data)
    assert MeshStatus.of(status.as_dict()) == status
    assert "all_reduce #41 float32[2, 3]" in status.text()
    assert "GPU 0 80% 953.7 MiB" in status.text()
    assert hash(status.ranks[0].collective)


def test_text_says_it_once() -> None:
    ranks = [rank(i, "busy", doing="cell #3", line="In [1], line 2: x()") for i in range(7)]
    ranks.append(rank(7, "lost", reason="the process was killed by SIGKILL (pid 107 on box)"))
    status = MeshStatus.of(full(ranks))
    text = status.text()
    assert "busy      ranks 0-6" in text
    assert (
        text.count("cell #3") == 1 and "ranks 0-6: busy with cell #3, at In [1], line 2: x(), for 5" in text
    )
    assert "rank 7 lost: the process was killed by SIGKILL" in text
    assert status.health == "trouble"
    assert status.summary().states == {"busy": 7, "lost": 1}


def test_a_thousand_ranks_make_a_short_table() -> None:
    ranks = [rank(i, "busy", doing="cell #3") for i in range(1024)]
    ranks[77] = rank(77, "lost", reason="gone")
    text = top.text(MeshStatus.of(full(ranks, [["hosts", 128], ["gpus", 8]])))
    assert len(text.splitlines()) < 12
    assert "0-76,78-1023" in text and "gone" in text


def test_the_picture_is_laid_out_by_axes_and_escaped() -> None:
    ranks = [rank(i) for i in range(8)]
    ranks[5] = rank(5, "lost", reason="<script>alert(1)</script>")
    page = card_html.render(MeshStatus.of(full(ranks, [["hosts", 2], ["gpus", 4]])), "the kernel has ended")
    assert '<th scope="row">hosts 1</th>' in page
    assert page.count("<td ") == 8
    assert "5 lost" in page
    assert "<script>" not in page and "&lt;script&gt;" in page
    assert "the kernel has ended" in page


def test_pictures_of_large_meshes_stay_small() -> None:
    ranks = [rank(i) for i in range(1024)]
    page = card_html.render(MeshStatus.of(full(ranks, [["pods", 4], ["hosts", 32], ["gpus", 8]])))
    assert page.count("<td ") == 1024 and page.count("<table") == 4
    assert "pods 3" in page
    assert len(page) < 100_000


# --- pages


def test_a_page_says_what_each_thread_does(tmp_path: Path) -> None:
    path = tmp_path / "page"
    page = ActivityPage(str(path))
    actor = page.acquire_slot()
    page.main.begin_activity(b"cell", 7)
    actor.begin_activity("Trainer.schritt_\N{GREEK SMALL LETTER MU}".encode(), 9)
    main, other = read_page(path.read_bytes()) or []
    assert (main.state, main.name, main.origin) == (BUSY, "cell", 7)
    assert (other.state, other.name) == (BUSY, "Trainer.schritt_\N{GREEK SMALL LETTER MU}")
    page.main.set_debugging(True)
    actor.end_activity()
    main, other = read_page(path.read_bytes()) or []
    assert (main.state, other.state, other.name) == (
        DEBUGGING,
        IDLE,
        "Trainer.schritt_\N{GREEK SMALL LETTER MU}",
    )
    assert other.num_changes == 2
    page.release_slot(actor)
    assert len(read_page(path.read_bytes()) or []) == 1
    assert path.stat().st_mode & 0o777 == 0o600


def test_long_names_and_many_actors_do_no_harm() -> None:
    page = ActivityPage()
    slots = [page.acquire_slot() for _ in range(NUM_SLOTS + 5)]
    for slot in slots:
        slot.begin_activity(b"x" * 500)
    found = read_page(bytes(page._buffer)) or []
    assert len(found) == NUM_SLOTS - 1
    assert {len(a.name) for a in found} == {96}


def test_a_page_is_never_read_half_written(tmp_path: Path) -> None:
    """What is read is always one of the states that were written, while another thread writes as fast as
    it can.
    """
    path = tmp_path / "page"
    page = ActivityPage(str(path))
    names = [bytes([65 + i]) * 96 for i in range(8)]
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for name in names:
                page.main.begin_activity(name)

    writer = threading.Thread(target=write)
    writer.start()
    whole = 0
    try:
        with open(path, "rb", buffering=0) as file:
            while whole < 2000:
                found = read_page(
                    os.pread(file.fileno(), PAGE_BYTES, 0), os.pread(file.fileno(), PAGE_BYTES, 0)
                )
                if found:
                    assert len(set(found[0].name)) == 1, found[0].name
                    whole += 1
    finally:
        stop.set()
        writer.join()


def test_a_slot_that_is_being_written_is_not_believed() -> None:
    page = ActivityPage()
    page.main.begin_activity(b"cell")
    data = bytearray(page._buffer)
    data[0] += 1  # the first number is written, the last isn't yet
    assert read_page(bytes(data)) is None


# --- GPUs


class FakeNvml:
    """NVIDIA's library with one GPU that tells all but its temperature, and one that tells nothing."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlDeviceGetName": b"H200",
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=5, total=9),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=42),
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=11, usedGpuMemory=4)],
        }

        def ask(handle: int, *_: object) -> Any:
            if handle == 1 or name not in answers:
                raise self.NVMLError
            return answers[name]

        return ask


def test_a_gpu_that_does_not_tell_is_still_listed() -> None:
    first, second = GpuReader(FakeNvml()).read()
    assert (first.name, first.utilization_percent, first.memory_used_bytes) == ("H200", 42.0, 5)
    assert first.temperature_c is None
    assert first.processes == (GpuProcess(11, 4),)
    assert second.utilization_percent is None and second.processes == ()


def test_without_a_driver_there_are_no_gpus() -> None:
    class NoDriver(FakeNvml):
        def nvmlInit(self) -> None:
            raise self.NVMLError

    assert GpuReader(NoDriver()).read() == []
