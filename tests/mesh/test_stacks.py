"""Stacks of all ranks, also of those that can't be asked, on one host and on two."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from own_meshes import own_mesh
from waiting import ask_until

from monarch_nb._host.agent.dumped import from_faulthandler, from_py_spy, is_whole
from monarch_nb._host.agent.stack_service import find_py_spy
from monarch_nb._stacks import stacks_text
from monarch_nb._wire import dump
from monarch_nb.mesh import Mesh

PATIENCE_S = 60.0
HOLD = "def hold():\n    ctypes.PyDLL(None).sleep(600)\nif rank == 2: hold()"


@pytest.fixture(scope="module", params=[0, 2], ids=["one_host", "two_hosts"])
def mesh(request: pytest.FixtureRequest) -> Iterator[Mesh]:
    with own_mesh(
        f"stacks{request.param}", {"gpus": 4 if not request.param else 2}, num_hosts=request.param
    ) as found:
        found.run("import ctypes, time, os, signal, threading")
        yield found


def until(
    mesh: Mesh, wanted: Callable[[Mapping[int, Any]], bool], **options: Any
) -> dict[int, Mapping[str, Any]]:
    return ask_until(lambda: mesh.stacks(**options), wanted, "the stacks that are wanted")


def holds(found: Mapping[int, Any]) -> bool:
    return "in hold" in (found[2]["stacks"] or {}).get("MainThread", "")


@pytest.fixture
def held(mesh: Mesh) -> Iterator[Mesh]:
    """Rank 2 sleeps in C with the interpreter's lock held."""
    run = mesh.submit(HOLD, number=7)
    until(mesh, holds)
    yield mesh
    # Python's own handler can't run before the lock is free, but the signal ends the sleep.
    os.kill(mesh.status().ranks[2].pid, signal.SIGINT)
    run.wait(PATIENCE_S)
    assert len(mesh.run("rank").bundles) == 4


def test_ranks_that_answer_are_asked(mesh: Mesh) -> None:
    run = mesh.submit("def nap():\n    time.sleep(600)\nnap()", number=6)
    found = until(
        mesh, lambda f: all("in nap" in (each["stacks"] or {}).get("MainThread", "") for each in f.values())
    )
    assert {each["how"] for each in found.values()} == {"asked"}
    assert stacks_text(found) == (
        "ranks 0-3 (asked): cell or function\n  In[6], line 3, in <module>\n    nap()\n  In[6], line "
        "2, in nap\n    time.sleep(600)"
    )
    mesh.interrupt()
    run.wait(PATIENCE_S)


def test_a_rank_that_holds_the_lock_is_found_by_faulthandler(held: Mesh) -> None:
    found = held.stacks()
    assert [found[r]["how"] for r in range(4)] == ["asked", "asked", "faulthandler", "asked"]
    assert (
        "rank 2 (faulthandler): cell or function\n  In[7], line 3, in <module>\n    if rank == 2: hold()\n"
        "  In[7], line 2, in hold\n    ctypes.PyDLL(None).sleep(600)"
    ) in stacks_text(found)


def test_looking_does_not_wake_what_sleeps(held: Mesh) -> None:
    for _ in range(3):
        assert held.stacks("2")[2]["how"] == "faulthandler"


def test_the_file_is_private(mesh: Mesh) -> None:
    source = (
        "from monarch_nb._transport import process_context\nfrom monarch_nb._wire import address\n"
        "oct(os.stat(address.dump_path(process_context.transport().directory, "
        "process_context.transport().me)).st_mode & 0o777)"
    )
    values = mesh.run(source).bundles
    assert {r: bundle["text/plain"] for r, bundle in values.items()} == dict.fromkeys(range(4), "'0o600'")


