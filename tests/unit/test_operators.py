"""The table of operators is what torch's own would be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from monarch_nb._rank.operators import operators

torch = pytest.importorskip("torch")


def test_times_and_calls_are_torchs(tmp_path: Path) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        x = torch.randn(64, 64, requires_grad=True)
        for _ in range(5):
            with torch.profiler.record_function("forward"):
                y = torch.nn.functional.layer_norm((x @ x).relu(), (64,)).sum()
            y.backward()
    file = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(file))
    found = {
        name: (calls, cpu_us)
        for name, calls, cpu_us, _ in operators(json.loads(file.read_text())["traceEvents"])
    }
    expected = {row.key: (row.count, row.self_cpu_time_total) for row in profiler.key_averages()}
    assert found.keys() == expected.keys()
    assert "forward" in found
    for name, (calls, cpu_us) in expected.items():
        assert found[name][0] == calls
        assert found[name][1] == pytest.approx(cpu_us, abs=0.01 * calls + 1)


def test_what_runs_on_the_gpu_counts_for_who_has_launched_it() -> None:
    op = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1}
    kernel = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "name": "gemm", "dur": 4.0}
    events = [
        {**op, "name": "matmul", "ts": 0.0, "dur": 10.0, "args": {"External id": 1}},
        {**op, "name": "mm", "ts": 0.0, "dur": 8.0, "args": {"External id": 2}},
        {**op, "name": "mm", "ts": 20.0, "dur": 5.0, "args": {"External id": 3}},
        *({**kernel, "ts": 30.0, "args": {"External id": number}} for number in (2, 2, 3, 99)),
        {**kernel, "ts": 50.0},
    ]
    assert operators(events) == [("matmul", 1, 2.0, 0.0), ("mm", 2, 13.0, 12.0)]


def test_threads_do_not_call_each_other() -> None:
    op = {"ph": "X", "cat": "cpu_op", "pid": 1, "dur": 10.0}
    events = [{**op, "name": "a", "tid": 1, "ts": 0.0}, {**op, "name": "b", "tid": 2, "ts": 2.0}]
    assert operators(events) == [("a", 1, 10.0, 0.0), ("b", 1, 10.0, 0.0)]
