"""The WebSocket: full state, then what changes; a slow reader gets fewer messages; nothing runs when
nobody looks.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from monarch_nb import mesh as meshes_of_user
from monarch_nb._client import launch
from monarch_nb._server.meshes import Meshes
from monarch_nb.mesh import Mesh

pytestmark = pytest.mark.timeout(120)


def rank_is(rank: int, state: str) -> Any:
    """Return whether a message says that a rank is in a state."""

    def wanted(message: dict[str, Any]) -> bool:
        rows = message.get("status", message).get("ranks", ())
        return any((r["rank"], r["state"]) == (rank, state) for r in rows)

    return wanted


async def test_ranks_go_busy_and_idle(page: Any, demo: Mesh) -> None:
    socket = await page()
    await socket.send(op="watch", id=7, what="status", mesh="demo")
    first = await socket.read()
    assert (first["type"], first["id"]) == ("status", 7)
    run = demo.submit("import time\ntime.sleep(600)", "1-2")
    busy = await socket.until(rank_is(2, "busy"))
    assert busy["type"] == "delta"
    row = next(r for r in busy["ranks"] if r["rank"] == 2)
    assert row["doing"] == f"cell #{row['cell']}"
    await socket.until(lambda m: any("time.sleep(600)" in r["line"] for r in m.get("ranks", ())))
    demo.interrupt()
    await socket.until(rank_is(2, "idle"))
    run.wait()


async def test_a_lost_rank_says_why_and_a_mesh_that_ends_is_gone(page: Any, demo: Mesh) -> None:
    socket = await page()
    await socket.send(op="watch", id=1, what="status", mesh="demo")
    first = await socket.read()
    os.kill(first["status"]["ranks"][3]["pid"], signal.SIGKILL)
    lost = await socket.until(rank_is(3, "lost"))
    row = next(r for r in lost["ranks"] if r["rank"] == 3)
    assert "killed by SIGKILL" in row["reason"]
    demo.stop(grace_s=0.0)
    gone = await socket.until(lambda m: m["type"] == "gone")
    assert gone["reason"].startswith("mesh 'demo' was stopped by ")


async def test_the_list_follows_meshes_as_they_come_and_go(page: Any, demo: Mesh) -> None:
    socket = await page()
    await socket.send(op="watch", id=1, what="meshes")
    await socket.until(lambda m: any(r["states"] == {"idle": 4} for r in m["meshes"]))
    demo.stop(grace_s=0.0)
    await socket.until(lambda m: m["meshes"] == [])


async def test_a_slow_reader_gets_one_message_for_many_changes(
    page: Any, demo: Mesh, jp_web_app: Any
) -> None:
    slow, quick = await page(), await page()
    slow.takes = False
    for socket in (slow, quick):
        await socket.send(op="watch", id=1, what="status", mesh="demo")
    await slow.read()
    loop = asyncio.get_running_loop()
    for _ in range(5):
        await loop.run_in_executor(None, lambda: demo.run("import time; time.sleep(0.06); print(rank)"))
    last = demo.submit("import time; time.sleep(600)")
    await quick.until(lambda m: any(r["cell"] == last.n for r in m.get("ranks", ())))
    await slow.send(op="taken", id=1)
    message = await slow.read()
    # The newest state at once, and nothing of what was in between.
    assert {r["cell"] for r in message["ranks"]} == {last.n}
    demo.interrupt()
    last.wait()


async def test_logs_are_followed(page: Any, demo: Mesh) -> None:
    socket = await page()
    await socket.send(op="watch", id=1, what="logs", mesh="demo", ranks="1", grep="", after=None)
    loop = asyncio.get_running_loop()
    seen: list[str] = []

    async def read() -> None:
        while "last of 1" not in seen:
            seen.extend(line["text"] for line in (await socket.read())["lines"])

    reading = asyncio.ensure_future(read())
    while not seen:  # it follows from when the server has looked first
        await loop.run_in_executor(None, lambda: demo.run("print('first of', rank)"))
    await loop.run_in_executor(
        None, lambda: demo.run("for i in range(2000): print(i, rank)\nprint('last of', rank)")
    )
    await asyncio.wait_for(reading, 60)
    assert [s for s in seen if not s.startswith("first")] == [*(f"{i} 1" for i in range(2000)), "last of 1"]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"op": "watch", "id": 3, "what": "status", "mesh": "nope"}, "'nope' is not running"),
    ({"op": "watch", "id": 3, "what": "weather"}, "what must be meshes or allocations, or status, debug"),
    ({"op": "watch", "id": 3, "what": "logs", "mesh": "demo", "ranks": 4}, "both text"),
    ({"op": "watch", "id": 3, "what": "logs", "mesh": "demo", "ranks": "9"}, "9"),
    ({"op": "watch", "id": 3, "what": "logs", "mesh": "demo", "grep": "("}, "not a regular expression"),
    ({"op": "watch"}, "expected"),
]


async def test_what_cannot_be_watched_is_said(page: Any, demo: Mesh) -> None:
    socket = await page()
    for message, words in BAD:
        await socket.send(**message)
        answer = await socket.read()
        assert answer["type"] == "error" and words in answer["message"]
    await socket.send(op="watch", id=4, what="status", mesh="demo")
    assert (await socket.read())["type"] == "status"


async def test_the_list_goes_on_after_an_error(
    page: Any, demo: Mesh, caplog: pytest.LogCaptureFixture
) -> None:
    """The runtime directory can't be read for a while, as on a file system that hangs; a mesh that's
    started afterwards is found.
    """
    socket = await page()
    await socket.send(op="watch", id=1, what="meshes")
    await socket.until(lambda m: any(r["states"] for r in m["meshes"]))
    runtime = Path(launch.runtime_directory())
    away = runtime.rename(runtime.with_name("away"))
    runtime.touch()
    try:
        while "the list of meshes can't be brought up to date" not in caplog.text:
            await asyncio.sleep(0.05)
    finally:
        runtime.unlink()
        away.rename(runtime)
    loop = asyncio.get_running_loop()
    other = await loop.run_in_executor(None, lambda: meshes_of_user.start("other", {"procs": 1}))
    await socket.until(lambda m: {r["name"] for r in m["meshes"] if r["states"]} == {"demo", "other"})
    await loop.run_in_executor(None, lambda: other.stop(grace_s=0.0).get(30))


async def test_with_no_page_there_is_no_connection(
    page: Any, demo: Mesh, jp_web_app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monarch_nb._server.link.LINGER_S", 0.0)
    meshes: Meshes = jp_web_app.settings["monarch_nb_meshes"]
    assert meshes.num_links == 0
    socket = await page()
    await socket.send(op="watch", id=1, what="meshes")
    await socket.until(lambda m: any(r["states"] for r in m["meshes"]))
    assert meshes.num_links == 1
    socket.raw.close()
    while meshes.num_links:
        await asyncio.sleep(0.01)
    assert not [t for t in asyncio.all_tasks() if "MeshList" in repr(t)]