def test_a_rank_without_a_handler_is_not_sent_the_signal(mesh: Mesh) -> None:
    """Its default action would kill it."""
    mesh.run(f"import faulthandler; faulthandler.unregister({int(dump.NUMBER)})", "2")
    run = mesh.submit(HOLD, number=7)
    found = until(mesh, lambda f: f[2]["how"] != "asked" and (f[2]["stacks"] is None or holds(f)))[2]
    if found["stacks"] is None:
        assert "it has no handler for the signal; py-spy" in found["missing"]
    else:
        assert found["how"] == "py-spy" and "in hold" in found["stacks"]["MainThread"]
    assert mesh.status().ranks[2].state != "lost"
    os.kill(mesh.status().ranks[2].pid, signal.SIGINT)
    run.wait(PATIENCE_S)
    mesh.restart("2")
    mesh.run("import ctypes, time, os, signal, threading", "2")


def test_a_stopped_rank_says_so(mesh: Mesh) -> None:
    pid = mesh.status().ranks[1].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        found = until(mesh, lambda f: bool(f[1]["process"]), ranks="1")[1]
        assert "is stopped by a signal" in found["process"]
        assert found["how"] != "faulthandler"
    finally:
        os.kill(pid, signal.SIGCONT)
    assert len(mesh.run("rank").bundles) == 4


@pytest.mark.skipif(not find_py_spy(), reason="py-spy is not installed")
def test_native_frames(held: Mesh) -> None:
    found = held.stacks("2", native=True)[2]
    if found["stacks"] is None or found["how"] == "faulthandler":
        assert "no native frames: py-spy" in found["missing"]  # a container without ptrace
        return
    assert found["how"] == "py-spy, with native frames"
    text = stacks_text({2: found})
    assert "In[7], line 2, in hold\n    ctypes.PyDLL(None).sleep(600)" in text and "libc" in text


def test_without_py_spy_it_is_said(held: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    from monarch_nb._host.agent import stack_service

    monkeypatch.setattr(stack_service, "find_py_spy", lambda: "")
    found: dict[str, Any] = {"stacks": None, "how": "", "missing": "it has no handler for the signal"}
    stack_service._by_py_spy(stack_service._Target(1, os.getpid()), found, native=False)
    assert (
        found["missing"]
        == "it has no handler for the signal; py-spy is not installed on its host: pip install py-spy"
    )
    assert stacks_text({1: {**found, "process": ""}}) == (
        "rank 1: does not answer: its threads can't run Python just now (it has no handler for the signal; "
        "py-spy is not installed on its host: pip install py-spy)"
    )


DUMP = """Current thread 0x00000000000000aa (most recent call first):
  File "/x/monarch_nb/_transport/reader.py", line 9 in _keep
  File "/lib/python3.11/threading.py", line 1 in run

Thread 0x00000000000000bb (most recent call first):
  File "<ipython-input-5-ab>", line 2 in hold
  File "<ipython-input-5-ab>", line 3 in <module>
"""


def test_what_faulthandler_writes() -> None:
    found = from_faulthandler(DUMP, 0xBB)
    assert list(found) == ["monarch_nb-reader", "MainThread"]
    assert found["MainThread"] == (
        '  File "<ipython-input-5-ab>", line 3, in <module>\n  File "<ipython-input-5-ab>", line 2, in hold\n'
    )
    assert is_whole(DUMP, 0xBB)
    assert not is_whole(DUMP[:250], 0xBB)
    assert not is_whole(DUMP.rstrip("\n"), 0xBB)


def test_what_py_spy_prints() -> None:
    frames = (
        '[{"name": "nanosleep", "filename": "libc.so.6", "line": 0}, {"name": "f", "filename": '
        '"<string>", "line": 4}]'
    )
    data = f'[{{"thread_name": null, "os_thread_id": 7, "frames": {frames}}}]'.encode()
    assert from_py_spy(data) == {
        "thread-7": '  File "<string>", line 4, in f\n  File "libc.so.6", in nanosleep\n'
    }
    with pytest.raises(ValueError):
        from_py_spy(b"Error: permission denied")
